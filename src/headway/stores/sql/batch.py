"""Batches: creates, closes, cancels and reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from headway.core.errors import BatchClosed, BatchNotFound
from headway.core.job import JobRecord, State
from headway.core.workflow import BatchId, BatchQuery, BatchRecord, GraphNode, NewBatch
from headway.stores.sql.query import NEWEST, read_jobs
from headway.stores.sql.transaction import Transaction
from headway.stores.texts import is_writable


class BatchHandle(NamedTuple):
    """A batch that exists, as far as adding to it is concerned."""

    batch_id: BatchId
    seq: int
    tenant: str | None
    cancel_at: int | None = None
    finished_at: int | None = None

    @property
    def takes_jobs(self) -> bool:
        return self.cancel_at is None and self.finished_at is None


async def find_batch(tx: Transaction, batch_id: str) -> BatchHandle | None:
    """Return a batch, or None."""
    found = await tx.db.row("batch_by_id", batch_id, tx.namespace_id) if is_writable(batch_id) else None
    return None if found is None else _handle(tx, found)


async def find_batch_by_key(tx: Transaction, key: str, tenant: str | None) -> BatchHandle | None:
    """Return the batch of a tenant with this key, or None."""
    found = await tx.db.row("batch_by_key", tx.namespace_id, tx.rows.text(key), tx.rows.text(tenant) or "")
    return None if found is None else _handle(tx, found)


def _handle(tx: Transaction, found: Sequence[Any]) -> BatchHandle:
    batch_id, seq, tenant, cancel_at, finished_at = found
    return BatchHandle(batch_id, seq, tx.rows.read_text(tenant), cancel_at, finished_at)


def check_open(batch: BatchHandle | None, batch_id: BatchId) -> BatchHandle:
    """Return a batch that takes jobs. Raises ``BatchNotFound``, ``BatchClosed``."""
    if batch is None:
        raise BatchNotFound(f"no batch {batch_id} in the store", batch_id=batch_id)
    if not batch.takes_jobs:
        ended = "was cancelled" if batch.cancel_at is not None else "has ended"
        raise BatchClosed(f"batch {batch_id} {ended} and takes no more jobs", batch_id=batch_id)
    return batch


async def create_batch(tx: Transaction, new: NewBatch) -> BatchHandle:
    """Write a new batch, which counts as a member of its parent."""
    parent = None if new.parent is None else check_open(await find_batch(tx, new.parent), new.parent)
    [seq] = await tx.next_numbers(1)
    await tx.db.run(
        "batch_add", seq, tx.namespace_id, new.batch_id, tx.rows.text(new.name), tx.rows.text(new.key),
        tx.rows.text(new.tenant), None if parent is None else parent.seq, new.open, tx.now_at,
    )  # fmt: skip
    if parent is not None:
        await _grow(tx, parent, members=1, children=1)
    tx.changed_counts.setdefault(seq, Counter())  # An empty batch that is not open ends at once.
    return BatchHandle(new.batch_id, seq, new.tenant)


async def add_members(tx: Transaction, batch: BatchHandle, members: Sequence[GraphNode]) -> None:
    """Count new members of a batch."""
    if members:
        await _grow(tx, batch, members=len(members), held=sum(bool(node.after) for node in members))


async def _grow(tx: Transaction, batch: BatchHandle, *, members: int, children: int = 0, held: int = 0) -> None:
    if await tx.db.first("batch_grow", batch.seq, members, children, held) is None:
        check_open(await find_batch(tx, batch.batch_id), batch.batch_id)  # It has ended in the meantime.


async def close(tx: Transaction, batch_id: BatchId) -> BatchRecord | None:
    """Let a batch end once all its members have ended."""
    batch = await find_batch(tx, batch_id)
    if batch is not None:
        tx.exclude_others()
        await tx.db.run("batch_close", batch.seq)
        tx.changed_counts.setdefault(batch.seq, Counter())
        await tx.settle_edges()
    return (await get(tx, [batch_id]))[0]


async def cancel(tx: Transaction, batch_id: BatchId) -> BatchRecord | None:
    """Cancel a batch with its child batches."""
    batch = await find_batch(tx, batch_id)
    todo = [] if batch is None else [batch.seq]
    for seq in todo:
        tx.exclude_others()
        if await tx.db.first("batch_cancel", tx.now_at, seq) is not None:
            tx.uncancelled[seq] = 0
            tx.changed_counts.setdefault(seq, Counter())
            todo += [child_seq for (child_seq,) in await tx.db.run("batch_children", seq)]
    await tx.settle_edges()
    return (await get(tx, [batch_id]))[0]


async def get(tx: Transaction, batch_ids: Sequence[BatchId]) -> list[BatchRecord | None]:
    """Return each batch, or None."""
    wanted = tx.rows.array([batch_id for batch_id in batch_ids if is_writable(batch_id)])
    found = {row["batch_id"]: row for row in await tx.db.rows("batches", wanted, tx.namespace_id)}
    return [tx.rows.batch(found[one], tx.now_at) if one in found else None for one in batch_ids]


async def find(tx: Transaction, query: BatchQuery) -> list[BatchRecord]:
    """Find batches, newest first."""
    if not is_writable(query.tenant):
        return []
    before = NEWEST if query.before is None else query.before
    statuses = f",{','.join(query.statuses)}," if query.statuses else None
    values = (tx.namespace_id, tx.rows.text(query.tenant), statuses, before, query.limit)
    return [tx.rows.batch(row, tx.now_at) for row in await tx.db.rows("find_batches", *values)]


async def members(
    tx: Transaction, batch_id: BatchId, beyond: int, states: Sequence[State], limit: int
) -> list[JobRecord]:  # fmt: skip
    """Return jobs of a batch in the order of adding."""
    batch = await find_batch(tx, batch_id)
    if batch is None:
        return []
    wanted = f",{','.join(states)}," if states else None
    found = await tx.db.run("members", batch.seq, beyond, wanted, limit)
    return await read_jobs(tx, [seq for (seq,) in found])
