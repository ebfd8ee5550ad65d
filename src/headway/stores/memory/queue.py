"""The queue of one class in the memory store, with blocked queues for jobs that wait for a limit of their own."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from headway.core.job import ClassKey
from headway.core.snapshot import ClassView

QueuePlace = tuple[int, int]  # An order key and a sequence number.


def key_order(key: ClassKey) -> tuple[str, tuple[str, ...], str, bool]:
    """Return what classes are sorted by."""
    return (key.lane, key.needs, key.rung or "", key.persist)


@dataclass(slots=True)
class ClassQueue:
    """The waiting jobs of one class, sorted.

    ``front`` holds the jobs that no limit holds back, ``blocked`` the others by the limit counter or pause that each
    waits for. A blocked queue is open from the moment in ``opens`` on. Without one it is closed until a running job
    releases the counter.
    """

    empty_view: ClassView  # The class in a snapshot while no job waits. Half of all views are of this kind.
    front: list[QueuePlace] = field(default_factory=list)
    blocked: dict[str, list[QueuePlace]] = field(default_factory=dict)
    opens: dict[str, int] = field(default_factory=dict)
    fair: bool = False
    clock: int = 0
    _tails: dict[str, list[int]] = field(default_factory=dict)  # By tenant: the order keys of its live jobs here.
    _ages: list[QueuePlace] = field(default_factory=list)  # If fair: when each job in front began to wait.

    def last(self, tenant: str) -> int | None:
        """Return the highest order key of a tenant's jobs that wait or run here."""
        tail = self._tails.get(tenant)
        return tail[-1] if tail else None

    def become_fair(self, since: list[QueuePlace], keys: list[int], clock: int) -> None:
        """Start to share by tenant. The jobs that are here already count as those of one tenant."""
        self.fair, self.clock = True, clock
        self.empty_view = self.empty_view._replace(fair=True)
        self._ages = sorted(since)
        self._tails[""] = sorted(keys)

    def add(self, place: QueuePlace, eligible_at: int, tenant: str) -> None:
        insort(self.front, place)
        if self.fair:
            insort(self._ages, (eligible_at, place[1]))
            insort(self._tails.setdefault(tenant, []), place[0])

    def remove(self, place: QueuePlace, blocked_by: str, eligible_at: int) -> None:
        """Remove a waiting job. It still counts for its tenant, since it may go on to run."""
        places = self.blocked[blocked_by] if blocked_by else self.front
        places.pop(bisect_left(places, place))
        if not blocked_by and self.fair:
            self._ages.pop(bisect_left(self._ages, (eligible_at, place[1])))
        if blocked_by and not places:
            del self.blocked[blocked_by]
            self.opens.pop(blocked_by, None)

    def forget(self, order_key: int, tenant: str) -> None:
        """Stop counting a job for its tenant: it neither waits nor runs here."""
        if self.fair:
            tail = self._tails[tenant]
            tail.pop(bisect_left(tail, order_key))
            if not tail:
                del self._tails[tenant]

    def block(self, place: QueuePlace, key: str, open_at: int | None) -> None:
        """Add a job to the blocked queue of a counter, and close that queue."""
        insort(self.blocked.setdefault(key, []), place)
        self.close(key, open_at)

    def close(self, key: str, open_at: int | None) -> None:
        """Close a blocked queue until a moment, or until a running job releases its counter."""
        if open_at is None:
            self.opens.pop(key, None)
        else:
            self.opens[key] = open_at

    def first(self, now_at: int) -> QueuePlace | None:
        """Return the next job, from the front or from an open blocked queue."""
        if not self.blocked:
            return self.front[0] if self.front else None
        heads = [places[0] for key, places in self.blocked.items() if self.opens.get(key, now_at + 1) <= now_at]
        return min([*self.front[:1], *heads], default=None)

    def waiting(self, now_at: int) -> int:
        """Count the jobs that no limit holds back. An open blocked queue counts once."""
        if not self.opens:
            return len(self.front)
        return len(self.front) + sum(open_at <= now_at for open_at in self.opens.values())

    def oldest_at(self) -> int | None:
        """Return when the oldest job in front of a fair queue began to wait."""
        return self._ages[0][0] if self._ages else None
