"""Bulk actions: everything that fits a search, as an operation with progress."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from headway.core.errors import ConfigError
from headway.core.job import JobRecord
from headway.core.search import JobSearch, build_search, parse_search, write_search
from headway.core.timestamps import write_moment
from headway.maintenance.bulk import (
    BulkRecord,
    check_expected,
    count_matching,
    narrow,
    read_operation,
    read_operations,
    start_operation,
)
from headway.server.auth import Scope, require
from headway.server.pages import PAGE, Page, PageLimit
from headway.server.problems import Problem
from headway.server.routing import Routes, caller_of, reply
from headway.server.schemas.dashboard import BulkFields, BulkOperation, BulkPage, BulkPreview, BulkRequest, BulkStarted
from headway.server.service import service_of

# What each action needs beside ``read``: as much as the same verb on one task.
SCOPES = {
    "cancel": Scope.SUBMIT,
    "retry": Scope.SUBMIT,
    "run_now": Scope.ADMIN,
    "change_lane": Scope.ADMIN,
    "replay": Scope.ADMIN,
    "purge": Scope.ADMIN,
}

routes = Routes("tasks", "/api/v1", missing="operation_not_found")


@routes.post(
    "/bulk",
    Scope.READ,
    (BulkPreview, "With `dry_run`: what would change."),
    "Change all tasks that fit a search",
    also={202: (BulkStarted, "It runs.")},
    problems=("config", "expect_needed", "count_grew", "rate_exceeded"),
)
async def start_bulk(request: Request, wanted: BulkRequest) -> Response:
    """Count the tasks that fit, or change them page by page.

    `cancel` and `retry` also need the scope `submit`, the other actions `admin`. A token of one tenant changes tasks of
    that tenant only. More than 100 tasks need `expect`. If more than a tenth above `expect` fit, nothing changes (409).
    The operation goes on if the server stops, and the audit has its begin and its end.
    """
    service, caller = service_of(request), caller_of(request)
    require(caller, SCOPES[wanted.action])
    store, policy = await service.store(), await service.policy()
    now_at = (await service.queue_view.fresh()).now_at
    if (wanted.action == "change_lane") != (wanted.lane is not None):
        raise ConfigError("lane: give it with change_lane, and with no other action")
    if wanted.lane is not None and wanted.lane not in policy.lanes:
        raise ConfigError(f"no lane {wanted.lane!r} (lanes: {', '.join(policy.lanes)})")
    search = narrow(wanted.action, read_filter(wanted.filter, now_at))
    async with service.listing:
        counted = await count_matching(
            store, policy, wanted.action, search, caller.tenant, wanted.lane, await service.redactor()
        )
    if wanted.dry_run:
        values = {"action": wanted.action, "filter": write_search(search), "count": counted.found}
        examples = [brief_values(job) for job in counted.examples]
        return reply(values | {"exact": counted.exact, "examples": examples})
    check_expected(wanted.expect, counted.found)
    if wanted.action in ("retry", "replay"):
        service.quotas.submit(caller, counted.found)
    operation_id = await start_operation(
        store,
        action=wanted.action,
        search=search,
        who=caller.who,
        group="operators" if caller.operates or caller.open else "callers",
        tenant=caller.tenant,
        lane=wanted.lane,
        expect=wanted.expect,
        count=counted.found,
    )
    service.start_bulk(operation_id)
    return reply({"operation_id": operation_id, "count": counted.found}, 202)


@routes.get("/bulk", Scope.READ, BulkPage, "Bulk actions, newest first")
async def list_bulk(request: Request, limit: PageLimit = PAGE) -> Response:
    """List the bulk actions of the last 30 days. A token of one tenant gets those of that tenant."""
    service, caller, page = service_of(request), caller_of(request), Page("items", limit)
    for operation_id, kept in await read_operations(await service.store()):
        if caller.tenant in (None, kept.tenant) and not page.add(operation_values(operation_id, kept)):
            break
    return page.answer(None)


@routes.get("/bulk/{operation_id}", Scope.READ, BulkOperation, "How far a bulk action has come")
async def get_bulk(
    request: Request, operation_id: Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[0-9a-f]+$")]
) -> Response:
    """Return a bulk action with its progress."""
    caller = caller_of(request)
    kept = await read_operation(await service_of(request).store(), operation_id)
    if kept is None or caller.tenant not in (None, kept.tenant):
        raise Problem("operation_not_found", f"no operation {operation_id}; ended ones are kept for 30 days")
    return reply(operation_values(operation_id, kept))


def read_filter(given: str | BulkFields, now_at: int) -> JobSearch:
    """Return the search of a body. Raises ``ConfigError``, also for a search that fits every task."""
    if isinstance(given, str):
        search = parse_search(given, now_at)
    else:
        fields = {
            name: [value] if isinstance(value, str) else value
            for name, value in given.model_dump(exclude_none=True).items()
        }
        words = fields.pop("text", [])
        search = build_search(fields, now_at, words)
    if search == JobSearch():
        raise ConfigError("filter: a bulk action needs at least one word, such as state:queued")
    return search


def brief_values(job: JobRecord) -> dict[str, Any]:
    """Return a task in few words."""
    return {
        "task_id": job.job_id,
        "task_type": job.task,
        "status": job.state.value,
        "priority": job.lane,
        "tenant": job.tenant,
        "created_at": write_moment(job.submitted_at),
    }


def operation_values(operation_id: str, kept: BulkRecord) -> dict[str, Any]:
    """Return an operation."""
    names = ("action", "lane", "who", "status", "expect", "count", "visited", "changed", "error")
    return {
        "operation_id": operation_id,
        "filter": kept.search,
        **{name: getattr(kept, name) for name in names},
        "created_at": write_moment(kept.created_at),
        "updated_at": write_moment(kept.updated_at or kept.created_at),
        "finished_at": write_moment(kept.finished_at),
    }
