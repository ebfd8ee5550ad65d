"""The bodies and answers of the protocol of workers that speak HTTP."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from headway.core.worker import TASK
from headway.observability.job_output import CHUNKS_MAX, KEPT_MAX
from headway.server.problems import ALTERNATIVES
from headway.server.schemas.rest import NO_CONTROLS, SECONDS_MAX, Body, Name, Status

CAPABILITIES_MAX = 100
CAPACITY_MAX = 10_000
TASKS_MAX = 1_000
RESULTS_MAX = 1_000
WAIT_MAX = 30
SEQ_MAX = 1 << 53
COUNT_MAX = 1 << 31
NOTE_MAX = 500
ONE, MANY = ALTERNATIVES
DAY = 86_400


def _own(capability: str) -> str:
    if capability.startswith(TASK):
        raise ValueError(f"a capability does not begin with {TASK}: name the tasks under tasks")
    return capability


Offer = Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=NO_CONTROLS), AfterValidator(_own)]
TaskRef = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$")]
Fence = str  # Opaque: one that is no lease's, however it is written, is a lease that is lost.
ClaimId = Annotated[str, StringConstraints(min_length=8, max_length=64, pattern=r"^[0-9A-Za-z_-]+$")]
Word = Annotated[str, StringConstraints(max_length=255, pattern=r"^[^\x00]*$")]
Pace = Annotated[float, Field(gt=0, le=DAY, allow_inf_nan=False)]
Length = Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)]
State = Literal["active", "draining"]


def example(values: dict[str, Any]) -> ConfigDict:
    return ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [values]})


class RegisterBody(Body):
    """A worker. All but the capabilities may be left out."""

    model_config = example({"capabilities": ["gpu"], "capacity": 5})

    capabilities: Annotated[list[Offer], Field(max_length=CAPABILITIES_MAX)] = Field(
        description="What it offers to tasks that require it."
    )
    capacity: int = Field(5, ge=1, le=CAPACITY_MAX, description="How many tasks it runs at a time.")
    name: Name = Field("http", description="What people shall call it; its host, mostly.")
    pid: int = Field(0, ge=0, le=COUNT_MAX)
    version: Word = ""
    reserved: int | None = Field(
        None,
        ge=0,
        le=CAPACITY_MAX,
        description="Slots kept for the lanes of the reserve. Left out: as the policy says, but none by the built-in "
        "reserve if the worker names no `tasks`.",
    )
    protocol: Literal[1] = 1
    tasks: Annotated[list[dict[str, Any]], Field(max_length=TASKS_MAX)] | None = Field(
        None, description="The tasks it knows, as in the catalogue. Without them it is given any it is capable of."
    )
    limits: dict[Name, dict[Name, dict[str, Any]]] | None = Field(
        None, description="The limits its tasks declare, by task and name."
    )
    crons: Annotated[list[dict[str, Any]], Field(max_length=TASKS_MAX)] | None = Field(
        None, description="The crons among its tasks."
    )
    heartbeat_seconds: Pace | None = Field(None, description="How often it will send a heartbeat.")
    dead_after_seconds: Pace | None = Field(
        None, description="Without one for this long it counts as dead; at least two heartbeats."
    )
    grace_seconds: Annotated[float, Field(ge=0, le=3_600, allow_inf_nan=False)] = Field(
        5.0, description="How long beyond a task's timeout its own report is waited for, before the server ends it."
    )


class UnpublishedTaskBody(BaseModel):
    """A task whose entry, limits and cron stay as the catalogue has them, if it has any."""

    task_type: str = Field(examples=["reports.build"])
    reason: str


class RegisterReplyBody(BaseModel):
    """The worker is known by a new id."""

    worker_id: str = Field(examples=["4f0c8f0e-52a7-4a3c-93f0-6d3a7f6f2f4e"])
    poll_interval_ms: int = Field(description="How often to poll, if not by long polls.", examples=[1000])
    heartbeat_seconds: float
    dead_after_seconds: float
    confirm_seconds: float = Field(description="A task that no heartbeat names goes back after this long.")
    payload_max: int = Field(description="Bytes of the largest result that is kept.")
    policy_version: int
    policy: dict[str, Any] | None = Field(description="The policy in force, if `tasks` were given.")
    not_published: list[UnpublishedTaskBody] = Field(
        default_factory=list, description="Of `tasks`: those that this token may not put into the catalogue."
    )


class FailureBody(Body):
    """What went wrong in an attempt."""

    message: str = Field("", examples=["no such account"])
    type: Word = Field("Error", examples=["ValueError"])
    traceback: str | None = None
    retriable: bool = Field(True, description="false: no further attempt.")


class ResultBody(Body):
    """How an attempt ended. What becomes of the task is for the server to judge."""

    model_config = example({"task_id": "01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10", "status": "completed", "result": {}})

    task_id: TaskRef
    status: Literal[
        "completed", "failed", "timed_out", "cancelled", "released", "snoozed", "crashed", "unknown_task"
    ] = Field(description="`released`, `snoozed`: it goes back with no attempt used.")
    result: Any = Field(None, description="Any JSON.")
    result_error: str | None = Field(None, description="It completed, but its result cannot be kept: why.")
    error: FailureBody | None = None
    fence: Fence | None = Field(None, description="The task's, from the poll. Without it: the lease held now.")
    retry_after_seconds: Length | None = Field(None, description="When to run it again.")
    reason: Word | None = None
    seconds: Length | None = Field(None, description="How long it took.")


class ResultsBody(Body):
    """Several ends at once."""

    results: Annotated[list[ResultBody], Field(max_length=RESULTS_MAX)]


def _how_many(body: Any) -> str:
    many = "results" in body if isinstance(body, dict) else isinstance(body, ResultsBody)
    return MANY if many else ONE


OneOrMore = Annotated[Annotated[ResultBody, Tag(ONE)] | Annotated[ResultsBody, Tag(MANY)], Discriminator(_how_many)]


class ProgressNote(Body):
    """How far a task has come."""

    task_id: TaskRef
    fence: Fence | None = None
    fraction: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    note: Annotated[str, StringConstraints(max_length=NOTE_MAX)] | None = None


class OutputChunk(Body):
    """A piece of a program's output."""

    at: int = Field(ge=0, le=SEQ_MAX, description="Milliseconds since 1970; more than that of the piece before.")
    stream: Literal["stdout", "stderr"]
    offset: int = Field(ge=0, le=SEQ_MAX, description="Characters of this stream that came before.")
    text: Annotated[str, StringConstraints(max_length=KEPT_MAX)]


class OutputBody(Body):
    """The latest output of a running task, for clients that follow its events. It replaces what was sent before."""

    task_id: TaskRef
    fence: Fence | None = None
    chunks: Annotated[list[OutputChunk], Field(max_length=CHUNKS_MAX)]


class OutputTaken(BaseModel):
    """Whether it was taken: the worker must hold the task."""

    acknowledged: bool


class PollBody(Body):
    """A worker asks for tasks."""

    model_config = example({"capabilities": ["gpu"], "available_capacity": 3, "wait_seconds": 20})

    available_capacity: int = Field(ge=0, le=CAPACITY_MAX, description="How many tasks it has room for.")
    capabilities: Annotated[list[Offer], Field(max_length=CAPABILITIES_MAX)] | None = Field(
        None, description="What it offers this time; all of it must have been registered."
    )
    wait_seconds: Annotated[float, Field(ge=0, le=WAIT_MAX, allow_inf_nan=False)] = Field(
        0.0, description="How long to wait for a task, or for news."
    )
    claim_id: ClaimId | None = Field(
        None, description="New for each poll. The same again, after a lost reply, gives the same tasks."
    )
    takes_over: bool = Field(False, description="Polls of this worker that still wait for tasks end now.")
    results: Annotated[list[ResultBody], Field(max_length=RESULTS_MAX)] = Field(
        default_factory=list, description="What has ended; it is taken before anything is waited for."
    )
    progress: Annotated[list[ProgressNote], Field(max_length=RESULTS_MAX)] = Field(default_factory=list)
    below: int | None = Field(
        None, ge=0, le=CAPACITY_MAX, description="How many of them lanes outside the reserve may take."
    )


class LeaseBody(BaseModel):
    """What Headway's own workers want to know of a task beside. Moments are milliseconds of the store's clock."""

    seq: int
    crashes: int
    timeout_ms: int | None
    asked_timeout_ms: int | None
    budget_ms: int | None
    retry: dict[str, Any] | None
    started_at: int
    needs: list[str]
    rung: str | None
    assigned: str | None
    cancel_requested: bool
    trace_id: str | None
    submitted_at: int
    eligible_at: int


class GivenTask(BaseModel):
    """A task to run."""

    task_id: str
    task_type: str
    parameters: dict[str, Any]
    timeout_seconds: float = Field(description="How long it may run.")
    trace_id: str
    fence: str = Field(description="Proves that this worker has it; send it back with the result.")
    epoch: int = Field(description="Grows with each attempt.")
    attempt: int
    max_retries: int
    priority: str
    tenant: str | None
    lease: LeaseBody


class RefusedBody(BaseModel):
    """A result that did not count."""

    task_id: str
    code: Literal["lease_lost"]


class PolledBody(BaseModel):
    """Tasks to run, and what the worker should know of those it has."""

    tasks: list[GivenTask]
    cancel: list[str] = Field(description="Tasks to stop; each is named until it is reported.")
    lost: list[str] = Field(description="Those of them that the server has ended: a report would not count.")
    budgets: dict[str, float] = Field(description="How many seconds from its start each task on the ladder may take.")
    refused: list[RefusedBody]
    more: bool = Field(description="There is more to look at: poll again at once.")
    next_due_seconds: float | None
    state: State = Field(description="`draining`: there will be no more tasks.")
    policy_version: int


class SettledBody(BaseModel):
    """What became of one of several tasks."""

    task_id: str
    status: Status | None
    code: Literal["lease_lost"] | None


class Acknowledged(BaseModel):
    """The result was taken, now or before."""

    acknowledged: Literal[True]
    status: Status | None = Field(None, description="What became of the task.")
    results: list[SettledBody] | None = Field(None, description="What became of each, if there were several.")


class HeldTask(Body):
    """A task that the worker has."""

    task_id: TaskRef
    fence: Fence | None = None

    @model_validator(mode="before")
    @classmethod
    def _is_object(cls, value: Any) -> Any:
        if not isinstance(value, (dict, HeldTask)):
            raise ValueError('each task is an object, {"task_id": "…", "fence": "…"}, not its id alone')
        return value


class HeartbeatBody(Body):
    """A sign of life."""

    model_config = example({"current_load": 3, "status": "active"})

    current_load: int = Field(0, ge=0, le=COUNT_MAX)
    status: State = "active"
    tasks: Annotated[list[HeldTask], Field(max_length=CAPACITY_MAX)] | None = Field(
        None,
        description="The tasks it has, each as an object with its `task_id` and `fence`; others go back. Left out: it "
        "keeps all.",
    )
    seq: int | None = Field(
        None, ge=0, le=SEQ_MAX, description="Grows with each heartbeat; one that was overtaken is ignored."
    )
    policy_version: int | None = Field(None, ge=0, le=SEQ_MAX, description="The policy it knows.")


class HeardBody(BaseModel):
    """The worker goes on."""

    acknowledged: Literal[True]
    cancel: list[str]
    lost: list[str]
    budgets: dict[str, float]
    state: State
    policy_version: int
    policy: dict[str, Any] | None = Field(description="The policy in force, if it is another than the worker's.")
    ignored: bool = Field(description="A later heartbeat had come before.")


class DrainBody(Body):
    """A worker takes no more tasks."""

    leave: bool = Field(False, description="It is gone as well: what it has goes back, with no attempt used.")


class DrainedBody(BaseModel):
    """It will get no more."""

    acknowledged: Literal[True]
    state: Literal["draining", "dead"]
    released: int = Field(description="How many tasks went back.")
