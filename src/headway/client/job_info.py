"""The public description of a stored job."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from headway.client.codec import decode_result, read_payload
from headway.core.errors import JobError, PayloadError
from headway.core.job import Attempt, JobRecord, State
from headway.core.timestamps import FIRST, LAST
from headway.observability.traces import shown_trace


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptInfo:
    """One run of a job that did not complete it. Times are in UTC; ``reason`` says how the run ended."""

    number: int
    worker: str | None
    started_at: datetime
    ended_at: datetime
    reason: str
    error: JobError | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A job as the store had it at one moment.

    Times are datetimes in UTC, to the millisecond. ``arguments`` and ``result`` are plain JSON values; ``arguments`` is
    None if this version of Headway cannot read them. ``attempts`` counts the runs so far, and ``history`` has the runs
    that did not complete the job.
    """

    id: str
    task: str
    status: State
    priority: str
    tenant: str | None
    duration: str | None  # The requested rung.
    assigned: str | None  # The assigned rung, while the job runs.
    needs: tuple[str, ...]
    arguments: dict[str, Any] | None
    attempts: int
    max_retries: int
    crashes: int
    timeout: float  # Seconds for one attempt.
    submitted_at: datetime
    due_at: datetime | None  # Set while the job is delayed.
    eligible_at: datetime | None  # When the job last began to wait for a slot.
    started_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    cancel_requested_at: datetime | None
    worker: str | None
    progress: float | None  # From 0 to 1.
    note: str | None
    result: Any
    result_error: str | None  # Why the result could not be stored.
    error: JobError | None
    reason: str | None
    idempotency_key: str | None
    unique_key: str | None
    trace_id: str | None
    batch_id: str | None  # The batch that the job is a member of.
    held: bool  # The job is queued and waits for other jobs.
    history: tuple[AttemptInfo, ...]


def job_info(job: JobRecord) -> JobInfo:
    """Build the public description of a job from the store's record."""
    own = {
        "id": job.job_id,
        "status": job.state,
        "priority": job.lane,
        "duration": job.rung,
        "arguments": arguments_of(job),
        "timeout": job.timeout_ms / 1_000,
        "worker": job.worker_id,
        "result": result_of(job),
        "trace_id": shown_trace(job.trace_id, job.job_id) if job.trace_id else None,
        "history": tuple(_attempt(attempt) for attempt in job.history),
    }
    same = [field.name for field in fields(JobInfo) if field.name not in own]
    return JobInfo(**own, **{name: _public(name, getattr(job, name)) for name in same})


def arguments_of(job: JobRecord) -> dict[str, Any] | None:
    """Return a job's arguments by name, or None if this Headway cannot read them."""
    try:
        found: dict[str, Any] = read_payload(job.payload)
    except (PayloadError, ValueError):
        return None
    return found


def result_of(job: JobRecord) -> Any:
    """Return a job's result, or None if it has no readable result."""
    try:
        return decode_result(job.result)
    except (PayloadError, ValueError):
        return None


def _attempt(attempt: Attempt) -> AttemptInfo:
    same = [field.name for field in fields(AttemptInfo) if field.name != "worker"]
    return AttemptInfo(worker=attempt.worker_id, **{name: _public(name, getattr(attempt, name)) for name in same})


def _public(name: str, value: Any) -> Any:
    """Return a value of a record. A moment becomes a datetime; one after the year 9999 the end of that year."""
    if value is None or not name.endswith("_at"):
        return value
    at = max(FIRST, min(value, LAST))
    return datetime.fromtimestamp(at // 1_000, UTC).replace(microsecond=at % 1_000 * 1_000)
