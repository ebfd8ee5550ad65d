"""The plans of one worker. A plan is used again where a new one would be equal."""

from __future__ import annotations

from headway.core.policy.document import Policy
from headway.core.policy.lanes import ShareClocks, plan
from headway.core.snapshot import Plan, Snapshot
from headway.core.worker import serves

PLANS_MAX = 256  # Plans of one worker that are kept, so that memory stays bounded however many slots it has.


class Planner:
    """Makes the plans of one worker, with clocks that start at ``offset``, and reuses those that depend on no clock.

    Lanes share by the clocks while jobs of several classes wait. While no job waits, a plan depends only on the classes
    and the free slots, and with a single class only on the snapshot and the free slots.
    """

    def __init__(self, offset: float = 0.0) -> None:
        self.clocks = ShareClocks(offset)
        self._made_from: tuple[object, ...] = ()
        self._made: dict[tuple[int, int], Plan] = {}  # By free slots, and those of them below the reserve.
        self._shares = False  # Whether the plans have lanes that share, so that a plan catches the clocks up.

    def plan(
        self, snapshot: Snapshot, *, free: int, free_below: int, offers: frozenset[str], policy: Policy
    ) -> Plan:  # fmt: skip
        """Return what the worker should claim, with the number of classes that the plan was made from."""
        classes = snapshot.classes
        made_from: tuple[object, ...] = (classes, policy, offers)
        if made_from != self._made_from:  # Else no job waits, as when the plans were made.
            if [view for view in classes if view.waiting]:
                if len(classes) > 1:
                    return self._plan(snapshot, free, free_below, offers, policy)
                made_from = (snapshot, policy, offers)
            if made_from != self._made_from:
                lanes = {view.key.lane for view in classes if serves(view.key.needs, offers)}
                self._made_from, self._made, self._shares = made_from, {}, len(lanes) > 1
        made = self._made.get((free, free_below))
        if made is None:
            if len(self._made) == PLANS_MAX:
                self._made.clear()
            made = self._made[free, free_below] = self._plan(snapshot, free, free_below, offers, policy)
        elif self._shares:
            self.clocks.catch_up()
        return made

    def _plan(self, snapshot: Snapshot, free: int, free_below: int, offers: frozenset[str], policy: Policy) -> Plan:
        takes, free, below, leave_free, _ = plan(
            snapshot, free=free, free_below=free_below, offers=offers, policy=policy, clocks=self.clocks
        )
        return Plan(takes, free, below, leave_free, len(snapshot.classes))
