"""The outcome of a replay: the wait of each job, and how busy the slots were."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field

NEVER = -1  # The wait of a job that never started.
BUCKETS_MAX = 96  # Points of a drawing over time, few enough to read and to keep for every lane.


@dataclass(slots=True)
class LanePromise:
    """A lane's guarantee by the policy, and the seconds by which its worst job missed it."""

    lane: str
    slots: float
    after_ms: int
    jobs: int = 0  # Jobs that waited longer than the promise allows,
    late_ms: int = 0  # and by how much at most.


@dataclass(slots=True)
class Outcome:
    """The result of one replay under one policy. ``waits``, ``lanes`` and ``busy`` are by job, in order."""

    waits: array[int]
    lanes: list[str]
    busy: array[int]
    span_ms: int = 0  # From the first arrival until the last end.
    slot_ms: int = 0  # The time of all slots together over that span.
    bucket_ms: int = 1
    busy_over_time: dict[str, list[int]] = field(default_factory=dict)  # By lane: busy milliseconds of each bucket.
    totals: Counter[str] = field(default_factory=Counter)  # Endings, expired, timeouts, lowered, never started.
    reserve_idle_ms: int = 0  # How long a reserved slot was idle while a job outside the reserve waited.
    promises: list[LanePromise] = field(default_factory=list)

    @property
    def busy_ms(self) -> int:
        return sum(self.busy)


def bucket_size(span_ms: int) -> int:
    """Return the length of a bucket: a round number of seconds that gives at most ``BUCKETS_MAX`` buckets."""
    for size in (1, 5, 10, 30, 60, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400):
        if span_ms <= size * 1_000 * BUCKETS_MAX:
            return size * 1_000
    return -(-span_ms // BUCKETS_MAX)
