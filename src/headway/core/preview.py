"""The result of a submit without its effect: the job that exists, or the diagnostics of the new job."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from headway.core.diagnostics import JobDiagnostics, LimitView, QueueDiagnostics
from headway.core.job import JobId, JobRecord, NewJob, State
from headway.core.policy.enforced import RuleIndex
from headway.core.snapshot import ClassView
from headway.core.workflow import Upstream


class SubmitPreview(NamedTuple):
    """The effect that a submit would have: return the ``existing`` job with its id or key, or store a new one.

    ``diagnosis`` is that of the job just after its submit. It is None for an existing job and for a transient one.
    ``cancelled_by``: the source because of which the job would be cancelled at once.
    """

    existing: JobId | None
    diagnosis: JobDiagnostics | None
    cancelled_by: str | None = None


class Place(NamedTuple):
    """The place of a new job in its class, as in ``JobDiagnostics``."""

    fair: bool = False
    ahead: int = 0
    ahead_own: int = 0


def due_at_of(job: NewJob, now_at: int) -> int | None:
    """Return when a new job becomes due, or None if it is due at once."""
    due_at = max(job.due_at or 0, now_at + job.delay_ms)
    return due_at if due_at > now_at else None


def preview_new(
    job: NewJob, queue: QueueDiagnostics, place: Place, limits: Iterable[LimitView] = ()
) -> SubmitPreview:  # fmt: skip
    """Return the preview of a job that the store does not have. ``queue``: as it is without the job."""
    if not job.persist:
        return SubmitPreview(None, None)
    due_at = due_at_of(job, queue.now_at)
    record = _record(job, queue.now_at, due_at)
    if due_at is not None:
        return SubmitPreview(None, JobDiagnostics(record, queue, place.fair))
    return SubmitPreview(None, JobDiagnostics(record, _with_job(queue, job, fair=place.fair), *place, tuple(limits)))


def preview_held(preview: SubmitPreview, upstreams: Iterable[Upstream]) -> SubmitPreview:
    """Return the preview of a job that waits for its sources."""
    diagnosis = preview.diagnosis
    if diagnosis is None:
        return preview
    job = replace(diagnosis.job, held=True, due_at=None, eligible_at=None)
    return preview._replace(diagnosis=JobDiagnostics(job, diagnosis.queue, upstreams=tuple(upstreams)))


def _with_job(queue: QueueDiagnostics, job: NewJob, *, fair: bool) -> QueueDiagnostics:
    """Return the queue with a job that waits in its class."""
    snapshot, key = queue.snapshot, job.class_key
    views = list(snapshot.classes)
    for at, view in enumerate(views):
        if view.key == key:
            views[at] = view._replace(waiting=view.waiting + 1, oldest_at=view.oldest_at or queue.now_at, fair=fair)
            break
    else:
        blocked = RuleIndex(queue.rules).blocked_reason(job.lane, job.rung, snapshot.running_jobs)
        views.append(ClassView(key, 1, queue.now_at, 0, fair, blocked))
    return queue._replace(snapshot=snapshot._replace(classes=tuple(views)))


def _record(job: NewJob, now_at: int, due_at: int | None) -> JobRecord:
    return JobRecord(
        job_id=job.job_id,
        seq=0,
        task=job.task,
        payload=job.payload,
        state=State.QUEUED,
        lane=job.lane,
        needs=job.class_key.needs,
        rung=job.rung,
        tenant=job.tenant,
        max_retries=job.max_retries,
        timeout_ms=job.timeout_ms,
        retry=job.retry,
        attempts=0,
        crashes=0,
        epoch=0,
        submitted_at=now_at,
        due_at=due_at,
        eligible_at=None if due_at is not None else now_at,
        started_at=None,
        finished_at=None,
        expires_at=None if job.expires_ms is None else now_at + job.expires_ms,
        cancel_requested_at=None,
        worker_id=None,
        progress=None,
        note=None,
        result=None,
        result_error=None,
        error=None,
        reason=None,
        idempotency_key=job.idempotency_key,
        unique_key=job.unique_key,
        trace_id=job.trace_id,
        history=(),
        limits=job.limits,
        seen_at=now_at,
    )
