"""Writes a policy as plain values in one canonical form, which ``read_policy`` reads again."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from headway.core.policy.document import LIMIT_SCOPES, Lane, LimitRule, Policy, Rung, TaskRule
from headway.core.policy.units import write_length, write_rate, write_seconds


def policy_data(policy: Policy) -> dict[str, Any]:
    """Return a policy as plain values with every key. Equal policies give equal data, in the same order."""
    lanes = sorted(policy.lanes.items(), key=lambda item: (item[1].level, item[0]))
    reserve, retry, ladder, tenants, keep = policy.reserve, policy.retry, policy.ladder, policy.tenants, policy.keep
    return {
        "promotion": policy.promotion,
        "default_lane": policy.default_lane,
        "max_depth": policy.max_depth,
        "crash_limit": policy.crash_limit,
        "reserve": {
            "lanes": sorted(reserve.lanes),
            "slots": reserve.slots,
            "scope": reserve.scope,
            "rule": reserve.rule,
        },
        "lanes": {name: _lane_data(lane) for name, lane in lanes},
        "retry": {
            "backoff": retry.backoff,
            "base": write_seconds(retry.base_ms),
            "cap": write_seconds(retry.cap_ms),
            "jitter": _plain(retry.jitter),
            "timeout_growth": _plain(policy.timeout_growth),
            "timeout_growth_cap": _plain(policy.timeout_growth_cap),
        },
        "ladder": {
            "rungs": [_rung_data(rung) for rung in ladder.rungs],
            "victim": ladder.victim,
            "lower": ladder.lower,
        },
        "tenants": {
            "default_weight": _plain(tenants.default_weight),
            "weights": {name: _plain(weight) for name, weight in sorted(tenants.weights.items())},
            "max_depth": tenants.max_depth,
            "max_depths": dict(sorted(tenants.max_depths.items())),
        },
        "keep": {
            "completed": write_length(keep.completed_ms),
            "failed": write_length(keep.failed_ms),
            "cancelled": write_length(keep.cancelled_ms),
            "dead_letter": write_length(keep.dead_letter_ms),
            "idempotency": write_length(keep.idempotency_ms),
            "completed_max": keep.completed_max,
            "failed_max": keep.failed_max,
            "cancelled_max": keep.cancelled_max,
            "dead_letter_max": keep.dead_letter_max,
        },
        "limits": {name: _limit_data(rule) for name, rule in sorted(policy.limits.items())},
        "tasks": {name: _task_data(rule) for name, rule in sorted(policy.tasks.items())},
    }


def _lane_data(lane: Lane) -> dict[str, Any]:
    return {
        "level": lane.level,
        "weight": _plain(lane.weight),
        "max_retries": lane.max_retries,
        "timeout": write_seconds(lane.timeout_ms),
        "promote_after": [write_seconds(length_ms) for length_ms in lane.promote_after_ms],
    }


def _rung_data(rung: Rung) -> dict[str, Any]:
    # Written out in digits, since repr would write a tiny percentage with an exponent.
    limit = rung.limit if rung.percent is None else f"{Decimal(repr(_plain(rung.percent))):f}%"
    return _given(name=rung.name, seconds=write_seconds(rung.length_ms), limit=limit)


def _limit_data(rule: LimitRule) -> dict[str, Any]:
    rated = rule.count is not None
    return _given(
        concurrency=rule.concurrency,
        rate=None if rule.count is None else write_rate(rule.count, rule.period_ms),
        burst=rule.burst if rated else None,
        by=rule.by,
        tasks=list(rule.tasks) or None,
        scope=None if rule.scope == LIMIT_SCOPES[0] else rule.scope,
    )


def _task_data(rule: TaskRule) -> dict[str, Any]:
    return _given(
        priority=rule.priority,
        duration=rule.duration,
        timeout=None if rule.timeout_ms is None else write_seconds(rule.timeout_ms),
        max_retries=rule.max_retries,
    )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _plain(number: float) -> float:
    """Return a whole number as an int, so that 6 and 6.0 are the same policy."""
    return int(number) if number == int(number) else number
