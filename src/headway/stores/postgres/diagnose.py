"""Where a job stands, and what classes wait for."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, LimitView, QueueDiagnostics, RunningJob
from headway.core.job import ClassKey, JobId, State
from headway.core.policy.document import LimitRule
from headway.core.policy.limits import conforms_at, step_rate
from headway.core.policy.wait_reasons import GAP_MS, WaitInterval, append_sample, waited_ms
from headway.stores.base import WAIT_SAMPLE_INTERVAL_MS
from headway.stores.postgres import query, rows
from headway.stores.postgres.transaction import PostgresTransaction, Row


async def diagnose(tx: PostgresTransaction) -> QueueDiagnostics:
    """Picture what waits, what runs and who could run it."""
    workers = [rows.worker(row, tx.now_at) for row in await tx.db.run("workers", tx.namespace_id)]
    executing = [
        RunningJob(
            rows.read_text(row["task"]) or "",
            row["lane"],
            row["worker_id"],
            row["started_at"],
            rows.read_held(row["held"]),
        )
        for row in await _running(tx, sum(worker.running for worker in workers))
    ]
    by_name = sorted(workers, key=lambda worker: worker.worker_id)
    return QueueDiagnostics(await query.snapshot(tx), tuple(by_name), tuple(executing), tx.rule_index.rules)


async def _running(tx: PostgresTransaction, count: int) -> list[Row]:
    """Read the leases, of which workers hold so many.

    From the first that was seen the last time, if that brings all of them: to begin at the lowest number would mean to
    walk over the dead rows of those that have ended.
    """
    found = await tx.db.run("executing", tx.namespace_id, tx.memory.first_lease)
    if len(found) != count:
        found = await tx.db.run("executing", tx.namespace_id, 0)
    if found:
        tx.memory.first_lease = found[0]["seq"]
    return found


async def diagnose_job(tx: PostgresTransaction, job_id: JobId) -> JobDiagnostics | None:
    """Picture one job in the middle of all that."""
    row = (await query.find_rows(tx, [job_id])).get(job_id)
    if row is None:
        return None
    job = rows.job(row, (), tx.now_at)
    seen, class_id = await diagnose(tx), row["class_id"]
    fair = bool(await tx.db.first("class_state", class_id))
    if job.state is not State.QUEUED or job.due_at is not None:
        key = (await tx.classes())[class_id]
        near: list[WaitInterval] = []
        for values in await tx.db.run("stretches", class_id, job.started_at or 0):
            near.append(WaitInterval(key, *values))
            if near[-1].until_at < (job.eligible_at or 0) - GAP_MS:
                break
        return JobDiagnostics(job, seen, fair, waited_ms=waited_ms(job, near))
    park, place = row["park"] or "", (row["order_key"], row["seq"])
    ahead = int(await tx.db.first("ahead", class_id, park, *place, AHEAD_COUNTED))
    own = 0
    if fair:
        own = int(await tx.db.first("ahead_own", class_id, rows.text(job.tenant) or "", *place, park, AHEAD_COUNTED))
    keys = tx.rule_index.keys(job.task, job.tenant, job.limits)
    limits = [await _limit_view(tx, seen, key, rule) for key, rule in keys]
    return JobDiagnostics(job, seen, fair, ahead, own, tuple(limits))


async def record_wait_reasons(tx: PostgresTransaction, reasons: Mapping[ClassKey, str]) -> None:
    """Note what each class waits for now, if it is our turn."""
    if await tx.db.first("witness_turn", tx.now_at, tx.namespace_id, tx.now_at - WAIT_SAMPLE_INTERVAL_MS) is None:
        return
    for key, reason in reasons.items():
        class_id = await tx.class_id(key)
        last = await tx.db.row("stretch_last", class_id)
        stretch = append_sample(None if last is None else WaitInterval(key, *last), key, reason, tx.now_at)
        await tx.db.run("stretch_put", class_id, stretch.from_at, stretch.until_at, stretch.reason)


async def _limit_view(tx: PostgresTransaction, seen: QueueDiagnostics, key: str, rule: LimitRule) -> LimitView:
    used = sum(key in job.held for job in seen.executing) if rule.concurrency is not None else 0
    at = None
    if rule.count is not None:
        found = await tx.db.row("rate", tx.namespace_id, [key])
        reached_us = None if found is None else found["reached_us"]
        at = conforms_at(step_rate(rule, reached_us, tx.now_at * 1_000)[0])
    return LimitView(key, rule, used, at)
