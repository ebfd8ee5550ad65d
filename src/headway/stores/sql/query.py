"""Reads: jobs and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.job import Attempt, JobId, JobRecord, State
from headway.core.timestamps import earlier
from headway.core.workflow import HELD_AT
from headway.stores.base import (
    WAITING_COUNTED,
    BlockedStats,
    JobQuery,
    LaneStats,
    QueueBreakdown,
    Stats,
    TenantStats,
)
from headway.stores.sql.rows import Row
from headway.stores.sql.transaction import MINUTE, Transaction
from headway.stores.texts import is_writable

NEWEST = 2**63 - 1  # Above every sequence number.


async def find_rows(tx: Transaction, job_ids: Sequence[JobId]) -> dict[JobId, Row]:
    """Return the rows of the jobs that exist."""
    return {row["job_id"]: row for row in await tx.db.rows("get", tx.rows.ids(job_ids), tx.namespace_id)}


async def get(tx: Transaction, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
    """Return each job, or None."""
    found = await find_rows(tx, job_ids)
    history = await _history(tx, [row["seq"] for row in found.values()])
    return [
        tx.rows.job(found[job_id], history.get(found[job_id]["seq"], ()), tx.now_at) if job_id in found else None
        for job_id in job_ids
    ]


async def find(tx: Transaction, query: JobQuery) -> list[JobRecord]:
    """Find jobs, newest first, or the last ended first."""
    return await read_jobs(tx, await _find_seqs(tx, query))


async def find_ids(tx: Transaction, query: JobQuery) -> list[tuple[int, JobId]]:
    """Find jobs, and read only the number and the id of each."""
    seqs = await _find_seqs(tx, query)
    ids = dict(await tx.db.run("ids_by_seq", tx.rows.array(seqs)))
    return [(seq, JobId(ids[seq])) for seq in seqs if seq in ids]


async def match_words(tx: Transaction, job_ids: Sequence[JobId], words: Sequence[str]) -> set[JobId]:
    """Return the jobs whose arguments may contain all of these words."""
    found = await tx.db.run("match_words", tx.rows.ids(job_ids), tx.namespace_id, tx.rows.array(words))
    return {JobId(job_id) for (job_id,) in found}


async def _find_seqs(tx: Transaction, query: JobQuery) -> list[int]:
    """Return the numbers of the jobs of a query. Each state has its own statement, so that each uses its own index."""
    if not all(map(is_writable, (query.task, query.lane, query.tenant, query.worker_id))):
        return []
    wanted = (
        query.worker_id, tx.namespace_id, tx.rows.text(query.task), query.lane, tx.rows.text(query.tenant),
        query.submitted_before_at, query.submitted_after_at,
    )  # fmt: skip
    if query.by_end:
        return await _find_ended(tx, query, wanted)
    rest = (NEWEST if query.before is None else query.before, query.limit)
    statements = {State.QUEUED: "find_queued", State.EXECUTING: "find_executing", State.COMPLETED: "find_completed"}
    found: list[Any] = []
    for state in query.states:
        if state in statements:
            found += await tx.db.run(statements[state], *wanted, *rest)
        else:
            found += await tx.db.run("find_bad", state.value, *wanted, *rest)
    if not query.states:
        found += await tx.db.run("find_any", *wanted, *rest)
    return sorted({seq for (seq,) in found}, reverse=True)[: query.limit]


async def _find_ended(tx: Transaction, query: JobQuery, wanted: Sequence[Any]) -> list[int]:
    """Return the numbers of jobs that ended without completing, the last ended first."""
    place = query.ended_before or (NEWEST, NEWEST)
    found: list[tuple[int, int]] = []
    for state in query.states:
        rest = await tx.db.run("find_ended", state.value, *wanted, *place, query.limit)
        found += [(finished_at, seq) for seq, finished_at in rest]
    return [seq for _, seq in sorted(found, reverse=True)[: query.limit]]


async def read_jobs(tx: Transaction, seqs: Sequence[int]) -> list[JobRecord]:
    """Return the jobs with these numbers, in this order."""
    history = await _history(tx, seqs)
    by_seq = {row["seq"]: row for row in await tx.db.rows("get_by_seq", tx.rows.array(seqs))}
    return [tx.rows.job(by_seq[seq], history.get(seq, ()), tx.now_at) for seq in seqs if seq in by_seq]


async def stats(tx: Transaction) -> Stats:
    """Return the counts of lanes and workers, and the totals."""
    lanes = {
        lane: LaneStats(waiting, delayed, executing, oldest_at, held)
        for lane, waiting, oldest_at, delayed, executing, held in await tx.db.run(
            "stats_lanes", tx.namespace_id, HELD_AT
        )
    }
    totals, recent = {}, {}
    for what, count, lately in await tx.db.run("stats_tally", tx.namespace_id, tx.now_at // MINUTE - 1):
        totals[what] = count
        if lately:
            recent[what] = lately
    workers = tuple(tx.rows.worker(row, tx.now_at) for row in await tx.db.rows("workers", tx.namespace_id))
    kept = dict(await tx.db.run("stats_kept", tx.namespace_id))
    return Stats(tx.now_at, lanes, workers, totals, recent, kept)


async def waiting_of(tx: Transaction, tenant: str) -> dict[str, LaneStats]:
    """Return the counts of a tenant's waiting jobs by lane."""
    if not is_writable(tenant):
        return {}
    found = await tx.db.run("waiting_of", tx.rows.text(tenant), tx.namespace_id)
    return {lane: LaneStats(waiting=waiting, oldest_at=oldest_at) for lane, waiting, oldest_at in found}


async def breakdown(tx: Transaction, limit: int) -> QueueBreakdown:
    """Return the counts of jobs by tenant, and of those that wait for limits."""
    tenants: dict[str, TenantStats] = {}
    for name, waiting, oldest_at in await tx.db.run("tenants_waiting", tx.namespace_id, limit, WAITING_COUNTED):
        tenant = tx.rows.read_text(name) or ""
        known = tenants.get(tenant, TenantStats())
        tenants[tenant] = TenantStats(known.waiting + waiting, 0, earlier(known.oldest_at, oldest_at))
    for name, running in await tx.db.run("tenants_running", tx.namespace_id):
        tenant = tx.rows.read_text(name) or ""
        tenants[tenant] = tenants.get(tenant, TenantStats())._replace(running=running)
    blocked: dict[str, BlockedStats] = {}
    for key, lane, waiting, open_at in await tx.db.run(
        "blocked_queues", tx.namespace_id, limit, WAITING_COUNTED, tx.now_at
    ):
        counted = blocked.get(key, BlockedStats())
        blocked[key] = BlockedStats({**counted.lanes, lane: waiting}, earlier(counted.open_at, open_at))
    return QueueBreakdown(tx.now_at, tenants, blocked)


async def _history(tx: Transaction, seqs: Sequence[int]) -> dict[int, list[Attempt]]:
    history: dict[int, list[Attempt]] = {}
    for row in await tx.db.rows("history", tx.rows.array(seqs)):
        history.setdefault(row["seq"], []).append(tx.rows.attempt(row))
    return history
