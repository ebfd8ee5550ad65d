"""A job as the meta data of a Celery result: its state, result, traceback and children."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from celery import states  # type: ignore[import-untyped]
from celery.exceptions import TaskRevokedError, TimeLimitExceeded, WorkerLostError  # type: ignore[import-untyped]

from headway.client.codec import decode_result
from headway.core.errors import JobError, RetryAfter
from headway.core.job import JobRecord, State
from headway.integrations.celery.adoption.message import read_message, read_result

STATE = "celery.state"  # The key of a result that a task left to ``Ignore``: its own state and meta.
NOTE_MAX = 3_000  # Characters of a task's own state and meta, as JSON. Redis keeps 3,500.
RETRY_AFTER = f"{RetryAfter.__module__}.{RetryAfter.__qualname__}"  # What the error of a retry has as its type.
UPSTREAM = re.compile(r"upstream (\S+)")


def iso_moment(moment_at: int | None) -> str | None:
    """Return a moment as Celery writes it."""
    return None if moment_at is None else datetime.fromtimestamp(moment_at / 1_000, UTC).isoformat()


def write_note(state: str, meta: Any) -> str:
    """Return a task's own state as a note of its job. Raises ``ValueError`` if it is too long."""
    note = json.dumps({"state": state, "meta": meta}, separators=(",", ":"))
    if len(note) > NOTE_MAX:
        raise ValueError(f"update_state takes {len(note):,} characters as JSON, at most {NOTE_MAX:,} are kept")
    return note


def job_meta(job: JobRecord, *, tracked: bool = False) -> dict[str, Any]:
    """Return the meta data of a job, without its children. ``tracked``: whether a running task is in state STARTED."""
    message = read_message(job.payload)
    state, result, traceback = _outcome(job, tracked, ignored=bool(message.headers.get("ignore_result")))
    return {
        "task_id": str(job.job_id),
        "status": state,
        "result": result,
        "traceback": traceback,
        "children": [],
        "date_done": iso_moment(job.finished_at),
        "name": job.task,
        "args": message.args,
        "kwargs": message.kwargs,
        "worker": job.worker_id,
        "retries": max(0, job.attempts - job.crashes - 1),
        "queue": message.queue or None,
        "parent_id": message.headers.get("parent_id"),
        "group_id": message.headers.get("group"),
    }


def _outcome(job: JobRecord, tracked: bool, *, ignored: bool) -> tuple[str, Any, str | None]:
    match job.state:
        case State.COMPLETED:
            if job.result_error is not None:
                if ignored:  # The caller does not want the result, so it may be too large to keep.
                    return states.SUCCESS, None, None
                return states.FAILURE, _exception("kombu.exceptions", "EncodeError", job.result_error), None
            result = decode_result(job.result)
            if isinstance(result, dict) and STATE in result:
                return result[STATE], read_result(result["meta"]), None
            return states.SUCCESS, read_result(result), None
        case State.FAILED | State.DEAD_LETTER:
            error = job.error or JobError("Unknown", job.reason or "")
            return states.FAILURE, _failure(job, error), error.traceback or None
        case State.CANCELLED:
            return states.REVOKED, TaskRevokedError(_revoked(job.reason)), None
        case State.EXECUTING:
            return _running(job, tracked)
        case _:
            return _queued(job)


def _running(job: JobRecord, tracked: bool) -> tuple[str, Any, str | None]:
    try:
        said = json.loads(job.note or "")
        return said["state"], said["meta"], None
    except (ValueError, KeyError, TypeError):
        return (states.STARTED, {"hostname": job.worker_id}, None) if tracked else _queued(job)


def _queued(job: JobRecord) -> tuple[str, Any, str | None]:
    """Return RETRY with the last exception for which the task asked to run again, else PENDING, also after a crash."""
    found = (job.error, *(attempt.error for attempt in reversed(job.history)))
    error = next((error for error in found if error is not None and error.type == RETRY_AFTER), None)
    if error is None or not job.attempts:
        return states.PENDING, None, None
    kind, _, text = error.message.partition(": ")
    module, _, name = kind.rpartition(".")
    return states.RETRY, _exception(module, name, text), error.traceback or None


def _failure(job: JobRecord, error: JobError) -> dict[str, Any] | BaseException:
    """Return the exception of a failed job as Celery stores it."""
    if error.type == "TimeoutError" and job.reason == "time_limit":
        return TimeLimitExceeded(job.timeout_ms / 1_000)  # type: ignore[no-any-return]
    if error.type == "WorkerDied":
        return WorkerLostError(error.message)  # type: ignore[no-any-return]
    kept = decode_result(job.result)
    if isinstance(kept, dict) and "exc_type" in kept:
        return kept
    module, _, name = error.type.rpartition(".")
    return _exception(module, name, error.message)


def _exception(module: str, name: str, text: str) -> dict[str, Any]:
    return {"exc_type": name, "exc_message": [text], "exc_module": module or "builtins"}


def _revoked(reason: str | None) -> str:
    return {"expired": "expired", None: "revoked", "cancelled": "revoked"}.get(reason, reason or "revoked")
