"""What was learned from jobs that ran: how long they take, and how often they come."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import exp, floor, log, log2, sqrt
from typing import NamedTuple

A_DOUBLING = 4  # Buckets from one length to twice that: a length is known to within a tenth.
ENOUGH = 10.0  # Jobs of which a length must be known before anything is said of it.
MANY = 200.0  # Jobs from which on a sketch is trusted as it is. With fewer, longer jobs may not have been seen yet.
UNSEEN = (2.0, 4.0)  # Such jobs are taken to last so many times as long as the longest one seen.
LOOKED_AT = (0.5, 0.75, 0.9)  # Which of the jobs that run are compared with what was learned: those at these parts.
LASTING = 0.002  # The part of all jobs below which none is known to have taken as long as one that still runs.
STAGES_MAX = 3  # Stages of a phase.
SHORTEST = 1e-6  # Seconds; what is shorter counts as this.

Sketch = Mapping[int, float]  # How many jobs took how long, by bucket. Two are merged by adding them up.


def bucket(seconds: float) -> int:
    """Return the bucket of a sketch that a length falls into."""
    return floor(log2(seconds if seconds > SHORTEST else SHORTEST) * A_DOUBLING)


def merge(sketches: Iterable[Sketch]) -> dict[int, float]:
    """Add sketches up."""
    whole: dict[int, float] = {}
    for sketch in sketches:
        for at, count in sketch.items():
            whole[at] = whole.get(at, 0.0) + count
    return whole


def decay(sketch: Sketch, most: float) -> dict[int, float]:
    """Let the past fade: a sketch stands for so many jobs at most."""
    count = sum(sketch.values())
    if count <= most:
        return dict(sketch)
    part = most / count
    return {at: kept for at, weight in sketch.items() if (kept := weight * part) > most * 1e-4}


class Phase(NamedTuple):
    """Some of the jobs of a kind: the part of all that they are, and their mean length in seconds.

    The more alike they are, the more ``stages`` they go through, one after the other, each of any length.
    """

    part: float
    mean: float
    stages: int = 1


class Lengths:
    """A sketch, made quick to ask: how long do such jobs take, and how much longer those that run already?"""

    def __init__(self, sketch: Sketch) -> None:
        self.sketch = sketch
        buckets = [
            (2.0 ** (at / A_DOUBLING), 2.0 ** ((at + 1) / A_DOUBLING), count) for at, count in sorted(sketch.items())
        ]
        self.count = sum(count for _, _, count in buckets)
        self._ends = [0.0]
        self._below = [0.0]  # How many are no longer than that.
        first = second = below = 0.0
        for begins, ends, count in buckets:
            if begins > self._ends[-1]:
                self._ends.append(begins)
                self._below.append(below)
            middle = (begins + ends) / 2
            first += count * middle
            second += count * middle * middle
            below += count
            self._ends.append(ends)
            self._below.append(below)
        self.mean = first / self.count if self.count else 0.0
        self.variance = max(0.0, second / self.count - self.mean * self.mean) if self.count else 0.0
        # Where short and long jobs are mixed, the short ones let others start long before the mean says so.
        self.phases = _phases(buckets, self.mean)

    def at(self, part: float) -> float:
        """Return the seconds that this part of them does not exceed."""
        return self._at(part * self.count)

    def left(self, elapsed: float, points: int) -> list[float]:
        """Return for how many seconds a job that has run this long goes on: ``points`` values, all equally likely."""
        at = bisect_right(self._ends, elapsed) - 1
        gone = self._below[at]
        if at + 1 < len(self._ends):
            width = self._ends[at + 1] - self._ends[at]
            gone += (self._below[at + 1] - gone) * (elapsed - self._ends[at]) / width
        rest = self.count - gone
        if rest <= LASTING * self.count:  # None took that long. What has lasted goes on for a good part of that.
            return [-elapsed / 2 * log(1 - (point + 0.5) / points) for point in range(points)]
        return [max(0.0, self._at(gone + rest * (point + 0.5) / points) - elapsed) for point in range(points)]

    def longer(self, elapsed: float) -> float:
        """Return the part of such jobs, of those that run at any moment, that have run for longer than this."""
        rest = 0.0  # The seconds that all of them last beyond that moment, added up.
        for at in range(1, len(self._ends)):
            begins, ends = max(elapsed, self._ends[at - 1]), self._ends[at]
            if begins < ends:
                whole = self._ends[at] - self._ends[at - 1]
                above = self.count - self._below[at - 1]
                ending = (self._below[at] - self._below[at - 1]) / whole
                from_, until = begins - self._ends[at - 1], ends - self._ends[at - 1]
                rest += above * (until - from_) - ending * (until * until - from_ * from_) / 2
        return rest / (self.count * self.mean) if self.count and self.mean else 0.0

    def seen_with(self, running: Sequence[float]) -> Lengths:
        """Return these lengths as they are in view of jobs that run now, for so many seconds each.

        If more of them have run for long than these lengths explain, jobs of another kind have come. They then make up
        the part of all jobs that goes with the slots they fill, and are taken to last half as long again.
        """
        for part in LOOKED_AT:
            if self.count and running:
                bound = sorted(running)[int(part * len(running))]
                long = [elapsed for elapsed in running if elapsed >= bound]
                expected = len(running) * self.longer(bound)
                if len(long) > expected + 3 * sqrt(expected) + 1:
                    return self._joined_by(long, (len(long) - expected) / len(running))
        return self

    def _joined_by(self, long: Sequence[float], slots: float) -> Lengths:
        """Mix these lengths with those of jobs that have run for so long and fill this part of the slots."""
        mean = 1.5 * sum(long) / len(long)
        of_new, of_known = slots / mean, (1 - slots) / self.mean
        part = of_new / (of_new + of_known)
        new = merge({bucket(1.5 * elapsed): part * self.count / len(long)} for elapsed in long)
        return Lengths(merge([{at: count * (1 - part) for at, count in self.sketch.items()}, new]))

    def _at(self, below: float) -> float:
        at = min(max(1, bisect_right(self._below, below)), len(self._ends) - 1)
        fewer, more = self._below[at - 1], self._below[at]
        part = (below - fewer) / (more - fewer) if more > fewer else 1.0
        return self._ends[at - 1] + (self._ends[at] - self._ends[at - 1]) * min(1.0, part)


def _phases(buckets: Iterable[tuple[float, float, float]], mean: float) -> tuple[Phase, ...]:
    """Split jobs into those shorter than the mean and those longer."""
    sums = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    for begins, ends, count in buckets:
        middle = (begins + ends) / 2
        for at, value in enumerate((count, count * middle, count * middle * middle)):
            sums[middle > mean][at] += value
    total = sum(count for count, _, _ in sums)
    return tuple(
        Phase(count / total, first / count, _stages(first / count, second / count))
        for count, first, second in sums
        if count
    )


def _stages(mean: float, square: float) -> int:
    return max(1, min(STAGES_MAX, round(mean * mean / max(1e-12, square - mean * mean))))


def up_to(seconds: float) -> Lengths:
    """Return the lengths of jobs of which only the longest is known: any shorter one is as likely."""
    return Lengths({bucket(seconds * part): ENOUGH for part in (0.125, 0.375, 0.625, 0.875)})


class Arrivals(NamedTuple):
    """How the jobs of one tenant come to one lane: so many at a time, so many times a second.

    ``steady`` tells those that come again and again from those that come in rare, large bursts.
    """

    size: float
    times: float
    steady: bool = True

    @property
    def rate(self) -> float:
        return self.size * self.times

    def within(self, seconds: float) -> float:
        """Count those that come in so many seconds, in half of all cases: of rare bursts none at first."""
        if self.steady:
            return self.rate * seconds
        times = self.times * seconds + 0.4
        whole = floor(times)
        return self.size * (whole + max(0.0, (times - whole - 0.7) / 0.3))  # Without a jump at any moment.


class LaneArrivals:
    """All that comes to a lane, quick to sum up to a bound for each tenant."""

    def __init__(self, by_tenant: Mapping[str, Arrivals]) -> None:
        self._of = by_tenant
        self._rates = sorted(coming.rate for coming in by_tenant.values() if coming.steady)
        self._sums = [0.0]
        for rate in self._rates:
            self._sums.append(self._sums[-1] + rate)
        self.rate = self._sums[-1]  # Jobs a second, without bursts,
        self._together = sum(coming.rate * coming.size for coming in by_tenant.values() if coming.steady)
        self.batch = self._together / self.rate if self.rate > 0 else 1.0  # and how many come with any one of them.
        self.bursts = [(tenant, coming) for tenant, coming in by_tenant.items() if not coming.steady]

    def within(self, seconds: float) -> float:
        """Count those that come in so many seconds, in half of all cases, without bursts."""
        return _half(self.rate * seconds, self.batch)

    def burst(self, seconds: float) -> float:
        """Count those that bursts bring in so many seconds."""
        return sum([coming.within(seconds) for _, coming in self.bursts])

    def burst_variance(self, seconds: float) -> float:
        """Return the variance of that."""
        return sum([coming.size * coming.size * coming.times * seconds for _, coming in self.bursts])

    def of_others(self, tenant: str, seconds: float, most: float) -> tuple[float, float]:
        """Count the jobs that all but one tenant bring in so many seconds, each at most so many; and the variance."""
        if seconds <= 0 or most <= 0:
            return 0.0, 0.0
        few = bisect_right(self._rates, most / seconds)
        count = seconds * self._sums[few] + most * (len(self._rates) - few)
        own = self._of.get(tenant)
        whole = self.batch
        if own is not None and own.steady:
            count -= min(most, own.rate * seconds)
            rest = self.rate - own.rate
            whole = (self._together - own.rate * own.size) / rest if rest > 1e-9 * self.rate else 1.0
        # Of a larger batch no more than that goes first; some are smaller than others.
        batch = min(whole, most)
        count *= 1.0 - (1.0 - 1.0 / whole) * exp(-2.0 * most / whole)
        count, variance = _half(count, batch), count * batch
        for other, coming in self.bursts:
            if other != tenant:
                count += min(most, coming.within(seconds))
                variance += min(most, coming.size) ** 2 * coming.times * seconds
        return count, variance


def _half(mean: float, batch: float) -> float:
    """Return what half of all cases do not exceed where jobs come in batches: less than the mean, the larger they are.

    It is the median of a gamma distribution, nearly, by Wilson and Hilferty.
    """
    part = 1.0 - batch / (9.0 * mean) if mean > 0 else 0.0
    return mean * part * part * part if part > 0 else 0.0


class ModelData(NamedTuple):
    """All that was learned. Lanes and tasks of which nothing is known are absent.

    ``lengths``: by lane and task, sketches. ``shares``: by lane and task, how often it comes beside the others there;
    without one, as often as its sketch has jobs. ``arrivals``: by lane and tenant ('' for none), how jobs come.
    """

    lengths: Mapping[str, Mapping[str, Sketch]] = {}
    arrivals: Mapping[str, Mapping[str, Arrivals]] = {}
    shares: Mapping[str, Mapping[str, float]] = {}


class Model:
    """What was learned, made quick to ask. It changes nothing and remembers only what follows from it."""

    def __init__(self, learned: ModelData = ModelData()) -> None:  # noqa: B008  (it is frozen)
        self.learned = learned
        self._lanes: dict[str, Lengths | None] = {}
        self._tasks: dict[str, Lengths | None] = {}
        self._comers: dict[str, LaneArrivals] = {}

    def lane(self, lane: str) -> Lengths | None:
        """Return how long the jobs of a lane take, whatever their task; None if too little is known."""
        if lane not in self._lanes:
            self._lanes[lane] = _enough(self._mixed(lane))
        return self._lanes[lane]

    def lane_with(self, lane: str, running: Sequence[float]) -> Lengths | None:
        """Return how long the jobs of a lane take in view of those that run now, for so many seconds each."""
        usual = self.lane(lane)
        if usual is None or not running:
            return usual
        seen = Lengths(self._mixed(lane))
        changed = seen.seen_with(running)
        return usual if changed is seen else _enough(changed.sketch)

    def task(self, task: str, lane: str) -> Lengths | None:
        """Return how long the jobs of a task take; of one that is hardly known, as long as others of the lane."""
        if task not in self._tasks:
            self._tasks[task] = _enough(
                merge(tasks[task] for tasks in self.learned.lengths.values() if task in tasks)
            )  # fmt: skip
        return self._tasks[task] or self.lane(lane)

    def _mixed(self, lane: str) -> Sketch:
        """Mix the tasks of a lane as they come."""
        sketches, shares = self.learned.lengths.get(lane, {}), self.learned.shares.get(lane, {})
        counts = {task: sum(sketch.values()) for task, sketch in sketches.items()}
        weights = {task: shares.get(task, count) / count for task, count in counts.items() if count}
        whole = sum(weights[task] * counts[task] for task in weights)
        scale = sum(counts.values()) / whole if whole else 0.0
        return merge(
            {at: count * weights[task] * scale for at, count in sketches[task].items()} for task in weights
        )  # fmt: skip

    def comers(self, lane: str) -> LaneArrivals:
        """Return how jobs come to a lane."""
        if lane not in self._comers:
            self._comers[lane] = LaneArrivals(self.learned.arrivals.get(lane, {}))
        return self._comers[lane]


def _enough(sketch: Sketch) -> Lengths | None:
    return Lengths(_widened(sketch)) if sum(sketch.values()) >= ENOUGH else None


def _widened(sketch: Sketch) -> Sketch:
    """Add what few jobs have not shown yet: one job that lasts longer than any of them, the less the more there are."""
    count = sum(sketch.values())
    if count >= MANY:
        return sketch
    longest = max(at for at, some in sketch.items() if some)
    weight = (1.0 - count / MANY) / len(UNSEEN)
    return merge([sketch, *({longest + round(log2(times) * A_DOUBLING): weight} for times in UNSEEN)])


def doubt(count: float) -> float:
    """Return the part by which a mean length may be off that so few jobs have shown; 0 for many."""
    return max(0.0, 1.0 / sqrt(max(1.0, count)) - 1.0 / sqrt(MANY))
