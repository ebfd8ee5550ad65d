"""Learned distributions: how long jobs run, and how often they arrive."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from math import exp, floor, log, log2, sqrt
from typing import NamedTuple

BUCKETS_PER_DOUBLING = 4  # From one run time to twice that. A run time is then known to within a tenth.
TASK_JOBS_MIN = 3.0  # Finished jobs of a task before its own sketch says more about it than that of its lane.
JOBS_TRUSTED = 200.0  # Finished jobs from which a sketch is used as it is. With fewer, longer jobs may be unseen.
UNSEEN_FACTORS = (2.0, 4.0)  # Run times of unseen jobs, as multiples of the longest job seen.
UNSEEN_JOBS = 10.0  # Finished jobs beside which one unseen job is assumed, and a part of one beside fewer.
COMPARED_QUANTILES = (0.5, 0.75, 0.9)  # The quantiles of running jobs that are compared with the sketch.
USUAL = 0.9  # Part of all jobs. Jobs that run no longer than these are no surprise, however many run at a time.
DECLARED_JOBS = 40.0  # Finished jobs whose mean is as certain as a declared duration.
TAIL_MIN = 0.002  # Part of all jobs. Below it the sketch knows nothing about jobs that run this long.
STAGES_MAX = 3  # Stages of a phase: more describe alike jobs better but cost time in every step of a forecast.
LIKELY_TIMES = 0.3  # Expected arrivals from which one is likely enough to move p90, as with a normal distribution.
OBSERVED = 3_600.0  # Seconds for which arrivals are recorded: those longer ago count little.
SHORTEST = 1e-6  # Seconds. Shorter run times count as this, since a logarithm needs a positive number.

Sketch = Mapping[int, float]  # The number of jobs by bucket of run time. Two sketches are merged by adding them up.


def bucket(seconds: float) -> int:
    return floor(log2(seconds if seconds > SHORTEST else SHORTEST) * BUCKETS_PER_DOUBLING)


def middle(at: int) -> float:
    """Return the middle of a bucket in seconds."""
    begins: float = 2.0 ** (at / BUCKETS_PER_DOUBLING)
    ends: float = 2.0 ** ((at + 1) / BUCKETS_PER_DOUBLING)
    return (begins + ends) / 2


def merge(sketches: Iterable[Sketch]) -> dict[int, float]:
    whole: dict[int, float] = {}
    for sketch in sketches:
        for at, count in sketch.items():
            whole[at] = whole.get(at, 0.0) + count
    return whole


def decay(sketch: Sketch, most: float) -> dict[int, float]:
    """Return a sketch scaled down to at most ``most`` jobs, so that new jobs outweigh old ones."""
    count = sum(sketch.values())
    if count <= most:
        return dict(sketch)
    part = most / count
    return {at: scaled for at, weight in sketch.items() if (scaled := weight * part) > most * 1e-4}


class Phase(NamedTuple):
    """A part of the jobs of a lane, with their mean run time in seconds.

    An Erlang distribution: the more alike the run times are, the more ``stages`` follow one another.
    """

    part: float
    mean: float
    stages: int = 1


class Lengths:
    """The distribution of run times that a sketch describes, indexed for fast queries.

    ``scale``: by how much all run times are longer than the middles of their buckets, so that the mean is exact.
    """

    def __init__(self, sketch: Sketch, scale: float = 1.0) -> None:
        self.sketch = sketch
        self.scale = scale
        buckets = [
            (scale * 2.0 ** (at / BUCKETS_PER_DOUBLING), scale * 2.0 ** ((at + 1) / BUCKETS_PER_DOUBLING), count)
            for at, count in sorted(sketch.items())
        ]
        self.count = sum(count for _, _, count in buckets)
        self._ends = [0.0]
        self._below = [0.0]  # How many jobs run no longer than the end at the same index.
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
        # Where short and long jobs are mixed, the short ones free slots long before the mean run time has passed.
        self.phases = _phases(buckets, self.mean)

    def at(self, part: float) -> float:
        """Return a quantile in seconds: this part of the jobs runs no longer."""
        return self._at(part * self.count)

    def left(self, elapsed: float, points: int) -> list[float]:
        """Return equally likely values of the seconds that a job goes on running after ``elapsed`` seconds."""
        at = bisect_right(self._ends, elapsed) - 1
        gone = self._below[at]
        if at + 1 < len(self._ends):
            width = self._ends[at + 1] - self._ends[at]
            gone += (self._below[at + 1] - gone) * (elapsed - self._ends[at]) / width
        rest = self.count - gone
        if rest <= TAIL_MIN * self.count:  # No job took that long, so assume a remaining time of half the elapsed one.
            return [-elapsed / 2 * log(1 - (point + 0.5) / points) for point in range(points)]
        return [max(0.0, self._at(gone + rest * (point + 0.5) / points) - elapsed) for point in range(points)]

    def longer(self, elapsed: float) -> float:
        """Return the part of the jobs running at any moment that have run for longer than ``elapsed`` seconds."""
        rest = 0.0  # Seconds that all jobs together run beyond ``elapsed``.
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
        """Return this distribution adjusted to the jobs that run now. ``running``: seconds elapsed of each.

        If more of them have run for long than this distribution explains, jobs of a new kind have arrived. Their
        part of all jobs then follows from the slots they fill, and they are assumed to run half as long again.
        """
        usual = self.at(USUAL) if self.count else 0.0
        for part in COMPARED_QUANTILES:
            if self.count and running:
                bound = sorted(running)[int(part * len(running))]
                if bound <= usual:  # Jobs that started together run equally long, and end together.
                    continue
                long = [elapsed for elapsed in running if elapsed >= bound]
                expected = len(running) * self.longer(bound)
                if len(long) > expected + 3 * sqrt(expected) + 1:
                    return self._joined_by(long, (len(long) - expected) / len(running))
        return self

    def _joined_by(self, long: Sequence[float], slots: float) -> Lengths:
        """Return this distribution mixed with jobs that have run ``long`` seconds and fill ``slots``, a part of all."""
        mean = 1.5 * sum(long) / len(long)
        of_new, of_known = slots / mean, (1 - slots) / self.mean
        part = of_new / (of_new + of_known)
        new = merge({bucket(1.5 * elapsed / self.scale): part * self.count / len(long)} for elapsed in long)
        return Lengths(merge([{at: count * (1 - part) for at, count in self.sketch.items()}, new]), self.scale)

    def blended(self, declared: Lengths) -> Lengths:
        """Return this distribution moved towards a declared one: half of the way after one run, a tenth after three."""
        if not self.mean or not declared.mean:
            return self
        return Lengths(self.sketch, self.scale * (declared.mean / self.mean) ** (1.0 / (1.0 + self.count * self.count)))

    def _at(self, below: float) -> float:
        at = min(max(1, bisect_right(self._below, below)), len(self._ends) - 1)
        fewer, more = self._below[at - 1], self._below[at]
        part = (below - fewer) / (more - fewer) if more > fewer else 1.0
        return self._ends[at - 1] + (self._ends[at] - self._ends[at - 1]) * min(1.0, part)


def _phases(buckets: Iterable[tuple[float, float, float]], mean: float) -> tuple[Phase, ...]:
    """Split jobs into those that run shorter and those that run longer than the mean."""
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
    """Return the distribution of jobs of which only the maximum is known: every run time up to it is equally likely."""
    return Lengths({bucket(seconds * part): DECLARED_JOBS / 4 for part in (0.125, 0.375, 0.625, 0.875)})


class Arrivals(NamedTuple):
    """The arrivals of one tenant in one lane: ``size`` jobs at a time, ``times`` a second.

    ``steady`` is false for rare, large bursts. ``irregular``: the squared coefficient of variation of the time between
    them, which is 1 for bursts at random moments and small for those of a cron.
    """

    size: float
    times: float
    steady: bool = True
    irregular: float = 1.0

    @property
    def rate(self) -> float:
        return self.size * self.times

    def within(self, seconds: float) -> float:
        """Return the median number of arrivals in some seconds. For rare bursts it is 0 at first."""
        if self.steady:
            return self.rate * seconds
        times = self.times * seconds + 0.4
        whole = floor(times)
        return self.size * (whole + max(0.0, (times - whole - 0.7) / 0.3))  # Continuous: forecasts invert it.


class Arriving(NamedTuple):
    """The mean, variance and third cumulant of a number of arrivals. Those of independent numbers add up."""

    mean: float = 0.0
    variance: float = 0.0
    third: float = 0.0


NOTHING = Arriving()


class LaneArrivals:
    """The arrivals of all tenants in a lane, indexed for sums with a bound for each tenant."""

    def __init__(self, by_tenant: Mapping[str, Arrivals], observed: float = OBSERVED) -> None:
        self._by_tenant = by_tenant
        self._observed = observed
        self._rates = sorted(coming.rate for coming in by_tenant.values() if coming.steady)
        self._sums = [0.0]
        for rate in self._rates:
            self._sums.append(self._sums[-1] + rate)
        self.rate = self._sums[-1]  # Jobs a second, without bursts.
        self._together = sum(coming.rate * coming.size for coming in by_tenant.values() if coming.steady)
        self.batch = self._together / self.rate if self.rate > 0 else 1.0  # Mean batch that a job arrives in.
        self.bursts = [(tenant, coming) for tenant, coming in by_tenant.items() if not coming.steady]

    def within(self, seconds: float) -> Arriving:
        """Return the arrivals in some seconds. Bursts count with their variance only.

        The further a forecast reaches, the more an error of the learned rates matters.
        """
        mean, variance = self.rate * seconds, self._together * self._doubtful(seconds)
        for _, coming in self.bursts:
            variance += coming.size * coming.size * coming.times * self._doubtful_burst(coming, seconds)
        return Arriving(mean, variance, mean * self.batch * self.batch)

    def burst(self, seconds: float) -> float:
        """Return the median number of arrivals from bursts in some seconds."""
        return sum([coming.within(seconds) for _, coming in self.bursts])

    def _doubtful(self, seconds: float, irregular: float = 1.0) -> float:
        """Return how many seconds of random arrivals are as uncertain as those in ``seconds``.

        They are fewer if the arrivals are regular. They are more beyond the time observed, where rates and regularity
        need not stay as they were.
        """
        beyond = seconds / self._observed
        return seconds * (irregular + beyond * min(1.0, beyond))

    def _doubtful_burst(self, coming: Arrivals, seconds: float) -> float:
        """Return the same for bursts. As long as hardly one is expected, p90 is without any."""
        return self._doubtful(seconds, coming.irregular) * min(1.0, coming.times * seconds / LIKELY_TIMES)

    def count_others(self, tenant: str) -> int:
        """Return how many tenants there are beside one."""
        return len(self._by_tenant) - (tenant in self._by_tenant)

    def of_others(self, tenant: str, seconds: float, most: float) -> Arriving:
        """Return the arrivals of all tenants but one, counting those that overtake a job.

        A tenant's jobs overtake at most ``most`` jobs of the one tenant. Of these fewer are left the later the others
        arrive, down to none at the end.
        """
        if seconds <= 0 or most <= 0:
            return NOTHING
        few = bisect_right(self._rates, most / seconds)
        mean = seconds * self._sums[few] + most * (len(self._rates) - few)
        own = self._by_tenant.get(tenant)
        whole = self.batch
        if own is not None and own.steady:
            mean -= min(most, own.rate * seconds)
            rest = self.rate - own.rate
            whole = (self._together - own.rate * own.size) / rest if rest > 1e-9 * self.rate else 1.0
        # Batches differ in size, and of a large one only as many jobs count as are left.
        batch, ratio = min(whole, most), 2.0 * most / whole
        mean *= 1.0 - (1.0 - 1.0 / whole) * (1.0 - exp(-ratio)) / ratio
        variance = mean * batch * self._doubtful(seconds) / seconds
        third = mean * batch * batch
        for other, coming in self.bursts:
            if other != tenant:
                size = coming.size * (1.0 - coming.size / (2.0 * most)) if coming.size < most else most / 2.0
                mean += min(most, coming.within(seconds) * size / coming.size)
                variance += size * size * coming.times * self._doubtful_burst(coming, seconds)
        return Arriving(mean, variance, third)


class ModelData(NamedTuple):
    """Everything learned. Lanes and tasks without finished jobs are absent.

    ``lengths``: sketches by lane and task. ``shares``: by lane and task, how often the task arrives beside the others;
    without a share, the count of its sketch stands in. ``arrivals``: by lane and tenant ('' for none). ``means``: by
    lane and task, the mean run time; without one, the middles of the buckets stand in. ``observed``: by lane, for how
    many seconds arrivals were recorded.
    """

    lengths: Mapping[str, Mapping[str, Sketch]] = {}
    arrivals: Mapping[str, Mapping[str, Arrivals]] = {}
    shares: Mapping[str, Mapping[str, float]] = {}
    means: Mapping[str, Mapping[str, float]] = {}
    observed: Mapping[str, float] = {}


class _Mix:
    """Sketches that are added up, with the mean of the run times in them."""

    def __init__(self) -> None:
        self.sketch: dict[int, float] = {}
        self._rough = self._exact = 0.0  # The seconds of all jobs, by their buckets and as they were.

    def add(self, sketch: Sketch, weight: float, mean: float | None) -> None:
        count = seconds = 0.0
        for at, some in sketch.items():
            self.sketch[at] = self.sketch.get(at, 0.0) + some * weight
            count += some
            seconds += some * middle(at)
        self._rough += weight * seconds
        self._exact += weight * (mean * count if mean else seconds)

    def lengths(self) -> Lengths | None:
        """Return the distribution of what was added as it is, or None if that is nothing."""
        return Lengths(self.sketch, self._exact / self._rough) if self._rough > 0 else None


class Model:
    """Learned data, indexed for fast queries. It caches distributions and never changes the data."""

    def __init__(self, learned: ModelData = ModelData()) -> None:  # noqa: B008  (it is frozen)
        self.learned = learned
        self._seen: dict[str, Lengths | None] = {}
        self._lanes: dict[str, Lengths | None] = {}
        self._tasks: dict[str, Lengths | None] = {}
        self._arrivals: dict[str, LaneArrivals] = {}

    def lane(self, lane: str) -> Lengths | None:
        """Return the run times of a lane over all tasks, or None if none of its jobs has finished."""
        if lane not in self._lanes:
            self._lanes[lane] = _widened(self._seen_in(lane))
        return self._lanes[lane]

    def lane_with(self, lane: str, running: Sequence[float]) -> Lengths | None:
        """Return the run times of a lane adjusted to the jobs that run now. ``running``: seconds elapsed of each."""
        seen = self._seen_in(lane)
        changed = seen.seen_with(running) if seen is not None else None
        return self.lane(lane) if changed is seen else _widened(changed)

    def task(self, task: str, lane: str) -> Lengths | None:
        """Return the run times of a task, or those of its lane if too few of its jobs have finished."""
        own = self.own(task)
        if own is not None and own.count >= TASK_JOBS_MIN:
            return own
        return self.lane(lane) or own

    def own(self, task: str) -> Lengths | None:
        """Return the run times of a task in all lanes, or None if none of its jobs has finished."""
        if task not in self._tasks:
            mix = _Mix()
            for lane, tasks in self.learned.lengths.items():
                if task in tasks:
                    mix.add(tasks[task], 1.0, self._mean(lane, task))
            self._tasks[task] = _widened(mix.lengths())
        return self._tasks[task]

    def anything(self) -> Lengths | None:
        """Return the run times of all lanes together, or None if no job has finished."""
        mix = _Mix()
        for lane, tasks in self.learned.lengths.items():
            for task, sketch in tasks.items():
                mix.add(sketch, 1.0, self._mean(lane, task))
        return _widened(mix.lengths())

    def arrivals(self, lane: str) -> LaneArrivals:
        if lane not in self._arrivals:
            observed = self.learned.observed.get(lane, OBSERVED)
            self._arrivals[lane] = LaneArrivals(self.learned.arrivals.get(lane, {}), observed)
        return self._arrivals[lane]

    def _seen_in(self, lane: str) -> Lengths | None:
        """Return the run times of a lane's tasks as they were seen, in proportion to the arrivals of the tasks."""
        if lane not in self._seen:
            sketches, shares = self.learned.lengths.get(lane, {}), self.learned.shares.get(lane, {})
            counts = {task: sum(sketch.values()) for task, sketch in sketches.items()}
            weights = {task: shares.get(task, count) / count for task, count in counts.items() if count}
            whole = sum(weights[task] * counts[task] for task in weights)
            mix = _Mix()
            for task, weight in weights.items():
                mix.add(sketches[task], weight * sum(counts.values()) / whole, self._mean(lane, task))
            self._seen[lane] = mix.lengths()
        return self._seen[lane]

    def _mean(self, lane: str, task: str) -> float | None:
        return self.learned.means.get(lane, {}).get(task)


def _widened(seen: Lengths | None) -> Lengths | None:
    """Return a distribution with at most one longer job added, for run times that few jobs have not shown yet."""
    if seen is None or seen.count >= JOBS_TRUSTED:
        return seen
    longest = max(at for at, some in seen.sketch.items() if some)
    weight = min(1.0, seen.count / UNSEEN_JOBS) * (1.0 - seen.count / JOBS_TRUSTED) / len(UNSEEN_FACTORS)
    longer = ({longest + round(log2(factor) * BUCKETS_PER_DOUBLING): weight} for factor in UNSEEN_FACTORS)
    return Lengths(merge([seen.sketch, *longer]), seen.scale)


def doubt(count: float) -> float:
    """Return the relative error of a mean run time learned from ``count`` jobs; 0 for many jobs."""
    return max(0.0, 1.0 / sqrt(max(1.0, count)) - 1.0 / sqrt(JOBS_TRUSTED))
