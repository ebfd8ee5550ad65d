"""Lanes by level with reserved slots; classes of one level by the longest wait."""

from __future__ import annotations

from headway.core.policy.document import Policy
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.core.worker import serves

_UNKNOWN_LEVEL = 1_000_000  # A lane the policy no longer has is served last, never forgotten.


def plan(snapshot: Snapshot, *, free: int, free_below: int, offers: frozenset[str], policy: Policy) -> Plan:
    """Say what a worker with so many free slots should claim, in order.

    Rule 1: a class whose needs the worker lacks is never named, so it blocks nobody.
    Rule 2: the best level comes first; inside a level, the class that has waited longest.
    Rule 3: lanes outside the reserve share ``free_below``; the store stops there.
    Classes that looked empty are named too: the snapshot may be old, and levels must hold all the same.
    """
    if free <= 0:
        return Plan()
    servable = [view for view in snapshot.classes if serves(view.key.needs, offers)]
    takes: list[Take] = []
    for view in sorted(servable, key=lambda view: _rank(view, policy, snapshot.now_at)):
        below = view.key.lane not in policy.reserve_lanes
        most = min(free, free_below) if below else free
        if most > 0:
            takes.append(Take(view.key, most, below))
    return Plan(tuple(takes), free, max(0, min(free, free_below)))


def _rank(view: ClassView, policy: Policy, now_at: int) -> tuple[int, int, str, tuple[str, ...], str, bool]:
    lane = policy.lanes.get(view.key.lane)
    level = lane.level if lane else _UNKNOWN_LEVEL
    oldest_at = now_at if view.oldest_at is None else view.oldest_at
    return (level, oldest_at, view.key.lane, view.key.needs, view.key.rung or "", not view.key.persist)
