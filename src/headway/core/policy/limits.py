"""Limits: how many at once, how often. A store checks them in the step that claims, so they are never exceeded."""

from __future__ import annotations

from headway.core.policy.document import LimitRule


def step_rate(rule: LimitRule, reached_us: int | None, now_us: int) -> tuple[int, int]:
    """Take one start from a rate, by the generic cell rate algorithm.

    ``reached_us`` is how far ahead its starts have been given away. Gives the moment from which the next start
    conforms, and how far it reaches then.
    """
    interval_us = rule.interval_us
    reached_us = max(reached_us or 0, now_us)
    return reached_us - (rule.burst - 1) * interval_us, reached_us + interval_us


def clamp_rate(rule: LimitRule | None, reached_us: int, now_us: int) -> int | None:
    """Bring what was given away under another rule in line with this one; None if it counts no starts."""
    if rule is None or rule.count is None:
        return None
    return min(reached_us, now_us + rule.burst * rule.interval_us)


def conforms_at(conforms_us: int) -> int:
    """Return the millisecond in which a start conforms: stores tell time by these, and so are stretches measured."""
    return conforms_us // 1_000
