"""Reads: jobs, the picture that plans are made from, numbers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from headway.core.job import Attempt, JobId, JobRecord, State
from headway.core.snapshot import Snapshot
from headway.stores.base import WAITING_COUNTED, JobQuery, LaneStats, Stats
from headway.stores.postgres import rows
from headway.stores.postgres.limits import read_running, with_sessions
from headway.stores.postgres.transaction import MINUTE, PostgresTransaction, Row
from headway.stores.texts import is_writable

NEWEST = 2**63 - 1  # Above every sequence number.


async def find_rows(tx: PostgresTransaction, job_ids: Sequence[JobId]) -> dict[JobId, Row]:
    """Return the rows of the jobs that exist."""
    found = await tx.db.run("get", rows.ids_list(job_ids), tx.namespace_id)
    return {row["job_id"]: row for row in found}


async def get(tx: PostgresTransaction, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
    """Return each job, or None."""
    found = await find_rows(tx, job_ids)
    history = await _history(tx, [row["seq"] for row in found.values()])
    return [
        rows.job(found[job_id], history.get(found[job_id]["seq"], ()), tx.now_at) if job_id in found else None
        for job_id in job_ids
    ]


async def find(tx: PostgresTransaction, query: JobQuery) -> list[JobRecord]:
    """Find jobs, newest first: one statement for each state asked for, so that each walks its own index."""
    if not all(map(is_writable, (query.task, query.lane, query.tenant, query.worker_id))):
        return []
    before = NEWEST if query.before is None else query.before
    wanted: list[Any] = [
        query.worker_id, tx.namespace_id, rows.text(query.task), query.lane, rows.text(query.tenant),
        query.submitted_before_at, query.submitted_after_at, before, query.limit,
    ]  # fmt: skip
    if query.by_end:
        return await _find_ended(tx, query, wanted[:7])
    statements = {State.QUEUED: "find_queued", State.EXECUTING: "find_executing", State.COMPLETED: "find_completed"}
    found: list[Row] = []
    for state in query.states:
        if state in statements:
            found += await tx.db.run(statements[state], *wanted)
        else:
            found += await tx.db.run("find_bad", state.value, *wanted)
    if not query.states:
        found = await tx.db.run("find_any", *wanted)
    return await _read_jobs(tx, sorted({row["seq"] for row in found}, reverse=True)[: query.limit])


async def _find_ended(tx: PostgresTransaction, query: JobQuery, wanted: list[Any]) -> list[JobRecord]:
    """Find jobs that ended badly, those that ended last first."""
    place = query.ended_before or (NEWEST, NEWEST)
    found: list[tuple[int, int]] = []
    for state in query.states:
        rest = await tx.db.run("find_ended", state.value, *wanted, *place, query.limit)
        found += [(row["finished_at"], row["seq"]) for row in rest]
    return await _read_jobs(tx, [seq for _, seq in sorted(found, reverse=True)[: query.limit]])


async def _read_jobs(tx: PostgresTransaction, seqs: list[int]) -> list[JobRecord]:
    history = await _history(tx, seqs)
    by_seq = {row["seq"]: row for row in await tx.db.run("get_by_seq", seqs)}
    return [rows.job(by_seq[seq], history.get(seq, ()), tx.now_at) for seq in seqs if seq in by_seq]


async def snapshot(tx: PostgresTransaction) -> Snapshot:
    """Picture what waits."""
    heads = tx.memory.heads
    known = heads.known()
    began = time.monotonic()
    picture = await tx.db.first("snapshot", tx.namespace_id, tx.now_at, WAITING_COUNTED, *known)
    floor = await read_running(tx.db, tx.memory, tx.now_at) if tx.rule_index.ladder.rungs else None
    seen, numbers, found = rows.snapshot(picture, tx.now_at, tx.rule_index, floor)
    heads.note(found, None if known[0] else time.monotonic() - began)
    tx.memory.class_ids.update(numbers)
    return await with_sessions(tx.db, tx.memory, seen)


async def stats(tx: PostgresTransaction) -> Stats:
    """Count everything."""
    lanes = {
        row["lane"]: LaneStats(
            waiting=row["waiting"], oldest_at=row["oldest_at"], delayed=row["delayed"], executing=row["executing"]
        )
        for row in await tx.db.run("stats_lanes", tx.namespace_id)
    }
    tally = await tx.db.run("stats_tally", tx.namespace_id, tx.now_at // MINUTE - 1)
    totals = {row["what"]: row["total"] for row in tally}
    recent = {row["what"]: row["recent"] for row in tally if row["recent"]}
    workers = tuple(rows.worker(row, tx.now_at) for row in await tx.db.run("workers", tx.namespace_id))
    kept = {row["state"]: row["count"] for row in await tx.db.run("stats_kept", tx.namespace_id)}
    return Stats(tx.now_at, lanes, workers, totals, recent, kept)


async def waiting_of(tx: PostgresTransaction, tenant: str) -> dict[str, LaneStats]:
    """Count a tenant's jobs that wait."""
    if not is_writable(tenant):
        return {}
    found = await tx.db.run("waiting_of", rows.text(tenant), tx.namespace_id)
    return {row["lane"]: LaneStats(waiting=row["waiting"], oldest_at=row["oldest_at"]) for row in found}


async def _history(tx: PostgresTransaction, seqs: Sequence[int]) -> dict[int, list[Attempt]]:
    history: dict[int, list[Attempt]] = {}
    for row in await tx.db.run("history", list(seqs)):
        history.setdefault(row["seq"], []).append(rows.attempt(row))
    return history
