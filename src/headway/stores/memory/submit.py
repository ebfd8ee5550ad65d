"""Submitting jobs: checks for jobs and keys that exist already, and the insert."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import JobId, NewJob, SubmitReply
from headway.stores.base import check_same
from headway.stores.memory.ordering import delay, make_ready
from headway.stores.memory.record import StoredJob
from headway.stores.memory.state import MemoryState


def submit(state: MemoryState, jobs: Sequence[NewJob]) -> list[SubmitReply]:
    replies = check_known(state, jobs)
    for job, reply in zip(jobs, replies, strict=True):
        if not reply.deduplicated and job.job_id not in state.jobs:
            _insert(state, job)
    if state.job_channels:
        state.changed += [reply.job_id for reply in replies]
    return replies


def check_known(state: MemoryState, jobs: Sequence[NewJob]) -> list[SubmitReply]:
    """Return the reply for each job before any is stored, as if the jobs before it were stored already."""
    replies: list[SubmitReply] = []
    ids: dict[JobId, tuple[str, bytes]] = {}
    keys: dict[tuple[str, str], tuple[JobId, bytes]] = {}
    unique: dict[str, JobId] = {}
    for index, job in enumerate(jobs):
        by_key = None
        if job.idempotency_key is not None:
            scope = (job.tenant or "", job.idempotency_key)
            by_key = keys.get(scope)
            stored = state.idempotent.get(scope)
            if by_key is None and stored is not None and stored[2] > state.now_at:
                by_key = stored[:2]
        known = state.jobs.get(job.job_id)
        same = (known.new.task, known.new.payload) if known else ids.get(job.job_id)
        if same is not None:
            check_same(same, (job.task, job.payload), job, index, "job id")
            replies.append(SubmitReply(job.job_id))
        elif by_key is not None:
            check_same(by_key[1], job.digest, job, index, "idempotency key")
            replies.append(SubmitReply(by_key[0], deduplicated=True))
        elif job.unique_key is not None and (job.unique_key in unique or job.unique_key in state.unique):
            existing = unique.get(job.unique_key) or state.unique[job.unique_key]
            replies.append(SubmitReply(existing, deduplicated=True))
        else:
            if job.persist:
                ids[job.job_id] = (job.task, job.payload)
            if job.idempotency_key is not None:
                keys[job.tenant or "", job.idempotency_key] = (job.job_id, job.digest)
            if job.unique_key is not None:
                unique[job.unique_key] = job.job_id
            replies.append(SubmitReply(job.job_id))
    return replies


def _insert(state: MemoryState, job: NewJob) -> None:
    seq, now_at = state.next_sequence(), state.now_at
    state.count("submitted")
    if not job.persist:
        state.transient.setdefault(job.class_key, []).append((seq, job))
        state.eligible.append(job.class_key)
        return
    record = StoredJob(
        new=job,
        seq=seq,
        submitted_at=now_at,
        class_key=job.class_key,
        expires_at=None if job.expires_ms is None else now_at + job.expires_ms,
        timeout_ms=job.timeout_ms,
    )
    state.jobs[job.job_id] = record
    state.by_seq[seq] = record
    if job.unique_key is not None:
        state.unique[job.unique_key] = job.job_id
    if job.idempotency_key is not None:
        until_at = now_at + job.idempotency_ms
        state.idempotent[job.tenant or "", job.idempotency_key] = (job.job_id, job.digest, until_at)
    due_at = max(job.due_at or 0, now_at + job.delay_ms)
    if due_at > now_at:
        delay(state, record, due_at)
    else:
        make_ready(state, record, now_at, number=seq)
