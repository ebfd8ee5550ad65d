"""A class as the memory store keeps it: a line of jobs, and parks for those that wait for limits of their own."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

QueuePlace = tuple[int, int]  # An order key and a sequence number.


@dataclass(slots=True)
class ClassQueue:
    """The jobs of one class, sorted. ``parks`` has the rest by the key each waits for; '' is the line itself.

    A park is open from the moment in ``opens`` on; without one it is shut until a job gives its key back.
    """

    front: list[QueuePlace] = field(default_factory=list)
    parks: dict[str, list[QueuePlace]] = field(default_factory=dict)
    opens: dict[str, int] = field(default_factory=dict)
    fair: bool = False
    clock: int = 0
    _tails: dict[str, list[int]] = field(default_factory=dict)  # By tenant: the keys of its live jobs here.
    _ages: list[QueuePlace] = field(default_factory=list)  # Of a fair line: since when each job in it has waited.

    def last(self, tenant: str) -> int | None:
        """Return the highest key of a tenant's jobs that wait or run here."""
        tail = self._tails.get(tenant)
        return tail[-1] if tail else None

    def become_fair(self, since: list[QueuePlace], keys: list[int], clock: int) -> None:
        """Begin to share by tenants. What is here already, by age and by key, is one tenant's."""
        self.fair, self.clock = True, clock
        self._ages = sorted(since)
        self._tails[""] = sorted(keys)

    def add(self, place: QueuePlace, eligible_at: int, tenant: str) -> None:
        insort(self.front, place)
        if self.fair:
            insort(self._ages, (eligible_at, place[1]))
            insort(self._tails.setdefault(tenant, []), place[0])

    def take_out(self, place: QueuePlace, park: str, eligible_at: int) -> None:
        """Remove a waiting job from where it stands. It still counts for its tenant: it may go on to run."""
        places = self.parks[park] if park else self.front
        places.pop(bisect_left(places, place))
        if not park and self.fair:
            self._ages.pop(bisect_left(self._ages, (eligible_at, place[1])))
        if park and not places:
            del self.parks[park]
            self.opens.pop(park, None)

    def forget(self, order_key: int, tenant: str) -> None:
        """A job no longer counts for its tenant: it neither waits nor runs here."""
        if self.fair:
            tail = self._tails[tenant]
            tail.pop(bisect_left(tail, order_key))
            if not tail:
                del self._tails[tenant]

    def put_aside(self, place: QueuePlace, park: str, open_at: int | None) -> None:
        """Let a job wait for its key."""
        insort(self.parks.setdefault(park, []), place)
        self.shut(park, open_at)

    def shut(self, park: str, open_at: int | None) -> None:
        """A park has no room: until a moment, or until its key is given back."""
        if open_at is None:
            self.opens.pop(park, None)
        else:
            self.opens[park] = open_at

    def first(self, now_at: int) -> tuple[str, QueuePlace] | None:
        """Return the job that is next: of the line, or of a park that is open."""
        found = [(places[0], park) for park, places in self.parks.items() if self.opens.get(park, now_at + 1) <= now_at]
        if self.front:
            found.append((self.front[0], ""))
        if not found:
            return None
        place, park = min(found)
        return park, place

    def waiting(self, now_at: int) -> int:
        """Count what nothing of its own holds back; an open park counts once."""
        return len(self.front) + sum(open_at <= now_at for open_at in self.opens.values())

    def oldest_at(self) -> int | None:
        """Since when the longest-waiting job of a fair line has waited."""
        return self._ages[0][0] if self._ages else None
