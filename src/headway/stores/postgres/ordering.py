"""Lines: where a job that becomes eligible again is put, and how the tenants of a class come to share it."""

from __future__ import annotations

from typing import NamedTuple

from headway.core.policy.order import order_key
from headway.stores.postgres import rows
from headway.stores.postgres.transaction import PostgresTransaction


class Requeue(NamedTuple):
    """A job that comes back to the queue, and what it brings along."""

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


class PostgresOrdering:
    """Assigns order keys in classes. Remembers, within one transaction, what it has read of them."""

    def __init__(self, tx: PostgresTransaction) -> None:
        self._tx = tx
        self._clocks: dict[int, int | None] = {}  # By class: its clock, or None if nobody shares it.
        self._last: dict[tuple[int, str], int | None] = {}

    async def put(self, job: Requeue, eligible_at: int, number: int, *, front: bool = False) -> None:
        """Let a job wait. ``number``: its place where nobody shares; ``front``: before all that wait."""
        class_id = job.class_id
        key = await self._place(job, number, front=front)
        clock = await self._clock(class_id)
        if front and clock is None:
            await self._tx.db.run("class_rewind", class_id)
        await self._tx.db.run(
            "ready_again", class_id, key, job.seq, eligible_at, job.expires_at, job.unique_key, job.epoch, job.attempts,
            job.crashes, job.timeout_ms, job.token, job.error, job.reason, None if clock is None else job.tenant or "",
        )  # fmt: skip
        self._tx.eligible.append(class_id)

    async def _place(self, job: Requeue, number: int, *, front: bool) -> int:
        clock = await self._clock(job.class_id)
        if clock is None:
            if job.tenant is None:
                return number
            clock = int(await self._tx.db.first("make_fair", job.class_id, number))
            self._clocks[job.class_id] = clock
        sharer = job.tenant or ""
        last = await self._last_key(job.class_id, sharer)
        key = (
            clock
            if front
            else order_key(
                clock, last, self._tx.rule_index.step_us(rows.read_text(job.task) or "", rows.read_text(sharer) or "")
            )
        )
        self._last[job.class_id, sharer] = key if last is None else max(last, key)
        return key

    async def _clock(self, class_id: int) -> int | None:
        """Return the clock of a class, or None if its tenants do not share it."""
        if class_id not in self._clocks:
            row = await self._tx.db.row("class_state", class_id)
            self._clocks[class_id] = row["clock"] if row["fair"] else None
        return self._clocks[class_id]

    async def _last_key(self, class_id: int, sharer: str) -> int | None:
        known = (class_id, sharer)
        if known not in self._last:
            self._last[known] = await self._tx.db.first("last_key", class_id, sharer)
        return self._last[known]
