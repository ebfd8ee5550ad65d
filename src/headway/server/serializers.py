"""Jobs as the REST interface tells of them: there they are called tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from headway.client.codec import raw_payload
from headway.core.diagnostics import JobDiagnostics
from headway.core.errors import JobError, PayloadError
from headway.core.job import Attempt, JobRecord, State
from headway.core.policy.document import Policy
from headway.core.policy.estimate import Estimate
from headway.core.policy.lanes import effective_lane
from headway.core.policy.why import Reason
from headway.core.timestamps import write_moment
from headway.observability.traces import shown_trace

TASK_NEED = "task:"
ATTEMPTS_SHOWN = 100  # The newest attempts that an answer lists; a task may have a million.
TRACEBACKS_SHOWN = 10  # The newest of them that keep their traceback: one takes up to 32 kB.


def task_values(job: JobRecord, policy: Policy, *, omitted: Collection[str] = ()) -> dict[str, Any]:
    """Return every field of a task but those that say when it will run. Stored JSON passes through undecoded.

    ``omitted``: parameters or result, or both; they are null then.
    """
    return {
        "task_id": job.job_id,
        "status": job.state.value,
        "priority": job.lane,
        "effective_priority": effective_lane(policy, job, job.seen_at),
        "payload": {
            "task_type": job.task,
            "parameters": None if "parameters" in omitted else _raw(job.payload),
            "required_capabilities": [need for need in job.needs if not need.startswith(TASK_NEED)],
        },
        "tenant": job.tenant,
        "duration": job.rung,
        "retry_count": retries(job),
        "max_retries": job.max_retries,
        "timeout_seconds": job.timeout_ms / 1_000,
        "created_at": write_moment(job.submitted_at),
        "run_after": _moment(job.due_at),
        "expires_at": _moment(job.expires_at),
        "started_at": _moment(job.started_at),
        "completed_at": _moment(job.finished_at),
        "cancel_requested_at": _moment(job.cancel_requested_at),
        "assigned_worker_id": job.worker_id,
        "progress": None if job.progress is None else {"fraction": job.progress, "note": job.note},
        "result": None if "result" in omitted else _result(job),
        "result_error": job.result_error,
        "error": _error(job.error),
        "reason": job.result_error or job.reason,
        "attempts": _attempts(job.history),
        "idempotency_key": job.idempotency_key,
        "trace_id": trace_id(job),
        "needs": list(job.needs),
        "limits": list(job.limits),
        "unique_key": job.unique_key,
        "assigned_duration": job.assigned,
        "attempt_count": job.attempts,
        "crashes": job.crashes,
        "epoch": job.epoch,
        "eligible_at": _moment(job.eligible_at),
    }


def retries(job: JobRecord) -> int:
    """Count how often a job was queued again: every attempt but the one under way, or the last."""
    return job.attempts if job.state is State.QUEUED else max(0, job.attempts - 1)


def trace_id(job: JobRecord) -> str:
    """Return a task's trace id: its own, or one made of its id."""
    return shown_trace(job.trace_id, job.job_id)


def reason_values(reasons: Sequence[Reason]) -> list[dict[str, Any]]:
    """Return reasons with their numbers."""
    return [{**reason.facts, "code": reason.code, "text": reason.text} for reason in reasons]


def waited_seconds(diagnosis: JobDiagnostics) -> dict[str, float]:
    """Return how long a task that has started waited for what."""
    return {reason: ms / 1_000 for reason, ms in diagnosis.waited_ms.items()}


def estimate_values(estimate: Estimate | None, position: int | None = None) -> dict[str, Any] | None:
    """Return when a task that waits will begin. ``position``: its own, if the estimate is shared with others."""
    if estimate is None:
        return None
    place = estimate.position if position is None else position
    return {"position": place, "p50": estimate.p50, "p90": estimate.p90, "basis": estimate.basis}


def ending_values(job: JobRecord) -> dict[str, Any]:
    """Return how a job ended."""
    return {
        "status": job.state.value,
        "result": _result(job),
        "result_error": job.result_error,
        "error": _error(job.error),
        "reason": job.result_error or job.reason,
    }


def _attempts(history: Sequence[Attempt]) -> list[dict[str, Any]]:
    shown = [_attempt(attempt) for attempt in history[-ATTEMPTS_SHOWN:]]
    for attempt in shown[:-TRACEBACKS_SHOWN]:
        if attempt["error"] is not None:
            attempt["error"]["traceback"] = None
    return shown


def _attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        "number": attempt.number,
        "epoch": attempt.epoch,
        "worker_id": attempt.worker_id,
        "started_at": write_moment(attempt.started_at),
        "ended_at": write_moment(attempt.ended_at),
        "reason": attempt.reason,
        "error": _error(attempt.error),
    }


def _error(error: JobError | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {
        "type": error.type,
        "message": error.message,
        "traceback": error.traceback or None,
        "retriable": error.retriable,
    }


def _result(job: JobRecord) -> msgspec.Raw | None:
    return None if job.result is None else _raw(job.result)


def _raw(payload: bytes) -> msgspec.Raw | None:
    try:
        return raw_payload(payload)
    except (PayloadError, ValueError, RecursionError):  # A later release wrote it, or another program.
        return None


def _moment(at: int | None) -> str | None:
    return None if at is None else write_moment(at)
