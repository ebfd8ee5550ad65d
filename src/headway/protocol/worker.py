"""What a worker and a server say to each other over HTTP. A job is called a task there, and its token a fence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, assert_never

import msgspec

from headway.core.errors import JobError
from headway.core.job import JobId, RetryRule
from headway.core.lease import TOKEN_BYTES, Lease
from headway.core.policy.document import LimitRule
from headway.core.policy.retry import Crashed, Ending, Raised, Released, Returned, Snoozed, Stopped, TimedOut, Unknown
from headway.core.worker import PROTOCOL, WorkerState
from headway.observability.job_output import Chunk
from headway.policy_store.catalogue import CronDocument, TaskEntry

WORD_MAX = 255  # Letters of a reason, or of the name of an error.


class RegisterRequest(msgspec.Struct, kw_only=True):
    """A worker makes itself known."""

    capabilities: list[str]
    capacity: int
    name: str
    pid: int
    version: str
    reserved: int | None
    tasks: list[TaskEntry]
    limits: Mapping[str, Mapping[str, LimitRule]]
    crons: list[CronDocument]
    heartbeat_seconds: float
    dead_after_seconds: float
    grace_seconds: float
    protocol: int = PROTOCOL


class UnpublishedTask(msgspec.Struct):
    """A task that the server did not put into the catalogue."""

    task_type: str
    reason: str = ""


class RegisterReply(msgspec.Struct, kw_only=True):
    """The server knows it, by this name and on these terms."""

    worker_id: str
    heartbeat_seconds: float
    dead_after_seconds: float
    confirm_seconds: float = 10.0
    policy_version: int = 0
    policy: dict[str, Any] | None = None
    not_published: list[UnpublishedTask] = []


class AttemptFailure(msgspec.Struct, omit_defaults=True):
    """What went wrong in an attempt."""

    message: str
    type: str
    traceback: str = ""
    retriable: bool = True


class ResultReport(msgspec.Struct, omit_defaults=True, kw_only=True):
    """How an attempt ended. What becomes of the job is for the server to judge."""

    task_id: str
    status: str
    fence: str
    result: msgspec.Raw | None = None
    result_error: str | None = None
    error: AttemptFailure | None = None
    retry_after_seconds: float | None = None
    reason: str | None = None
    seconds: float | None = None

    @property
    def job_id(self) -> JobId:
        return JobId(self.task_id)


class ProgressUpdate(msgspec.Struct, omit_defaults=True):
    """How far a job has come."""

    task_id: str
    fence: str
    fraction: float
    note: str | None = None


class OutputUpdate(msgspec.Struct):
    """The latest output of a running program."""

    task_id: str
    fence: str
    chunks: list[Chunk]


class PollRequest(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A worker hands in what has ended, and asks for jobs."""

    available_capacity: int
    below: int | None = None
    claim_id: str | None = None
    wait_seconds: float = 0.0
    takes_over: bool = False
    results: list[ResultReport] = []
    progress: list[ProgressUpdate] = []


class LeaseDetails(msgspec.Struct, kw_only=True):
    """The part of a lease that only Headway's own workers look at. Moments are by the store's clock."""

    seq: int = 0
    crashes: int = 0
    timeout_ms: int | None = None
    asked_timeout_ms: int | None = None
    budget_ms: int | None = None
    retry: dict[str, Any] | None = None
    started_at: int = 0
    needs: tuple[str, ...] = ()
    rung: str | None = None
    assigned: str | None = None
    cancel_requested: bool = False
    trace_id: str | None = None
    submitted_at: int = 0
    eligible_at: int = 0


class LeasedTask(msgspec.Struct, kw_only=True):
    """A job that a server hands out."""

    task_id: str
    task_type: str
    parameters: msgspec.Raw
    timeout_seconds: float
    fence: str
    priority: str
    trace_id: str | None = None
    epoch: int = 1
    attempt: int = 1
    max_retries: int = 0
    tenant: str | None = None
    lease: LeaseDetails = msgspec.field(default_factory=LeaseDetails)


class RefusedResult(msgspec.Struct):
    """Something that did not count."""

    task_id: str
    code: str


class PollReply(msgspec.Struct, kw_only=True):
    """The answer to a poll."""

    tasks: list[LeasedTask] = []
    cancel: list[JobId] = []
    lost: list[JobId] = []
    budgets: dict[JobId, float] = {}
    refused: list[RefusedResult] = []
    more: bool = False
    next_due_seconds: float | None = None
    state: WorkerState = WorkerState.ACTIVE
    policy_version: int = 0


class LeaseRef(msgspec.Struct):
    """A lease that a worker holds."""

    task_id: str
    fence: str


class WorkerHeartbeat(msgspec.Struct, kw_only=True):
    """A worker lives, and holds these leases."""

    current_load: int
    tasks: list[LeaseRef]
    seq: int
    policy_version: int
    status: str = "active"


class WorkerHeartbeatReply(msgspec.Struct, kw_only=True):
    """The answer to a heartbeat."""

    cancel: list[JobId] = []
    lost: list[JobId] = []
    budgets: dict[JobId, float] = {}
    state: WorkerState = WorkerState.ACTIVE
    policy_version: int = 0
    policy: dict[str, Any] | None = None


class ResultReports(msgspec.Struct):
    """Several ends at once."""

    results: list[ResultReport]


class DrainRequest(msgspec.Struct, omit_defaults=True):
    """A worker takes nothing more; ``leave``: and is gone."""

    leave: bool = False


def result_of(ending: Ending, job_id: JobId, token: bytes, seconds: float | None = None) -> ResultReport:
    """Put an ending into the words of the protocol."""
    said = ResultReport(task_id=job_id, status="", fence=token.hex(), seconds=seconds)
    match ending:
        case Returned():
            said.status = "completed"
            if ending.result is not None:
                said.result = msgspec.Raw(ending.result[1:])  # Without the mark of its encoding.
            said.result_error = ending.result_error
        case Raised(error, after_ms, partial):
            said.status, said.error = "failed", _failure(error)
            if partial is not None:
                said.result = msgspec.Raw(partial[1:])
            said.retry_after_seconds = None if after_ms is None else after_ms / 1_000
        case Snoozed(after_ms, reason):
            said.status, said.retry_after_seconds, said.reason = "snoozed", after_ms / 1_000, _word(reason)
        case TimedOut(error, partial):
            said.status, said.error = "timed_out", _failure(error)
            if partial is not None:
                said.result = msgspec.Raw(partial[1:])
        case Stopped(reason):
            said.status, said.reason = "cancelled", _word(reason)
        case Crashed(cause):
            said.status, said.reason = "crashed", _word(cause)
        case Released(reason):
            said.status, said.reason = "released", _word(reason)
        case Unknown():
            said.status = "unknown_task"
        case _ as never:
            assert_never(never)
    return said


def lease_of(given: LeasedTask, worker_id: str, mark: bytes) -> Lease:
    """Make the lease that a server has handed out. ``mark`` begins every payload of this Headway.

    Raises ``ValueError`` for a fence that is none.
    """
    terms = given.lease
    token = bytes.fromhex(given.fence)
    if len(token) not in (0, TOKEN_BYTES):
        raise ValueError(f"a fence of {len(token)} bytes")
    timeout_ms = terms.timeout_ms or max(1, round(given.timeout_seconds * 1_000))
    return Lease(
        JobId(given.task_id),
        terms.seq,
        token,
        given.task_type,
        mark + bytes(given.parameters),
        given.priority,
        given.tenant,
        terms.trace_id or given.trace_id,
        given.epoch,
        given.attempt,
        terms.crashes,
        given.max_retries,
        timeout_ms,
        terms.asked_timeout_ms or timeout_ms,
        None if terms.retry is None else _retry_rule(terms.retry),
        terms.started_at,
        terms.cancel_requested,
        terms.needs,
        worker_id,
        terms.rung,
        terms.assigned,
        terms.budget_ms,
        terms.submitted_at,
        terms.eligible_at,
    )


def _retry_rule(given: dict[str, Any]) -> RetryRule:
    """Read what we know of a rule; a newer server may say more."""
    return RetryRule(**{name: given[name] for name in RetryRule._fields if name in given})


def _failure(error: JobError) -> AttemptFailure:
    return AttemptFailure(error.message, _word(error.type), error.traceback, error.retriable)


def _word(text: str) -> str:
    """Bound a reason or a name as servers do."""
    return text.replace("\0", "")[:WORD_MAX]
