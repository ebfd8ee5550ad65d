"""Pruning: bounded batches of what need not be kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.core.job import JobId, State
from headway.core.policy.document import Keep
from headway.stores.sqlite import rows
from headway.stores.sqlite.finish import cancel
from headway.stores.sqlite.transaction import MINUTE, SqliteTransaction

DEAD_WORKERS_KEPT_MS = 3_600_000
STRETCHES_KEPT_MS = 24 * 3_600_000
SCANNED = 5_000  # Ended jobs that one pruning looks at.


@dataclass(slots=True)
class SqlitePruneRound:
    """How far this process has come in its round over the completed jobs."""

    reached: int = 0


def prune(tx: SqliteTransaction, keep: Keep, limit: int, round_: SqlitePruneRound) -> int:
    """Cancel what has expired and forget what need not be kept. Gives how many jobs it touched."""
    expired = [seq for (seq,) in tx.db.run("prune_expiry", tx.namespace_id, tx.now_at, limit)]
    cancelled: list[JobId] = []
    for row in tx.db.rows("get_by_seq", rows.json_list(expired)):
        if row["state"] == State.QUEUED and row["expires_at"] is not None:
            cancel(tx, row, "expired")
            cancelled.append(row["job_id"])
    tx.changed += cancelled
    kept_ms = {
        State.FAILED: keep.failed_ms,
        State.CANCELLED: keep.cancelled_ms,
        State.DEAD_LETTER: keep.dead_letter_ms,
    }
    old = _old_completed(tx, tx.now_at - keep.completed_ms, limit, round_)
    for state, ms in kept_ms.items():
        old += [seq for (seq,) in tx.db.run("prune_bad", state.value, tx.now_at - ms, tx.namespace_id, limit)]
    _forget(tx, old[:limit])
    beyond = _beyond(tx, keep, limit - len(old[:limit]))
    _forget(tx, beyond)
    tx.db.run("prune_keys", tx.now_at, limit)
    tx.db.run("prune_workers_bury", tx.now_at)
    tx.db.run("prune_workers", tx.now_at - DEAD_WORKERS_KEPT_MS)
    tx.db.run("prune_stretches", tx.namespace_id, tx.now_at - STRETCHES_KEPT_MS)
    tx.db.run("prune_rates", tx.namespace_id, tx.now_at * 1_000)
    yesterday = tx.now_at // MINUTE - 1_440
    tx.db.run("prune_tally_fold", yesterday)
    tx.db.run("prune_tally", yesterday)
    return len(cancelled) + len(old[:limit]) + len(beyond)


def _beyond(tx: SqliteTransaction, keep: Keep, limit: int) -> list[int]:
    """Return ended jobs of the states of which more are kept than the policy allows. The newest stay."""
    found: list[int] = []
    if keep.completed_max:
        rest = tx.db.run("prune_beyond_completed", tx.namespace_id, limit, keep.completed_max)
        found += [seq for (seq,) in rest]
    bad = {
        State.FAILED: keep.failed_max,
        State.CANCELLED: keep.cancelled_max,
        State.DEAD_LETTER: keep.dead_letter_max,
    }
    for state, most in bad.items():
        if most and len(found) < limit:
            rest = tx.db.run("prune_beyond", state.value, tx.namespace_id, limit - len(found), most)
            found += [seq for (seq,) in rest]
    return found


def purge(tx: SqliteTransaction, states: Sequence[State], job_ids: Sequence[JobId] | None, limit: int) -> int:
    """Forget ended jobs now: those named, or a batch of those in these states."""
    wanted = rows.json_list([state.value for state in states])
    if job_ids is None:
        found = tx.db.run("purge_states", tx.namespace_id, wanted, limit).fetchall()
    else:
        found = tx.db.run("purge_named", tx.namespace_id, wanted, rows.ids_list(job_ids), limit).fetchall()
    _forget(tx, [seq for (seq,) in found])
    return len(found)


def _old_completed(tx: SqliteTransaction, before_at: int, limit: int, round_: SqlitePruneRound) -> list[int]:
    """Look at a stretch of ended jobs, going round and round: no index is kept for the many that completed."""
    old: list[int] = []
    start, looked = round_.reached, 0
    while looked < SCANNED and len(old) < limit:
        asked = SCANNED - looked
        stretch = tx.db.run("prune_scan", round_.reached, asked).fetchall()
        looked += len(stretch)
        for seq, state, finished_at, namespace_id in stretch:
            round_.reached = seq
            if state == State.COMPLETED and finished_at <= before_at and namespace_id == tx.namespace_id:
                old.append(seq)
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


def _forget(tx: SqliteTransaction, seqs: Sequence[int]) -> None:
    for statement in ("outcome_delete", "attempts_delete", "job_delete"):
        tx.db.run_many(statement, [(seq,) for seq in seqs])
