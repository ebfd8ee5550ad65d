"""Jobs in replies of the REST interface, which calls them tasks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from headway.client.codec import raw_payload
from headway.client.job_values import attempt_values, error_values, task_fields
from headway.core.diagnostics import JobDiagnostics
from headway.core.errors import JobError, PayloadError
from headway.core.job import Attempt, JobRecord, State
from headway.core.policy.document import Policy
from headway.core.policy.estimate import Estimate
from headway.core.policy.lanes import effective_lane
from headway.core.timestamps import write_moment
from headway.core.worker import WorkerInfo, capabilities_in, tasks_in

ATTEMPTS_SHOWN = 100  # The newest attempts that an answer lists; a task may have a million.
TRACEBACKS_SHOWN = 10  # The newest of them that keep their traceback: one takes up to 32 kB.


def task_values(job: JobRecord, policy: Policy, *, omitted: Collection[str] = ()) -> dict[str, Any]:
    """Return every field of a task except those about its expected start. Stored JSON passes through undecoded.

    ``omitted``: parameters or result, or both. They become null.
    """
    return task_fields(job) | {
        "effective_priority": effective_lane(policy, job, job.seen_at),
        "payload": {
            "task_type": job.task,
            "parameters": None if "parameters" in omitted else _raw(job.payload),
            "required_capabilities": capabilities_in(job.needs),
        },
        "retry_count": retries(job),
        "progress": None if job.progress is None else {"fraction": job.progress, "note": job.note},
        "result": None if "result" in omitted else _result(job),
        "error": _error(job.error),
        "attempts": _attempts(job.history),
    }


def retries(job: JobRecord) -> int:
    """Count how often a job was queued again: every attempt but the one under way, or the last."""
    return job.attempts if job.state is State.QUEUED else max(0, job.attempts - 1)


def waited_seconds(diagnosis: JobDiagnostics) -> dict[str, float]:
    """Return for how many seconds a started task waited, by reason."""
    return {reason: ms / 1_000 for reason, ms in diagnosis.waited_ms.items()}


def estimate_values(estimate: Estimate | None, position: int | None = None) -> dict[str, Any] | None:
    """Return when a waiting task will start. ``position``: the task's own, if several tasks share the estimate."""
    if estimate is None:
        return None
    place = estimate.position if position is None else position
    return {"position": place, "p50": estimate.p50, "p90": estimate.p90, "basis": estimate.basis}


def ending_values(job: JobRecord) -> dict[str, Any]:
    return {
        "status": job.state.value,
        "result": _result(job),
        "result_error": job.result_error,
        "error": _error(job.error),
        "reason": job.result_error or job.reason,
    }


def _attempts(history: Sequence[Attempt]) -> list[dict[str, Any]]:
    shown = [attempt_values(attempt, "worker_id") for attempt in history[-ATTEMPTS_SHOWN:]]
    for number, attempt in enumerate(reversed(shown)):
        if attempt["error"] is not None:
            attempt["error"]["traceback"] = (number < TRACEBACKS_SHOWN and attempt["error"]["traceback"]) or None
    return shown


def _error(error: JobError | None) -> dict[str, Any] | None:
    values = error_values(error)
    return values and values | {"traceback": values["traceback"] or None}


def _result(job: JobRecord) -> msgspec.Raw | None:
    return None if job.result is None else _raw(job.result)


def _raw(payload: bytes) -> msgspec.Raw | None:
    try:
        return raw_payload(payload)
    except (PayloadError, ValueError, RecursionError):  # A later release wrote it, or another program.
        return None


def worker_values(worker: WorkerInfo, running: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a worker. ``running``: the tasks that it runs."""
    return {
        "worker_id": worker.worker_id,
        "status": worker.state.value,
        "current_tasks": list(running or ()),
        "last_heartbeat": write_moment(worker.heartbeat_at),
        "capacity": worker.slots,
        "current_load": worker.running,
        "reserved": worker.reserved,
        "capabilities": capabilities_in(worker.offers),
        "task_types": tasks_in(worker.offers),
        "version": worker.version,
        "host": worker.host,
        "pid": worker.pid,
        "started_at": write_moment(worker.started_at),
        "lease_ends_at": write_moment(worker.lease_ends_at),
    }
