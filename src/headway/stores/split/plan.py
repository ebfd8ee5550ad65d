"""Split a plan between two stores, and join their snapshots. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headway.core.job import ClassKey
from headway.core.lease import Lease
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.stores.base import LaneStats, Stats


class SplitPlan(NamedTuple):
    """A plan in the order in which two stores execute it: transient takes, durable ones, transient ones.

    ``rest``: further takes are left to the next plan. Each claim calls the durable store only once, so that the claim
    can be repeated.
    """

    first: tuple[Take, ...]
    durable: tuple[Take, ...]
    then: tuple[Take, ...]
    rest: bool


def leading(takes: Sequence[Take]) -> tuple[Take, ...]:
    """Return the transient takes that come before any durable one."""
    ends = next((at for at, take in enumerate(takes) if take.key.persist), len(takes))
    return tuple(takes[:ends])


def split_plan(takes: Sequence[Take], holds: Callable[[ClassKey], bool], misplaced: Collection[ClassKey]) -> SplitPlan:
    """Split the takes of a plan.

    ``holds``: whether the transient store has jobs of a class. Classes without jobs do not block others.
    ``misplaced``: the transient classes of the durable store. Their jobs were submitted before the transient store
    existed, or in a transaction. They are claimed there once the transient store has no jobs of the same class.
    """
    first = leading(takes)
    durable = [take for take in first if take.key in misplaced]
    then: list[Take] = []
    for take in takes[len(first) :]:
        if take.key.persist or (take.key in misplaced and not holds(take.key)):
            if then:
                return SplitPlan(first, tuple(durable), tuple(then), rest=True)
            durable.append(take)
        elif holds(take.key):
            then.append(take)
    return SplitPlan(first, tuple(durable), tuple(then), rest=False)


class RemainingSlots(NamedTuple):
    """The slots of a plan that are not used yet."""

    free: int
    below: int

    def less(self, plan: Plan, leases: Sequence[Lease]) -> RemainingSlots:
        """Return the slots that are left after these claims."""
        outside = {take.key for take in plan.takes if take.below_reserve}
        below = len(leases) if plan.leave_free else sum(lease.class_key in outside for lease in leases)
        return RemainingSlots(max(0, self.free - len(leases)), max(0, self.below - below))

    def of(self, plan: Plan, takes: Sequence[Take], known: int | None = None) -> Plan:
        return plan._replace(takes=tuple(takes), free=self.free, free_below=self.below, known=known)


def transient_views(snapshot: Snapshot) -> dict[ClassKey, ClassView]:
    """Return the transient classes of a store, with times relative to the snapshot."""
    return {
        view.key: view._replace(oldest_at=None if view.oldest_at is None else view.oldest_at - snapshot.now_at)
        for view in snapshot.classes
        if not view.key.persist
    }


def join_views(durable: Snapshot, transient: Mapping[ClassKey, ClassView]) -> Snapshot:
    """Merge the snapshots of both stores, by the clock of the durable one.

    The order keys of two stores are not comparable. In a lane with durable and transient jobs, the two kinds therefore
    share the lane as tenants do, by expected seconds, so that many jobs of one kind do not delay the other kind.
    """
    classes = {view.key: view for view in durable.classes}
    behind = max((view.head_key for view in durable.classes), default=0)
    for key, view in transient.items():
        oldest_at = None if view.oldest_at is None else durable.now_at + view.oldest_at
        durable_view = classes.get(key)
        if durable_view is None:
            classes[key] = view._replace(oldest_at=oldest_at, head_key=behind + view.head_key, fair=True)
        else:
            since = [at for at in (oldest_at, durable_view.oldest_at) if at is not None]
            waiting = durable_view.waiting + view.waiting
            classes[key] = durable_view._replace(waiting=waiting, oldest_at=min(since, default=None), fair=True)
    keys = sorted(classes, key=lambda key: (key.lane, key.needs, key.rung or "", key.persist))
    return durable._replace(classes=tuple(classes[key] for key in keys))


def join_stats(durable: Stats, transient: Stats) -> Stats:
    """Add the waiting jobs and the counts of the transient store to those of the durable one."""
    lanes = dict(durable.lanes)
    for name, lane in transient.lanes.items():
        known = lanes.get(name, LaneStats())
        lanes[name] = known._replace(waiting=known.waiting + lane.waiting)
    totals = _sum(durable.totals, transient.totals)
    last_minute = _sum(durable.last_minute, transient.last_minute)
    return replace(durable, lanes=lanes, totals=totals, last_minute=last_minute)


def _sum(*counts: Mapping[str, int]) -> dict[str, int]:
    names: Iterable[str] = dict.fromkeys(name for each in counts for name in each)
    return {name: sum(each.get(name, 0) for each in counts) for name in names}
