"""When busy slots become free."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

POINTS = 8  # Values for the remaining run time of one job: enough for p50 and p90.
POINTS_MAX = 256  # Values for all running jobs together, so that a forecast costs the same in a large pool.


class SlotReleases:
    """When busy slots become free: points in time that are all equally likely."""

    def __init__(self, remaining: Sequence[list[float]], slots: int) -> None:
        busy = sorted([point for left in remaining for point in left])
        free = max(0, slots - len(remaining)) * POINTS  # Points at 0.0, of slots that are free.
        step = max(1, -(-(free + len(busy)) // POINTS_MAX))
        # Take each `step`-th of all points in order. The points of free slots may be millions, so no list holds them.
        kept = range(step // 2, free + len(busy), step)
        self._slots = slots
        self._points = points = [0.0 if at < free else busy[at - free] for at in kept]
        self._sums = [0.0, *accumulate(points)]
        self._squares = [0.0, *accumulate(point * point for point in points)]
        # The part of the points' variance that is uncertain. The rest is that jobs differ in how long they still run.
        whole = slots * _variance(points)
        self._unknown = sum(map(_variance, remaining)) / whole if whole > 0 else 0.0

    def due(self, now: float) -> float:
        """Return how many of these slots have become free by a moment."""
        return bisect_right(self._points, now) / len(self._points) * self._slots if self._points else 0.0

    def doubt(self, now: float, mean: float) -> float:
        """Return the variance of how many jobs with this mean run time the slots could have started by a moment."""
        if not self._points:
            return 0.0
        count, at = len(self._points), bisect_right(self._points, now)
        most = 1.0 + now / mean  # Jobs that a slot can start which was free from the beginning.
        sums, squares = self._sums[at] / mean, self._squares[at] / (mean * mean)
        first, second = at * most - sums, at * most * most - 2.0 * most * sums + squares
        return max(0.0, second / count - (first / count) ** 2) * self._slots * self._unknown


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / max(1, len(values))
    return sum([(value - mean) ** 2 for value in values]) / max(1, len(values))
