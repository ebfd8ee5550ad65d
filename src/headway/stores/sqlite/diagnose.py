"""Where a job stands, and what classes wait for."""

from __future__ import annotations

from collections.abc import Mapping

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, LimitView, QueueDiagnostics, RunningJob
from headway.core.job import ClassKey, JobId, State
from headway.core.policy.document import LimitRule
from headway.core.policy.limits import conforms_at, step_rate
from headway.core.policy.wait_reasons import GAP_MS, WaitInterval, append_sample, waited_ms
from headway.stores.base import WAIT_SAMPLE_INTERVAL_MS
from headway.stores.sqlite import query, rows
from headway.stores.sqlite.transaction import SqliteTransaction


def diagnose(tx: SqliteTransaction) -> QueueDiagnostics:
    """Picture what waits, what runs and who could run it."""
    workers = [rows.worker(row, tx.now_at) for row in tx.db.rows("workers", tx.namespace_id)]
    executing = [
        RunningJob(task, lane, worker_id, started_at, rows.read_held(held))
        for task, lane, worker_id, started_at, held in tx.db.run("executing", tx.namespace_id)
    ]
    by_name = sorted(workers, key=lambda worker: worker.worker_id)
    return QueueDiagnostics(query.snapshot(tx), tuple(by_name), tuple(executing), tx.rule_index.rules)


def diagnose_job(tx: SqliteTransaction, job_id: JobId) -> JobDiagnostics | None:
    """Picture one job in the middle of all that."""
    row = query.find_rows(tx, [job_id]).get(job_id)
    if row is None:
        return None
    job = rows.job(row, (), tx.now_at)
    seen, class_id = diagnose(tx), row["class_id"]
    fair = bool(tx.db.first("class_state", class_id))
    if job.state is not State.QUEUED or job.due_at is not None:
        key = tx.classes()[class_id]
        near: list[WaitInterval] = []
        for values in tx.db.run("stretches", class_id, job.started_at or 0):
            near.append(WaitInterval(key, *values))
            if near[-1].until_at < (job.eligible_at or 0) - GAP_MS:
                break
        return JobDiagnostics(job, seen, fair, waited_ms=waited_ms(job, near))
    park, place = row["park"] or "", (row["order_key"], row["seq"])
    ahead = int(tx.db.first("ahead", class_id, park, *place, AHEAD_COUNTED))
    own = int(tx.db.first("ahead_own", class_id, job.tenant or "", *place, park, AHEAD_COUNTED)) if fair else 0
    limits = tuple(
        _limit_view(tx, seen, key, rule) for key, rule in tx.rule_index.keys(job.task, job.tenant, job.limits)
    )
    return JobDiagnostics(job, seen, fair, ahead, own, limits)


def record_wait_reasons(tx: SqliteTransaction, reasons: Mapping[ClassKey, str]) -> None:
    """Note what each class waits for now, if it is our turn."""
    if tx.db.first("witness_turn", tx.now_at, tx.namespace_id, tx.now_at - WAIT_SAMPLE_INTERVAL_MS) is None:
        return
    for key, reason in reasons.items():
        class_id = tx.class_id(key)
        last = tx.db.run("stretch_last", class_id).fetchone()
        stretch = append_sample(None if last is None else WaitInterval(key, *last), key, reason, tx.now_at)
        tx.db.run("stretch_put", class_id, stretch.from_at, stretch.until_at, stretch.reason)


def _limit_view(tx: SqliteTransaction, seen: QueueDiagnostics, key: str, rule: LimitRule) -> LimitView:
    used = sum(key in job.held for job in seen.executing) if rule.concurrency is not None else 0
    at = None
    if rule.count is not None:
        reached_us = tx.db.first("rate", tx.namespace_id, key)
        at = conforms_at(step_rate(rule, reached_us, tx.now_at * 1_000)[0])
    return LimitView(key, rule, used, at)
