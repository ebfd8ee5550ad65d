"""A job as JSON values, with the field names of the command line or of HTTP, where a job is called a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from headway.client.job_info import arguments_of, result_of
from headway.core.errors import JobError
from headway.core.job import PAYLOAD_VERSION, Attempt, JobId, JobRecord, State
from headway.core.timestamps import read_moment, write_moment
from headway.observability.traces import shown_trace

# Names of plain fields: in the record, on the command line, over HTTP. None: the field is not shown there.
FIELDS: tuple[tuple[str, str | None, str | None], ...] = (
    ("job_id", "id", "task_id"),
    ("task", "task", None),
    ("state", "status", "status"),
    ("lane", "priority", "priority"),
    ("tenant", "tenant", "tenant"),
    ("needs", "needs", "needs"),
    ("arguments", "arguments", None),
    ("attempts", "attempts", "attempt_count"),
    ("max_retries", "max_retries", "max_retries"),
    ("crashes", "crashes", "crashes"),
    ("epoch", "epoch", "epoch"),
    ("timeout_seconds", "timeout_seconds", "timeout_seconds"),
    ("submitted_at", "submitted_at", "created_at"),
    ("due_at", "due_at", "run_after"),
    ("eligible_at", "eligible_at", "eligible_at"),
    ("started_at", "started_at", "started_at"),
    ("finished_at", "finished_at", "completed_at"),
    ("expires_at", "expires_at", "expires_at"),
    ("cancel_requested_at", "cancel_requested_at", "cancel_requested_at"),
    ("worker_id", "worker", "assigned_worker_id"),
    ("progress", "progress", None),
    ("note", "note", None),
    ("result", "result", None),
    ("result_error", "result_error", "result_error"),
    ("error", "error", "error"),
    ("reason", "reason", "reason"),
    ("idempotency_key", "idempotency_key", "idempotency_key"),
    ("unique_key", "unique_key", "unique_key"),
    ("trace_id", "trace_id", "trace_id"),
    ("rung", None, "duration"),
    ("assigned", None, "assigned_duration"),
    ("limits", None, "limits"),
    ("held", "held", "held"),
    ("batch_id", "batch_id", "batch_id"),
)
_COMMAND_LINE = {name: shown for name, shown, _ in FIELDS if shown is not None}
_HTTP = {name: shown for name, _, shown in FIELDS if shown is not None}


def job_values(job: JobRecord) -> dict[str, Any]:
    """Return a job as commands print it."""
    history = [attempt_values(attempt, "worker") for attempt in job.history]
    return {shown: _written(job, name) for name, shown in _COMMAND_LINE.items()} | {"history": history}


def task_fields(job: JobRecord) -> dict[str, Any]:
    """Return a job's fields with their HTTP names, without parameters, result, progress and attempts."""
    values = {shown: _written(job, name) for name, shown in _HTTP.items()}
    return values | {"trace_id": shown_trace(job.trace_id, job.job_id), "reason": job.result_error or job.reason}


def attempt_values(attempt: Attempt, worker: str) -> dict[str, Any]:
    """Return an attempt as JSON values. ``worker`` is the name of the field for the worker."""
    return {
        "number": attempt.number,
        "epoch": attempt.epoch,
        worker: attempt.worker_id,
        "started_at": write_moment(attempt.started_at),
        "ended_at": write_moment(attempt.ended_at),
        "reason": attempt.reason,
        "error": error_values(attempt.error),
    }


def error_values(error: JobError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {name: getattr(error, name) for name in ("type", "message", "traceback", "retriable")}


def read_task(values: Mapping[str, Any], seen_at: int) -> JobRecord:
    """Read a job from its HTTP values, which lack the retry rule and the limit that blocks the job."""
    fields = {name: _read(name, values[shown]) for name, shown in _HTTP.items()}
    payload, progress = values["payload"], values["progress"] or {}
    fields |= {
        "job_id": JobId(values["task_id"]),
        "seq": int(values.get("cursor") or 0),
        "task": payload["task_type"],
        "payload": _stored(payload["parameters"]) or b"",
        "timeout_ms": round(fields.pop("timeout_seconds") * 1_000),
        "retry": None,
        "progress": progress.get("fraction"),
        "note": progress.get("note"),
        "result": _stored(values["result"]),
        "history": tuple(_read_attempt(one) for one in values["attempts"]),
        "seen_at": seen_at,
    }
    if fields["reason"] == fields["result_error"]:
        fields["reason"] = None
    if fields["trace_id"] == shown_trace(None, fields["job_id"]):
        fields["trace_id"] = None
    return JobRecord(**fields)


def _written(job: JobRecord, name: str) -> Any:
    match name:
        case "arguments":
            return arguments_of(job)
        case "result":
            return result_of(job)
        case "timeout_seconds":
            return job.timeout_ms / 1_000
        case "error":
            return error_values(job.error)
        case "trace_id":
            return job.trace_id and shown_trace(job.trace_id, job.job_id)
    value = getattr(job, name)
    if value is not None and name.endswith("_at"):
        return write_moment(value)
    return list(value) if isinstance(value, tuple) else value


def _read(name: str, value: Any) -> Any:
    if name == "state":
        return State(value)
    if name == "error":
        return _read_error(value)
    if value is not None and name.endswith("_at"):
        return read_moment(value)
    return tuple(value) if isinstance(value, list) else value


def _read_attempt(values: Mapping[str, Any]) -> Attempt:
    moments = {name: read_moment(values[name]) for name in ("started_at", "ended_at")}
    return Attempt(**{**values, **moments, "error": _read_error(values["error"])})


def _read_error(values: Mapping[str, Any] | None) -> JobError | None:
    return None if values is None else JobError(**{**values, "traceback": values["traceback"] or ""})


def _stored(value: Any) -> bytes | None:
    return None if value is None else PAYLOAD_VERSION + msgspec.json.encode(value)
