"""Assigns the places of eligible jobs, and makes a class fair between its tenants."""

from __future__ import annotations

from typing import Any, NamedTuple

from headway.core.policy.order import order_key
from headway.stores.sql.transaction import Transaction


class Requeue(NamedTuple):
    """A job that returns to the queue, with the values that it keeps."""

    class_id: int
    seq: int
    task: str
    tenant: str | None
    expires_at: int | None
    unique_key: str | None
    epoch: int
    attempts: int
    crashes: int
    timeout_ms: int | None
    token: bytes | None
    error: str | None
    reason: str | None


class Ordering:
    """Assigns order keys in classes. Caches what it has read for one transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._clocks: dict[int, int | None] = {}  # By class: its clock, or None if it is not fair.
        self._last: dict[tuple[int, str], int | None] = {}
        self._read: dict[int, Any] = {}  # By class: what ``Transaction.last_key`` has read, for the next tenants.
        self._plain: dict[int, tuple[int, int]] = {}  # By class that is not fair: the first and last place.

    def sharers(self) -> dict[int, list[str]]:
        """Return the tenants that were given places, by class."""
        found: dict[int, list[str]] = {}
        for class_id, sharer in self._last:
            found.setdefault(class_id, []).append(sharer)
        return found

    async def put(
        self, job: Requeue, eligible_at: int, number: int, *, front: bool = False, early: bool = False
    ) -> None:  # fmt: skip
        """Make a job eligible that ran, ended, was delayed or held before.

        ``early``: its number may be lower than those of jobs that were claimed already.
        """
        task, tenant = self._tx.rows.read_text(job.task) or "", self._tx.rows.read_text(job.tenant)
        key = await self.place(job.class_id, number, task, tenant, front=front)
        sharer = None if await self._clock(job.class_id) is None else self._tx.rows.text(tenant) or ""
        await self._tx.put_ready(job, key, eligible_at, sharer, front=front or early)
        self._tx.eligible.append(job.class_id)

    async def place(self, class_id: int, number: int, task: str, tenant: str | None, *, front: bool = False) -> int:
        """Return the order key of a job that becomes eligible.

        ``number``: its place in a class that is not fair. ``front``: before all waiting jobs.
        """
        # The dictionary lookup avoids an await for every submitted job.
        clock = self._clocks[class_id] if class_id in self._clocks else await self._clock(class_id)
        if clock is None:
            if tenant is None:
                first = self._plain.get(class_id)
                self._plain[class_id] = (number, number) if first is None else (first[0], number)
                return number
            clock = await self._become_fair(class_id, number)
        sharer = self._tx.rows.text(tenant) or ""
        known = (class_id, sharer)
        last = self._last[known] if known in self._last else await self._last_key(known)
        key = clock if front else order_key(clock, last, self._tx.rule_index.step_us(task, tenant or ""))
        self._last[known] = key if last is None else max(last, key)
        return key

    async def _clock(self, class_id: int) -> int | None:
        """Return the clock of a fair class, or None for another class."""
        if class_id not in self._clocks:
            fair, clock = await self._tx.db.row("class_state", class_id)
            self._clocks[class_id] = clock if fair else None
        return self._clocks[class_id]

    async def _become_fair(self, class_id: int, number: int) -> int:
        """Make a class fair. All jobs that wait or run there already count as those of one tenant."""
        first, last = self._plain.get(class_id, (number, None))
        clock = await self._tx.make_fair(class_id, first)
        self._clocks[class_id] = clock
        if last is not None:
            before = await self._last_key((class_id, ""))
            self._last[class_id, ""] = last if before is None else max(before, last)
        return clock

    async def _last_key(self, known: tuple[int, str]) -> int | None:
        if known not in self._last:
            self._last[known] = await self._tx.last_key(*known, self._read)
        return self._last[known]
