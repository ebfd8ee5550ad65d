"""When a job will start: p50 and p90 of the seconds until then, by simulating the policy on the current queue."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import NamedTuple

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, LimitView, QueueDiagnostics
from headway.core.distributions import NOTHING, Arriving, LaneArrivals, Lengths, Model
from headway.core.job import ClassKey, State
from headway.core.policy.document import Policy
from headway.core.policy.enforced import PAUSE, RuleIndex
from headway.core.policy.fluid_model import FluidRun, LaneFlow, declared
from headway.core.policy.positions import QueuePositions, waiting_in
from headway.core.policy.slot_release import POINTS
from headway.core.policy.start_chance import StartDoubt, surplus
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import TASK, capabilities_in

P50_DEVIATIONS = 0.0  # Standard deviations for p50,
P90_DEVIATIONS = 1.28  # and for p90.
HALF_START = 0.5  # Numbers of starts are whole, but their distribution is continuous: the n-th counts from n - 0.5 on.
FIRST = (
    0.62  # Jobs expected to leave a full limit at the median of the first one: 0.5 of one, up to 0.69 (ln 2) of many.
)
TURN = 0.5  # Turns by which a lane that has risen starts later than its share, on average: it waits for the first one.
RELATIVE_ERROR = 0.02  # The relative error that all learned run times may share.
ROUGH_MAX = 0.6  # The largest relative error after few runs. From 0.87 on, p90 would never come.
NOW = 1.0  # Seconds below which an estimate is shown as "now".
CHANGED = 0.2  # The relative change of the seconds from which an estimate is sent again.
JOINED_MOST = 0.1  # The part of the waiting jobs that may join before a forecast says too little about them.
ESTIMATES_MAX = 10_000  # Estimates that one forecast keeps, which is about 2 MB.


@dataclass(frozen=True, slots=True)
class Estimate:
    """When a waiting job will start: seconds that half, and nine tenths, of such jobs do not exceed.

    ``position`` counts the jobs that would start before it if no more jobs arrived. ``basis`` names the data behind the
    seconds: ``learned`` from finished jobs, ``declared`` durations, or ``unknown``. The seconds are then None, or 0 if
    a slot is free now.
    """

    p50: float | None = None
    p90: float | None = None
    position: int | None = None
    basis: str = "unknown"


class Range(NamedTuple):
    """Seconds that half, and nine tenths, of such jobs do not exceed."""

    p50: float
    p90: float


class EstimateRequest(NamedTuple):
    """The place of a job in its class. ``own``: how many jobs ahead are its tenant's, if tenants share the class."""

    key: ClassKey
    task: str = ""
    tenant: str | None = None
    ahead: int = 0
    own: int | None = None
    due_at: int | None = None
    blocked_by: str | None = None
    limits: tuple[LimitView, ...] = ()


def estimate(diagnosis: JobDiagnostics, policy: Policy, known: Model) -> Estimate | None:
    """Return when a job will start, or None once it has started or ended."""
    if diagnosis.job.state is not State.QUEUED:
        return None
    return Forecast(diagnosis.queue, policy, known).of(estimate_request(diagnosis))


def estimate_request(diagnosis: JobDiagnostics, queue: QueueDiagnostics | None = None) -> EstimateRequest:
    """Return the place of a job. ``queue`` may count longer classes than the diagnosis itself does."""
    job, queue = diagnosis.job, queue or diagnosis.queue
    key = ClassKey(job.lane, job.needs, job.rung)
    ahead, own = diagnosis.ahead, diagnosis.ahead_own if diagnosis.fair else None
    if ahead >= AHEAD_COUNTED and job.blocked_by is None:
        view = next((view for view in queue.snapshot.classes if view.key == key), None)
        ahead = _beyond(ahead, job.eligible_at, view, queue.now_at)
        own = own if own is None or own < AHEAD_COUNTED else ahead
    return EstimateRequest(key, job.task, job.tenant, ahead, own, job.due_at, job.blocked_by, diagnosis.limits)


def _beyond(counted: int, eligible_at: int | None, view: ClassView | None, now_at: int) -> int:
    """Return the place of a job behind more jobs than a store counts, by its age, as if jobs had arrived evenly."""
    if view is None or view.oldest_at is None or eligible_at is None or now_at <= view.oldest_at:
        return counted
    part = (eligible_at - view.oldest_at) / (now_at - view.oldest_at)
    return max(counted, int(view.waiting * min(1.0, part)) - 1)


class Forecast:
    """The estimates for all jobs of one snapshot. The first query for some needs simulates, and later ones reuse it."""

    def __init__(self, queue: QueueDiagnostics, policy: Policy, known: Model) -> None:
        self.queue = queue
        self.rule_index = RuleIndex(queue.rules)
        self._policy = policy
        self._known = known
        self.places = QueuePositions(queue.snapshot, policy, queue.workers)
        self._runs: dict[tuple[str, ...], FluidRun] = {}
        self._estimates: dict[EstimateRequest, Estimate] = {}
        self._views: dict[str, list[ClassView]] = {}
        for view in queue.snapshot.classes:
            self._views.setdefault(view.key.lane, []).append(view)

    def under(self, policy: Policy, queue: QueueDiagnostics) -> Forecast:
        """Return a forecast with what is learned here, for another policy or another queue."""
        return Forecast(queue, policy, self._known)

    def covers(self, snapshot: Snapshot) -> bool:
        """Return whether few jobs have joined the queue since: at most a tenth of those that waited."""
        waited = {view.key: view.waiting for view in self.queue.snapshot.classes}
        joined = sum(max(0, view.waiting - waited.get(view.key, 0)) for view in snapshot.classes)
        return joined <= JOINED_MOST * sum(waited.values())

    def near(self, request: EstimateRequest) -> Estimate:
        """Return nearly the same as ``of``, but reuse estimates: places are rounded to a twentieth."""
        request = request._replace(
            ahead=_rounded(request.ahead), own=None if request.own is None else _rounded(request.own)
        )
        made = self._estimates.get(request)
        if made is None:
            if len(self._estimates) > ESTIMATES_MAX:
                self._estimates.clear()
            made = self._estimates[request] = self.of(request)
        return made

    def of(self, request: EstimateRequest) -> Estimate:
        """Return the estimate for a place."""
        key = request.key
        delayed = request.due_at is not None and request.due_at > self.queue.now_at
        waiting = waiting_in(self.queue.snapshot, key)
        ahead = waiting if delayed or request.blocked_by is not None else request.ahead
        position = self.places.of(key, ahead)
        if self.queue.rules.paused.holding(key.lane, request.task, request.tenant):
            return Estimate(position=position)
        run = self._run(request)
        flow = run.flows.get(key.lane)
        if flow is None:
            return Estimate(position=position)
        held = [*self._held(request)]
        if None in held:
            return Estimate(position=position)
        found = self._delayed(run, flow, request) if delayed else self._waiting(run, flow, request)
        p50, p90 = (max(pair) for pair in zip(found, *(pair for pair in held if pair is not None), strict=True))
        basis = run.basis_of(flow)
        if basis == "unknown" and p90 > 0:  # With a free slot, run times do not matter.
            return Estimate(position=position)
        return Estimate(round(p50, 2), round(max(p50, p90), 2), position, basis)

    def released(self, request: EstimateRequest, ready: Range) -> Estimate:
        """Return the estimate for a held job that is released after ``ready``."""
        half, late = (
            self.of(request._replace(due_at=self.queue.now_at + int(seconds * 1_000) + 1)) for seconds in ready
        )
        if half.p50 is None or late.p90 is None:
            return Estimate()
        return Estimate(half.p50, max(half.p50, late.p90), None, half.basis)

    def run_time(self, task: str, lane: str, elapsed: float) -> Range | None:
        """Return how much longer a job of a task runs that has run for ``elapsed`` seconds, or None if unknown."""
        lengths = self._known.task(task, lane)
        if lengths is None:
            return None
        left = sorted(lengths.left(elapsed, POINTS)) if elapsed > 0 else []
        if left:
            return Range(left[len(left) // 2], left[-1])
        return Range(lengths.at(0.5), lengths.at(0.9))

    def _run(self, request: EstimateRequest) -> FluidRun:
        needs = (
            *capabilities_in(request.key.needs),
            *([f"{TASK}{request.task}"] if request.task else []),
        )
        run = self._runs.get(needs)
        if run is None:
            run = self._runs[needs] = FluidRun(self.queue, self._policy, self._known, needs)
        return run

    def _waiting(self, run: FluidRun, flow: LaneFlow, request: EstimateRequest) -> tuple[float, float]:
        before = 0.0 if request.blocked_by is not None else self._in_lane(request)
        arrivals = (
            None if request.own is None or request.blocked_by is not None else self._known.arrivals(request.key.lane)
        )
        solve = _Solve(run, flow, before, arrivals, request.tenant or "", self._overtaken(request, arrivals))
        return solve.when(P50_DEVIATIONS), solve.when(P90_DEVIATIONS)

    @staticmethod
    def _overtaken(request: EstimateRequest, arrivals: LaneArrivals | None) -> float:
        """Return how many jobs of each other tenant can still overtake a job: as many as its own tenant has ahead.

        The jobs of other tenants that are ahead already count as well.
        """
        own = request.own or 0
        others = 0 if arrivals is None else arrivals.count_others(request.tenant or "")
        return max(0.0, own - (request.ahead - own) / others) if others else 0.0

    def _delayed(self, run: FluidRun, flow: LaneFlow, request: EstimateRequest) -> tuple[float, float]:
        """Return when a delayed job starts: it joins the queue when it is due, behind the jobs that wait by then."""
        due = max(0.0, ((request.due_at or 0) - self.queue.now_at) / 1_000)
        while run.times[-1] < due and run.go_on():
            pass
        before = _at(run.times, flow.curve, due) + (_at(run.times, flow.queue, due) if request.own is None else 0.0)
        solve = _Solve(run, flow, max(0.0, before - HALF_START), None, "", 0)
        return max(due, solve.when(P50_DEVIATIONS)), max(due, solve.when(P90_DEVIATIONS))

    def _in_lane(self, request: EstimateRequest) -> float:
        """Count the jobs of a lane that go first: of its other classes the same part as of the job's own."""
        own, others = 0, 0
        for view in self._views.get(request.key.lane, ()):
            if view.key == request.key:
                own = view.waiting
            elif view.blocked is None:
                others += view.waiting
        return request.ahead + (others if own <= request.ahead else others * request.ahead / own)

    def _held(self, request: EstimateRequest) -> Iterable[tuple[float, float] | None]:
        """Yield when each full limit lets the job start, or None where no data exists."""
        now_at = self.queue.now_at
        for view in request.limits:
            if view.key.startswith(PAUSE):
                continue
            turn = request.ahead if request.blocked_by == view.key else 0
            rule = view.rule
            if view.conforms_at is not None:
                wait = max(0, view.conforms_at - now_at) / 1_000 + turn * rule.interval_us / 1e6
                yield wait, wait
            if rule.concurrency is not None and view.used >= rule.concurrency:
                lengths = self._known.task(request.task, request.key.lane)
                holders = [job for job in self.queue.executing if view.key in job.held]
                yield self._room(
                    lengths, [(job.task, job.lane, job.started_at) for job in holders], rule.concurrency, turn
                )
        if any(view.key == request.key and view.blocked == "ladder" for view in self._views.get(request.key.lane, ())):
            yield self._on_the_ladder(request)

    def _room(
        self, lengths: Lengths | None, holders: Sequence[tuple[str, str, int]], rooms: int, turn: int
    ) -> tuple[float, float] | None:
        known = [(self._known.task(task, lane), started_at) for task, lane, started_at in holders]
        if lengths is None or not rooms or any(found is None for found, _ in known):
            return None
        points: list[float] = []
        for found, started_at in known:
            elapsed = max(0.0, (self.queue.now_at - started_at) / 1_000)
            points += found.left(elapsed, POINTS) if found is not None else []
        return _in_turn(sorted(points), lengths, turn)

    def _on_the_ladder(self, request: EstimateRequest) -> tuple[float, float] | None:
        """Return when a running job of its rung or longer ends: at any moment until its budget is used up."""
        running_jobs, ladder = self.queue.snapshot.running_jobs, self._policy.ladder
        lengths = self._known.task(request.task, request.key.lane) or declared(self._policy, [request.key])
        if running_jobs is None or lengths is None or len(running_jobs.counts) != len(ladder.rungs):
            return None
        full = [
            (rung, running)
            for at, rung in enumerate(ladder.rungs)
            if (most := rung.most(running_jobs.slots)) is not None
            and (running := sum(running_jobs.counts[at:])) >= most > 0
        ]
        if not full:
            return None
        rung, count = min(full, key=lambda pair: pair[1])  # Jobs of a rung count against the shorter ones too.
        points = [rung.length_ms / 1_000 * (point + 0.5) / (count * POINTS) for point in range(count * POINTS)]
        return _in_turn(points, lengths, request.ahead)


class _Solve:
    """Finds when a lane has started a job, its predecessors, and the arrivals that overtake it."""

    def __init__(
        self, run: FluidRun, flow: LaneFlow, before: float, arrivals: LaneArrivals | None, tenant: str, most: float
    ) -> None:
        self._run = run
        self._flow = flow
        self._before = before
        self._arrivals = arrivals if most > 0 else None
        self._tenant = tenant
        self._most = most

    def when(self, deviations: float) -> float:
        times = self._run.times
        while self._excess(len(times) - 1, deviations) < 0:
            if not self._run.go_on():
                return times[-1]
        low, high = -1, len(times) - 1
        while high - low > 1:
            middle = (low + high) // 2
            if self._excess(middle, deviations) < 0:
                low = middle
            else:
                high = middle
        if high == 0:
            return 0.0
        less, more = self._excess(high - 1, deviations), self._excess(high, deviations)
        found = times[high - 1] + (times[high] - times[high - 1]) * -less / (more - less)
        # The lane waits for its turn where its share at a better level starts most of its jobs.
        by_share = 2.0 * self._flow.sure[high] > self._flow.curve[high]
        return found + (TURN * self._flow.turn if by_share else 0.0)

    def _excess(self, at: int, deviations: float) -> float:
        """Return how many starts too many or too few a step has, with ``deviations`` of bad luck."""
        flow, coming = self._flow, NOTHING
        if self._arrivals is not None:
            coming = self._arrivals.of_others(self._tenant, self._run.times[at], self._most)
        count = self._before + HALF_START + coming.mean
        rough = (RELATIVE_ERROR + min(flow.rough, ROUGH_MAX)) * flow.curve[at]
        usual = surplus(flow.curve[at], count, _more(flow.doubt[at], coming, rough * rough), deviations)
        if not flow.sure[at]:
            return usual
        # A lane that has risen gets its share at least, whatever comes to better lanes.
        return max(usual, surplus(flow.sure[at], count, _more(flow.sure_doubt[at], coming), deviations))


def _more(doubt: StartDoubt, coming: Arriving, variance: float = 0.0) -> StartDoubt:
    """Return a doubt with that about arrivals that overtake, and with more variance."""
    starts, among, arrivals, third, _ = doubt
    return StartDoubt(starts, among, arrivals + coming.variance, third + coming.third, variance)


def _at(times: Sequence[float], values: Sequence[float], moment: float) -> float:
    """Return the value of a curve at a moment between two steps."""
    at = bisect_right(times, moment)
    if at >= len(times):
        return values[-1]
    part = (moment - times[at - 1]) / (times[at] - times[at - 1])
    return values[at - 1] + (values[at] - values[at - 1]) * part


def _in_turn(points: Sequence[float], lengths: Lengths, turn: int) -> tuple[float, float]:
    """Return p50 and p90 of when slots that become free at these points have started ``turn`` jobs and one more."""
    rooms = len(points) / POINTS
    if not points:
        return 0.0, 0.0
    if turn < rooms:
        at = min(len(points) - 1, int((turn + FIRST) * POINTS))
        late = min(len(points) - 1, int((turn + FIRST + P90_DEVIATIONS * sqrt(turn + FIRST)) * POINTS))
        return points[at] if rooms > 1 else points[len(points) // 2], points[late]
    mean = sum(points) / len(points)
    half = mean + (turn + FIRST - rooms) * lengths.mean / rooms
    doubt = sqrt(max(1.0, turn) * lengths.variance + mean * mean) / rooms
    return half, half + P90_DEVIATIONS * doubt


def materially_differs(old: Estimate | None, new: Estimate) -> bool:
    """Return whether a new estimate differs enough to be sent to a client that has the old one."""
    if old is None or (old.position, old.basis) != (new.position, new.basis):
        return True
    return any(_moved(was, now) for was, now in ((old.p50, new.p50), (old.p90, new.p90)))


def _moved(was: float | None, now: float | None) -> bool:
    if was is None or now is None:
        return was is not now
    return abs(was - now) > max(CHANGED * max(was, now), NOW / 2)


def next_place(count: int) -> int:
    """Return the next place for which ``Forecast.near`` may return another estimate."""
    step = _step(count)
    return count // step * step + step


def _rounded(count: int) -> int:
    """Round to two digits, and not at all below a hundred."""
    step = _step(count)
    return count // step * step


def _step(count: int) -> int:
    step: int = 1 if count < 100 else 10 ** (len(str(count)) - 2) // 2
    return step
