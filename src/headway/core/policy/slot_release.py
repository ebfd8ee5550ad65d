"""When busy slots become free."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

POINTS = 8  # Values for the remaining run time of one job: enough for p50 and p90 of one slot.
POINTS_TOGETHER = 192  # Values for all running jobs of a small pool: the first of many slots becomes free early.
POINTS_MOST = 24  # Values for each of them.
SLOTS_MAX = 32  # Slots that stand for all others, so that a forecast costs the same in a large pool.


def points_for(jobs: int) -> int:
    """Return how many values to compute for each of some running jobs."""
    return max(POINTS, min(POINTS_MOST, POINTS_TOGETHER // max(1, jobs)))


class SlotReleases:
    """When busy slots become free. Each has equally many points in time that are all equally likely."""

    def __init__(self, remaining: Sequence[list[float]], slots: int) -> None:
        busy = min(slots, len(remaining))
        step = max(1, -(-len(remaining) // SLOTS_MAX))
        kept = sorted(remaining, key=sum)[step // 2 :: step]
        self._free = slots - busy
        self._stands_for = busy / max(1, len(kept))  # Slots for each that is kept.
        self._count = len(kept[0]) if kept else 1
        moments = sorted([(point, at) for at, left in enumerate(kept) for point in left])
        self._points = [point for point, _ in moments]
        # Up to each point: the sums of the points and of their squares, and then over all slots the sums of the squares
        # of their numbers of points, of these times their sums, and of the squares of their sums.
        passed, seconds = [0] * len(kept), [0.0] * len(kept)
        sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._sums = [sums]
        for point, at in moments:
            count, before = passed[at], seconds[at]
            sums = (
                sums[0] + point,
                sums[1] + point * point,
                sums[2] + 2 * count + 1,
                sums[3] + count * point + before + point,
                sums[4] + 2 * before * point + point * point,
            )
            self._sums.append(sums)
            passed[at], seconds[at] = count + 1, before + point

    def due(self, now: float) -> float:
        """Return how many of these slots have become free by a moment."""
        return self._free + bisect_right(self._points, now) / self._count * self._stands_for

    def doubt(self, now: float, mean: float) -> float:
        """Return the variance of how many jobs with this mean run time the slots could have started by a moment."""
        at = bisect_right(self._points, now)
        most = 1.0 + now / mean  # Jobs that a slot can start which was free from the beginning.
        first, second, counts, mixed, squares = self._sums[at]
        whole = at * most * most - 2.0 * most * first / mean + second / (mean * mean)
        means = counts * most * most - 2.0 * most * mixed / mean + squares / (mean * mean)
        return max(0.0, whole / self._count - means / (self._count * self._count)) * self._stands_for
