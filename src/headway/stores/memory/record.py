"""A job as the memory store keeps it, and the records and leases made from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from headway.core.errors import JobError
from headway.core.job import Attempt, ClassKey, JobRecord, NewJob, State
from headway.core.lease import Lease
from headway.core.policy.document import Ladder
from headway.core.policy.ladder import budget_of
from headway.core.worker import WorkerInfo
from headway.core.workflow import HELD_AT, BatchId
from headway.stores.base import JobQuery
from headway.stores.memory.queue import QueuePlace

_as_lease = partial(tuple.__new__, Lease)  # A third of the time of the constructor, which every claimed job pays.


@dataclass(slots=True)
class StoredJob:
    """A submitted job with its changing state. ``blocked_by``: the counter it waits for, or ''."""

    new: NewJob
    seq: int
    submitted_at: int
    class_key: ClassKey
    expires_at: int | None
    state: State = State.QUEUED
    order_key: int = 0
    blocked_by: str = ""
    blocked_at: int = 0
    blocked_for: str | None = None
    blocked_ms: int = 0
    limits_held: tuple[str, ...] = ()
    assigned: str | None = None
    due_at: int | None = None
    eligible_at: int | None = None
    epoch: int = 0
    attempts: int = 0
    crashes: int = 0
    timeout_ms: int = 0
    token: bytes = b""
    worker_id: str | None = None
    started_at: int | None = None
    finished_at: int | None = None
    cancel_at: int | None = None
    progress: float | None = None
    note: str | None = None
    result: bytes | None = None
    result_error: str | None = None
    error: JobError | None = None
    reason: str | None = None
    history: list[Attempt] = field(default_factory=list)
    batch_id: BatchId | None = None
    own_due_at: int = 0  # Until when a delay of its own lasts, once it is no longer held.
    to_back: bool = False  # A released job goes to the back of its queue.

    @property
    def held(self) -> bool:
        return self.due_at == HELD_AT

    @property
    def place(self) -> QueuePlace:
        return (self.order_key, self.seq)

    @property
    def tenant(self) -> str:
        return self.new.tenant or ""


def lease_of(record: StoredJob, ladder: Ladder) -> Lease:
    new, assigned = record.new, record.assigned
    budget_ms = None if assigned is None else budget_of(ladder, assigned)
    return _as_lease(
        (new.job_id, record.seq, record.token, new.task, new.payload, new.lane, new.tenant, new.trace_id, record.epoch,
         record.attempts, record.crashes, new.max_retries, record.timeout_ms, new.timeout_ms, new.retry,
         record.started_at or 0, record.cancel_at is not None, record.class_key.needs, record.worker_id or "",
         record.class_key.rung, assigned, budget_ms, record.submitted_at, record.eligible_at or 0, record.batch_id,
         None)
    )  # fmt: skip


def transient_lease(seq: int, job: NewJob, worker: WorkerInfo, now_at: int) -> Lease:
    return Lease(
        job.job_id, seq, b"", job.task, job.payload, job.lane, job.tenant, job.trace_id, 1, 1, 0, 0,
        job.timeout_ms, job.timeout_ms, None, now_at, False, job.class_key.needs, worker.worker_id,
    )  # fmt: skip


def job_of(record: StoredJob, now_at: int) -> JobRecord:
    new = record.new
    return JobRecord(
        job_id=new.job_id,
        seq=record.seq,
        task=new.task,
        payload=new.payload,
        state=record.state,
        lane=new.lane,
        needs=record.class_key.needs,
        rung=record.class_key.rung,
        tenant=new.tenant,
        max_retries=new.max_retries,
        timeout_ms=record.timeout_ms,
        retry=new.retry,
        attempts=record.attempts,
        crashes=record.crashes,
        epoch=record.epoch,
        submitted_at=record.submitted_at,
        due_at=None if record.held else record.due_at,
        eligible_at=record.eligible_at,
        started_at=record.started_at,
        finished_at=record.finished_at,
        expires_at=record.expires_at,
        cancel_requested_at=record.cancel_at,
        worker_id=record.worker_id,
        progress=record.progress,
        note=record.note,
        result=record.result,
        result_error=record.result_error,
        error=record.error,
        reason=record.reason,
        idempotency_key=new.idempotency_key,
        unique_key=new.unique_key,
        trace_id=new.trace_id,
        history=tuple(record.history),
        limits=new.limits,
        blocked_by=record.blocked_by or None,
        blocked_for=record.blocked_for if record.started_at is not None else None,
        blocked_ms=record.blocked_ms if record.started_at is not None else 0,
        assigned=record.assigned,
        held=record.held,
        batch_id=record.batch_id,
        seen_at=now_at,
    )


def matches(record: StoredJob, query: JobQuery) -> bool:
    return (
        (not query.states or record.state in query.states)
        and query.task in (None, record.new.task)
        and query.lane in (None, record.new.lane)
        and query.tenant in (None, record.new.tenant)
        and query.worker_id in (None, record.worker_id)
        and (query.before is None or record.seq < query.before)
        and (query.submitted_before_at is None or record.submitted_at < query.submitted_before_at)
        and (query.submitted_after_at is None or record.submitted_at >= query.submitted_after_at)
    )
