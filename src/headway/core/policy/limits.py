"""Limits: how many jobs at once, and how often. A store checks them in the transaction that claims."""

from __future__ import annotations

from headway.core.policy.document import LimitRule


def step_rate(rule: LimitRule, reached_us: int | None, now_us: int) -> tuple[int, int]:
    """Take one start from a rate, by the generic cell rate algorithm.

    ``reached_us`` is the moment up to which starts are used up. Returns the moment from which the next start is
    allowed, and the new value of ``reached_us``.
    """
    interval_us = rule.interval_us
    reached_us = max(reached_us or 0, now_us)
    return reached_us - (rule.burst - 1) * interval_us, reached_us + interval_us


def clamp_rate(rule: LimitRule | None, reached_us: int, now_us: int) -> int | None:
    """Return the used-up moment of an older rule bounded by this rule, or None if this rule has no rate."""
    if rule is None or rule.count is None:
        return None
    return min(reached_us, now_us + rule.burst * rule.interval_us)


def conforms_at(conforms_us: int) -> int:
    """Return the millisecond in which a start is allowed. Stores measure time and periods in milliseconds."""
    return conforms_us // 1_000
