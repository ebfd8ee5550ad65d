"""The bodies and replies of the routes that dashboards use: numbers over time, tenants, limits, bulk actions."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.server.schemas.operations import PolicyFinding
from headway.server.schemas.rest import NUMBER_MAX, Accuracy, Body, EstimateReply, Name, NextCursor, TaskStatus

BulkAction = Literal["cancel", "retry", "run_now", "change_lane", "replay", "purge"]
SECRET_MAX = 200  # Characters of a token in a body.


class SeriesPoint(BaseModel):
    """One step of a series."""

    at: datetime = Field(description="When the step begins.")
    seconds: float = Field(description="How long the step is: longer than asked for if no process took a sample.")
    submitted: int
    started: int
    ended: dict[str, int] = Field(description="By status.", examples=[{"completed": 41, "failed": 1}])
    retried: int = Field(description="Attempts after which a task goes again.")
    wait_p50: float | None = Field(description="Seconds that tasks had waited when they started; null if none did.")
    wait_p90: float | None
    waiting: int = Field(description="At the end of the step.")
    running: int = Field(description="At the end of the step.")
    slots: int = Field(description="The slots of all live workers at the end of the step.")


class SeriesReply(BaseModel):
    """What happened over time, oldest first."""

    lane: str | None = Field(description="null: all lanes together.")
    step_seconds: int
    points: list[SeriesPoint]


class LaneSlots(BaseModel):
    """The slots of one lane."""

    guaranteed: float = Field(description="What the policy guarantees to the lane under any load.")
    used: int
    borrowed: float = Field(description="Used beyond what is guaranteed, while other lanes do not need them.")
    lent: float = Field(description="Guaranteed, unused, and used by other lanes.")


class LaneOverview(BaseModel):
    """A lane as it is now."""

    name: str
    level: int
    weight: float
    paused: bool
    waiting: int
    delayed: int
    running: int
    oldest_at: datetime | None = Field(description="Since when the first of the waiting tasks waits.")
    wait_p50: float | None = Field(description="Seconds that the tasks started in the last minutes had waited.")
    wait_p90: float | None
    started_last_minute: int
    why: str | None = Field(description="The code of the reason why its first task waits; null if none waits.")
    starts_in: EstimateReply | None = Field(description="When a task submitted now would start.")
    slots: LaneSlots


class SlotsOverview(BaseModel):
    """The slots of all live workers."""

    total: int
    used: int
    free: int
    reserved: int = Field(description="Kept for the lanes of the reserve.")
    reserved_used: int = Field(description="Of these, filled by tasks of the lanes of the reserve.")
    reserved_idle: int = Field(description="Idle only because they are reserved, while tasks of other lanes wait.")
    lent: float = Field(description="Guaranteed to lanes that do not need them, and used by others.")


class Overview(BaseModel):
    """The whole queue as it is now."""

    at: datetime
    waiting: int
    delayed: int
    running: int
    oldest_at: datetime | None
    failed_last_hour: int = Field(description="Tasks that ended as failed or dead_letter.")
    workers: int = Field(description="Live workers.")
    dead_letters: int
    lanes: list[LaneOverview] = Field(description="In the order of service.")
    slots: SlotsOverview
    waiting_by_reason: dict[str, int] = Field(description="Tasks by the reason why they wait.")
    accuracy: dict[str, Accuracy] = Field(description="How estimates turned out, by lane.")
    paused: list[str] = Field(description="What is paused.", examples=[["lane low"]])


class TenantItem(BaseModel):
    """A tenant."""

    tenant: str
    weight: float
    paused: bool
    entitled_share: float = Field(description="Its part of the weights of all tenants with work in the last hour.")
    had_share: float | None = Field(description="Its part of the run time in the last hour; null if nothing ended.")
    unfairness: float = Field(description="By how much it had less than it is entitled to, while its tasks wait.")
    running: int
    waiting: int
    oldest_at: datetime | None
    wait_p50: float | None = Field(description="Seconds that its tasks of the last hour had waited.")
    wait_p90: float | None
    limits_at_cap: list[str] = Field(description="Limits that let no further task of this tenant start.")


class TenantPage(BaseModel):
    """The tenants with work now or in the last hour."""

    at: datetime
    items: list[TenantItem]
    complete: bool = Field(description="false: there are more tenants than are counted.")
    next_cursor: NextCursor


class LimitKeyItem(BaseModel):
    """One counter of a limit."""

    key: str = Field(examples=["export_account=acme=7"])
    value: str | None = Field(description="The value that it counts by; null for a limit over all tasks.")
    running: int
    waiting: int
    next_start_at: datetime | None


class LimitItem(BaseModel):
    """A limit."""

    name: str
    source: Literal["policy", "task"] = Field(description="Where it is declared.")
    by: str | None
    scope: str
    tasks: list[str] = Field(description="Patterns of the tasks that it applies to; none: all.")
    concurrency: int | None
    rate: str | None = Field(examples=["100/min"])
    burst: int
    running: int = Field(description="Tasks that count against it, of all its counters.")
    waiting: int = Field(description="Tasks that wait for room in it.")
    keys_at_cap: int
    next_start_at: datetime | None = Field(description="When its rate allows the next start of a waiting task.")
    top_keys: list[LimitKeyItem] = Field(description="The fullest counters, at most 10.")


class RungItem(BaseModel):
    """A rung of the ladder."""

    name: str
    seconds: float
    limit: int | None = Field(description="As the policy has it.")
    percent: float | None
    most: int | None = Field(description="How many tasks of this and all longer rungs may run now; null: any number.")
    running: int = Field(description="Tasks that run on this rung.")
    running_from: int = Field(description="Tasks that run on this rung or a longer one.")
    waiting: int


class RungTask(BaseModel):
    """A running task on the ladder."""

    task_id: str
    task_type: str
    tenant: str | None
    priority: str
    asked: str | None = Field(description="The duration that it asked for.")
    rung: str
    started_at: datetime
    ends_at: datetime = Field(description="When its rung is used up.")
    next_lowered: bool = Field(description="It is lowered first if another task needs its place.")


class LadderReply(BaseModel):
    """The ladder, the shortest rung first."""

    slots: int
    victim: str
    lower: str
    rungs: list[RungItem]
    tasks: list[RungTask] = Field(description="Who sits where, at most 200.")


class LimitsReply(BaseModel):
    """The limits and the ladder."""

    at: datetime
    items: list[LimitItem]
    ladder: LadderReply | None


class CronStarted(BaseModel):
    """The task that a cron has submitted."""

    name: str
    task_id: str
    deduplicated: bool = Field(description="Another task of this cron lives, and `overlap` allows one.")


class CronState(BaseModel):
    """Whether a cron is paused."""

    name: str
    paused: bool


class BulkFields(Body):
    """The words of a search by field. A text takes the same values as the words of the search box."""

    state: str | list[Name] | None = None
    task: str | list[Name] | None = None
    lane: str | list[Name] | None = None
    tenant: str | list[Name] | None = None
    worker: str | list[Name] | None = None
    why: str | list[Name] | None = None
    error: str | list[Name] | None = None
    id: str | Annotated[list[Name], Field(max_length=1_000)] | None = None
    after: str | None = None
    before: str | None = None
    text: str | list[Name] | None = Field(default=None, description="Words in the arguments.")


class BulkRequest(Body):
    """What to do with which tasks."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"action": "cancel", "filter": "state:queued task:reports.*", "expect": 120}]}
    )

    action: BulkAction
    filter: str | BulkFields = Field(description="As in the search box, or as an object by field.")
    expect: Annotated[int, Field(ge=0, le=NUMBER_MAX)] | None = Field(
        default=None, description="The number of tasks that the caller has seen. Needed for more than 100 tasks."
    )
    dry_run: bool = False
    lane: Name | None = Field(default=None, description="For `change_lane`.")


class TaskBrief(BaseModel):
    """A task in few words."""

    task_id: str
    task_type: str
    status: TaskStatus
    priority: str
    tenant: str | None
    created_at: datetime


class BulkPreview(BaseModel):
    """What a bulk action would change."""

    action: BulkAction
    filter: str = Field(description="The filter in the words of the search box.")
    count: int
    exact: bool = Field(description="false: there are more, and counting took too long.")
    examples: list[TaskBrief] = Field(description="The newest, at most 20.")


class BulkStarted(BaseModel):
    """The operation runs."""

    operation_id: str
    count: int


class BulkOperation(BaseModel):
    """A bulk action and how far it has come."""

    operation_id: str
    action: BulkAction
    filter: str
    lane: str | None
    who: str
    status: Literal["running", "done", "stopped", "failed"] = Field(
        description="stopped: it met more tasks than expected. failed: `error` tells why."
    )
    expect: int | None
    count: int = Field(description="How many tasks fitted at the start.")
    visited: int
    changed: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    error: str | None


class BulkPage(BaseModel):
    """Bulk actions, newest first."""

    items: list[BulkOperation]
    next_cursor: NextCursor


class DeadLetterGroup(BaseModel):
    """Dead letters of one task with errors of one type."""

    task_type: str
    error_type: str | None
    count: int
    last_hour: int
    last_day: int
    last_week: int
    first_at: datetime = Field(description="When the first of them ended.")
    last_at: datetime
    example_task_id: str
    example_message: str | None
    filter: str = Field(description="The search that finds them: for lists and bulk actions.")


class DeadLetterGroups(BaseModel):
    """Dead letters by task and type of error, the largest group first."""

    groups: list[DeadLetterGroup]
    scanned: int = Field(description="How many dead letters were counted, the newest first.")
    complete: bool = Field(description="false: there are older ones that were not counted.")


class ForecastRequest(Body):
    """What to forecast: another policy, another number of slots, or both."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"slots": 40}]})

    policy: dict[str, Any] | None = Field(default=None, description="With the keys of a policy file.")
    slots: Annotated[int, Field(ge=0, le=1_000_000)] | None = None


class LaneForecast(BaseModel):
    """When a task that is submitted now would start."""

    before: EstimateReply | None
    after: EstimateReply | None = Field(description="null: no lane of this name.")


class SlotsChange(BaseModel):
    """The slots of live workers."""

    before: int
    after: int


class TenantForecast(LaneForecast):
    """When the next task of a tenant would start, in the lane where most of its tasks wait."""

    tenant: str
    lane: str
    waiting: int


class LimitForecast(LaneForecast):
    """When the last task that waits for a limit would start."""

    limit: str
    waiting: int


class ForecastReply(BaseModel):
    """Waits before and after, by lane, tenant and limit."""

    slots: SlotsChange
    lanes: dict[str, LaneForecast]
    tenants: list[TenantForecast] = Field(description="Those with the most waiting tasks.")
    limits: list[LimitForecast] = Field(description="Those for which the most tasks wait.")
    findings: list[PolicyFinding] = Field(description="What to be warned of in the policy.")


class ScaleReply(BaseModel):
    """How many slots a lane wants, and how it stands now."""

    slots_wanted: int = Field(description="Slots that let every waiting task of the lane start in time.", examples=[24])
    slots: int = Field(description="Slots of the live workers that can run its tasks.", examples=[16])
    busy: int = Field(description="Tasks of any lane that run on these workers.", examples=[16])
    waiting: int = Field(description="Tasks of the lane that wait.", examples=[410])
    wait_p90: float | None = Field(description="Seconds until the last of them starts, with the slots that there are.")
    basis: Literal["learned", "declared", "unknown"] = Field(
        description="Where the forecast comes from. If it is `unknown`, the advice keeps the slots that there are."
    )


class SignIn(Body):
    """A token to sign in with."""

    token: Annotated[str, Field(min_length=1, max_length=SECRET_MAX)]


class SessionInfo(BaseModel):
    """The caller and what it may do."""

    signed_in: bool
    open: bool = Field(description="No token exists, and every caller on this machine may do everything.")
    token_id: str | None
    tenant: str | None
    scopes: list[str]
    expires_at: datetime | None = Field(description="When the cookie ends; null without one.")


class SystemCheck(BaseModel):
    """One thing that was checked."""

    name: str
    status: Literal["ok", "warning", "fail"]
    detail: str
    advice: str | None


class SystemReply(BaseModel):
    """The state of the server, its store and its settings."""

    ok: bool
    version: str
    namespace: str
    checks: list[SystemCheck]
    store: dict[str, str] = Field(description="Facts about the store.")
    settings: dict[str, Any] = Field(description="Without passwords and tokens.")
    recovery: dict[str, float] = Field(description="Seconds until tasks are queued again, by what was lost.")
