"""What classes wait for, sampled: so that a job that ran can say what it had waited for, at no cost while it waits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headway.core.job import ClassKey, JobRecord
from headway.core.policy.enforced import PAUSE

GAP_MS = 3_000  # Samples further apart leave a gap: then there was no worker to take them.
UNSAMPLED = "unsampled"
UNSAMPLED_TOLD_MS = 1_000  # What is shorter lies between two samples and is not worth a word.


class WaitInterval(NamedTuple):
    """From one moment to another a class waited for one reason."""

    key: ClassKey
    from_at: int
    until_at: int
    reason: str


def append_sample(last: WaitInterval | None, key: ClassKey, reason: str, now_at: int) -> WaitInterval:
    """Take a sample: the last stretch goes on, or another begins where it ended."""
    if last is None or last.until_at + GAP_MS < now_at:
        return WaitInterval(key, now_at, now_at, reason)
    if last.reason == reason:
        return last._replace(until_at=now_at)
    return WaitInterval(key, last.until_at, now_at, reason)


def waited_ms(job: JobRecord, stretches: Sequence[WaitInterval]) -> dict[str, int]:
    """Return how long a job that has started had waited, by reason.

    Between two samples, and from the last one on, what was seen last still holds; in gaps there was no worker.
    """
    if job.eligible_at is None or job.started_at is None:
        return {}
    at, until_at = job.eligible_at, job.started_at - job.blocked_ms
    found: dict[str, int] = {}
    last = UNSAMPLED
    near = [s for s in stretches if s.until_at >= at - GAP_MS and s.from_at <= until_at]
    for stretch in sorted(near, key=lambda stretch: stretch.from_at):
        start_at, end_at = max(at, stretch.from_at), min(until_at, stretch.until_at)
        last = stretch.reason
        if end_at < start_at:  # It ended just before, and still holds.
            continue
        _add(found, last if start_at - at <= GAP_MS else "no_worker", start_at - at)
        _add(found, last, end_at - start_at)
        at = end_at
    _add(found, last if until_at - at <= GAP_MS else "no_worker", until_at - at)
    if job.blocked_for is not None:
        _add(found, job.blocked_for, job.blocked_ms)
    if found.get(UNSAMPLED, 0) < UNSAMPLED_TOLD_MS:
        found.pop(UNSAMPLED, None)
    return {reason: length_ms for reason, length_ms in found.items() if length_ms > 0}


def blocked_queue_reason(key: str, *, is_rate: bool) -> str:
    """Return in a word what jobs in a park wait for."""
    return "paused" if key.startswith(PAUSE) else "rate" if is_rate else "limit"


def _add(found: dict[str, int], reason: str, length_ms: int) -> None:
    found[reason] = found.get(reason, 0) + length_ms
