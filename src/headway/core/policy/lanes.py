"""Which job runs next: the plan that a worker claims with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil

from headway.core.job import ClassKey, JobRecord
from headway.core.policy.document import Lane, Policy
from headway.core.policy.ladder import Preemption, cycle, rung_index
from headway.core.policy.shares import Sharer, Shares, share_out
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.core.worker import serves

# A lane that the policy no longer has is served last.
_UNDECLARED = Lane(level=1_000_000, weight=1, max_retries=0, timeout_ms=0)


class ShareClocks:
    """The tags of one worker: of the lanes that share a level, and of the classes that share a lane.

    ``offset`` in [0, 1) is random, so that many workers which claim little do not all start with the same lane.
    """

    def __init__(self, offset: float = 0.0) -> None:
        self._offset = offset
        self._lanes: Shares[str] = Shares(offset)
        self._classes: dict[str, Shares[ClassKey]] = {}

    def lane(self, name: str, lane: Lane, most: int) -> Sharer[str]:
        """Return the lane's position in the fair-share order, for up to ``most`` turns."""
        step = self._lanes.usual(name) / lane.weight
        return Sharer(name, self._lanes.tag(name, step), step, most)

    def class_(self, key: ClassKey, most: int) -> Sharer[ClassKey]:
        """Return the class's position in the fair-share order of its lane, for up to ``most`` turns."""
        shares = self._shares(key.lane)
        step = shares.usual(key)
        return Sharer(key, shares.tag(key, step), step, most)

    def catch_up(self) -> None:
        """Move the clock of the lanes to the end of all claims that are recorded, as a plan does for several lanes."""
        self._lanes.catch_up()

    def charge(self, policy: Policy, key: ClassKey, seconds: float, jobs: int = 1) -> None:
        """Record the claim of jobs with the expected seconds of each."""
        self._lanes.charge(key.lane, seconds, lane_of(policy, key.lane).weight, jobs)
        self._shares(key.lane).charge(key, seconds, turns=jobs)

    def correct(self, policy: Policy, key: ClassKey, seconds: float) -> None:
        """Record that jobs took ``seconds`` longer than expected, or less if negative."""
        self._lanes.correct(key.lane, seconds, lane_of(policy, key.lane).weight)
        self._shares(key.lane).correct(key, seconds)

    def _shares(self, lane: str) -> Shares[ClassKey]:
        shares = self._classes.get(lane)
        if shares is None:
            shares = self._classes[lane] = Shares(self._offset)
        return shares


@dataclass(slots=True)
class LaneView:
    """A lane in a plan: its classes, and how many of their jobs could start now."""

    name: str
    lane: Lane
    level: int  # The level that it has risen to.
    views: list[ClassView]
    claimable: list[ClassView]  # The views with jobs that could start now.
    waiting: int
    named: bool = False


def plan(
    snapshot: Snapshot,
    *,
    free: int,
    free_below: int,
    offers: frozenset[str],
    policy: Policy,
    clocks: ShareClocks | None = None,
) -> Plan:
    """Return what a worker should claim, in order.

    Rule 1: the plan names no class whose needs the worker lacks, so such a class blocks no job.
    Rule 2: lanes outside the reserve share ``free_below``. The store stops there, as at every limit.
    Rule 3: the best level comes first. A lane whose oldest job has waited past its thresholds has risen and joins the
            level being served. Lanes that meet there share it by weight, in expected seconds.
    Rule 4: the classes of a lane go by sequence. Where tenants share, classes take turns by expected seconds.
    Classes that looked empty are named too, since the snapshot may be old and levels must hold all the same.
    """
    if free <= 0:
        return Plan()
    lines = _lines(snapshot, offers, policy)
    clocks = clocks or ShareClocks()
    below = max(0, min(free, free_below))
    whole: set[ClassKey] = set()
    takes = list(_bounded(_serve(lines, free, snapshot.now_at, policy, clocks), free, below, policy, whole))
    for line in lines:
        outside = line.name not in policy.reserve.lanes
        if most := below if outside else free:
            takes += [Take(view.key, most, outside) for view in line.views if not whole or view.key not in whole]
    leave_free = policy.reserve.rule == "leave_free"
    return Plan(tuple(takes), free, below, leave_free)


def make_room(
    snapshot: Snapshot, *, offers: frozenset[str], policy: Policy, chance: float = 0.0
) -> tuple[Preemption, ...]:
    """Return the running jobs to lower or halt for waiting jobs that the ladder or the lack of a slot holds back.

    It runs the ladder's cycle over the jobs that wait on the ladder, in the order of service. ``chance`` in [0, 1)
    chooses among the jobs that could make room, if the policy says so.
    """
    running, ladder = snapshot.running_jobs, policy.ladder
    if running is None or len(running.counts) != len(ladder.rungs) or not (running.elastic or running.sessions):
        return ()
    queue: list[str] = []
    for line in _lines(snapshot, offers, policy):
        for view in line.views:
            if view.blocked != "paused" and rung_index(ladder, view.key.rung) is not None:
                queue += [view.key.rung or ""] * min(view.waiting, running.slots)
    return cycle(ladder, running, queue, chance=chance).amendments if queue else ()


def service_order(snapshot: Snapshot, offers: frozenset[str], policy: Policy) -> list[list[LaneView]]:
    """Return the lanes in the order of service. Lanes of one group compete, the natives of its level first."""
    rest = [line for line in _lines(snapshot, offers, policy) if line.waiting]
    groups: list[list[LaneView]] = []
    while rest:
        groups.append(_competing(rest, policy))
        rest = [line for line in rest if line not in groups[-1]]
    return groups


def competitions(
    snapshot: Snapshot, offers: frozenset[str], policy: Policy
) -> list[tuple[list[LaneView], list[LaneView]]]:  # fmt: skip
    """Return the lanes that compete at each level, the best first: its natives, and lanes that have risen to it.

    A lane that has risen competes at every level from there on down, and at each only as long as a native does.
    With absolute promotion, lanes that have risen come before the natives.
    """
    rest = [line for line in _lines(snapshot, offers, policy) if line.waiting]
    found: list[tuple[list[LaneView], list[LaneView]]] = []
    while rest:
        group = _competing(rest, policy)
        native = min(line.lane.level for line in group)
        natives = [line for line in group if line.lane.level == native]
        joined = [line for line in group if line.lane.level > native]
        if policy.promotion == "absolute" and joined:
            natives, joined = joined, []
        found.append((natives, joined))
        rest = [line for line in rest if line not in natives]
    return found


def lane_of(policy: Policy, name: str) -> Lane:
    """Return a lane. One that the policy no longer has is served last, never forgotten."""
    return policy.lanes.get(name, _UNDECLARED)


def risen_level(lane: Lane, waited_ms: int) -> int:
    """Return the level that a lane, or a job, has risen to: one up at each threshold passed."""
    return max(0, lane.level - bisect_right(lane.promote_after_ms, waited_ms))


def effective_lane(policy: Policy, job: JobRecord, now_at: int) -> str:
    """Return the lane that a job's own age has raised it to. A job ages while it waits, not while it is delayed."""
    lane = policy.lanes.get(job.lane)
    if lane is None or job.eligible_at is None:
        return job.lane
    until_at = job.started_at or job.finished_at or now_at
    level = risen_level(lane, until_at - job.eligible_at)
    better = [(other.level, name) for name, other in policy.lanes.items() if level <= other.level < lane.level]
    return min(better)[1] if better else job.lane


def _lines(snapshot: Snapshot, offers: frozenset[str], policy: Policy) -> list[LaneView]:
    """Return the lanes that a worker with these offers can serve, by level and name."""
    by_lane: dict[str, list[ClassView]] = {}
    for view in snapshot.classes:
        needs = view.key.needs
        if not needs or offers.issuperset(needs) or serves(needs, offers):
            by_lane.setdefault(view.key.lane, []).append(view)
    lines = [_line(name, views, snapshot.now_at, policy) for name, views in by_lane.items()]
    return sorted(lines, key=lambda line: (line.lane.level, line.name))


def _line(name: str, views: list[ClassView], now_at: int, policy: Policy) -> LaneView:
    lane = lane_of(policy, name)
    if len(views) > 1:
        views.sort(key=lambda view: (view.head_key, view.key.needs, view.key.rung or "", view.key.persist))
    claimable = [view for view in views if view.waiting and view.blocked is None]
    since_at = [view.oldest_at for view in claimable if view.oldest_at is not None]
    level = risen_level(lane, now_at - min(since_at)) if since_at else lane.level
    return LaneView(name, lane, level, views, claimable, sum([view.waiting for view in claimable]))


def _competing(claimable: Sequence[LaneView], policy: Policy) -> list[LaneView]:
    """Return the lanes to serve next: those of the best level with work, and those that have risen to it."""
    absolute = policy.promotion == "absolute"
    served = min(line.level if absolute else line.lane.level for line in claimable)
    return [line for line in claimable if line.level <= served]


def _serve(rest: Sequence[LaneView], free: int, now_at: int, policy: Policy, clocks: ShareClocks) -> Iterator[Take]:
    """Yield takes down the levels while slots are left."""
    left = free
    sharers = {line.name: clocks.lane(line.name, line.lane, line.waiting) for line in rest} if len(rest) > 1 else {}
    while left > 0 and (claimable := [line for line in rest if line.waiting]):
        group = _competing(claimable, policy)
        native = min(line.lane.level for line in group)
        for line in rest:  # A class that looked empty may have jobs since.
            if not line.waiting and line.lane.level <= native and not line.named:
                line.named = True
                yield from (Take(view.key, free, below_reserve=False) for view in line.views)
        aged = [line for line in group if line.level < line.lane.level]
        if policy.promotion == "absolute" and aged and len(claimable) > 1:
            yield from _by_age(group, claimable, free, now_at)
            served = min(line.level for line in group)
            for line in aged:  # Its younger jobs have not risen as high.
                line.level = served + 1
            continue
        if len(group) == 1:
            left -= group[0].waiting
            group[0].waiting = 0
            yield from _in_lane(group[0], free, clocks)
        else:
            left -= yield from _shared(group, left, sharers, clocks)


def _shared(
    group: Sequence[LaneView], left: int, sharers: dict[str, Sharer[str]], clocks: ShareClocks
) -> Generator[Take, None, int]:
    """Yield the takes of lanes that compete, until the level's natives have no more jobs. Return the turns used."""
    native = min(line.lane.level for line in group)
    natives = [line for line in group if line.lane.level == native]
    # A lane that has joined competes as long as a native does, and then joins the next level.
    until = max(sharers[line.name].tag + (line.waiting - 1) * sharers[line.name].step for line in natives)
    competing = []
    for line in group:
        sharer, most = sharers[line.name], line.waiting
        if line.lane.level > native:
            most = min(most, max(0, ceil((until - sharer.tag) / sharer.step - 1e-9)))
        competing.append(sharer._replace(most=most))
    turns = share_out(left, competing)
    for line in sorted(group, key=lambda line: sharers[line.name].tag):
        count = turns[line.name]
        if not count:
            continue
        over = natives[0].name if line.lane.level > native else None
        yield from _in_lane(line, count, clocks, over)
        line.waiting -= count
        sharers[line.name] = sharers[line.name]._replace(tag=sharers[line.name].tag + count * sharers[line.name].step)
    return sum(turns.values())


def _by_age(group: Sequence[LaneView], claimable: Sequence[LaneView], free: int, now_at: int) -> Iterator[Take]:
    """Yield the takes of absolute promotion: an aged job goes before every job that came later, in any lane."""
    served = min(line.level for line in group)
    aged: list[tuple[int, Take]] = []
    for line in group:
        promoted = line.lane.level > served
        until_at = over = None
        if promoted:
            until_at = now_at - line.lane.promote_after_ms[line.lane.level - served - 1]
            over = next((other.name for other in claimable if other.lane.level < line.lane.level), None)
        aged += [
            (view.oldest_at, Take(view.key, free, below_reserve=False, over=over, until_at=until_at))
            for view in line.claimable
            if view.oldest_at is not None
        ]
    yield from (take for _, take in sorted(aged, key=lambda pair: pair[0]))


def _in_lane(line: LaneView, turns: int, clocks: ShareClocks, over: str | None = None) -> Iterator[Take]:
    """Split a lane's turns among its classes. ``over``: the lane that it goes before."""
    views = line.claimable
    if len(views) <= 1:
        yield from (Take(view.key, turns, False, over) for view in views)
        return
    if any(view.fair for view in views):
        sharers = [clocks.class_(view.key, view.waiting) for view in views]
        shared = share_out(turns, sharers)
        sharers.sort(key=lambda sharer: sharer.tag)
        counts = ((sharer.name, shared[sharer.name]) for sharer in sharers)
        yield from (Take(key, count, False, over) for key, count in counts if count)
    else:
        split = zip(views, _in_proportion(turns, [view.waiting for view in views]), strict=True)
        yield from (Take(view.key, count, False, over) for view, count in split if count)


def _in_proportion(turns: int, waiting: Sequence[int]) -> list[int]:
    """Split turns in proportion to waiting jobs, as first come first served would with evenly mixed arrivals."""
    total = sum(waiting)
    turns = min(turns, total)
    split = [turns * count // total for count in waiting]
    left = turns - sum(split)
    for index, count in enumerate(waiting):
        if not left:
            break
        if split[index] < count:
            split[index] += 1
            left -= 1
    return split


def _bounded(takes: Iterable[Take], free: int, below: int, policy: Policy, whole: set[ClassKey]) -> Iterator[Take]:
    """Yield the takes within the reserve, without those that follow an unbounded take of the same class.

    Add the classes of unbounded takes to ``whole``.
    """
    for take in takes:
        if take.key in whole:
            continue
        outside = take.key.lane not in policy.reserve.lanes
        full = below if outside else free
        most = min(take.most, full)
        if most <= 0:
            continue
        if most == full and take.until_at is None:
            whole.add(take.key)
        yield Take(take.key, most, outside, take.over, take.until_at)
