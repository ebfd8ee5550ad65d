"""The bodies and replies of the routes for tasks and the queue, and the types that all of them share.

The OpenAPI document is built from these models.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from headway.client.links import OnFailure
from headway.core.workflow import EDGES_MAX
from headway.protocol.worker import SECONDS_MAX

BULK_MAX = 1_000
BULK_EDGES_MAX = 20_000  # About 0.3 s of CPU time. 4 MiB have room for 350,000, which would take several seconds.
TEXT_MAX = 255
NUMBER_MAX = 10**9

TaskStatus = Literal["queued", "executing", "completed", "failed", "cancelled", "dead_letter"]
NO_CONTROLS = r"^[^\x00-\x1f\x7f-\x9f]*$"  # Names are printed on terminals and in logs.
Name = Annotated[str, StringConstraints(min_length=1, max_length=TEXT_MAX, pattern=NO_CONTROLS)]
Capability = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_CONTROLS)]
Seconds = Annotated[float, Field(gt=0, le=SECONDS_MAX, allow_inf_nan=False)]
SourceId = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$")]
NextCursor = Annotated[str | None, Field(description="Give it as `cursor` for the next page; null at the end.")]


NEW_TASK: dict[str, Any] = {
    "task_type": "demo.sleep",
    "parameters": {"seconds": 2},
    "priority": "high",
    "idempotency_key": "order-9",
}


class Body(BaseModel):
    """A request body. An unknown member is an error, because it is most likely a misspelt one."""

    model_config = ConfigDict(extra="forbid", strict=True)


class TaskIndex(Body):
    """Another task of the same request."""

    index: Annotated[int, Field(ge=0, lt=BULK_MAX)] = Field(description="Its place in the request, from 0.")


class NewTask(Body):
    """A task to run."""

    model_config = ConfigDict(json_schema_extra={"examples": [NEW_TASK]})

    task_type: Name = Field(description="The task's name. One that no worker has registered waits for such a worker.")
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="Its arguments by name, checked against the catalogue. An object that has only the member `$out` "
        'stands for a result that does not exist yet: `{"$out": "TASK_ID"}`, or `{"$out": {"index": 0}}` in a bulk.',
    )
    priority: Name | None = Field(
        default=None, description="high, medium, low, or a lane of the policy; else the task's own, else medium."
    )
    required_capabilities: Annotated[list[Capability], Field(max_length=32)] | None = Field(
        default=None, description="What a worker must offer."
    )
    timeout_seconds: Seconds | None = Field(default=None, description="The longest one attempt may take.")
    max_retries: Annotated[int, Field(ge=0, le=1_000_000)] | None = Field(
        default=None, description="How often a failed attempt is repeated."
    )
    idempotency_key: Name | None = Field(
        default=None, description="A second submit with this key gives the same task. Or the header Idempotency-Key."
    )
    tenant: Name | None = Field(
        default=None, description="The party that fairness is counted by; a token's own goes first."
    )
    duration: Name | None = Field(default=None, description="A rung of the ladder: fast, medium, slow or default.")
    on_stop: Literal["fail", "retry_longer", "partial"] | None = Field(
        default=None, description="What it becomes if its duration stops it; else the task's own, else fail."
    )
    run_after: AwareDatetime | None = Field(default=None, strict=False, description="Not before this moment.")
    expires: Seconds | None = Field(default=None, description="Cancelled, if not started after this many seconds.")
    trace_id: Name | None = Field(
        default=None, description="A trace id, or a W3C traceparent. Or the header traceparent."
    )
    after: Annotated[list[SourceId | TaskIndex], Field(max_length=EDGES_MAX)] | None = Field(
        default=None, description="Tasks and batches that it waits for: ids, or in a bulk also `{index}`."
    )
    on_failure: OnFailure | None = Field(
        default=None,
        description="What it does if one of them does not complete: cancel it (default), run it, or hold it.",
    )
    batch_id: SourceId | None = Field(default=None, description="The batch that it becomes a member of.")


class EstimateReply(BaseModel):
    """When a task is expected to begin."""

    position: int | None = Field(description="How many tasks would start before it if no more arrived.", examples=[5])
    p50: float | None = Field(description="Seconds until it begins: the median.", examples=[8.1])
    p90: float | None = Field(description="Seconds within which it begins nine times out of ten.", examples=[25.0])
    basis: Literal["learned", "declared", "unknown"] = Field(description="Where the estimate comes from.")


class SubmittedTask(BaseModel):
    """The task is stored and will run."""

    task_id: str = Field(examples=["01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10"])
    status: TaskStatus
    queue_position: int | None = Field(
        description="How many tasks would start before this one by the policy, counted to about a thousand; "
        "null once it has begun.",
        examples=[5],
    )
    estimate: EstimateReply | None
    deduplicated: bool = Field(description="An earlier submit made it: same key, or one that stands for both.")


class SubmittedTasks(BaseModel):
    """All tasks are stored, in the order of the request."""

    tasks: list[SubmittedTask]


class ReasonItem(BaseModel):
    """Why a task waits."""

    model_config = ConfigDict(extra="allow")

    code: str = Field(examples=["slots_full"])
    text: str = Field(examples=["all 5 slots are busy; next frees in about 2.0 s"])


class TaskLimit(BaseModel):
    """A limit that applies to a task."""

    limit: str = Field(examples=["reports.export=7"])
    running: int = Field(description="Tasks that count against its concurrency now.")
    concurrency: int | None
    rate: str | None = Field(examples=["100/min"])
    next_start_at: datetime | None = Field(description="When its rate allows the next start.")


class DryRunReply(BaseModel):
    """What would happen to a task. Nothing is kept."""

    valid: Literal[True]
    task_type: str
    priority: str
    tenant: str | None
    duration: str | None
    required_capabilities: list[str]
    max_retries: int
    timeout_seconds: float
    deduplicated: bool = Field(description="A submit would return the task of `task_id` in its place.")
    task_id: str | None
    status: TaskStatus | None = Field(description="null: the store has removed the task of `task_id`.")
    queue_position: int | None
    estimate: EstimateReply | None
    reasons: list[ReasonItem] = Field(description="Why it would wait, the binding reason first.")
    limits: list[TaskLimit]


class Why(BaseModel):
    """All reasons why a task waits, the binding one first; none once it has begun."""

    task_id: str
    reasons: list[ReasonItem]
    passed_over: int = Field(description="Later tasks of its lane and tenant that have started; counted up to 100.")
    waited_seconds: dict[str, float] = Field(
        description="Once it has started: how long it waited, by reason. Empty for a task that only the history keeps.",
        examples=[{"slots_full": 3.2}],
    )


class Payload(BaseModel):
    """What to run."""

    task_type: str
    parameters: dict[str, Any] | None = Field(
        description="null if this release cannot read them, or if they are `omitted`."
    )
    required_capabilities: list[str]


class ErrorItem(BaseModel):
    """What went wrong in an attempt."""

    type: str = Field(examples=["ValueError"])
    message: str
    traceback: str | None = None
    retriable: bool


class AttemptItem(BaseModel):
    """An attempt that did not complete the task."""

    number: int
    epoch: int
    worker_id: str | None
    started_at: datetime
    ended_at: datetime
    reason: str
    error: ErrorItem | None


class ProgressItem(BaseModel):
    """The progress of a task."""

    fraction: float
    note: str | None


class TaskReply(BaseModel):
    """Everything that is known of a task."""

    task_id: str
    status: TaskStatus
    priority: str
    effective_priority: str = Field(description="The lane that it counts as, because of its age.")
    payload: Payload
    tenant: str | None
    duration: str | None
    retry_count: int
    max_retries: int
    timeout_seconds: float
    created_at: datetime
    run_after: datetime | None
    expires_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None = Field(description="When it ended, with any status.")
    cancel_requested_at: datetime | None
    assigned_worker_id: str | None
    progress: ProgressItem | None
    result: Any
    result_error: str | None = Field(description="Why the result of a completed task could not be stored.")
    error: ErrorItem | None
    reason: str | None = Field(description="Why it ended as it did.", examples=["max_retries_exceeded"])
    attempts: list[AttemptItem] = Field(description="The attempts that did not complete it.")
    idempotency_key: str | None
    trace_id: str
    needs: list[str] = Field(
        description="Its capabilities, and `task:` with its name once a worker did not know the task."
    )
    limits: list[str] = Field(description="The counters that it takes room in by its arguments: `name=value`.")
    unique_key: str | None
    assigned_duration: str | None = Field(description="While it runs: the rung of the ladder that it was assigned.")
    attempt_count: int = Field(description="The attempts so far, with the one under way.")
    crashes: int = Field(description="The attempts that ended with their worker.")
    epoch: int = Field(description="How often it was leased. Results of an earlier epoch are refused.")
    eligible_at: datetime | None = Field(description="When it last began to wait for a slot.")
    held: bool = Field(description="It is queued and waits for other tasks; `why` names them.")
    batch_id: str | None = Field(description="The batch that counts it.")
    after: list[str] | None = Field(
        None, description="The tasks and batches that it waits or waited for. Not in lists."
    )
    queue_position: int | None = None
    estimate: EstimateReply | None = None
    why: list[ReasonItem] | None = None
    omitted: list[Literal["parameters", "result"]] | None = Field(
        None, description="In lists: what is left out, being larger than 1 KiB. `include` brings it."
    )
    cursor: str | None = Field(None, description="In lists: give it as `cursor` to list what comes after this task.")


class TaskPage(BaseModel):
    """A page of tasks, newest first; it ends at 4 MiB."""

    items: list[TaskReply]
    next_cursor: NextCursor
    searched: int | None = Field(None, description="With `q`: how many tasks the search has passed for this page.")


class TaskState(BaseModel):
    """Where a task stands now."""

    task_id: str
    status: TaskStatus


class Cancelled(TaskState):
    """The result of a cancel."""

    cancel_requested_at: datetime | None = None


class TaskIds(Body):
    """Which tasks."""

    task_ids: Annotated[list[Name], Field(min_length=1, max_length=BULK_MAX)]


class FoundState(BaseModel):
    """Where a task stands now."""

    task_id: str
    status: TaskStatus | None = Field(description="null: there is no such task.")


class TaskStates(BaseModel):
    """Where the tasks stand now, in the order given."""

    tasks: list[FoundState]


class OutputPiece(BaseModel):
    """A piece of output."""

    at: int = Field(description="Milliseconds since 1970; it grows with every piece of a run.")
    stream: Literal["stdout", "stderr"]
    offset: int = Field(description="Characters of the stream before it.")
    text: str


class ProgramOutput(BaseModel):
    """The latest output of a task that runs a program."""

    epoch: int = Field(description="The run that wrote it, as in the task.")
    chunks: list[OutputPiece]


class LaneDepth(BaseModel):
    """One priority."""

    depth: int = Field(description="Tasks that wait for a slot; neither running nor delayed ones.")
    oldest_age_seconds: int


class WorkerCounts(BaseModel):
    """The workers."""

    active: int
    draining: int
    dead: int
    total_capacity: int
    used_capacity: int


class Throughput(BaseModel):
    """Tasks that ended recently."""

    completed_last_minute: int
    failed_last_minute: int


class QueueStats(BaseModel):
    """The queue in numbers."""

    queues: dict[str, LaneDepth]
    workers: WorkerCounts | None = Field(description="null for a token of one tenant.")
    throughput: Throughput | None = Field(description="null for a token of one tenant.")


class LaneCounts(BaseModel):
    """The tasks of one priority, by what they do now."""

    waiting: int = Field(description="They wait for a slot.")
    delayed: int = Field(description="They wait for a later time.")
    held: int = Field(description="They wait for other tasks.")
    executing: int
    oldest_at: datetime | None = Field(description="Since when the first of the waiting tasks waits.")


class QueueCounts(BaseModel):
    """What the store counts."""

    at: datetime = Field(description="When this was counted, by the store's clock.")
    queues: dict[str, LaneCounts] = Field(description="Priorities that have tasks, or had some.")
    totals: dict[str, int] = Field(
        description="What happened since the store was made.", examples=[{"submitted": 9, "completed": 8}]
    )
    recent: dict[str, int] = Field(description="The same in the last full minute and the one under way.")
    kept: dict[str, int] = Field(description="Tasks that ended badly and are still kept, by status.")


class Accuracy(BaseModel):
    """The accuracy of the estimates of one priority."""

    scored: int = Field(description="How many were compared with what happened.")
    within_p50: float = Field(description="The part of them that began by their p50.")
    within_p90: float
    error: float | None = Field(description="The median error, as a part of the wait; null if no wait was long.")


class EstimateAccuracyReply(BaseModel):
    """The accuracy of estimates, by priority."""

    queues: dict[str, Accuracy]


class Replay(Body):
    """Which dead letters to queue again: those named, or those that fit, or `all`."""

    task_ids: Annotated[list[Name], Field(max_length=BULK_MAX)] | None = None
    task_type: Name | None = None
    priority: Name | None = None
    tenant: Name | None = None
    all: bool = False


class Replayed(BaseModel):
    """What was queued again."""

    replayed: list[str]
    refused: list[str] = Field(description="Those whose unique key another live task has, or that are no dead letters.")
    more: bool = Field(description="There are more; ask again.")


class Removed(BaseModel):
    """What was removed."""

    removed: int


class TicketReply(BaseModel):
    """A ticket that opens one stream, once."""

    ticket: str
    expires_in: int = Field(description="Seconds.", examples=[60])


class HealthReply(BaseModel):
    """The process answers."""

    status: Literal["ok"]


class Readiness(BaseModel):
    """Whether the store can be reached."""

    status: Literal["ok", "unavailable"]
