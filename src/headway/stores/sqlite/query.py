"""Reads: jobs, the picture that plans are made from, numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headway.core.job import Attempt, JobId, JobRecord, State
from headway.core.policy.document import INTERACTIVE
from headway.core.snapshot import ClassView, Snapshot
from headway.stores.base import WAITING_COUNTED, JobQuery, LaneStats, Stats
from headway.stores.sqlite import rows
from headway.stores.sqlite.limits import SqliteLimitCheck
from headway.stores.sqlite.transaction import MINUTE, SqliteTransaction
from headway.stores.texts import is_writable

NEWEST = 2**63 - 1  # Above every sequence number.


def find_rows(tx: SqliteTransaction, job_ids: Sequence[JobId]) -> dict[JobId, rows.Row]:
    """Return the rows of the jobs that exist."""
    return {row["job_id"]: row for row in tx.db.rows("get", rows.ids_list(job_ids), tx.namespace_id)}


def get(tx: SqliteTransaction, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
    """Return each job, or None."""
    found = find_rows(tx, job_ids)
    history = _history(tx, [row["seq"] for row in found.values()])
    return [
        rows.job(found[job_id], history.get(found[job_id]["seq"], ()), tx.now_at) if job_id in found else None
        for job_id in job_ids
    ]


def find(tx: SqliteTransaction, query: JobQuery) -> list[JobRecord]:
    """Find jobs, newest first: one statement for each state asked for, so that each walks its own index."""
    if not all(map(is_writable, (query.task, query.lane, query.tenant, query.worker_id))):
        return []
    before = NEWEST if query.before is None else query.before
    wanted: dict[str, Any] = query._asdict() | {"namespace_id": tx.namespace_id, "before": before}
    if query.by_end:
        return _find_ended(tx, query, wanted)
    statements = {State.QUEUED: "find_queued", State.EXECUTING: "find_executing", State.COMPLETED: "find_completed"}
    found: list[int] = []
    for state in query.states:
        found += [seq for (seq,) in tx.db.named(statements.get(state, "find_bad"), wanted | {"state": state.value})]
    if not query.states:
        found = [seq for (seq,) in tx.db.named("find_any", wanted)]
    return _read_jobs(tx, sorted(set(found), reverse=True)[: query.limit])


def _find_ended(tx: SqliteTransaction, query: JobQuery, wanted: dict[str, Any]) -> list[JobRecord]:
    """Find jobs that ended badly, those that ended last first."""
    ended_at, ended_seq = query.ended_before or (NEWEST, NEWEST)
    wanted = wanted | {"ended_at": ended_at, "ended_seq": ended_seq}
    found: list[tuple[int, int]] = []
    for state in query.states:
        rest = tx.db.named("find_ended", wanted | {"state": state.value})
        found += [(finished_at, seq) for seq, finished_at in rest]
    return _read_jobs(tx, [seq for _, seq in sorted(found, reverse=True)[: query.limit]])


def _read_jobs(tx: SqliteTransaction, seqs: list[int]) -> list[JobRecord]:
    history = _history(tx, seqs)
    by_seq = {row["seq"]: row for row in tx.db.rows("get_by_seq", rows.json_list(seqs))}
    return [rows.job(by_seq[seq], history.get(seq, ()), tx.now_at) for seq in seqs]


def snapshot(tx: SqliteTransaction) -> Snapshot:
    """Picture what waits."""
    found = tx.db.run("snapshot_classes", WAITING_COUNTED, tx.now_at, tx.namespace_id).fetchall()
    laddered = bool(tx.rule_index.ladder.rungs) or any(rung == INTERACTIVE for _, rung, *_ in found)
    floor = SqliteLimitCheck(tx).floor() if laddered else None
    views = []
    for lane, rung, needs, persist, fair, line, oldest_at, head_key, parks, *park_keys in found:
        key = rows.class_key(lane, rung, needs, persist)
        waiting = min(line + parks, WAITING_COUNTED)
        if not persist and waiting:
            oldest_at = tx.now_at
        head_key = min((found for found in (head_key, *park_keys) if found is not None), default=0)
        views.append(
            ClassView(
                key, waiting, oldest_at, head_key, bool(fair), tx.rule_index.blocked_reason(lane, key.rung, floor)
            )
        )
    return Snapshot(tx.now_at, tuple(views), tx.db.first("next_due", tx.namespace_id, tx.now_at), floor)


def stats(tx: SqliteTransaction) -> Stats:
    """Count everything."""
    lanes = {
        lane: LaneStats(waiting=waiting, oldest_at=oldest_at, delayed=delayed, executing=executing)
        for lane, waiting, oldest_at, delayed, executing in tx.db.run("stats_lanes", tx.namespace_id)
    }
    totals: Counter[str] = Counter()
    recent: Counter[str] = Counter()
    for minute, what, count in tx.db.run("stats_tally", tx.namespace_id):
        totals[what] += count
        if minute >= tx.now_at // MINUTE - 1:
            recent[what] += count
    workers = tuple(rows.worker(row, tx.now_at) for row in tx.db.rows("workers", tx.namespace_id))
    kept = dict(tx.db.run("stats_kept", tx.namespace_id))
    return Stats(tx.now_at, lanes, workers, dict(totals), dict(recent), kept)


def waiting_of(tx: SqliteTransaction, tenant: str) -> dict[str, LaneStats]:
    """Count a tenant's jobs that wait."""
    if not is_writable(tenant):
        return {}
    found = tx.db.run("waiting_of", tenant, tx.namespace_id)
    return {lane: LaneStats(waiting=waiting, oldest_at=oldest_at) for lane, waiting, oldest_at in found}


def _history(tx: SqliteTransaction, seqs: Sequence[int]) -> dict[int, list[Attempt]]:
    history: dict[int, list[Attempt]] = {}
    for row in tx.db.rows("history", rows.json_list(seqs)):
        history.setdefault(row["seq"], []).append(rows.attempt(row))
    return history
