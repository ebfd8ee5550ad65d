"""The routes of fasdis: one to schedule a task, one to read it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from headway.core.job import JobRecord, State
from headway.core.timestamps import write_moment
from headway.server.auth import Scope
from headway.server.problems import Problem
from headway.server.routes.task_lookup import TaskId, find
from headway.server.routing import Routes, caller_of, reply
from headway.server.schemas.rest import Body, Name, NewTask
from headway.server.service import service_of
from headway.server.submit import SUBMIT_PROBLEMS, make_call, submit_single

DEFAULT_TASK = "demo.sleep"
STATUSES = {State.QUEUED: "queued", State.EXECUTING: "processing", State.COMPLETED: "completed"}

FasdisLane = Literal["low", "high"]
routes = Routes("fasdis")


class Schedule(Body):
    """The task to schedule. Every field is optional."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"priority": "high"}]})

    priority: FasdisLane | None = None
    task_type: Name = DEFAULT_TASK
    parameters: dict[str, Any] = Field(default_factory=dict)
    idempotency_key: Name | None = None


class Scheduled(BaseModel):
    """The task is in the queue."""

    task_id: str
    status: Literal["queued", "processing", "completed", "failed"]
    priority: FasdisLane
    worker: str = Field(description="The instance that scheduled it.")
    scheduled_at: str


class FasdisRecord(BaseModel):
    """A task as fasdis stores it."""

    task_id: str
    priority: str
    status: Literal["queued", "processing", "completed", "failed"]
    scheduled_by: str | None
    scheduled_at: str
    processed_by: str | None
    started_at: str | None
    completed_at: str | None
    latency_ms: int | None = Field(description="From the submission to the start of the attempt that counts.")
    same_worker: bool | None = Field(description="Whether the instance that scheduled it also ran it.")


@routes.post("/task", Scope.SUBMIT, Scheduled, "Schedule a task", problems=SUBMIT_PROBLEMS)
async def schedule(
    request: Request,
    wanted: Schedule | None = None,
    priority: Annotated[FasdisLane | None, Query(description="Low, unless the body says otherwise.")] = None,
) -> Response:
    """Schedule a task in the lane low or high."""
    return await _schedule(request, wanted or Schedule(), priority)


@routes.get(
    "/task",
    Scope.SUBMIT,
    Scheduled,
    "Schedule a task (use POST)",
    problems=(*SUBMIT_PROBLEMS, "switched_off", "forbidden_origin"),
    deprecated=True,
)
async def schedule_by_get(request: Request, priority: Annotated[FasdisLane, Query()] = "low") -> Response:
    """Schedule a task by GET, for old clients. Off if there are tokens, or with `HEADWAY_TASK_BY_GET=false`."""
    service = service_of(request)
    if not service.app.settings.task_by_get or not caller_of(request).open:
        raise Problem("switched_off", "GET /task schedules nothing here; use POST /task", headers={"Allow": "POST"})
    answer = await _schedule(request, Schedule(), priority)
    answer.headers["Deprecation"] = "true"
    answer.headers["Link"] = '</task>; rel="successor-version"'
    return answer


@routes.get("/task/{task_id}", Scope.READ, FasdisRecord, "A task's record")
async def get_record(request: Request, task_id: TaskId) -> Response:
    """Return a task's record with the fields of fasdis. An unknown id is 404."""
    service = service_of(request)
    job = await find(service, caller_of(request), task_id)
    return reply(_record(job, await service.instances.name_of(job.trace_id)))


async def _schedule(request: Request, wanted: Schedule, priority: FasdisLane | None) -> Response:
    service = service_of(request)
    lane: FasdisLane = priority or wanted.priority or "low"
    new = NewTask(
        task_type=wanted.task_type,
        parameters=wanted.parameters,
        priority=lane,
        idempotency_key=wanted.idempotency_key,
        trace_id=await service.instances.new_trace(),
    )
    made = await make_call(service, caller_of(request), new, key=None, trace=None, refers=False)
    kept = await submit_single(service, made)
    job = await service.client.get(made.calls[0].new.job_id if not kept.deduplicated else kept.task_id)  # type: ignore[arg-type]
    return reply(
        {
            "task_id": kept.task_id,
            "status": _status(job),
            "priority": lane,
            "worker": service.instances.name,
            "scheduled_at": write_moment(job.submitted_at),
        }
    )


def _status(job: JobRecord) -> str:
    return STATUSES.get(job.state, "failed")


def _record(job: JobRecord, scheduled_by: str | None) -> dict[str, Any]:
    started_at = job.started_at
    return {
        "task_id": job.job_id,
        "priority": job.lane,
        "status": _status(job),
        "scheduled_by": scheduled_by,
        "scheduled_at": write_moment(job.submitted_at),
        "processed_by": job.worker_id,
        "started_at": write_moment(started_at),
        "completed_at": write_moment(job.finished_at),
        "latency_ms": None if started_at is None else max(0, started_at - job.submitted_at),
        "same_worker": None if job.worker_id is None else job.worker_id == scheduled_by,
    }
