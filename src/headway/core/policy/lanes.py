"""Lane scheduling: the plan with which a worker claims the next jobs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from operator import attrgetter, itemgetter

from headway.core.job import ClassKey, JobRecord
from headway.core.policy.document import Lane, Policy
from headway.core.policy.ladder import Preemption, cycle, rung_index
from headway.core.policy.shares import Sharer, Shares, share_out
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.core.worker import serves

_head_key = attrgetter("head_key")
_as_take = partial(tuple.__new__, Take)  # Half the time of the constructor. A plan has a take for every class.

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
    takes = _Takes(free, below, policy.reserve.lanes)
    _serve(takes, lines, snapshot.now_at, policy, clocks)
    for line in lines:
        takes.add_rest(line)
    leave_free = policy.reserve.rule == "leave_free"
    return Plan(tuple(takes.listed), free, below, leave_free)


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
        key = view.key
        lane, needs = key.lane, key.needs
        if not needs or offers.issuperset(needs) or serves(needs, offers):
            if lane in by_lane:
                by_lane[lane].append(view)
            else:
                by_lane[lane] = [view]
    lines = [_line(name, views, snapshot.now_at, policy) for name, views in by_lane.items()]
    return sorted(lines, key=lambda line: (line.lane.level, line.name))


def _line(name: str, views: list[ClassView], now_at: int, policy: Policy) -> LaneView:
    lane = lane_of(policy, name)
    if len(views) > 1:
        if len({view.head_key for view in views}) < len(views):  # Equal heads go by the class.
            views.sort(key=lambda view: (view.key.needs, view.key.rung or "", view.key.persist))
        views.sort(key=_head_key)
    claimable = [view for view in views if view.waiting and view.blocked is None]
    if not claimable:
        return LaneView(name, lane, lane.level, views, claimable, 0)
    since_at = [view.oldest_at for view in claimable if view.oldest_at is not None]
    level = risen_level(lane, now_at - min(since_at)) if since_at else lane.level
    return LaneView(name, lane, level, views, claimable, sum([view.waiting for view in claimable]))


def _competing(claimable: Sequence[LaneView], policy: Policy) -> list[LaneView]:
    """Return the lanes to serve next: those of the best level with work, and those that have risen to it."""
    if len(claimable) == 1:
        return list(claimable)
    absolute = policy.promotion == "absolute"
    served = min([line.level if absolute else line.lane.level for line in claimable])
    return [line for line in claimable if line.level <= served]


class _Takes:
    """The takes of a plan so far, each within the reserve. A class gets no take after one of all its jobs."""

    def __init__(self, free: int, below: int, reserved: frozenset[str]) -> None:
        self.listed: list[Take] = []
        self.free = free
        self._below = below
        self._reserved = reserved
        self._whole: set[ClassKey] = set()  # The classes of takes that only the free slots bound.

    def add(self, key: ClassKey, most: int, over: str | None = None, until_at: int | None = None) -> None:
        """Add a take of up to ``most`` jobs. ``over`` and ``until_at`` are those of the take."""
        outside = key.lane not in self._reserved
        full = self._below if outside else self.free
        most = min(most, full)
        if most <= 0 or key in self._whole:
            return
        if most == full and until_at is None:
            self._whole.add(key)
        self.listed.append(_as_take((key, most, outside, over, until_at)))

    def add_rest(self, line: LaneView) -> None:
        """Add a take of all jobs of each class of a lane that has none yet."""
        whole, outside = self._whole, line.name not in self._reserved
        if full := self._below if outside else self.free:
            keys = [view.key for view in line.views if not whole or view.key not in whole]
            self.listed += [_as_take((key, full, outside, None, None)) for key in keys]


def _serve(takes: _Takes, rest: Sequence[LaneView], now_at: int, policy: Policy, clocks: ShareClocks) -> None:
    """Add takes down the levels while slots are left."""
    left = takes.free
    sharers: dict[str, Sharer[str]] = {}
    if len(rest) > 1:
        clocks.catch_up()
    while left > 0 and (claimable := [line for line in rest if line.waiting]):
        group = _competing(claimable, policy)
        native = min([line.lane.level for line in group])
        for line in rest:  # A class that looked empty may have jobs since.
            if not line.waiting and line.lane.level <= native and not line.named:
                line.named = True
                for view in line.views:
                    takes.add(view.key, takes.free)
        aged = [line for line in group if line.level < line.lane.level]
        if policy.promotion == "absolute" and aged and len(claimable) > 1:
            _by_age(takes, group, claimable, now_at)
            served = min(line.level for line in group)
            for line in aged:  # Its younger jobs have not risen as high.
                line.level = served + 1
            continue
        if len(group) == 1:
            left -= group[0].waiting
            group[0].waiting = 0
            _in_lane(takes, group[0], takes.free, clocks)
        else:
            left -= _shared(takes, group, left, sharers, clocks)


def _shared(
    takes: _Takes, group: Sequence[LaneView], left: int, sharers: dict[str, Sharer[str]], clocks: ShareClocks
) -> int:
    """Add the takes of lanes that compete, until the level's natives have no more jobs. Return the turns used.

    ``sharers``: the lanes that have competed so far, each with its next tag.
    """
    native = min([line.lane.level for line in group])
    natives = [line for line in group if line.lane.level == native]
    for line in group:
        if line.name not in sharers:
            sharers[line.name] = clocks.lane(line.name, line.lane, line.waiting)
    # A lane that has joined competes as long as a native does, and then joins the next level.
    until = max([sharers[line.name].tag + (line.waiting - 1) * sharers[line.name].step for line in natives])
    competing = []
    for line in group:
        name, tag, step, _ = sharers[line.name]
        most = line.waiting
        if line.lane.level > native:
            most = min(most, max(0, ceil((until - tag) / step - 1e-9)))
        competing.append(Sharer(name, tag, step, most))
    turns = share_out(left, competing)
    for line in sorted(group, key=lambda line: sharers[line.name].tag):
        count = turns[line.name]
        if not count:
            continue
        over = natives[0].name if line.lane.level > native else None
        _in_lane(takes, line, count, clocks, over)
        line.waiting -= count
        name, tag, step, most = sharers[line.name]
        sharers[line.name] = Sharer(name, tag + count * step, step, most)
    return sum(turns.values())


def _by_age(takes: _Takes, group: Sequence[LaneView], claimable: Sequence[LaneView], now_at: int) -> None:
    """Add the takes of absolute promotion: an aged job goes before every job that came later, in any lane."""
    served = min(line.level for line in group)
    aged: list[tuple[int, ClassKey, str | None, int | None]] = []
    for line in group:
        promoted = line.lane.level > served
        until_at = over = None
        if promoted:
            until_at = now_at - line.lane.promote_after_ms[line.lane.level - served - 1]
            over = next((other.name for other in claimable if other.lane.level < line.lane.level), None)
        aged += [(view.oldest_at, view.key, over, until_at) for view in line.claimable if view.oldest_at is not None]
    for _, key, over, until_at in sorted(aged, key=itemgetter(0)):
        takes.add(key, takes.free, over, until_at)


def _in_lane(takes: _Takes, line: LaneView, turns: int, clocks: ShareClocks, over: str | None = None) -> None:
    """Split a lane's turns among its classes. ``over``: the lane that it goes before."""
    views = line.claimable
    if len(views) == 1:
        takes.add(views[0].key, turns, over)
    elif [view for view in views if view.fair]:
        sharers = [clocks.class_(view.key, view.waiting) for view in views]
        shared = share_out(turns, sharers)
        sharers.sort(key=lambda sharer: sharer.tag)
        for sharer in sharers:
            takes.add(sharer.name, shared[sharer.name], over)
    else:
        split = _in_proportion(turns, [view.waiting for view in views])
        for view, count in zip(views, split, strict=True):
            if count:
                takes.add(view.key, count, over)


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
