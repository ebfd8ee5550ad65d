"""Rules compiled to flat JSON, so that the scripts decide only what must be decided on the server."""

from __future__ import annotations

from typing import Any

import msgspec

from headway.core.policy.document import TENANT, LimitRule
from headway.core.policy.enforced import EnforcedRules, counter_name

_encode = msgspec.json.Encoder().encode


def compile_rules(rules: EnforcedRules) -> bytes:
    """Write rules for ``limits.lua``."""
    reserve = rules.pool_reserve
    return _encode(
        {
            "limits": {name: _limit(name, rule) for name, rule in rules.limits.items()},
            "rungs": [_clean({"name": r.name, "limit": r.limit, "percent": r.percent}) for r in rules.rungs],
            "reserve": {
                "slots": reserve.slots,
                "lanes": _names(reserve.lanes),
                "leave_free": reserve.rule == "leave_free",
            }
            if reserve is not None
            else False,
            "default_weight": rules.default_weight,
            "weights": dict(rules.weights),
            "costs": dict(rules.costs_us),
            "everything": rules.paused.everything,
            "lanes": _names(rules.paused.lanes),
            "tasks": _names(rules.paused.tasks),
            "tenants": _names(rules.paused.tenants),
        }
    )


def lua_pattern(glob: str) -> str:
    """Translate a pattern of ``fnmatch`` into a Lua pattern."""
    parts, at = ["^"], 0
    while at < len(glob):
        letter = glob[at]
        at += 1
        if letter == "*":
            parts.append(".*")
        elif letter == "?":
            parts.append(".")
        elif letter == "[" and (stop := glob.find("]", at + 1 + (glob[at : at + 1] == "!"))) > 0:
            inner = glob[at:stop]
            negated = inner.startswith("!")
            inner = inner[1:] if negated else inner
            parts.append(f"[{'^' if negated else ''}{inner.replace('%', '%%').replace('^', '%^')}]")
            at = stop + 1
        else:
            parts.append(letter if letter.isalnum() or ord(letter) > 127 else f"%{letter}")
    return "".join([*parts, "$"])


def _limit(name: str, rule: LimitRule) -> dict[str, Any]:
    return _clean(
        {
            "counter": counter_name(name),
            "most": rule.concurrency,
            "interval": rule.interval_us if rule.count is not None else None,
            "burst": rule.burst,
            "by_tenant": rule.by == TENANT or None,
            "param": rule.by not in (None, TENANT) or None,
            "tasks": [lua_pattern(glob) for glob in rule.tasks] or None,
        }
    )


def _clean(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _names(names: Any) -> dict[str, bool]:
    return dict.fromkeys(sorted(names), True)
