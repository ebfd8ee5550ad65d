"""Submit: recognise what is known, keep what is new."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.core.job import JobId, NewJob, Submitted
from headway.stores.base import check_same
from headway.stores.sqlite import rows
from headway.stores.sqlite.database import KnownAlready
from headway.stores.sqlite.transaction import Transaction


def submit(tx: Transaction, jobs: Sequence[NewJob]) -> list[Submitted]:
    """Keep the jobs that are new; answer for all."""
    if all(job.persist and job.idempotency_key is None and job.unique_key is None for job in jobs):
        # Ids are made at random, so they are new unless a submit is repeated: then the file refuses them.
        try:
            with tx.db.savepoint():
                _keep(tx, jobs)
        except KnownAlready:
            tx.forget_changes()
        else:
            tx.changed += [job.job_id for job in jobs]
            return [Submitted(job.job_id) for job in jobs]
    answers, fresh = _check(tx, jobs)
    if fresh:
        _keep(tx, fresh)
        tx.changed += [answer.job_id for answer in answers]
    return answers


def _keep(tx: Transaction, fresh: Sequence[NewJob]) -> None:
    """Write jobs that are new. Raises ``KnownAlready`` if one is not."""
    seq = int(tx.db.first("advance", len(fresh))) - len(fresh)
    job_rows: list[tuple[Any, ...]] = []
    ready: list[tuple[int, int, int, int]] = []
    for job in fresh:
        seq += 1
        # A plain tuple finds the class: to make a ClassKey for each job would cost more than to look it up.
        class_id = tx.known_class_id((job.lane, job.needs, job.rung, job.persist)) or tx.class_id(job.class_key)
        if not job.persist:
            values = (class_id, seq, job.job_id, job.task, job.tenant, job.trace_id, job.timeout_ms, job.payload)
            tx.db.run("submit_transient", *values)
            tx.eligible.append(class_id)
            continue
        due_at = max(job.due_at or 0, tx.now_at + job.delay_ms)
        waits = due_at > tx.now_at
        expires_at = None if job.expires_ms is None else tx.now_at + job.expires_ms
        job_rows.append(
            (
                seq,
                job.job_id,
                tx.namespace_id,
                class_id,
                None if waits else seq,
                due_at if waits else None,
                job.task,
                job.tenant,
                job.trace_id,
                tx.now_at,
                expires_at,
                job.max_retries,
                job.timeout_ms,
                None if job.retry is None else rows.retry_text(job.retry),
                job.idempotency_key,
                job.unique_key,
                job.payload,
            )
        )
        if waits:
            tx.db.run("delay", tx.namespace_id, due_at, seq, class_id, 0, 0, 0, None, None, None, None)
        else:
            ready.append((class_id, seq, seq, tx.now_at))
            tx.eligible.append(class_id)
        if job.unique_key is not None:
            tx.db.run("submit_unique", tx.namespace_id, job.unique_key, seq)
        if job.idempotency_key is not None:
            until_at = tx.now_at + job.idempotency_ms
            scope = (tx.namespace_id, job.tenant or "", job.idempotency_key)
            tx.db.run("submit_key", *scope, job.job_id, job.digest, until_at)
        if expires_at is not None:
            tx.db.run("submit_expiry", tx.namespace_id, expires_at, seq)
    tx.db.run_many("submit_job", job_rows)
    tx.db.run_many("ready_new", ready)
    tx.count({"submitted": len(fresh)})


def _check(tx: Transaction, jobs: Sequence[NewJob]) -> tuple[list[Submitted], list[NewJob]]:
    """Answer for each job before anything is written, as if those before it were already kept."""
    found = tx.db.run("known_ids", rows.json_list([job.job_id for job in jobs]), tx.namespace_id)
    known: dict[str, tuple[str, bytes]] = {job_id: (task, payload) for job_id, task, payload in found}
    keys: dict[tuple[str, str], tuple[JobId, bytes]] = {}
    unique: dict[str, JobId] = {}
    answers: list[Submitted] = []
    fresh: list[NewJob] = []
    for index, job in enumerate(jobs):
        if (same := known.get(job.job_id)) is not None:
            check_same(same, (job.task, job.payload), job, index, "job id")
            answers.append(Submitted(job.job_id))
            continue
        if job.idempotency_key is not None:
            scope = (job.tenant or "", job.idempotency_key)
            first = keys.get(scope) or tx.db.run("known_key", tx.namespace_id, *scope, tx.now_at).fetchone()
            if first is not None:
                check_same(first[1], job.digest, job, index, "idempotency key")
                answers.append(Submitted(first[0], deduplicated=True))
                continue
        if job.unique_key is not None:
            holder = unique.get(job.unique_key) or tx.db.first("known_unique", tx.namespace_id, job.unique_key)
            if holder is not None:
                answers.append(Submitted(holder, deduplicated=True))
                continue
        if job.persist:
            known[job.job_id] = (job.task, job.payload)
        if job.idempotency_key is not None:
            keys[job.tenant or "", job.idempotency_key] = (job.job_id, job.digest)
        if job.unique_key is not None:
            unique[job.unique_key] = job.job_id
        answers.append(Submitted(job.job_id))
        fresh.append(job)
    return answers, fresh
