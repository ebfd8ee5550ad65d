"""Convert leases and endings to messages of the worker protocol and back."""

from __future__ import annotations

import hashlib
from typing import Any, assert_never

import msgspec

from headway.core.errors import JobError
from headway.core.job import JobId, RetryRule
from headway.core.lease import TOKEN_BYTES, Lease
from headway.core.policy.retry import Crashed, Ending, Raised, Released, Returned, Snoozed, Stopped, TimedOut, Unknown
from headway.observability.traces import shown_trace
from headway.protocol.worker import TEXT_MAX, AttemptFailure, LeaseDetails, LeasedTask, ResultReport


def result_of(ending: Ending, job_id: JobId, token: bytes | None, seconds: float | None = None) -> ResultReport:
    """Return the report of an ending."""
    fence = None if token is None else token.hex()
    report = ResultReport(task_id=job_id, status="unknown_task", fence=fence, seconds=seconds)
    match ending:
        case Returned(result, result_error):
            report.status, report.result, report.result_error = "completed", _raw(result), result_error
        case Raised(error, after_ms, partial):
            report.status, report.error, report.result = "failed", _failure(error), _raw(partial)
            report.retry_after_seconds = None if after_ms is None else after_ms / 1_000
        case Snoozed(after_ms, reason):
            report.status, report.retry_after_seconds, report.reason = "snoozed", after_ms / 1_000, _short(reason)
        case TimedOut(error, partial):
            report.status, report.error, report.result = "timed_out", _failure(error), _raw(partial)
        case Stopped(reason):
            report.status, report.reason = "cancelled", _short(reason)
        case Crashed(cause):
            report.status, report.reason = "crashed", _short(cause)
        case Released(reason):
            report.status, report.reason = "released", _short(reason)
        case Unknown():
            pass
        case _ as never:
            assert_never(never)
    return report


def token_of(fence: str | None) -> bytes | None:
    """Return the token of a fence. A fence that no server wrote becomes a token that no lease has."""
    if fence is None:
        return None
    try:
        token = bytes.fromhex(fence)
    except ValueError:
        token = b"?"
    if len(token) in (0, TOKEN_BYTES):
        return token
    return hashlib.blake2b(fence.encode("utf-8", "replace"), digest_size=TOKEN_BYTES).digest()


def leased_task(lease: Lease, parameters: bytes) -> LeasedTask:
    """Return the message that hands out a lease."""
    return LeasedTask(
        task_id=lease.job_id,
        task_type=lease.task,
        parameters=msgspec.Raw(parameters),
        timeout_seconds=lease.limit_ms / 1_000,
        trace_id=shown_trace(lease.trace_id, lease.job_id),
        fence=lease.token.hex(),
        epoch=lease.epoch,
        attempt=lease.attempts,
        max_retries=lease.max_retries,
        priority=lease.lane,
        tenant=lease.tenant,
        batch_id=lease.batch_id,
        lease=LeaseDetails(
            seq=lease.seq,
            crashes=lease.crashes,
            timeout_ms=lease.timeout_ms,
            asked_timeout_ms=lease.asked_timeout_ms,
            budget_ms=lease.budget_ms,
            retry=None if lease.retry is None else lease.retry._asdict(),
            started_at=lease.started_at,
            needs=lease.needs,
            rung=lease.rung,
            assigned=lease.assigned,
            cancel_requested=lease.cancel_requested,
            trace_id=lease.trace_id,
            submitted_at=lease.submitted_at,
            eligible_at=lease.eligible_at,
        ),
    )


def lease_of(task: LeasedTask, worker_id: str, mark: bytes) -> Lease:
    """Return the lease that a server has handed out. ``mark`` begins every payload of this Headway.

    Raises ``ValueError`` for a fence of the wrong length.
    """
    details = task.lease
    token = bytes.fromhex(task.fence)
    if len(token) not in (0, TOKEN_BYTES):
        raise ValueError(f"a fence of {len(token)} bytes, expected {TOKEN_BYTES}")
    timeout_ms = details.timeout_ms or max(1, round(task.timeout_seconds * 1_000))
    retry = None if details.retry is None else _retry_rule(details.retry)
    return Lease(
        JobId(task.task_id), details.seq, token, task.task_type, mark + bytes(task.parameters), task.priority,
        task.tenant, details.trace_id or task.trace_id, task.epoch, task.attempt, details.crashes, task.max_retries,
        timeout_ms, details.asked_timeout_ms or timeout_ms, retry, details.started_at, details.cancel_requested,
        details.needs, worker_id, details.rung, details.assigned, details.budget_ms, details.submitted_at,
        details.eligible_at, task.batch_id,
    )  # fmt: skip


def step_json(value: bytes) -> msgspec.Raw:
    """Return the value of a step without the mark of its encoding. An empty value is None."""
    return msgspec.Raw(value[1:] or b"null")


def step_value(value: Any, mark: bytes) -> bytes:
    """Return the value of a step as a store keeps it. ``mark`` begins every stored value of this Headway."""
    return b"" if value is None else mark + msgspec.json.encode(value)


def _raw(payload: bytes | None) -> Any:
    """Return a result without the mark of its encoding."""
    return msgspec.UNSET if payload is None else msgspec.Raw(payload[1:])


def _retry_rule(members: dict[str, Any]) -> RetryRule:
    """Read the known members of a rule. A newer server may send more."""
    return RetryRule(**{name: members[name] for name in RetryRule._fields if name in members})


def _failure(error: JobError) -> AttemptFailure:
    return AttemptFailure(error.message, _short(error.type), error.traceback or None, error.retriable)


def _short(text: str) -> str:
    """Cut a reason or a name to what the server accepts."""
    return text.replace("\0", "")[:TEXT_MAX]
