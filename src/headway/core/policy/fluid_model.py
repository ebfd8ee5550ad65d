"""A fluid simulation of the policy: how many jobs each lane could have started by when.

It counts jobs and does not follow single ones, so its cost depends on the number of lanes and not of jobs. Steps grow
with the time that they reach into, since the far future need not be known to the second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, inf, log, sqrt
from typing import NamedTuple

from headway.core.diagnostics import QueueDiagnostics, RunningJob
from headway.core.distributions import NOTHING, Arriving, Lengths, Model, doubt, up_to
from headway.core.job import ClassKey
from headway.core.policy.document import ELASTIC, INTERACTIVE, Lane, Policy
from headway.core.policy.lanes import competitions, lane_of, risen_level
from headway.core.policy.slot_release import SlotReleases, points_for
from headway.core.policy.start_chance import StartDoubt
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import WorkerInfo, serves, tasks_in

STEP_GROWTH = 0.2  # The length of a step as a part of the time before it: errors stay below the spread of run times.
LEAST_GROWTH = 0.02  # The same for steps that end when a lane rises, to bound their number.
STEPS_MAX = 300  # With growing steps, more than a week takes.
HORIZON = 7 * 86_400.0  # Seconds. Beyond a week, arrivals will not stay as they are.
LAST_JOB = 0.25  # The part of a job that must wait for a lane to have one: when its start is found, less is left.
_UNKNOWN = up_to(1.0)  # Stands in for unknown run times; such estimates have no seconds.
_NONE = 1e-9  # Jobs or slots below which none is left, beside rounding errors.


class Risk(NamedTuple):
    """The variance and third cumulant of the work of arrivals, in seconds squared and cubed."""

    variance: float = 0.0
    third: float = 0.0

    def plus(self, other: Risk) -> Risk:
        return Risk(self.variance + other.variance, self.third + other.third)

    def minus(self, other: Risk) -> Risk:
        return Risk(self.variance - other.variance, self.third - other.third)


NO_RISK = Risk()


class LaneFlow:
    """A lane in the simulation: its waiting jobs, arrivals and running jobs, and its possible starts by each step."""

    __slots__ = (
        "apart", "arrivals", "arriving", "basis", "beside", "came", "curve", "doubt", "due", "entering", "filled",
        "fresh", "had", "inside", "lane", "lengths", "mean", "name", "oldest_ms", "overflow", "pace", "phases", "queue",
        "rate", "reach", "risk", "rough", "running", "served", "since", "spread", "sure", "sure_doubt", "sure_risk",
        "taken", "turn", "waiting", "weight",
    )  # fmt: skip

    def __init__(self, name: str, lane: Lane, lengths: Lengths, known: Model, waiting: float, oldest_ms: int) -> None:
        self.name = name
        self.lane = lane
        self.weight = lane.weight
        self.lengths = lengths
        self.mean = lengths.mean
        self.phases = lengths.phases
        self.arrivals = known.arrivals(name)
        self.rate = self.arrivals.rate
        self.basis = "learned"
        self.rough = 0.0  # The relative error of its mean run time, if few jobs have finished.
        self.overflow = 1.0  # The part of its arrivals that finds no room in the reserve.
        self.apart = False  # Whether it may fill the reserve.
        self.had = self.waiting = waiting
        self.oldest_ms = oldest_ms  # How long its oldest job has waited.
        # Jobs that the simulation has started outside the reserve, by phase and stage.
        self.running = [[0.0] * phase.stages for phase in lengths.phases]
        self.inside = 0.0  # Jobs that the simulation runs in the reserve.
        self.filled = 0.0  # Slots filled in the current step.
        self.entering = [[part, *[0.0] * (phase.stages - 1)] for phase in lengths.phases for part in (phase.part,)]
        self.fresh = self._variance_left(self.entering)  # Of the work of a job that starts, by its phases.
        self.pace = 1.0  # The work left in a slot at the end of the step, counted in jobs.
        self.served = 0.0
        self.reach = 0.0  # How many jobs it could have started if enough had waited.
        self.spread = 0.0  # The variance of the work that it has started, in seconds squared.
        self.arriving = self.came = NOTHING  # What its tenants send by the step, and what of it comes to the slots.
        self.since = 0.0  # The end of the last step.
        self.beside = 0.0  # The arrivals of the step that find no room in the reserve.
        self.taken = NO_RISK  # What the arrivals have taken from the slots by the step,
        self.risk = NO_RISK  # and what arrivals have taken that go first,
        self.sure_risk = NO_RISK  # also before the share of a lane that has risen.
        self.turn = 0.0  # Seconds between two of its jobs once it has risen, by its share of the slots.
        self.due = 0.0  # How many jobs its share has started since it has risen, whatever comes to better lanes.
        self.curve: list[float] = []  # By step: its reach.
        self.doubt: list[StartDoubt] = []  # By step: the doubt about its reach.
        self.queue: list[float] = []  # By step: how many jobs wait.
        self.sure: list[float] = []  # By step: what was due to it,
        self.sure_doubt: list[StartDoubt] = []  # and the doubt about that.

    def enter(self, length: float) -> None:
        """Find what the slots that become free in a step hold at its end, by phase and stage, and the work left there.

        The longer the step, the more of the jobs have run for a while, and the more of them are long ones.
        """
        entering, whole, left = [], 0.0, 0.0
        for part, mean, stages in self.phases:
            weight = part * mean / stages * _passing(length * stages / mean, stages)[1][-1]
            chances, _ = _passing(min(0.5, length / (2 * mean)) * stages, stages)
            scale = weight / sum(chances)
            entering.append([scale * chance for chance in chances])
            whole += weight
            left += scale * mean / stages * sum([(stages - at) * chance for at, chance in enumerate(chances)])
        self.entering = [[part / whole for part in phase] for phase in entering]
        # Work is neither lost nor made: what starts in a step is what runs in it, and what is left at its end.
        self.pace = left / (whole * self.mean)

    def arrive(self, now: float) -> None:
        """Let jobs arrive until a moment. Those that find room in the reserve at once take nothing from other slots."""
        before, arriving = self.arriving, self.arrivals.within(now)
        part = 1.0
        comes = arriving.mean - before.mean
        if self.apart and self.waiting < _NONE:
            part = self.overflow
            self.beside = comes * part
            comes -= self.beside
        if self.arrivals.bursts:
            comes += self.arrivals.burst(now) - self.arrivals.burst(self.since)
        mean, variance, third = self.came
        self.came = Arriving(
            mean + comes + self.beside,
            variance + part * (arriving.variance - before.variance),
            third + part * (arriving.third - before.third),
        )
        self.arriving, self.since = arriving, now
        self.waiting += comes

    def wants(self, most: float) -> float:
        """Return how many jobs it starts on average if it may start ``most``.

        Jobs that arrive later are there only by chance when a slot becomes free. A lane where one such job waits on
        average is empty at times, and worse lanes then get the slot. Large batches leave it empty more often.
        """
        sure = min(self.waiting, max(0.0, self.had - self.served))
        if most <= sure:
            return most
        fewer, more = sorted((self.waiting - sure, most - sure))
        return sure + fewer * (1.0 - exp(-more / self.arrivals.batch))

    def take(self) -> Risk:
        """Return the doubt about the work of the arrivals that have started in a step.

        Those that still wait have taken nothing from other lanes.
        """
        part = max(0.0, self.served - self.had) / self.came.mean * self.mean if self.came.mean > _NONE else 0.0
        before = self.taken
        self.taken = Risk(self.came.variance * part * self.mean, self.came.third * part * self.mean * self.mean)
        return self.taken.minus(before)

    def shown(self) -> float:
        """Return the variance of the work started, as far as it has shown by now.

        A job's length does not matter before the job could have ended, so that of jobs that only start does not count.
        """
        if self.fresh < _NONE:
            return 0.0
        hidden = self._variance_left(self.running) / self.fresh + self.inside
        return max(0.0, self.spread - self.lengths.variance * hidden)

    def _variance_left(self, jobs: Sequence[Sequence[float]]) -> float:
        """Return the variance of the work that is left in jobs, which are given by phase and stage."""
        variance = 0.0
        counts: list[float] = []
        means: list[float] = []
        for inside, (_, mean, stages) in zip(jobs, self.phases, strict=True):
            pace = mean / stages
            count = first = second = 0.0
            for stage, some in enumerate(inside):
                left = stages - stage
                count += some
                first += some * left * pace
                second += some * left * (left + 1) * pace * pace
            counts.append(count)
            means.append(first / count if count else 0.0)
            variance += second - first * means[-1]
        if len(counts) > 1 and counts[0] > 0:
            # Nothing shows at first whether a job is a short or a long one. Once most short ones that started with it
            # have ended, it is known to be long.
            short, long = self.phases[0].part, self.phases[1].part
            mixed = min(counts[1] / (counts[0] + counts[1]), long * log(1.0 / long) / short)
            variance += counts[0] * mixed * (means[1] - means[0]) ** 2
        return variance

    def fill(self) -> None:
        """Let the jobs that have started in a step run."""
        for running, entering in zip(self.running, self.entering, strict=True):
            for stage, part in enumerate(entering):
                running[stage] += self.filled * part
        self.filled = 0.0


class FluidRun:
    """One simulation, for the workers that can serve some needs. It runs only as far as its caller asks.

    Rule 1: a running job ends as jobs of its task do that have run as long, and its slot becomes free.
    Rule 2: lanes start jobs in the order of the policy. Lanes that compete share by weight, in seconds, and lanes rise
            as their oldest jobs age.
    Rule 3: only the lanes of the reserve fill its slots.
    Rule 4: jobs go on arriving at the learned rates. Jobs of better lanes go first, jobs of bursts once one is likely.
    """

    def __init__(self, queue: QueueDiagnostics, policy: Policy, known: Model, needs: tuple[str, ...]) -> None:
        self._policy = policy
        self._now_at = queue.now_at
        live = queue.active_workers
        able = [worker for worker in live if serves(needs, frozenset(worker.offers))]
        self.slots = sum(worker.slots for worker in able)
        self.basis = "learned"
        self._task = next(iter(tasks_in(needs)), None)
        self.times = [0.0]
        self.flows: dict[str, LaneFlow] = {}
        if not self.slots:
            return
        self._kept = _kept(policy, able, self.slots)
        self._open = self.slots - self._kept
        offers = frozenset(offer for worker in able for offer in worker.offers)
        ids = {worker.worker_id for worker in able}
        running: dict[str, list[float]] = {}
        for job in queue.executing:
            if job.worker_id in ids:
                running.setdefault(job.lane, []).append(max(0.0, (self._now_at - job.started_at) / 1_000))
        self._make_flows(queue.snapshot, policy, known, live, offers, running)
        self._make_points([job for job in queue.executing if job.worker_id in ids], known)
        self._all = list(self.flows.values())
        # In the reserve a job follows another only once that has ended, so its starts lag.
        self._late = max((_late(flow.lengths) for flow in self._all if flow.apart), default=0.0)
        self._aging = [flow for flow in self._all if flow.lane.promote_after_ms]
        self._groups: list[tuple[list[LaneFlow], list[LaneFlow]]] = []
        self._levels: list[int] | None = None
        self._first = min(1.0, max(1e-3, min(flow.mean for flow in self._all) / 4))
        self._begin()

    def basis_of(self, flow: LaneFlow) -> str:
        """Return what is known of a lane's run times and of the running jobs, the lesser of both."""
        return max(self.basis, flow.basis, key=("learned", "declared", "unknown").index)

    def go_on(self) -> bool:
        """Simulate one more step. Return False at the horizon."""
        if len(self.times) >= STEPS_MAX or self.times[-1] >= HORIZON:
            return False
        self._step()
        return True

    # ------------------------------------------------------------------ what it starts from

    def _make_flows(
        self,
        snapshot: Snapshot,
        policy: Policy,
        known: Model,
        live: Sequence[WorkerInfo],
        offers: frozenset[str],
        running: Mapping[str, Sequence[float]],
    ) -> None:
        found: dict[str, list[ClassView]] = {name: [] for name in policy.lanes}
        for view in snapshot.classes:
            if view.blocked is None and serves(view.key.needs, offers):
                found.setdefault(view.key.lane, []).append(view)
        for name, views in found.items():
            lengths, basis = self._lengths(name, views, known, running.get(name, ()))
            if basis == "unknown" and lengths is _UNKNOWN and any(view.waiting for view in views):
                self._trust("unknown")
            waiting = sum(view.waiting * self._part(view.key, live) for view in views)
            since_at = min((view.oldest_at for view in views if view.oldest_at is not None), default=self._now_at)
            lane = lane_of(policy, name)
            flow = LaneFlow(name, lane, lengths, known, waiting, max(0, self._now_at - since_at))
            flow.basis = basis
            flow.rough = doubt(lengths.count)
            flow.apart = self._kept > 0 and name in policy.reserve.lanes
            self.flows[name] = flow
        others = [flow for flow in self.flows.values() if not flow.apart]
        load = sum(flow.rate * flow.mean for flow in others)
        freed = self._open * sum(flow.rate for flow in others) / load if load > 0 else 0.0
        for flow in self.flows.values():
            if flow.apart:
                flow.overflow = _overflow(flow, self._kept, freed)

    def _lengths(
        self, name: str, views: Sequence[ClassView], known: Model, running: Sequence[float]
    ) -> tuple[Lengths, str]:
        """Return the run times of a lane, and their basis. Of an unknown lane other lanes are assumed to be alike."""
        ladder, learned = declared(self._policy, [view.key for view in views]), known.lane_with(name, running)
        if learned is None and self._task is not None:
            learned = known.own(self._task)
        if learned is not None:
            return (learned if ladder is None else learned.blended(ladder)), "learned"
        if ladder is not None:
            return ladder, "declared"
        return known.anything() or _UNKNOWN, "unknown"

    def _part(self, key: ClassKey, live: Sequence[WorkerInfo]) -> float:
        """Return the part of a class that these workers serve, if other workers serve it too."""
        if not key.needs:  # Other workers may not know all tasks of a class without needs.
            return 1.0
        return min(
            1.0, self.slots / sum(worker.slots for worker in live if serves(key.needs, frozenset(worker.offers)))
        )

    def _make_points(self, running: Sequence[RunningJob], known: Model) -> None:
        """Find when slots become free: those that any lane may fill, and those of the reserve."""
        favoured: list[list[float]] = []
        others: list[list[float]] = []
        points = points_for(len(running))
        for job in running:
            lengths, flow = known.task(job.task, job.lane), self.flows.get(job.lane)
            if flow is not None and lengths is known.lane(job.lane) and lengths is not None:
                lengths = flow.lengths  # Too few jobs of the task itself have finished.
            if lengths is None:
                lengths = flow.lengths if flow is not None else known.anything() or _UNKNOWN
                if lengths is _UNKNOWN:
                    self._trust("unknown")
                elif flow is not None and flow.basis == "declared":
                    self._trust("declared")
            left = lengths.left(max(0.0, (self._now_at - job.started_at) / 1_000), points)
            (favoured if job.lane in self._policy.reserve.lanes else others).append(left)
        favoured.sort(key=sum, reverse=True)
        self._common = SlotReleases(favoured[self._kept :] + others, self._open)
        self._apart = SlotReleases(favoured[: self._kept], self._kept)

    def _trust(self, basis: str) -> None:
        if self.basis != "unknown":
            self.basis = basis

    # ------------------------------------------------------------------ the run

    def _begin(self) -> None:
        """Fill the slots that are free now."""
        self._order(0.0)
        self._serve_all([self._common.due(0.0), 0.0], [self._apart.due(0.0), 0.0])
        self._record(0.0)

    def _step(self) -> None:
        before = self.times[-1]
        length = self._until_risen(max(self._first, STEP_GROWTH * before), before)
        now = before + length
        if self._aging:
            self._order(before)
        slots = self._common.due(before)
        starts, seconds = self._common.due(now), slots * length
        for flow in self._all:
            # Running jobs end at their pace. Count the slots that become free and the seconds left in them.
            for at, (_, mean, stages) in enumerate(flow.phases):
                chances, busy = _passing(length * stages / mean, stages)
                left = [0.0] * stages
                for stage, ran in enumerate(flow.running[at]):
                    if ran:
                        for further in range(stages - stage):
                            left[stage + further] += ran * chances[further]
                        seconds -= ran * mean / stages * busy[stages - stage - 1]
                flow.running[at] = left
                starts -= sum(left)
            flow.enter(length)
            flow.arrive(now)
        freed = self._apart.due(now) - self._apart.due(before)
        held = self._apart.due(before - self._late)
        self._serve_all([starts, max(0.0, seconds)], [freed, held * length])
        self.times.append(now)
        self._record(now)

    def _serve_all(self, common: list[float], apart: list[float]) -> None:
        for natives, joined in self._groups:
            if self._kept:
                favoured = [flow for flow in natives if flow.apart]
                if favoured:
                    self._serve(favoured, [flow for flow in joined if flow.apart], apart)
                    for flow in (*favoured, *joined):
                        flow.inside = min(self._kept, flow.inside + flow.filled)
                        flow.filled = 0.0
                    for flow in favoured:
                        flow.waiting += flow.beside
                        flow.beside = 0.0
            self._serve(natives, joined, common)
        for flow in self._all:
            if flow.filled > 0:
                flow.fill()

    def _serve(self, natives: Sequence[LaneFlow], joined: Sequence[LaneFlow], supply: list[float]) -> None:
        """Let lanes that compete start their jobs. ``supply``: slots that became free, and the seconds in them.

        Lanes that have joined a level get no more than their weight beside what the natives of the level take.
        """
        starts, seconds = supply
        if starts < _NONE and seconds < _NONE:
            return
        group = [*natives, *joined]
        most = [starts * flow.pace + seconds / flow.mean for flow in group]  # If a lane took all of it.
        wanted = [flow.wants(could) / could for flow, could in zip(group, most, strict=True)]  # As parts of all.
        weights = [1.0]
        if len(group) == 1:
            parts, could_have = [min(1.0, wanted[0])], [1.0]
        else:
            # A lane is charged for a job when the job starts. Of slots that become free in turn, one with long jobs
            # therefore gets fewer than its weight, and holds them for longer.
            weights = [flow.weight / (could * flow.mean) for flow, could in zip(group, most, strict=True)]
            bound = max(part / weight for part, weight in zip(wanted[: len(natives)], weights, strict=False))
            parts, could_have = _shares(weights, wanted, len(natives), bound if joined else inf)
        for flow, part, could, able in zip(group, parts, most, could_have, strict=True):
            took = part * could
            flow.served += took
            flow.waiting = max(0.0, flow.waiting - took)
            flow.reach += max(part, able) * could
            if joined and flow not in natives:
                flow.due += min(part, flow.weight / (could * flow.mean) / sum(weights)) * could
                if not flow.turn:
                    whole = sum([other.weight for other in group])
                    flow.turn = flow.mean * whole / (flow.weight * self.slots)
            flow.spread += took * flow.lengths.variance
            flow.filled += starts * part
            supply[0] -= starts * part
            supply[1] -= seconds * part

    def _until_risen(self, length: float, now: float) -> float:
        """Return a step that ends when the next lane rises, because its jobs start at once then."""
        least = max(self._first, LEAST_GROWTH * now)
        for flow in self._aging:
            if flow.waiting >= LAST_JOB:
                age_ms = self._age_ms(flow, now)
                for after_ms in flow.lane.promote_after_ms:
                    if age_ms < after_ms:
                        length = min(length, max(least, (after_ms - age_ms) / 1_000))
                        break
        return length

    def _order(self, now: float) -> None:
        """Find the order of service, again once a lane has risen or come down."""
        levels = [risen_level(flow.lane, self._age_ms(flow, now)) for flow in self._aging]
        if levels == self._levels:
            return
        self._levels = levels
        at = self._now_at + int(1_000 * now)
        views = tuple(ClassView(ClassKey(flow.name), 1, at - self._age_ms(flow, now)) for flow in self._all)
        order = competitions(Snapshot(at, views), frozenset(), self._policy)
        self._groups = [
            ([self.flows[line.name] for line in natives], [self.flows[line.name] for line in joined])
            for natives, joined in order
        ]

    def _age_ms(self, flow: LaneFlow, now: float) -> int:
        """Return how long the oldest job of a lane has waited by then, if jobs arrived one by one."""
        if flow.waiting < LAST_JOB:
            return 0
        if flow.served < flow.had:
            return int(1_000 * now + flow.oldest_ms * (1 - flow.served / flow.had))
        came = (flow.served - flow.had) / flow.rate if flow.rate > 0 else now
        return int(1_000 * max(0.0, now - came))

    def _record(self, now: float) -> None:
        spread, work, came = 0.0, 0.0, NO_RISK
        for natives, joined in self._groups:
            for flow in joined:
                flow.sure_risk = flow.sure_risk.plus(came)
            took = [flow.take() for flow in natives]
            for risk in took:
                came = came.plus(risk)
            spread += sum([flow.shown() for flow in natives])
            work += sum([flow.served * flow.mean for flow in natives])
            for flow, own in zip(natives, took, strict=True):
                flow.risk = flow.risk.plus(came).minus(own)
                freed = self._common.doubt(now, flow.mean) + (self._apart.doubt(now, flow.mean) if flow.apart else 0.0)
                flow.curve.append(flow.reach)
                flow.queue.append(flow.waiting)
                variance = freed + spread / (flow.mean * flow.mean)
                among = flow.reach - flow.served + work / flow.mean
                flow.doubt.append(_doubt(flow.reach, among, variance, flow.risk, flow.mean))
                flow.sure.append(flow.due)
                flow.sure_doubt.append(_doubt(flow.due, among, variance, flow.sure_risk, flow.mean))


def _doubt(reach: float, among: float, variance: float, risk: Risk, mean: float) -> StartDoubt:
    """Return the doubt in jobs with a mean run time. ``among`` and ``variance`` are in jobs already."""
    if reach < _NONE:  # A lane that gets no slot in any case loses none to arrivals in better lanes.
        return StartDoubt(variance, among)
    return StartDoubt(variance, among, risk.variance / (mean * mean), risk.third / (mean * mean * mean))


def declared(policy: Policy, keys: Iterable[ClassKey]) -> Lengths | None:
    """Return the run times of jobs of these classes by the ladder, or None unless all classes are on it.

    An elastic job may run as long as the longest rung. Sessions do not count, since they stop for jobs.
    """
    lengths_ms: list[int] = []
    for key in keys:
        if key.rung == INTERACTIVE:
            continue
        rung = policy.ladder.find(key.rung)
        if key.rung == ELASTIC and policy.ladder.rungs:
            rung = policy.ladder.rungs[-1]
        if rung is None:
            return None
        lengths_ms.append(rung.length_ms)
    return up_to(sum(lengths_ms) / len(lengths_ms) / 1_000) if lengths_ms else None


def _shares(
    weights: Sequence[float], wanted: Sequence[float], natives: int, bound: float
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Share one whole by weight. No lane gets more than it wants, and the rest goes to the others.

    Lanes after the first ``natives`` get at most ``bound`` times their weight. Returns the parts, and the part that
    each lane could have had if it had wanted more.
    """
    capped = [
        want if at < natives else min(want, bound * weight)
        for at, (want, weight) in enumerate(zip(wanted, weights, strict=True))
    ]  # fmt: skip
    parts = [0.0] * len(weights)
    left, unfilled = 1.0, list(range(len(weights)))
    while unfilled and left > _NONE:
        total = sum([weights[at] for at in unfilled])
        content = [at for at in unfilled if capped[at] <= left * weights[at] / total]
        for at in content or unfilled:
            parts[at] = capped[at] if content else left * weights[at] / total
        if not content:
            break
        left -= sum([parts[at] for at in content])
        unfilled = [at for at in unfilled if at not in content]
    whole = sum(weights)
    least = [min(want, weight / whole) for want, weight in zip(capped, weights, strict=True)]
    could = [1.0 - sum(least) + least[at] for at in range(len(weights))]
    for at in range(natives, len(weights)):
        could[at] = min(could[at], bound * weights[at])
    return parts, could


def _passing(due: float, stages: int) -> tuple[list[float], list[float]]:
    """Return the probabilities that 0, 1, 2 … stages pass where ``due`` pass on average.

    Also return how long a job with 1, 2, 3 … stages left is in them meanwhile, counted in stages.
    """
    chance = exp(-due)
    chances, busy, left, total = [chance], [1.0 - chance], 1.0 - chance, 1.0 - chance
    for stage in range(1, stages):
        chance *= due / stage
        left -= chance
        total += left
        chances.append(chance)
        busy.append(total)
    return chances, busy


def _late(lengths: Lengths) -> float:
    """Return by how many seconds starts in one slot lag behind its mean pace: half a job if all run equally long."""
    return 0.5 * max(0.0, lengths.mean - lengths.variance / lengths.mean) if lengths.mean else 0.0


def _kept(policy: Policy, able: Sequence[WorkerInfo], slots: int) -> int:
    reserve = policy.reserve
    if not reserve.lanes:
        return 0
    kept = reserve.slots if reserve.scope == "pool" else sum(worker.reserved for worker in able)
    return max(0, min(kept, slots - 1))


def _overflow(flow: LaneFlow, rooms: int, freed: float) -> float:
    """Return the part of a lane's arrivals that other slots run, of which ``freed`` a second become free."""
    load, blocked = flow.rate * flow.mean, 1.0
    # The part that finds all slots of the reserve busy, by Erlang's formula.
    for room in range(1, min(rooms, 100) + 1):
        blocked = load * blocked / (room + load * blocked)
    blocked *= freed / (freed + rooms / flow.mean)  # The first slot that becomes free may be one of the reserve.
    batch = flow.arrivals.batch
    work = (batch - rooms) * flow.mean
    if work <= 0 or freed <= 0:
        return blocked
    # Of a batch, the reserve runs some jobs after the other, while slots that become free join in one by one:
    # rooms * seconds + freed * seconds² / 2 = work.
    seconds = (sqrt(rooms * rooms + 2.0 * freed * work) - rooms) / freed
    return max(blocked, (work - rooms * seconds) / (batch * flow.mean))
