"""The noise of figures, from a bootstrap over blocks of time. A smaller change means nothing."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from math import exp, log

from headway.simulate.groups import METRICS, PARTS, Members
from headway.simulate.job import SimulatedJob
from headway.simulate.outcome import NEVER, Outcome

BLOCK_MS = 600_000  # Ten minutes: longer than most bursts, so that blocks are nearly independent.
BLOCKS_LEAST = 20  # A short trace has shorter blocks, so that there are enough to draw from.
ROUNDS = 80  # Draws: enough for an interval of nine tenths.
STEPS = 50  # Values that differ by less than a fiftieth count as equal.
LEAST_MS = 10  # A change of fewer milliseconds is never shown: real workers differ by more.

_BOUNDS = (*PARTS.values(), 1.0)

# For each rounded wait: how many jobs of which block waited that long. Sorted by wait.
BlockCounts = list[tuple[float, list[tuple[int, int]]]]
# For each draw: the logarithms of p50, p90, p99, the longest and the mean, or nothing if it has no job of the group.
Draws = list[list[float]]


class Blocks:
    """Draws blocks of time with replacement. Equal traces give equal draws."""

    def __init__(self, jobs: Sequence[Sequence[SimulatedJob]]) -> None:
        span_ms = max((replayed[-1].arrives_ms for replayed in jobs if replayed), default=0) + 1
        self._jobs = jobs
        self._block_ms = max(1, min(BLOCK_MS, span_ms // BLOCKS_LEAST))
        self._each = span_ms // self._block_ms + 1
        count = self._each * len(jobs)
        chance = random.Random(count)
        self._draws = [Counter(chance.choices(range(count), k=count)) for _ in range(ROUNDS)]

    def draw(self, members: Sequence[tuple[int, int]], outcomes: Sequence[Outcome]) -> Draws:
        """Return the figures of a group for each draw of blocks."""
        counted = self._count(members, outcomes)
        found: Draws = []
        for weights in self._draws:
            walked: list[tuple[float, int]] = []
            total, whole = 0, 0.0
            for wait, here in counted:
                own = sum([weights[block] * count for block, count in here])
                if own:
                    total += own
                    whole += own * exp(wait)
                    walked.append((wait, total))
            found.append([*_figures(walked, total), log(whole / total)] if total else [])
        return found

    def _count(self, members: Sequence[tuple[int, int]], outcomes: Sequence[Outcome]) -> BlockCounts:
        counts: dict[int, Counter[int]] = {}
        for number, index in members:
            wait = outcomes[number].waits[index]
            if wait != NEVER:
                block = number * self._each + self._jobs[number][index].arrives_ms // self._block_ms
                counts.setdefault(round(STEPS * log(wait + LEAST_MS)), Counter())[block] += 1
        return [(step / STEPS, list(here.items())) for step, here in sorted(counts.items())]


def _figures(walked: Sequence[tuple[float, int]], total: int) -> list[float]:
    ends = [end for _, end in walked]
    return [walked[min(len(walked) - 1, bisect_left(ends, bound * total))][0] for bound in _BOUNDS]


def spread(before: Draws, after: Draws, metric: str) -> tuple[float, float]:
    """Return between which factors nine of ten draws changed a figure. Draws without such jobs do not count."""
    place = METRICS.index(metric)
    ratios = sorted(new[place] - old[place] for old, new in zip(before, after, strict=True) if old and new)
    if not ratios:
        return 1.0, 1.0
    edge = len(ratios) // 20
    return exp(ratios[edge]), exp(ratios[-1 - edge])


def is_noise(before: float, after: float, bounds: tuple[float, float]) -> bool:
    """Return whether a change, in seconds, is within its noise."""
    return abs(after - before) * 1_000 < LEAST_MS or bounds[0] <= 1.0 <= bounds[1]


def busiest(members: Members, most: int) -> list[str]:
    """Return the groups with the most jobs."""
    return sorted(members, key=lambda key: (-len(members[key]), key))[:most]
