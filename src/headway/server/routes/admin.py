"""Routes for operators: workers, pauses, the catalogue and the audit."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Path, Query, Request
from msgspec.structs import asdict
from starlette.responses import Response

from headway.core.job import State
from headway.core.policy.enforced import pausing, resuming
from headway.core.timestamps import write_moment
from headway.policy_store.catalogue import TaskEntry
from headway.policy_store.rule_documents import change_paused
from headway.security.audit import AuditPosition, walk_audit
from headway.security.audited_store import audited, paused_values
from headway.server.auth import Scope
from headway.server.pages import NameCursor, Page, bad_cursor, named_page, read_name, write_name
from headway.server.problems import Problem
from headway.server.routing import Routes, caller_of, encode, reply
from headway.server.schemas import operations
from headway.server.serializers import worker_values
from headway.server.service import service_of
from headway.stores.base import JobQuery
from headway.stores.paging import find_in_steps
from headway.version import __version__

RUNNING_MAX = 1_000  # Executing tasks that a list of workers names.

NAMED_PAGE = 1_000  # Workers or tasks on a page, unless it is full before.

NamedLimit = Annotated[int, Query(ge=1, le=NAMED_PAGE)]

routes = Routes("operating", "/api/v1", whole=True, missing="worker_not_found")


@routes.get("/server", Scope.READ, operations.ServerInfo, "The server's release and its store's time")
async def get_server(request: Request) -> Response:
    """Return the server's version, and the time that ages are counted from."""
    now_at = (await (await service_of(request).store()).snapshot()).now_at
    return reply({"version": __version__, "time": write_moment(now_at)})


@routes.get("/workers", Scope.READ, operations.WorkerList, "List the workers")
async def list_workers(
    request: Request,
    limit: NamedLimit = NAMED_PAGE,
    cursor: NameCursor = None,
    tasks: Annotated[bool, Query(description="Name the tasks that they run, up to 1,000.")] = True,
) -> Response:
    """List the workers by id, with what they run and offer. Dead workers stay in the list for a while."""
    service = service_of(request)
    stats = await service.client.stats()
    running: dict[str | None, list[str]] = {}
    query = JobQuery((State.EXECUTING,), limit=RUNNING_MAX if tasks else 0)
    async with service.listing:
        async for job in find_in_steps((await service.store()).find, query):
            running.setdefault(job.worker_id, []).append(job.job_id)
    workers = sorted(stats.workers, key=lambda worker: worker.worker_id)
    items = ((worker.worker_id, worker_values(worker, running.get(worker.worker_id, []))) for worker in workers)
    return named_page("workers", items, after=None if cursor is None else read_name(cursor), most=limit)


@routes.post("/workers/{worker_id}/drain", Scope.ADMIN, operations.WorkerDrained, "Send a worker away")
async def drain_worker(
    request: Request, worker_id: Annotated[str, Path(min_length=1, max_length=255, pattern=r"^[^\x00/]+$")]
) -> Response:
    """Ask a worker to claim no more tasks, finish its running tasks and exit."""
    store = audited(await service_of(request).store(), caller_of(request).who)
    if not await store.drain(worker_id):
        raise Problem("worker_not_found", f"no live worker {worker_id}")
    return reply({"worker_id": worker_id, "status": "draining"})


@routes.get("/pauses", Scope.READ, operations.Pauses, "What is paused")
async def list_pauses(request: Request) -> Response:
    """Return the lanes, tasks and tenants that are paused."""
    return reply(paused_values(await service_of(request).app.apaused()))


@routes.post("/pause", Scope.ADMIN, operations.Pauses, "Pause a lane, a task or a tenant")
async def pause(request: Request, wanted: operations.Pause) -> Response:
    """Pause a lane, a task or a tenant; an empty body pauses everything. Running tasks continue."""
    store = audited(await service_of(request).store(), caller_of(request).who)
    return reply(paused_values(await change_paused(store, pausing(wanted.lane, wanted.task_type, wanted.tenant))))


@routes.post("/resume", Scope.ADMIN, operations.Pauses, "Resume what was paused")
async def resume(request: Request, wanted: operations.Pause) -> Response:
    """Resume a lane, a task or a tenant; an empty body resumes everything."""
    store = audited(await service_of(request).store(), caller_of(request).who)
    return reply(paused_values(await change_paused(store, resuming(wanted.lane, wanted.task_type, wanted.tenant))))


@routes.get("/catalogue", Scope.READ, operations.CatalogueReply, "The tasks that are known", whole=False)
async def get_catalogue(request: Request, limit: NamedLimit = NAMED_PAGE, cursor: NameCursor = None) -> Response:
    """List the tasks that workers have published, with their parameters, by name."""
    entries = ((entry.name, _catalogue_values(entry)) for entry in await service_of(request).known.entries())
    return named_page("tasks", entries, after=None if cursor is None else read_name(cursor), most=limit)


@routes.get("/audit", Scope.ADMIN, operations.AuditPage, "What operators did")
async def get_audit(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1_000, description="How many entries.")] = 100,
    cursor: NameCursor = None,
) -> Response:
    """List which operator did what and when, over HTTP, at the command line and in Python, newest first.

    The list also has operators' commands of callers with a lesser scope, and what workers published.
    """
    store, page = await service_of(request).store(), Page("entries", limit)
    seen = {} if cursor is None else {place.group: place for place in _read_places(read_name(cursor))}
    async for entry, place in walk_audit(store, tuple(seen.values())):
        if not page.add(asdict(entry) | {"at": write_moment(entry.at)}):
            return page.answer(write_name(encode(list(seen.values())).decode()))
        seen[place.group] = place
    return page.answer(None)


def _read_places(text: str) -> list[AuditPosition]:
    try:
        return msgspec.json.decode(text, type=list[AuditPosition])
    except msgspec.MsgspecError:
        raise bad_cursor() from None


def _catalogue_values(entry: TaskEntry) -> dict[str, Any]:
    return {
        "task_type": entry.name,
        "priority": entry.lane,
        "required_capabilities": list(entry.needs),
        "parameters": entry.parameters,
        "description": entry.doc,
    }
