"""The bodies and replies of the routes for operators: policy, workers, pauses, crons, catalogue, audit."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.server.schemas.rest import NUMBER_MAX, Body, Name, NextCursor, TaskStatus


class PolicyFinding(BaseModel):
    """A finding about a policy."""

    code: str = Field(description="Stable.")
    key: str = Field(description="The key in the policy that it is about; empty for the whole.")
    text: str


class PolicyReply(BaseModel):
    """A policy with its version."""

    version: int = Field(description="0: the built-in one.")
    applied_at: datetime | None
    note: str
    digest: str | None = Field(description="Equal for equal policies; null for the built-in one.")
    policy: dict[str, Any]
    warnings: list[str] | None = Field(None, description="After a change: what `headway policy check` warns of.")
    findings: list[PolicyFinding] | None = Field(None, description="The warnings with their codes.")


class PolicyVersionItem(BaseModel):
    """A version of the policy."""

    version: int
    current: bool = Field(description="It is in force.")
    applied_at: datetime
    note: str
    digest: str


class PolicyVersions(BaseModel):
    """The versions of the policy, newest first."""

    items: list[PolicyVersionItem]
    next_cursor: NextCursor


class Rollback(Body):
    """Which version to put in force again."""

    to: Annotated[int, Field(ge=0, le=NUMBER_MAX)] | None = Field(
        default=None, description="0 for the built-in policy; null for the version before the current one."
    )


class PolicyChecked(BaseModel):
    """What a policy would do."""

    valid: bool
    warnings: list[str]
    findings: list[PolicyFinding]
    policy: dict[str, Any]


class WorkerItem(BaseModel):
    """A worker."""

    worker_id: str
    status: Literal["active", "draining", "dead"]
    current_tasks: list[str]
    last_heartbeat: datetime
    capacity: int
    current_load: int
    reserved: int
    capabilities: list[str]
    task_types: list[str] = Field(description="The tasks it knows; `*` for any.")
    version: str
    host: str
    pid: int
    started_at: datetime
    lease_ends_at: datetime = Field(description="When its tasks are queued again, unless a heartbeat comes before.")


class WorkerList(BaseModel):
    """The workers."""

    workers: list[WorkerItem]
    next_cursor: NextCursor


class WorkerDrained(BaseModel):
    """The worker gets no more tasks."""

    worker_id: str
    status: Literal["draining"]


class Pause(Body):
    """What to pause or resume; nothing named means everything."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"lane": "low"}]})

    lane: Name | None = None
    task_type: Name | None = None
    tenant: Name | None = None


class Pauses(BaseModel):
    """What is paused."""

    everything: bool
    lanes: list[str]
    task_types: list[str]
    tenants: list[str]


class CronLastRun(BaseModel):
    """The task of a cron's last run."""

    task_id: str
    status: TaskStatus
    created_at: datetime


class CronItem(BaseModel):
    """A task that runs on a schedule."""

    task_type: str
    expression: str = Field(examples=["0 3 * * *"])
    tz: str
    catch_up: str
    overlap: str
    paused: bool
    next_at: datetime | None = Field(description="Its next run; null if it has none.")
    last: CronLastRun | None = Field(description="null if none of the newest tasks of this type is a run of it.")
    held: bool = Field(description="An operator has paused the cron itself, and not its task or lane.")
    upcoming: list[datetime] = Field(description="Its next runs, at most three.")
    recent: list[CronLastRun] = Field(description="Its last runs, the newest first, at most ten.")


class CronPage(BaseModel):
    """The crons, by name."""

    items: list[CronItem]
    next_cursor: NextCursor


class ServerInfo(BaseModel):
    """The server and its store's clock."""

    version: str = Field(description="The release of Headway.")
    time: datetime = Field(description="Now, by the store's clock.")


class CatalogueTask(BaseModel):
    """A task that workers have published."""

    task_type: str
    priority: str
    required_capabilities: list[str]
    parameters: dict[str, Any] = Field(description="`properties` and `required`, as in JSON Schema.")
    description: str


class CatalogueReply(BaseModel):
    """The tasks that are known."""

    tasks: list[CatalogueTask]
    next_cursor: NextCursor


class AuditEntry(BaseModel):
    """One action of an operator or client."""

    at: datetime
    who: str = Field(
        description="A token's id; `cli:USER@HOST`: at the command line; `python`: a program; `open`: on this machine, "
        "without a token."
    )
    what: str = Field(examples=["policy.put"])
    target: str
    before: Any = None
    after: Any = None


class AuditPage(BaseModel):
    """Actions of operators, newest first."""

    entries: list[AuditEntry]
    next_cursor: NextCursor
