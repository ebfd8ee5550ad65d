"""Writes a policy as plain values in one canonical form, which ``read_policy`` reads again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from headway.core.policy import keys
from headway.core.policy.document import LIMIT_SCOPES, LimitRule, Policy, Rung
from headway.core.policy.keys import Key, plain
from headway.core.policy.table_reader import key_path
from headway.core.policy.units import write_rate, write_seconds


def policy_data(policy: Policy) -> dict[str, Any]:
    """Return a policy as plain values with every key. Equal policies give equal data, in the same order."""
    lanes = sorted(policy.lanes.items(), key=lambda item: (item[1].level, item[0]))
    reserve, ladder, tenants, task_keys = policy.reserve, policy.ladder, policy.tenants, keys.task_keys()
    return {
        "promotion": policy.promotion,
        "release": policy.release,
        "default_lane": policy.default_lane,
        **_fields(policy, keys.POLICY),
        "reserve": {"lanes": sorted(reserve.lanes), "slots": reserve.slots, **_fields(reserve, keys.RESERVE)},
        "lanes": {
            name: _fields(lane, keys.LANE) | {"promote_after": [write_seconds(ms) for ms in lane.promote_after_ms]}
            for name, lane in lanes
        },
        "retry": _fields(policy.retry, keys.RETRY) | _fields(policy, keys.GROWTH),
        "ladder": {"rungs": [_rung_data(rung) for rung in ladder.rungs], **_fields(ladder, keys.LADDER)},
        "tenants": {
            "default_weight": plain(tenants.default_weight),
            "weights": {name: plain(weight) for name, weight in sorted(tenants.weights.items())},
            "max_depth": tenants.max_depth,
            "max_depths": dict(sorted(tenants.max_depths.items())),
        },
        "keep": _fields(policy.keep, keys.KEEP),
        "limits": {name: _limit_data(rule) for name, rule in sorted(policy.limits.items())},
        "tasks": {name: _given(**_fields(rule, task_keys)) for name, rule in sorted(policy.tasks.items())},
    }


def flat_data(data: Mapping[str, Any], outer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a policy's data with the path of its key."""
    for key, value in data.items():
        path = key_path(outer, key)
        if isinstance(value, Mapping):
            yield from flat_data(value, path)
        else:
            yield path, value


def _fields(part: object, written: Iterable[Key]) -> dict[str, Any]:
    values = {key: getattr(part, key.field) for key in written}
    return {key.name: None if value is None else key.write(value) for key, value in values.items()}


def _rung_data(rung: Rung) -> dict[str, Any]:
    # Written out in digits, since repr would write a tiny percentage with an exponent.
    limit = rung.limit if rung.percent is None else f"{Decimal(repr(plain(rung.percent))):f}%"
    return _given(name=rung.name, seconds=write_seconds(rung.length_ms), limit=limit)


def _limit_data(rule: LimitRule) -> dict[str, Any]:
    return _given(
        concurrency=rule.concurrency,
        rate=None if rule.count is None else write_rate(rule.count, rule.period_ms),
        burst=None if rule.count is None else rule.burst,
        by=rule.by,
        tasks=list(rule.tasks) or None,
        scope=None if rule.scope == LIMIT_SCOPES[0] else rule.scope,
    )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
