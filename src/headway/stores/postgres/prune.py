"""Pruning: bounded batches of what need not be kept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.job import JobId, State
from headway.core.policy.document import DAY, Keep
from headway.stores.postgres import rows
from headway.stores.postgres.finish import cancel
from headway.stores.postgres.transaction import MINUTE, PostgresTransaction

DEAD_WORKERS_KEPT_MS = 3_600_000
STRETCHES_KEPT_MS = 24 * 3_600_000
DAYS_EVERY = 600.0  # Seconds.
TALLY_MINUTES = 60  # Those before are counted together.
SCANNED = 5_000  # Completed jobs that one pruning looks at.


@dataclass(slots=True)
class PostgresPruneRound:
    """How far this process has come in its round over the completed jobs, and when it last saw to their tables."""

    reached: int = 0
    turned: float = 0.0
    trimmed: int = 0  # No completed job with a number up to this one is left beyond the bound on how many are kept.

    def days_are_due(self) -> bool:
        """Return whether it is time to make tables for the days to come."""
        if self.turned and time.monotonic() - self.turned < DAYS_EVERY:
            return False
        self.turned = time.monotonic()
        return True


async def prune(tx: PostgresTransaction, keep: Keep, limit: int, round_: PostgresPruneRound) -> int:
    """Cancel what has expired and forget what need not be kept. Gives how many jobs it touched."""
    expired = [row["seq"] for row in await tx.db.run("prune_expiry", tx.namespace_id, tx.now_at, limit)]
    cancelled: list[JobId] = []
    for row in await tx.db.run("get_by_seq", expired) if expired else ():
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
        bad += [row["seq"] for row in found]
    forgotten = await _forget(tx, old, bad[: limit - len(old)])
    forgotten += await _forget_beyond(tx, keep, limit - forgotten, round_)
    await tx.db.run("prune_keys", tx.now_at, limit)
    await tx.db.run("prune_workers_bury", tx.now_at)
    await tx.db.run("prune_workers", tx.now_at - DEAD_WORKERS_KEPT_MS)
    await tx.db.run("prune_stretches", tx.namespace_id, tx.now_at - STRETCHES_KEPT_MS)
    await tx.db.run("prune_rates", tx.namespace_id, tx.now_at * 1_000)
    await tx.db.run("prune_tally", tx.namespace_id, tx.now_at // MINUTE - TALLY_MINUTES)
    return len(cancelled) + forgotten


async def _forget_beyond(tx: PostgresTransaction, keep: Keep, limit: int, round_: PostgresPruneRound) -> int:
    """Forget ended jobs of the states of which more are kept than the policy allows. The newest stay."""
    completed: list[int] = []
    if keep.completed_max and limit > 0:
        values = (round_.trimmed, tx.namespace_id, limit, keep.completed_max)
        completed = [row["seq"] for row in await tx.db.run("prune_beyond_completed", *values)]
        if len(completed) < limit:  # Those with lower numbers are gone, and need not be walked over again.
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
            bad += [row["seq"] for row in found]
    return await _forget(tx, completed, bad)


async def purge(tx: PostgresTransaction, states: Sequence[State], job_ids: Sequence[JobId] | None, limit: int) -> int:
    """Forget ended jobs now: those named, or a batch of those in these states."""
    wanted = [state.value for state in states]
    if job_ids is None:
        found = await tx.db.run("purge_states", tx.namespace_id, wanted, limit)
    else:
        found = await tx.db.run("purge_named", tx.namespace_id, wanted, rows.ids_list(job_ids), limit)
    completed = [row["seq"] for row in found if row["state"] == State.COMPLETED]
    return await _forget(tx, completed, [row["seq"] for row in found if row["state"] != State.COMPLETED])


async def _forget(tx: PostgresTransaction, completed: list[int], bad: list[int]) -> int:
    return len(await tx.db.run("jobs_delete", completed, bad)) if completed or bad else 0


async def _old_completed(tx: PostgresTransaction, before_at: int, limit: int, round_: PostgresPruneRound) -> list[int]:
    """Look at a stretch of completed jobs, going round and round."""
    old: list[int] = []
    start, looked = round_.reached, 0
    while looked < SCANNED and len(old) < limit:
        asked = SCANNED - looked
        stretch = await tx.db.run("prune_scan", round_.reached, before_at, (before_at // DAY + 1) * DAY, asked)
        looked += len(stretch)
        for row in stretch:
            round_.reached = row["seq"]
            if row["old"] and row["namespace_id"] == tx.namespace_id:
                old.append(row["seq"])
                if len(old) == limit:
                    break
        else:
            if len(stretch) == asked:
                break  # There is more; the next pruning goes on from here.
            round_.reached = 0
            if start == 0:
                break
            start = 0
    return list(dict.fromkeys(old))
