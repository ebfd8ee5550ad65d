"""Diagnostics of jobs and of the queue, and the wait reasons of classes."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, LimitView, QueueDiagnostics, RunningJob
from headway.core.job import ClassKey, JobId, NewJob, State
from headway.core.policy.document import LimitRule
from headway.core.policy.limits import conforms_at, step_rate
from headway.core.policy.order import order_key
from headway.core.policy.wait_reasons import GAP_MS, WaitInterval, append_sample, waited_ms
from headway.core.preview import Place, SubmitPreview, due_at_of, preview_new
from headway.stores.base import WAIT_SAMPLE_INTERVAL_MS, check_same
from headway.stores.sql.limits import read_rates
from headway.stores.sql.query import find_rows
from headway.stores.sql.sources import upstreams
from headway.stores.sql.transaction import Transaction

NO_PLACE = 2**62  # An order key or number behind those of all jobs.


async def diagnose(tx: Transaction) -> QueueDiagnostics:
    """Return the waiting jobs, the running jobs and the workers."""
    workers = [tx.rows.worker(row, tx.now_at) for row in await tx.db.rows("workers", tx.namespace_id)]
    running = await tx.executing(sum(worker.running for worker in workers))
    executing = [
        RunningJob(tx.rows.read_text(task) or "", lane, worker_id, started_at, tx.rows.read_limit_keys(held))
        for task, lane, worker_id, started_at, held, *_ in running
    ]
    by_name = sorted(workers, key=lambda worker: worker.worker_id)
    return QueueDiagnostics(await tx.snapshot(), tuple(by_name), tuple(executing), tx.rule_index.rules)


async def diagnose_job(tx: Transaction, job_id: JobId) -> JobDiagnostics | None:
    """Return the diagnostics of one job, or None."""
    row = (await find_rows(tx, [job_id])).get(job_id)
    if row is None:
        return None
    job = tx.rows.job(row, (), tx.now_at)
    seen, class_id = await diagnose(tx), row["class_id"]
    fair = bool(await tx.db.first("class_state", class_id))
    if job.state is not State.QUEUED or row["due_at"] is not None:
        key = (await tx.classes())[class_id]
        near: list[WaitInterval] = []
        for values in await tx.db.run("stretches", class_id, job.started_at or 0):
            near.append(WaitInterval(key, *values))
            if near[-1].until_at < (job.eligible_at or 0) - GAP_MS:
                break
        awaited = (await upstreams(tx, [job_id], results=False))[0] if job.held else ()
        return JobDiagnostics(job, seen, fair, upstreams=tuple(awaited), waited_ms=waited_ms(job, near))
    blocked_by, place = row["park"] or "", (row["order_key"], row["seq"])
    ahead = int(await tx.db.first("ahead", class_id, blocked_by, *place, AHEAD_COUNTED))
    own = 0
    if fair:
        tenant = tx.rows.text(job.tenant) or ""
        own = int(await tx.db.first("ahead_own", class_id, tenant, *place, blocked_by, AHEAD_COUNTED))
    keys = tx.rule_index.keys(job.task, job.tenant, job.limits)
    limits = [await _limit_view(tx, seen, key, rule) for key, rule in keys]
    return JobDiagnostics(job, seen, fair, ahead, own, tuple(limits))


async def preview(tx: Transaction, job: NewJob) -> SubmitPreview:
    """Return what a submit of a job would do."""
    existing = await _existing(tx, job)
    if existing is not None:
        return SubmitPreview(existing, None)
    queue = await diagnose(tx)
    limits = [await _limit_view(tx, queue, *pair) for pair in tx.rule_index.keys(job.task, job.tenant, job.limits)]
    return preview_new(job, queue, await _new_place(tx, job), limits)


async def _existing(tx: Transaction, job: NewJob) -> JobId | None:
    """Return the job that stands for a new one already. Raises ``IdempotencyConflict``."""
    row = (await find_rows(tx, [job.job_id])).get(job.job_id)
    if row is not None:
        known = tx.rows.job(row, (), tx.now_at)
        check_same((known.task, known.payload), (job.task, job.payload), job, 0, "job id")
        return job.job_id
    if job.idempotency_key is not None:
        scope = (tx.rows.text(job.tenant) or "", tx.rows.text(job.idempotency_key))
        kept = await tx.db.row("known_key", tx.namespace_id, *scope, tx.now_at)
        if kept is not None:
            check_same(bytes(kept[1]), job.digest, job, 0, "idempotency key")
            return JobId(kept[0])
    if job.unique_key is not None:
        holder = await tx.db.first("known_unique", tx.namespace_id, tx.rows.text(job.unique_key))
        return None if holder is None else JobId(holder)
    return None


async def _new_place(tx: Transaction, job: NewJob) -> Place:
    class_id = next((number for number, key in (await tx.classes()).items() if key == job.class_key), None)
    due = due_at_of(job, tx.now_at) is None
    if class_id is None:
        return Place(due and job.tenant is not None)
    fair, clock = await tx.db.row("class_state", class_id)
    if not due:
        return Place(bool(fair))
    line = (class_id, "")
    if not fair:
        # A class that becomes fair starts its clock at the first waiting job, which keeps its place.
        counted = AHEAD_COUNTED if job.tenant is None else 1
        return Place(job.tenant is not None, int(await tx.db.first("ahead", *line, NO_PLACE, NO_PLACE, counted)))
    tenant = tx.rows.text(job.tenant) or ""
    last, step_us = await tx.last_key(class_id, tenant, {}), tx.rule_index.step_us(job.task, job.tenant or "")
    place = (order_key(clock, last, step_us), NO_PLACE)
    ahead = int(await tx.db.first("ahead", *line, *place, AHEAD_COUNTED))
    return Place(True, ahead, int(await tx.db.first("ahead_own", class_id, tenant, *place, "", AHEAD_COUNTED)))


async def record_wait_reasons(tx: Transaction, reasons: Mapping[ClassKey, str]) -> None:
    """Record what each class waits for, unless another process has done so within the sample interval."""
    if await tx.db.first("witness_turn", tx.now_at, tx.namespace_id, tx.now_at - WAIT_SAMPLE_INTERVAL_MS) is None:
        return
    for key, reason in reasons.items():
        class_id = await tx.class_id(key)
        last = await tx.db.row("stretch_last", class_id)
        stretch = append_sample(None if last is None else WaitInterval(key, *last), key, reason, tx.now_at)
        await tx.db.run("stretch_put", class_id, stretch.from_at, stretch.until_at, stretch.reason)


async def _limit_view(tx: Transaction, seen: QueueDiagnostics, key: str, rule: LimitRule) -> LimitView:
    used = sum(key in job.held for job in seen.executing) if rule.concurrency is not None else 0
    at = None
    if rule.count is not None:
        reached_us = (await read_rates(tx, [key]))[key]
        at = conforms_at(step_rate(rule, reached_us, tx.now_at * 1_000)[0])
    return LimitView(key, rule, used, at)
