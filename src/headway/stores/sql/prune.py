"""Deletes what the policy does not keep, in bounded batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.job import JobId, State
from headway.core.policy.document import Keep
from headway.stores.sql.finish import cancel
from headway.stores.sql.transaction import Transaction

DEAD_WORKERS_KEPT_MS = 3_600_000
WAIT_INTERVALS_KEPT_MS = 24 * 3_600_000
SCANNED = 5_000  # Ended jobs that one prune reads, to bound its time.
BATCHES_SCANNED = 1_000  # Batches that one prune reads.


@dataclass(slots=True)
class PruneRound:
    """The position of this process in its scans of the completed jobs and of the batches."""

    reached: int = 0
    trims_once: bool = False  # Whether to search for jobs beyond the maximum count only above ``trimmed``.
    trimmed: int = 0  # Completed jobs beyond the maximum have higher numbers than this.
    reached_batch: int = 0


async def prune(tx: Transaction, keep: Keep, limit: int, round_: PruneRound) -> int:
    """Cancel expired jobs and delete what the policy does not keep. Return the number of affected jobs."""
    expired = [seq for (seq,) in await tx.db.run("prune_expiry", tx.namespace_id, tx.now_at, limit)]
    cancelled: list[JobId] = []
    for row in await tx.db.rows("get_by_seq", tx.rows.array(expired)) if expired else ():
        if row["state"] == State.QUEUED and row["expires_at"] is not None and await cancel(tx, row, "expired"):
            cancelled.append(row["job_id"])  # noqa: PERF401  (each waits for the one before)
    tx.changed += cancelled
    kept_ms = {
        State.FAILED: keep.failed_ms,
        State.CANCELLED: keep.cancelled_ms,
        State.DEAD_LETTER: keep.dead_letter_ms,
    }
    old = await _old_completed(tx, tx.now_at - keep.completed_ms, limit, round_)
    bad: list[int] = []
    for state, ms in kept_ms.items():
        found = await tx.db.run("prune_bad", state.value, tx.now_at - ms, tx.namespace_id, limit)
        bad += [seq for (seq,) in found]
    deleted = await _delete(tx, old, bad[: limit - len(old)])
    deleted += await _delete_beyond(tx, keep, limit - deleted, round_)
    await _delete_batches(tx, keep, round_)
    await tx.settle_edges()
    await tx.db.run("prune_keys", tx.now_at, limit)
    await tx.db.run("prune_workers_bury", tx.now_at)
    await tx.db.run("prune_workers", tx.now_at - DEAD_WORKERS_KEPT_MS)
    await tx.db.run("prune_stretches", tx.namespace_id, tx.now_at - WAIT_INTERVALS_KEPT_MS)
    await tx.db.run("prune_rates", tx.namespace_id, tx.now_at * 1_000)
    await tx.fold_totals()
    return len(cancelled) + deleted


async def _delete_beyond(tx: Transaction, keep: Keep, limit: int, round_: PruneRound) -> int:
    """Delete the oldest ended jobs of each state beyond the number that the policy keeps."""
    completed: list[int] = []
    if keep.completed_max and limit > 0:
        values = (round_.trimmed, tx.namespace_id, limit, keep.completed_max)
        completed = [seq for (seq,) in await tx.db.run("prune_beyond_completed", *values)]
        if round_.trims_once and len(completed) < limit:  # Those with lower numbers are gone.
            round_.trimmed = max(completed, default=round_.trimmed)
    bad: list[int] = []
    most = {
        State.FAILED: keep.failed_max,
        State.CANCELLED: keep.cancelled_max,
        State.DEAD_LETTER: keep.dead_letter_max,
    }
    for state, count in most.items():
        room = limit - len(completed) - len(bad)
        if count and room > 0:
            found = await tx.db.run("prune_beyond", state.value, tx.namespace_id, room, count)
            bad += [seq for (seq,) in found]
    return await _delete(tx, completed, bad)


async def _delete_batches(tx: Transaction, keep: Keep, round_: PruneRound) -> None:
    """Scan the next part of the batches, in a cycle, and delete those of which nothing is left."""
    values = (round_.reached_batch, tx.namespace_id, tx.now_at - keep.completed_ms, BATCHES_SCANNED)
    found = await tx.db.run("prune_batches_scan", *values)
    round_.reached_batch = found[-1][0] if len(found) == BATCHES_SCANNED else 0
    for batch_seq, unneeded in found:
        if unneeded:
            await tx.db.run("batch_delete", batch_seq)


async def purge(tx: Transaction, states: Sequence[State], job_ids: Sequence[JobId] | None, limit: int) -> int:
    """Delete ended jobs in these states now: the named jobs, or a batch."""
    wanted = tx.rows.array([state.value for state in states])
    if job_ids is None:
        found = await tx.db.run("purge_states", tx.namespace_id, wanted, limit)
    else:
        found = await tx.db.run("purge_named", tx.namespace_id, wanted, tx.rows.ids(job_ids), limit)
    completed = [seq for seq, state in found if state == State.COMPLETED]
    return await _delete(tx, completed, [seq for seq, state in found if state != State.COMPLETED])


async def _delete(tx: Transaction, completed: list[int], bad: list[int]) -> int:
    return await tx.delete_jobs(completed, bad) if completed or bad else 0


async def _old_completed(tx: Transaction, before_at: int, limit: int, round_: PruneRound) -> list[int]:
    """Scan the next part of the ended jobs, in a cycle, because completed jobs have no index by time."""
    old: list[int] = []
    start, looked = round_.reached, 0
    while looked < SCANNED and len(old) < limit:
        asked = SCANNED - looked
        stretch = await tx.scan_completed(round_.reached, before_at, asked)
        looked += len(stretch)
        for seq, is_old, namespace_id in stretch:
            round_.reached = seq
            if is_old and namespace_id == tx.namespace_id:
                old.append(seq)
                if len(old) == limit:
                    break
        else:
            if len(stretch) == asked:
                break  # The next prune continues from here.
            round_.reached = 0
            if start == 0:
                break
            start = 0
    return list(dict.fromkeys(old))
