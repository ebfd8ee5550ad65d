"""The queue as a whole: its numbers and its dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from headway.core.job import JobId, State
from headway.core.timestamps import write_moment
from headway.core.worker import WorkerState
from headway.estimates.accuracy import summaries
from headway.metrics.documents import read_documents
from headway.security.audited_store import audited
from headway.server.auth import Principal, Scope, tenant_for
from headway.server.pages import PAGE, Cursor, PageLimit, read_end_cursor, task_page
from headway.server.problems import Problem
from headway.server.routes.task_lookup import Include, TaskId, find, owned, read_include
from headway.server.routing import Routes, caller_of, reply
from headway.server.schemas import rest
from headway.server.schemas.dashboard import DeadLetterGroups
from headway.server.service import Service, service_of
from headway.stores.base import JobQuery, LaneStats, Stats
from headway.stores.paging import find_in_steps, get_in_steps

routes = Routes("queue", "/api/v1")


@routes.get("/queue/stats", Scope.READ, rest.QueueStats, "The queue in numbers")
async def get_stats(request: Request) -> Response:
    """Return how many tasks wait in each priority, the workers, and how many tasks ended in the last minute.

    A token of one tenant gets the counts of that tenant only, without workers and throughput.
    """
    service, tenant = service_of(request), caller_of(request).tenant
    lanes = list((await service.policy()).lanes)
    if tenant is None:
        return reply(stats_values(await service.client.stats(), lanes))
    store = await service.store()
    waiting, now_at = await store.waiting_of(tenant), (await store.snapshot()).now_at
    return reply({"queues": _depths(lanes, waiting, now_at), "workers": None, "throughput": None})


@routes.get("/queue/counts", Scope.READ, rest.QueueCounts, "Everything that the store counts", whole=True)
async def get_counts(request: Request) -> Response:
    """Return how many tasks of each priority wait, are delayed or execute, and the totals of the store."""
    stats = await service_of(request).client.stats()
    queues = {name: lane._asdict() | {"oldest_at": write_moment(lane.oldest_at)} for name, lane in stats.lanes.items()}
    counts = {"totals": stats.totals, "recent": stats.last_minute, "kept": stats.kept}
    return reply({"at": write_moment(stats.now_at), "queues": queues, **counts})


@routes.get("/queue/estimates", Scope.READ, rest.EstimateAccuracyReply, "How estimates turned out", whole=True)
async def get_accuracy(request: Request) -> Response:
    """Return for each priority how often tasks began within the estimated p50 and p90."""
    found = summaries(await read_documents(await service_of(request).store()))
    return reply({"queues": found})


def _depths(lanes: list[str], waiting: Mapping[str, LaneStats], now_at: int) -> dict[str, dict[str, int]]:
    """Return each lane's depth and age; every lane of the policy is there, empty ones too."""
    found = {}
    for name in dict.fromkeys([*lanes, *waiting]):
        lane = waiting.get(name, LaneStats())
        age = 0 if lane.oldest_at is None or not lane.waiting else max(0, now_at - lane.oldest_at) // 1_000
        found[name] = {"depth": lane.waiting, "oldest_age_seconds": age}
    return found


def stats_values(stats: Stats, lanes: list[str]) -> dict[str, object]:
    """Return the queue's numbers."""
    live = stats.live_workers
    counts = {state.value: sum(worker.state is state for worker in stats.workers) for state in WorkerState}
    recent = stats.last_minute
    return {
        "queues": _depths(lanes, stats.lanes, stats.now_at),
        "workers": counts
        | {
            "total_capacity": sum(worker.slots for worker in live),
            "used_capacity": sum(worker.running for worker in live),
        },
        "throughput": {
            "completed_last_minute": recent.get("completed", 0),
            "failed_last_minute": recent.get("failed", 0) + recent.get("dead_letter", 0),
        },
    }


@routes.get("/dlq", Scope.READ, rest.TaskPage, "Dead letters", problems=("tenant_mismatch",))
async def list_dead_letters(
    request: Request,
    task_type: Annotated[rest.Name | None, Query()] = None,
    priority: Annotated[rest.Name | None, Query()] = None,
    tenant: Annotated[rest.Name | None, Query()] = None,
    limit: PageLimit = PAGE,
    cursor: Cursor = None,
    include: Include = None,
) -> Response:
    """List the tasks whose retries are used up, newest first.

    They are kept as long as the policy says: 30 days.

    A page is bounded as in the list of tasks.
    """
    service = service_of(request)
    query = JobQuery(
        states=(State.DEAD_LETTER,),
        task=task_type,
        lane=priority,
        tenant=tenant_for(caller_of(request), tenant),
        limit=limit,
        by_end=True,
        ended_before=None if cursor is None else read_end_cursor(cursor),
    )
    return await task_page(service, query, include=read_include(include))


@routes.get("/dlq/groups", Scope.READ, DeadLetterGroups, "Dead letters by task and type of error")
async def group_dead_letters(request: Request) -> Response:
    """Count the newest 5,000 dead letters by task and type of error, in the last hour, day and week.

    `filter` finds the dead letters of a group: `POST /bulk` replays or purges them.
    """
    return reply(await service_of(request).views.dead_letters(caller_of(request).tenant))


@routes.post(
    "/dlq/{task_id}/replay", Scope.ADMIN, rest.TaskState, "Queue a dead letter again", problems=("illegal_move",)
)
async def replay_one(request: Request, task_id: TaskId) -> Response:
    """Queue a dead letter again with its retries reset. A repeated request changes nothing."""
    service, caller = service_of(request), caller_of(request)
    job = await find(service, caller, task_id)
    if job.state in (State.QUEUED, State.EXECUTING):
        return reply({"task_id": task_id, "status": job.state.value})
    if job.state is not State.DEAD_LETTER:
        raise Problem("illegal_move", f"task {task_id} is not a dead letter but {job.state.value}")
    state = await service.client.retry_one(JobId(task_id), who=caller.who)
    return reply({"task_id": task_id, "status": state.value})


@routes.post("/dlq/replay", Scope.ADMIN, rest.Replayed, "Queue dead letters again", problems=("tenant_mismatch",))
async def replay_many(request: Request, wanted: rest.Replay) -> Response:
    """Queue up to 1,000 dead letters again: by id, by filter, or any with `all`."""
    service, caller = service_of(request), caller_of(request)
    ids, more = await _dead_letters(service, caller, wanted)
    states = await service.client.retry(ids, who=caller.who) if ids else []
    replayed = [job_id for job_id, state in zip(ids, states, strict=True) if state is not None and not state.ended]
    refused = [job_id for job_id in ids if job_id not in set(replayed)]
    return reply({"replayed": replayed, "refused": refused, "more": more and bool(replayed)})


@routes.post("/dlq/purge", Scope.ADMIN, rest.Removed, "Remove dead letters for good")
async def purge(request: Request, wanted: rest.TaskIds) -> Response:
    """Remove up to 1,000 dead letters for good. Other tasks stay."""
    service, caller = service_of(request), caller_of(request)
    own = await owned(service, caller, [JobId(task_id) for task_id in wanted.task_ids])
    store = audited(await service.store(), caller.who)
    return reply({"removed": await store.purge((State.DEAD_LETTER,), own, limit=rest.BULK_MAX) if own else 0})


async def _dead_letters(service: Service, caller: Principal, wanted: rest.Replay) -> tuple[list[JobId], bool]:
    tenant = tenant_for(caller, wanted.tenant)
    if wanted.task_ids is not None:
        asked = [JobId(task_id) for task_id in dict.fromkeys(wanted.task_ids)]
        fit = [
            job.job_id
            async for job in get_in_steps((await service.store()).get, asked)
            if job is not None and job.state is State.DEAD_LETTER and tenant in (None, job.tenant)
        ]
        return fit, False
    if not wanted.all and wanted.task_type is None and wanted.priority is None and wanted.tenant is None:
        raise Problem("invalid", "give task_ids, task_type, priority or tenant; or all: true for every dead letter")
    query = JobQuery((State.DEAD_LETTER,), wanted.task_type, wanted.priority, tenant, limit=rest.BULK_MAX + 1)
    found = [job.job_id async for job in find_in_steps((await service.store()).find, query)]
    return found[: rest.BULK_MAX], len(found) > rest.BULK_MAX
