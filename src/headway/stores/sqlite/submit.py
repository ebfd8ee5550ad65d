"""Submits jobs: recognises known jobs and stores new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headway.core.job import JobId, NewJob, SubmitReply
from headway.stores.base import check_same
from headway.stores.sql.ordering import Ordering
from headway.stores.sql.transaction import JobMarks
from headway.stores.sqlite.connection import KnownAlready
from headway.stores.sqlite.rows import rows

if TYPE_CHECKING:
    from headway.stores.sqlite.transaction import SqliteTransaction


async def submit(tx: SqliteTransaction, jobs: Sequence[NewJob]) -> list[SubmitReply]:
    """Store the new jobs. Return a reply for every job."""
    return (await _submit(tx, jobs, None))[0]


async def submit_marked(
    tx: SqliteTransaction, jobs: Sequence[NewJob], marks: JobMarks
) -> tuple[list[SubmitReply], dict[JobId, int]]:
    """Store the new jobs with their marks. Return a reply for every job, and the numbers of the new ones."""
    answers, fresh, first = await _submit(tx, jobs, marks)
    return answers, {job.job_id: seq for seq, job in enumerate(fresh, first + 1)}


async def _submit(
    tx: SqliteTransaction, jobs: Sequence[NewJob], marks: JobMarks | None
) -> tuple[list[SubmitReply], Sequence[NewJob], int]:
    """Store the new jobs. Return a reply for every job, the new ones, and the number before theirs."""
    if all(job.persist and job.idempotency_key is None and job.unique_key is None for job in jobs):
        # Ids are random, so they are new unless a submit is repeated. Then the insert fails.
        try:
            with tx.connection.savepoint():
                first = await _keep(tx, jobs, marks)
        except KnownAlready:
            tx.forget_changes()
        else:
            tx.changed += [job.job_id for job in jobs]
            return [SubmitReply(job.job_id) for job in jobs], jobs, first
    answers, fresh = _check(tx, jobs)
    first = 0
    if fresh:
        first = await _keep(tx, fresh, marks)
        tx.changed += [answer.job_id for answer in answers]
    return answers, fresh, first


async def _keep(tx: SqliteTransaction, fresh: Sequence[NewJob], marks: JobMarks | None) -> int:
    """Write jobs that are new. Return the number before theirs. Raises ``KnownAlready`` if one is not."""
    db = tx.connection
    last = int(db.first("next_sequence", len(fresh)))
    seq = first = last - len(fresh)
    now_at, namespace_id, known_class_id = tx.now_at, tx.namespace_id, tx.known_class_id
    job_rows: list[tuple[Any, ...]] = []
    ordering = Ordering(tx)
    place = ordering.place
    for job in fresh:
        seq += 1
        # One unpacking is faster than attributes, and this runs for every job.
        (job_id, task, payload, digest, lane, max_retries, timeout_ms, needs, rung, tenant, retry, delay_ms, due_at,
         expires_ms, idempotency_key, idempotency_ms, unique_key, trace_id, persist, limits) = job  # fmt: skip
        # A plain tuple equals the ClassKey. Building a ClassKey would cost more than the lookup.
        class_id = known_class_id((lane, needs, rung, persist)) or await tx.class_id(job.class_key)
        if not persist:
            db.run("submit_transient", class_id, seq, job_id, task, tenant, trace_id, timeout_ms, payload)
            tx.eligible.append(class_id)
            continue
        order_key: int | None = seq
        if delay_ms or due_at is not None:
            due_at = max(due_at or 0, now_at + delay_ms)
            if due_at > now_at:
                order_key = None
                db.run("delay", namespace_id, due_at, seq, class_id, 0, 0, 0, None, None, None, None)
            else:
                due_at = None
        if order_key is not None:
            tx.eligible.append(class_id)
            order_key = await place(class_id, seq, task, tenant)
        expires_at = None if expires_ms is None else now_at + expires_ms
        job_rows.append(
            (seq, job_id, namespace_id, class_id, order_key, due_at, task, tenant, trace_id, now_at, expires_at,
             max_retries, timeout_ms, None if retry is None else rows.retry_text(retry), idempotency_key, unique_key,
             rows.array(limits) if limits else None, payload)
        )  # fmt: skip
        if unique_key is not None:
            db.run("submit_unique", namespace_id, unique_key, seq)
        if idempotency_key is not None:
            scope = (namespace_id, tenant or "", idempotency_key)
            db.run("submit_key", *scope, job_id, digest, now_at + idempotency_ms)
        if expires_at is not None:
            db.run("submit_expiry", namespace_id, expires_at, seq)
    if marks is None:
        db.run_many("submit_job", job_rows)
    else:
        db.run_many("submit_marked_job", [(*row, *marks.get(row[1], (None, None))) for row in job_rows])
    db.run("submit_ready", first, last)
    for class_id, sharers in ordering.sharers().items():
        db.run("line_sweep", class_id, rows.array(sharers))
    tx.count({"submitted": len(fresh)})
    return first


def _check(tx: SqliteTransaction, jobs: Sequence[NewJob]) -> tuple[list[SubmitReply], list[NewJob]]:
    """Return a reply for each job and the new jobs, before any write, as if earlier jobs were stored."""
    db = tx.connection
    found = db.run("known_ids", rows.array([job.job_id for job in jobs]), tx.namespace_id)
    known: dict[str, tuple[str, bytes]] = {job_id: (task, payload) for job_id, task, payload in found}
    keys: dict[tuple[str, str], tuple[JobId, bytes]] = {}
    unique: dict[str, JobId] = {}
    answers: list[SubmitReply] = []
    fresh: list[NewJob] = []
    for index, job in enumerate(jobs):
        if (same := known.get(job.job_id)) is not None:
            check_same(same, (job.task, job.payload), job, index, "job id")
            answers.append(SubmitReply(job.job_id))
            continue
        if job.idempotency_key is not None:
            scope = (job.tenant or "", job.idempotency_key)
            first = keys.get(scope) or db.run("known_key", tx.namespace_id, *scope, tx.now_at).fetchone()
            if first is not None:
                check_same(first[1], job.digest, job, index, "idempotency key")
                answers.append(SubmitReply(first[0], deduplicated=True))
                continue
        if job.unique_key is not None:
            holder = unique.get(job.unique_key) or db.first("known_unique", tx.namespace_id, job.unique_key)
            if holder is not None:
                answers.append(SubmitReply(holder, deduplicated=True))
                continue
        if job.persist:
            known[job.job_id] = (job.task, job.payload)
        if job.idempotency_key is not None:
            keys[job.tenant or "", job.idempotency_key] = (job.job_id, job.digest)
        if job.unique_key is not None:
            unique[job.unique_key] = job.job_id
        answers.append(SubmitReply(job.job_id))
        fresh.append(job)
    return answers, fresh
