"""The blocked queues of a class during a claim: which of their jobs is next, and which jobs the claim moves."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

from headway.stores.sql.transaction import LOWEST

if TYPE_CHECKING:
    from headway.stores.sqlite.limits import FullKey, LimitCheck
    from headway.stores.sqlite.transaction import SqliteTransaction

READ_AT_ONCE = 16  # Jobs, at least. More would be read in vain by a claim that has almost enough.

BlockedPlace = tuple[int, int]  # An order key and a number.


class BlockedQueues:
    """The open blocked queues of a class, in the order of their first jobs.

    It reads the first jobs of many queues at once, and writes what the claim has moved at its end, so that most jobs
    cost no statement of their own. Call ``leave`` or ``block`` for each job that ``first`` has returned.
    """

    def __init__(self, tx: SqliteTransaction, class_id: int, limit_check: LimitCheck) -> None:
        self._tx = tx
        self._class_id = class_id
        self._limit_check = limit_check
        self._next: list[tuple[BlockedPlace, str]] = []  # A heap of the next job of each open queue that was read.
        self._rows: dict[str, Any] = {}  # The next jobs that were read, by queue.
        self._reached: BlockedPlace = (LOWEST, 0)  # Up to where the queues were read.
        self._exhausted = not tx.has_open_blocked  # No queue opens during a claim.
        self._closed: dict[str, int | None] = {}  # When each queue opens that was closed here, if that is known.
        self._left: set[str] = set()  # Queues that a job has left.
        self._moved: list[tuple[Any, ...]] = []
        self._left_line: list[tuple[int, str, int, int]] = []  # Jobs of tenants that move from the line.

    def first(self) -> tuple[BlockedPlace, str] | None:
        """Return the place and the key of the next job in an open queue."""
        while True:
            while self._next and self._next[0][1] in self._closed:
                heappop(self._next)
            if self._exhausted or (self._next and self._next[0][0] <= self._reached):
                return self._next[0] if self._next else None
            self._read()

    def row(self, place: BlockedPlace, key: str) -> Any:
        """Return the job at a place that ``first`` has returned."""
        if key not in self._rows:
            before = place[0], place[1] - 1
            self._rows[key] = self._tx.connection.run("claim_head", self._class_id, key, *before, 1).fetchone()
        return self._rows[key]

    def leave(self, key: str) -> None:
        """Go on to the next job of the first queue, or close the queue if its limit is full now."""
        place, _ = heappop(self._next)
        del self._rows[key]
        self._left.add(key)
        if not self._limit_check.has_room(key):
            self._closed[key] = None
            return
        behind = self._tx.connection.run("blocked_next", self._class_id, key, *place).fetchone()
        if behind is not None:
            heappush(self._next, (behind, key))

    def block(self, blocked_by: str, order_key: int, seq: int, sharer: str | None, full: FullKey) -> None:
        """Move a job to the blocked queue of a key without room, and close that queue."""
        key, open_at = full
        self._closed[key] = open_at
        if blocked_by != key:
            self._moved.append((key, self._tx.now_at, self._class_id, blocked_by, order_key, seq))
            if blocked_by:
                self.leave(blocked_by)
            elif sharer is not None:
                self._left_line.append((self._class_id, sharer, order_key, seq))

    async def write_moves(self) -> None:
        """Write the moves to blocked queues, before any job that was taken leaves its queue."""
        if self._moved:
            await self._tx.db.run_many("blocked_move", self._moved)
            await self._tx.db.run_many("job_set_blocked_by", [(move[0], move[5]) for move in self._moved])
        if self._left_line:
            await self._tx.db.run_many("line_leave", self._left_line)

    async def write_queues(self) -> None:
        """Write the state of the queues, once all jobs have left that were taken."""
        tx = self._tx
        if self._closed:
            closed = [(tx.namespace_id, key, self._class_id, open_at) for key, open_at in self._closed.items()]
            await tx.db.run_many("blocked_close", closed)
        left = self._left - self._closed.keys()
        heads = [(*place, tx.namespace_id, key, self._class_id) for place, key in self._next if key in left]
        if heads:
            await tx.db.run_many("blocked_put_head", heads)
        if maybe_empty := self._left.difference(key for _, key in self._next):
            await tx.db.run("blocked_delete_empty", tx.namespace_id, tx.rows.array(maybe_empty), self._class_id)
        if self._left or self._closed:
            tx.blocked_queues_changed()

    def _read(self) -> None:
        """Read the next queues with their first jobs.

        The cancel of an expired job writes the next first job of its queue at once. Such a queue is known already.
        """
        found = self._tx.connection.run("blocked_first", self._class_id, *self._reached, READ_AT_ONCE).fetchall()
        self._exhausted = len(found) < READ_AT_ONCE
        for row in found:
            *_, key = row
            self._reached = row[:2]
            if key not in self._left:
                self._rows[key] = row[:-1]
                heappush(self._next, (self._reached, key))
