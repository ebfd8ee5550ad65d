"""The bodies and replies of the routes for batches."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from headway.server.schemas.rest import Body, ErrorItem, Name, NextCursor, SourceId, TaskStatus

BatchState = Literal["open", "running", "completed", "failed", "cancelled"]


class NewBatchBody(Body):
    """A batch to create."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "import-7", "key": "import-7"}]})

    name: Name = "batch"
    key: Name | None = Field(default=None, description="A second create with this key gives the same batch.")
    tenant: Name | None = Field(default=None, description="The tenant of its tasks; a token's own goes first.")
    parent_id: SourceId | None = Field(default=None, description="A batch that counts this one as a member.")


class BatchCounts(BaseModel):
    """The members of a batch, by what they do now."""

    total: int
    held: int = Field(description="They wait for other tasks.")
    waiting: int
    running: int
    completed: int
    failed: int = Field(description="Failed, or dead letters.")
    cancelled: int


class BatchReply(BaseModel):
    """A batch in numbers."""

    batch_id: str = Field(examples=["batch-01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10"])
    name: str
    key: str | None
    tenant: str | None
    status: BatchState = Field(description="`open`: it has not been closed, so it does not end yet.")
    counts: BatchCounts
    round: int = Field(description="From 1. Retrying a member after the batch has ended begins the next round.")
    created_at: datetime
    finished_at: datetime | None
    ends_in_seconds: float | None = Field(description="Expected, by the pace so far; null if that is unknown.")


class BatchPage(BaseModel):
    """A page of batches, newest first."""

    items: list[BatchReply]
    next_cursor: NextCursor


class BatchRetry(Body):
    """Which members of a batch to queue again."""

    mode: Literal["failed", "failed_and_after", "all"] = Field(
        default="failed_and_after",
        description="Those that failed, alone; also the tasks that were cancelled because of them; or every member "
        "that did not complete.",
    )


class BatchRetried(BaseModel):
    """What was queued again."""

    batch_id: str
    retried: int


class MemberResult(BaseModel):
    """How a member of a batch ended."""

    task_id: str
    status: TaskStatus
    result: Any
    result_error: str | None
    error: ErrorItem | None
    reason: str | None


class MemberResults(BaseModel):
    """A page of members that have ended, in the order of adding; it ends at 4 MiB."""

    items: list[MemberResult]
    next_cursor: NextCursor


class GraphTask(BaseModel):
    """A member of a batch."""

    task_id: str
    task_type: str
    status: TaskStatus


class GraphEdge(BaseModel):
    """A member that waits or waited for a source: a task or a batch, which may be outside of the batch."""

    source: str
    target: str
    on_failure: Literal["cancel", "run", "hold", "on_failure", "on_done"]


class BatchGraph(BaseModel):
    """The first members of a batch and what they wait for."""

    nodes: list[GraphTask]
    edges: list[GraphEdge]
    more: bool = Field(description="The batch has more members than are shown.")
