"""The messages between a worker and a server over HTTP. They call a job a task, and its lease token a fence.

The worker and the server share these structs, and the OpenAPI document is built from them. The server refuses unknown
members in a request. A worker ignores unknown members in a reply, because the server may be newer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from headway.core.job import JobId, State
from headway.core.policy.document import LimitRule
from headway.core.worker import WorkerState
from headway.observability.job_output import CHUNKS_MAX, KEPT_MAX, Chunk
from headway.policy_store.catalogue import CronDocument, TaskEntry

# Bounds of lists and numbers. They keep one request small enough to be decoded and stored in one step.
CAPABILITIES_MAX = 100
CAPACITY_MAX = 10_000
TASKS_MAX = 1_000
RESULTS_MAX = 1_000
TEXT_MAX = 255  # Characters of a name or a reason.
NOTE_MAX = 500  # Characters of a progress note.
WAIT_MAX = 30  # Seconds of a long poll: proxies often close a request after a minute.
GRACE_MAX = 3_600  # Seconds.
SECONDS_MAX = 10 * 365 * 86_400  # Ten years: the longest duration in a request.
COUNT_MAX = 1 << 31
SEQ_MAX = 1 << 53  # Larger integers lose digits in JavaScript.
DAY = 86_400


END = r"$(?!\n)"  # In Python, but not in JSON Schema, "$" also matches before a final newline.
NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f]*" + END  # Names are printed on terminals and in logs.
IDENTIFIER = "^[0-9A-Za-z_-]+" + END
Name = Annotated[str, Meta(min_length=1, max_length=TEXT_MAX, pattern=NO_CONTROLS)]
Capabilities = Annotated[
    list[Annotated[str, Meta(min_length=1, max_length=100, pattern=NO_CONTROLS)]], Meta(max_length=CAPABILITIES_MAX)
]
TaskRef = Annotated[str, Meta(min_length=1, max_length=64, pattern=IDENTIFIER)]
ClaimId = Annotated[str, Meta(min_length=8, max_length=64, pattern=IDENTIFIER)]
ReasonText = Annotated[str, Meta(max_length=TEXT_MAX, pattern=r"^[^\x00]*" + END)]
Interval = Annotated[float, Meta(gt=0, le=DAY)]
Duration = Annotated[float, Meta(ge=0, le=SECONDS_MAX)]
Slots = Annotated[int, Meta(ge=0, le=CAPACITY_MAX)]
SequenceNumber = Annotated[int, Meta(ge=0, le=SEQ_MAX)]
Acknowledged = Annotated[bool, Meta(extra_json_schema={"const": True})]
LeaseLostCode = Literal["lease_lost"]


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """A message from a worker. An unknown member is most likely a misspelt one, so it is an error."""


class AboutTask(Request, kw_only=True):
    """A message about a task that the worker has. Without a fence it is about the current lease."""

    task_id: TaskRef
    fence: str | None = None

    @property
    def job_id(self) -> JobId:
        return JobId(self.task_id)


class RegisterRequest(Request, kw_only=True):
    """A worker. All but the capabilities may be left out."""

    example: ClassVar = {"capabilities": ["gpu"], "capacity": 5}

    capabilities: Annotated[Capabilities, Meta(description="What the worker offers to tasks that require it.")]
    capacity: Annotated[
        int, Meta(ge=1, le=CAPACITY_MAX, description="How many tasks the worker runs at the same time.")
    ] = 5
    name: Annotated[Name, Meta(description="A name for operators, usually the host.")] = "http"
    pid: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    version: ReasonText = ""
    reserved: Annotated[
        Slots | None,
        Meta(
            description="Slots kept for the lanes of the reserve. Without it the policy decides, but a worker without "
            "`tasks` keeps no slots for the built-in reserve."
        ),
    ] = None
    protocol: Literal[1] = 1
    tasks: Annotated[
        Annotated[list[TaskEntry], Meta(max_length=TASKS_MAX)] | None,
        Meta(description="The tasks it knows, as in the catalogue. Without them it gets any task it is capable of."),
    ] = None
    limits: Annotated[
        Mapping[Name, Mapping[Name, LimitRule]] | None,
        Meta(description="The limits its tasks declare, by task and name."),
    ] = None
    crons: Annotated[
        Annotated[list[CronDocument], Meta(max_length=TASKS_MAX)] | None, Meta(description="The crons of its tasks.")
    ] = None
    heartbeat_seconds: Annotated[Interval | None, Meta(description="How often it will send a heartbeat.")] = None
    dead_after_seconds: Annotated[
        Interval | None,
        Meta(description="The server takes it for dead after this time without a heartbeat; at least two heartbeats."),
    ] = None
    grace_seconds: Annotated[
        float,
        Meta(
            ge=0,
            le=GRACE_MAX,
            description="How long the server waits for the worker's own report after a task's timeout.",
        ),
    ] = 5.0


class UnpublishedTask(msgspec.Struct):
    """A task that the server did not publish. The catalogue keeps the entry, limits and cron it had, if any."""

    task_type: Annotated[str, Meta(examples=["reports.build"])]
    reason: str = ""


class RegisterReply(msgspec.Struct, kw_only=True):
    """The worker is registered under a new id."""

    worker_id: Annotated[str, Meta(examples=["4f0c8f0e-52a7-4a3c-93f0-6d3a7f6f2f4e"])]
    poll_interval_ms: Annotated[int, Meta(description="How often to poll without long polls.", examples=[1000])] = 1_000
    heartbeat_seconds: float
    dead_after_seconds: float
    confirm_seconds: Annotated[
        float, Meta(description="The server takes back a task that no heartbeat names within this time.")
    ] = 10.0
    payload_max: Annotated[int, Meta(description="Bytes of the largest result that is stored.")] = 0
    policy_version: int = 0
    policy: Annotated[dict[str, Any] | None, Meta(description="The current policy, if the worker named its tasks.")] = (
        None
    )
    not_published: Annotated[
        list[UnpublishedTask], Meta(description="The `tasks` that this token may not put into the catalogue.")
    ] = []


class AttemptFailure(Request, omit_defaults=True):
    """What went wrong in an attempt."""

    message: Annotated[str, Meta(examples=["no such account"])] = ""
    type: Annotated[ReasonText, Meta(examples=["ValueError"])] = "Error"
    traceback: str | None = None
    retriable: Annotated[bool, Meta(description="false: do not try again.")] = True


class ResultReport(AboutTask, omit_defaults=True, kw_only=True):
    """How an attempt ended. The server decides what becomes of the task."""

    example: ClassVar = {"task_id": "01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10", "status": "completed", "result": {}}

    status: Annotated[
        Literal["completed", "failed", "timed_out", "cancelled", "released", "snoozed", "crashed", "unknown_task"],
        Meta(description="`released`, `snoozed`: the task is queued again and no attempt is used."),
    ]
    result: Annotated[Any, Meta(description="Any JSON.")] = UNSET
    result_error: Annotated[str | None, Meta(description="Why the result of a completed task cannot be stored.")] = None
    error: AttemptFailure | None = None
    fence: Annotated[
        str | None, Meta(description="The fence from the poll. Without it the report is about the current lease.")
    ] = None
    retry_after_seconds: Annotated[Duration | None, Meta(description="When to run it again.")] = None
    reason: ReasonText | None = None
    seconds: Annotated[Duration | None, Meta(description="How long it ran.")] = None


class ResultReports(Request):
    """Several reports in one request."""

    results: Annotated[list[ResultReport], Meta(max_length=RESULTS_MAX)]


class ResultOutcome(msgspec.Struct):
    """What became of one reported task. Without a status the report did not count."""

    task_id: str
    status: State | None
    code: LeaseLostCode | None = None


class ResultReply(msgspec.Struct, omit_defaults=True):
    """The server has the result, from this report or an earlier one."""

    acknowledged: Acknowledged
    status: Annotated[State | UnsetType, Meta(description="What became of the task.")] = UNSET
    results: Annotated[
        list[ResultOutcome] | UnsetType, Meta(description="What became of each task, if there were several.")
    ] = UNSET


class ProgressUpdate(AboutTask, omit_defaults=True, kw_only=True):
    """The progress of a running task."""

    fraction: Annotated[float, Meta(ge=0, le=1)]
    note: Annotated[str, Meta(max_length=NOTE_MAX)] | None = None


class OutputChunk(Chunk, frozen=True, forbid_unknown_fields=True):
    """A piece of a program's output."""

    at: Annotated[SequenceNumber, Meta(description="Milliseconds since 1970, greater than in the piece before.")]
    stream: Literal["stdout", "stderr"]
    offset: Annotated[SequenceNumber, Meta(description="Characters of this stream before the piece.")]
    text: Annotated[str, Meta(max_length=KEPT_MAX)]


class OutputUpdate(AboutTask, kw_only=True):
    """The latest output of a running task, for readers of its events. It replaces what was sent before."""

    chunks: Annotated[list[OutputChunk], Meta(max_length=CHUNKS_MAX)]


class OutputReply(msgspec.Struct):
    """Whether the server stored the output. The worker must hold the task."""

    acknowledged: bool


class WireMemberError(msgspec.Struct):
    """The last error of a member of a batch."""

    type: str
    message: str
    traceback: str | None = None
    retriable: bool = True


class WireMember(msgspec.Struct):
    """How a member of a batch ended, as ``GET /api/v1/batches/{id}/results`` lists it."""

    task_id: str
    status: str
    result: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    error: WireMemberError | None = None
    reason: str | None = None


class WireMemberPage(msgspec.Struct):
    """A page of the results of a batch."""

    items: list[WireMember]
    next_cursor: str | None


class StepsRequest(AboutTask, omit_defaults=True, kw_only=True):
    """A running task asks for the steps that it has kept."""


class TaskSteps(msgspec.Struct):
    """The steps of a task, in the order in which they were kept."""

    steps: Annotated[dict[str, Any], Meta(description="Values by name, any JSON.")]


class StepUpdate(AboutTask, omit_defaults=True, kw_only=True):
    """A running task keeps a value under a name, for its next attempt."""

    key: Annotated[Name, Meta(description="A name that the task uses once. A name that it has keeps its first value.")]
    value: Annotated[Any, Meta(description="Any JSON, up to 64 KiB.")] = None


class StepReply(msgspec.Struct):
    """Whether the server has kept the step. The worker must hold the task."""

    acknowledged: bool


class PollRequest(Request, omit_defaults=True, kw_only=True):
    """A worker reports what has ended and asks for tasks."""

    example: ClassVar = {"capabilities": ["gpu"], "available_capacity": 3, "wait_seconds": 20}

    available_capacity: Annotated[Slots, Meta(description="How many tasks the worker has room for.")]
    capabilities: Annotated[
        Capabilities | None, Meta(description="What it offers this time. It must have registered all of them.")
    ] = None
    wait_seconds: Annotated[float, Meta(ge=0, le=WAIT_MAX, description="How long to wait for a task or for news.")] = (
        0.0
    )
    claim_id: Annotated[
        ClaimId | None, Meta(description="New for each poll. A repeat after a lost reply returns the same tasks.")
    ] = None
    takes_over: Annotated[bool, Meta(description="End the polls of this worker that still wait for tasks.")] = False
    results: Annotated[
        list[ResultReport],
        Meta(max_length=RESULTS_MAX, description="What has ended. The server applies it before it waits."),
    ] = []
    progress: Annotated[list[ProgressUpdate], Meta(max_length=RESULTS_MAX)] = []
    below: Annotated[Slots | None, Meta(description="How many of the slots may go to lanes outside the reserve.")] = (
        None
    )


class LeaseDetails(msgspec.Struct, kw_only=True):
    """More about a task, for Headway's own workers. Times are milliseconds of the store's clock."""

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
    """A task to run."""

    task_id: str
    task_type: str
    parameters: Annotated[
        msgspec.Raw,
        Meta(
            description="Its arguments. The results of other tasks are filled in. Those of a batch are an object with "
            "its `batch_id`.",
            extra_json_schema={"type": "object"},
        ),
    ]
    timeout_seconds: Annotated[float, Meta(description="How long it may run.")]
    trace_id: str | None = None
    fence: Annotated[str, Meta(description="Proves that this worker has the task. Send it back with the result.")]
    epoch: Annotated[int, Meta(description="Grows with each attempt.")] = 1
    attempt: int = 1
    max_retries: int = 0
    priority: str
    tenant: str | None = None
    batch_id: Annotated[str | None, Meta(description="The batch that counts it.")] = None
    lease: LeaseDetails = msgspec.field(default_factory=LeaseDetails)


class RefusedResult(msgspec.Struct):
    """A result that did not count."""

    task_id: str
    code: LeaseLostCode


class PollReply(msgspec.Struct, kw_only=True):
    """Tasks to run, and news about the tasks that the worker has."""

    tasks: list[LeasedTask] = []
    cancel: Annotated[list[JobId], Meta(description="Tasks to stop. Each is named until the worker reports it.")] = []
    lost: Annotated[
        list[JobId], Meta(description="The ones among them that the server has ended. A report would not count.")
    ] = []
    budgets: Annotated[
        dict[JobId, float], Meta(description="How many seconds from its start each task on the ladder may take.")
    ] = {}
    refused: list[RefusedResult] = []
    more: Annotated[bool, Meta(description="The server has more to look at: poll again at once.")] = False
    next_due_seconds: float | None = None
    state: Annotated[WorkerState, Meta(description="`draining`: there will be no more tasks.")] = WorkerState.ACTIVE
    policy_version: int = 0


class HeldTask(Request):
    """A task that the worker has."""

    task_id: TaskRef
    fence: str | None = None


class WorkerHeartbeat(Request, kw_only=True):
    """A sign of life."""

    example: ClassVar = {"current_load": 3, "status": "active"}

    current_load: Annotated[int, Meta(ge=0, le=COUNT_MAX)] = 0
    status: Literal["active", "draining"] = "active"
    tasks: Annotated[
        Annotated[list[HeldTask], Meta(max_length=CAPACITY_MAX)] | None,
        Meta(
            description="The tasks it has, each as an object with `task_id` and `fence`. The server takes back the "
            "rest. Without this member the worker keeps all of them."
        ),
    ] = None
    seq: Annotated[
        SequenceNumber | None, Meta(description="Grows with each heartbeat. The server ignores one that arrives late.")
    ] = None
    policy_version: Annotated[SequenceNumber | None, Meta(description="The policy it knows.")] = None


class WorkerHeartbeatReply(msgspec.Struct, kw_only=True):
    """The worker is alive."""

    acknowledged: Acknowledged = True
    cancel: list[JobId] = []
    lost: list[JobId] = []
    budgets: dict[JobId, float] = {}
    state: WorkerState = WorkerState.ACTIVE
    policy_version: int = 0
    policy: Annotated[
        dict[str, Any] | None, Meta(description="The current policy, if the worker knows another version.")
    ] = None
    ignored: Annotated[bool, Meta(description="A later heartbeat has arrived before.")] = False


class DrainRequest(Request, omit_defaults=True):
    """A worker takes no more tasks."""

    leave: Annotated[
        bool, Meta(description="The worker is gone as well: its tasks are queued again and no attempt is used.")
    ] = False


class DrainReply(msgspec.Struct):
    """The worker gets no more tasks."""

    acknowledged: Acknowledged
    state: WorkerState
    released: Annotated[int, Meta(description="How many tasks were queued again.")]
