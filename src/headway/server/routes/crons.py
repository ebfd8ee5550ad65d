"""Crons: list them, pause and resume them, run one now."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request
from starlette.responses import Response

from headway.core.timestamps import write_moment
from headway.maintenance.cron import run_cron_now
from headway.policy_store.catalogue import pause_cron, resume_cron
from headway.policy_store.cron_views import CronRun, CronView, read_cron_views
from headway.security.audited_store import audited
from headway.server.auth import Scope
from headway.server.pages import NameCursor, named_page, read_name
from headway.server.problems import Problem
from headway.server.routing import Routes, caller_of, reply
from headway.server.schemas import operations
from headway.server.schemas.dashboard import CronStarted, CronState
from headway.server.service import service_of

CRON_PAGE = 100  # Crons on a page: each takes a read of its newest tasks.

CronName = Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[^\x00]+$", description="The task's name.")]

routes = Routes("operating", "/api/v1", whole=True)


@routes.get("/crons", Scope.READ, operations.CronPage, "The tasks that run by the clock")
async def list_crons(
    request: Request, limit: Annotated[int, Query(ge=1, le=CRON_PAGE)] = CRON_PAGE, cursor: NameCursor = None
) -> Response:
    """List the crons that workers have published, with their next runs and the tasks of the last ones."""
    service, after = service_of(request), None if cursor is None else read_name(cursor)
    async with service.listing:
        views = await read_cron_views(await service.store(), after=after, most=limit + 1)
    return named_page("items", ((view.task, cron_values(view)) for view in views), after=after, most=limit)


@routes.post("/crons/{name}/run", Scope.ADMIN, CronStarted, "Run a cron now", status=201, problems=("cron_not_found",))
async def run_now(request: Request, name: CronName) -> Response:
    """Submit the task of a cron now, beside its schedule. A paused cron runs as well."""
    kept = await run_cron_now(await service_of(request).store(), name, who=caller_of(request).who)
    if kept is None:
        raise _absent(name)
    return reply({"name": name, "task_id": kept.job_id, "deduplicated": kept.deduplicated}, 201)


@routes.post("/crons/{name}/pause", Scope.ADMIN, CronState, "Pause a cron", problems=("cron_not_found",))
async def pause(request: Request, name: CronName) -> Response:
    """Let a cron submit no tasks until it is resumed. Tasks that it has submitted go on, and so do other submits."""
    if not await pause_cron(audited(await service_of(request).store(), caller_of(request).who), name):
        raise _absent(name)
    return reply({"name": name, "paused": True})


@routes.post("/crons/{name}/resume", Scope.ADMIN, CronState, "Resume a cron", problems=("cron_not_found",))
async def resume(request: Request, name: CronName) -> Response:
    """Let a paused cron submit tasks again, from its next run on."""
    if not await resume_cron(audited(await service_of(request).store(), caller_of(request).who), name):
        raise _absent(name)
    return reply({"name": name, "paused": False})


def cron_values(view: CronView) -> dict[str, Any]:
    """Return a cron."""
    return {
        "task_type": view.task,
        "expression": view.expression,
        "tz": view.tz,
        "catch_up": view.catch_up,
        "overlap": view.overlap,
        "paused": view.paused,
        "next_at": write_moment(view.next_at),
        "last": None if view.last is None else _run_values(view.last),
        "held": view.held,
        "upcoming": [write_moment(at) for at in view.upcoming],
        "recent": [_run_values(run) for run in view.recent],
    }


def _run_values(run: CronRun) -> dict[str, Any]:
    return {"task_id": run.job_id, "status": run.state.value, "created_at": write_moment(run.submitted_at)}


def _absent(name: str) -> Problem:
    return Problem("cron_not_found", f"no cron {name}; workers publish their crons when they start")
