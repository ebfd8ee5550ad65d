"""Which part of a plan goes to which store, and one snapshot of what waits in both. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headway.core.job import ClassKey
from headway.core.lease import Lease
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.stores.base import LaneStats, Stats


class SplitPlan(NamedTuple):
    """A plan in the order in which two stores carry it out: transient takes, durable ones, transient ones.

    What comes after that is left to the next plan (``rest``): the durable store is asked once for each claim, so that
    the claim can be repeated.
    """

    first: tuple[Take, ...]
    durable: tuple[Take, ...]
    then: tuple[Take, ...]
    rest: bool


def leading(takes: Sequence[Take]) -> tuple[Take, ...]:
    """Return the transient takes that come before any durable one."""
    ends = next((at for at, take in enumerate(takes) if take.key.persist), len(takes))
    return tuple(takes[:ends])


def split_plan(takes: Sequence[Take], holds: Callable[[ClassKey], bool], strays: Collection[ClassKey]) -> SplitPlan:
    """Part a plan's takes.

    ``holds``: whether the transient store has jobs of a class; classes without jobs block no others.
    ``strays``: the transient classes of the durable store, whose jobs came before there was another one, or as part
    of a transaction. They are taken there, once the transient store has none of the same class.
    """
    first = leading(takes)
    durable = [take for take in first if take.key in strays]
    then: list[Take] = []
    for take in takes[len(first) :]:
        if take.key.persist or (take.key in strays and not holds(take.key)):
            if then:
                return SplitPlan(first, tuple(durable), tuple(then), rest=True)
            durable.append(take)
        elif holds(take.key):
            then.append(take)
    return SplitPlan(first, tuple(durable), tuple(then), rest=False)


class RemainingSlots(NamedTuple):
    """What of a plan's totals is left."""

    free: int
    below: int

    def less(self, plan: Plan, leases: Sequence[Lease]) -> RemainingSlots:
        """Return what is left after these claims."""
        outside = {take.key for take in plan.takes if take.below_reserve}
        below = len(leases) if plan.leave_free else sum(lease.class_key in outside for lease in leases)
        return RemainingSlots(max(0, self.free - len(leases)), max(0, self.below - below))

    def of(self, plan: Plan, takes: Sequence[Take], known: int | None = None) -> Plan:
        """Return the part of a plan that these takes are."""
        return plan._replace(takes=tuple(takes), free=self.free, free_below=self.below, known=known)


def transient_views(snapshot: Snapshot) -> dict[ClassKey, ClassView]:
    """Return the transient classes of a store; its moments are counted from when the snapshot was taken."""
    return {
        view.key: view._replace(oldest_at=None if view.oldest_at is None else view.oldest_at - snapshot.now_at)
        for view in snapshot.classes
        if not view.key.persist
    }


def join_views(durable: Snapshot, transient: Mapping[ClassKey, ClassView]) -> Snapshot:
    """Merge the snapshots of both stores, by the clock of the durable one.

    The numbers by which two stores order their jobs do not compare. So in a lane that holds both kinds neither goes
    by them: they share it as tenants would, by expected seconds, and a flood of one does not hold up the other.
    """
    classes = {view.key: view for view in durable.classes}
    behind = max((view.head_key for view in durable.classes), default=0)
    for key, view in transient.items():
        oldest_at = None if view.oldest_at is None else durable.now_at + view.oldest_at
        stray = classes.get(key)
        if stray is None:
            classes[key] = view._replace(oldest_at=oldest_at, head_key=behind + view.head_key, fair=True)
        else:
            since = [at for at in (oldest_at, stray.oldest_at) if at is not None]
            waiting = stray.waiting + view.waiting
            classes[key] = stray._replace(waiting=waiting, oldest_at=min(since, default=None), fair=True)
    return durable._replace(classes=tuple(sorted(classes.values(), key=_by_key)))


def join_stats(durable: Stats, transient: Stats) -> Stats:
    """Add what waits in the transient store, and what it has counted."""
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


def _by_key(view: ClassView) -> tuple[str, tuple[str, ...], str, bool]:
    key = view.key
    return (key.lane, key.needs, key.rung or "", key.persist)
