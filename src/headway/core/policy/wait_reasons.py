"""Samples of why classes wait, so that a job can show its past reasons at no cost while it waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headway.core.job import ClassKey, JobRecord
from headway.core.policy.enforced import PAUSE

GAP_MS = 3_000  # Samples further apart leave a gap. Workers take one a second, so no worker was running then.
UNSAMPLED = "unsampled"
UNSAMPLED_SHOWN_MS = 1_000  # Shorter unsampled waits lie between two samples and are left out.


class WaitInterval(NamedTuple):
    """An interval in which a class waited for one reason."""

    key: ClassKey
    from_at: int
    until_at: int
    reason: str


def append_sample(last: WaitInterval | None, key: ClassKey, reason: str, now_at: int) -> WaitInterval:
    """Return the last interval extended to a sample, or a new interval that starts where the last one ended."""
    if last is None or last.until_at + GAP_MS < now_at:
        return WaitInterval(key, now_at, now_at, reason)
    if last.reason == reason:
        return last._replace(until_at=now_at)
    return WaitInterval(key, last.until_at, now_at, reason)


def waited_ms(job: JobRecord, intervals: Sequence[WaitInterval]) -> dict[str, int]:
    """Return how many milliseconds a job that has started had waited, by reason.

    Between two samples, and after the last one, the last reason still holds. Longer gaps mean that no worker ran.
    """
    if job.eligible_at is None or job.started_at is None:
        return {}
    at, until_at = job.eligible_at, job.started_at - job.blocked_ms
    found: dict[str, int] = {}
    last = UNSAMPLED
    near = [s for s in intervals if s.until_at >= at - GAP_MS and s.from_at <= until_at]
    for interval in sorted(near, key=lambda interval: interval.from_at):
        start_at, end_at = max(at, interval.from_at), min(until_at, interval.until_at)
        last = interval.reason
        if end_at < start_at:  # The interval ended just before, and its reason still holds.
            continue
        _add(found, last if start_at - at <= GAP_MS else "no_worker", start_at - at)
        _add(found, last, end_at - start_at)
        at = end_at
    _add(found, last if until_at - at <= GAP_MS else "no_worker", until_at - at)
    if job.blocked_for is not None:
        _add(found, job.blocked_for, job.blocked_ms)
    if found.get(UNSAMPLED, 0) < UNSAMPLED_SHOWN_MS:
        found.pop(UNSAMPLED, None)
    return {reason: length_ms for reason, length_ms in found.items() if length_ms > 0}


def blocked_queue_reason(key: str, *, is_rate: bool) -> str:
    """Return the reason code of jobs in the blocked queue of a counter."""
    return "paused" if key.startswith(PAUSE) else "rate" if is_rate else "limit"


def _add(found: dict[str, int], reason: str, length_ms: int) -> None:
    found[reason] = found.get(reason, 0) + length_ms
