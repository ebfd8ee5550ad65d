"""Batches: create, fill, close, read, cancel, retry."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from fastapi import Body, Path, Query, Request
from starlette.responses import Response

from headway.client.batch import retry_batch
from headway.client.batch_values import batch_page, batch_values
from headway.client.graph import new_batch_id
from headway.core.errors import BatchNotFound
from headway.core.job import ENDED_STATES, State
from headway.core.workflow import BatchId, BatchQuery, BatchRecord, EdgeRule, Graph, NewBatch
from headway.security.audited_store import audited
from headway.server.auth import Scope, tenant_for
from headway.server.graph_request import find_batch, may_refer
from headway.server.pages import PAGE, Cursor, Page, PageLimit, read_cursor
from headway.server.routes.tasks import operator_of, submit_one, submitted_values
from headway.server.routing import Routes, caller_of, reply
from headway.server.schemas import rest
from headway.server.schemas.batches import (
    BatchGraph,
    BatchPage,
    BatchReply,
    BatchRetried,
    BatchRetry,
    BatchState,
    MemberResults,
    NewBatchBody,
)
from headway.server.serializers import ending_values
from headway.server.service import service_of
from headway.server.submit import SUBMIT_PROBLEMS, Callback, make_calls, submit
from headway.stores.paging import JOBS_AT_ONCE

GRAPH_NODES = 200  # Members that a graph shows. More can neither be drawn nor be read.

routes = Routes("batches", "/api/v1", missing="batch_not_found")

BatchPath = Annotated[
    str, Path(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$", description="The batch's id.")
]


@routes.post(
    "/batches",
    Scope.SUBMIT,
    BatchReply,
    "Create a batch",
    status=201,
    also={200: (BatchReply, "The batch that an earlier request with this key made.")},
    problems=("tenant_mismatch", "bad_edge", "batch_not_found", "batch_closed", "store_full"),
)
async def create_batch(request: Request, new: NewBatchBody) -> Response:
    """Create an open batch. Add tasks to it, then close it: it ends once all its tasks have ended."""
    service, caller = service_of(request), caller_of(request)
    service.quotas.submit(caller)
    tenant, parent = tenant_for(caller, new.tenant), None
    if new.parent_id is not None:
        outer = await find_batch(service, caller, new.parent_id)
        tenant, parent = tenant or outer.tenant, outer.batch_id
    create = NewBatch(new_batch_id(), new.name, new.key, tenant, parent)
    made = await service.client.submit_graph(Graph(create=create))
    batch = await find_batch(service, caller, made.batch_id or create.batch_id)
    headers = {"Location": f"{request.scope.get('root_path', '')}/api/v1/batches/{batch.batch_id}"}
    return reply(batch_values(batch), 201 if made.created else 200, headers)


@routes.get("/batches", Scope.READ, BatchPage, "List batches, newest first", problems=("tenant_mismatch",))
async def list_batches(
    request: Request,
    status: Annotated[list[BatchState] | None, Query(description="One or several.")] = None,
    tenant: Annotated[rest.Name | None, Query()] = None,
    limit: PageLimit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """List batches with their counts."""
    query = BatchQuery(
        tenant_for(caller_of(request), tenant),
        tuple(status or ()),
        None if cursor is None else read_cursor(cursor),
        limit + 1,
    )
    return reply(batch_page(await (await service_of(request).store()).find_batches(query), limit))


@routes.get("/batches/{batch_id}", Scope.READ, BatchReply, "Look at a batch")
async def get_batch(request: Request, batch_id: BatchPath) -> Response:
    """Return the counts of a batch and when it is expected to end."""
    return reply(batch_values(await find_batch(service_of(request), caller_of(request), batch_id)))


@routes.post(
    "/batches/{batch_id}/tasks",
    Scope.SUBMIT,
    rest.SubmittedTasks,
    "Add up to 1,000 tasks to a batch, all or none",
    status=201,
    problems=SUBMIT_PROBLEMS,
    many=True,
)
async def add_tasks(
    request: Request,
    batch_id: BatchPath,
    requests: Annotated[list[rest.NewTask], Body(min_length=1, max_length=rest.BULK_MAX)],
) -> Response:
    """Submit tasks as members of a batch, as `/api/v1/tasks/bulk` does. A batch that has ended takes none (409)."""
    service, caller = service_of(request), caller_of(request)
    batch = await find_batch(service, caller, batch_id)
    refers = may_refer(await request.body())
    wanted = await make_calls(service, caller, requests, refers=refers, batch=batch)
    return reply({"tasks": [submitted_values(kept) for kept in await submit(service, wanted)]}, 201)


@routes.post(
    "/batches/{batch_id}/on_failure",
    Scope.SUBMIT,
    rest.SubmittedTask,
    "Run a task at the first failure in a batch",
    status=201,
    also={200: (rest.SubmittedTask, "The task that an earlier request with this key made.")},
    problems=SUBMIT_PROBLEMS,
)
async def run_on_failure(request: Request, batch_id: BatchPath, new: rest.NewTask) -> Response:
    """Submit a task that runs once, when the first member has ended without completing. Else it is cancelled.

    A retry that begins the batch's next round lets it run once more.
    """
    return await _submit_callback(request, batch_id, new, EdgeRule.ON_FAILURE)


@routes.post(
    "/batches/{batch_id}/on_done",
    Scope.SUBMIT,
    rest.SubmittedTask,
    "Run a task at the end of a batch",
    status=201,
    also={200: (rest.SubmittedTask, "The task that an earlier request with this key made.")},
    problems=SUBMIT_PROBLEMS,
)
async def run_on_done(request: Request, batch_id: BatchPath, new: rest.NewTask) -> Response:
    """Submit a task that runs when all members have ended, however they ended. Each round of the batch runs it once."""
    return await _submit_callback(request, batch_id, new, EdgeRule.ON_DONE)


async def _submit_callback(request: Request, batch_id: str, new: rest.NewTask, rule: EdgeRule) -> Response:
    service, caller = service_of(request), caller_of(request)
    batch = await find_batch(service, caller, batch_id)
    return await submit_one(request, new, Callback(batch, rule))


@routes.post("/batches/{batch_id}/close", Scope.SUBMIT, BatchReply, "Close a batch")
async def close_batch(request: Request, batch_id: BatchPath) -> Response:
    """Let a batch end once all its members have ended. Until then its members can still add tasks."""
    service = service_of(request)
    await find_batch(service, caller_of(request), batch_id)
    store = audited(await service.store(), operator_of(request))
    return reply(batch_values(_existing(await store.close_batch(BatchId(batch_id)), batch_id)))


@routes.post("/batches/{batch_id}/cancel", Scope.SUBMIT, BatchReply, "Cancel a batch")
async def cancel_batch(request: Request, batch_id: BatchPath) -> Response:
    """Cancel a batch and the batches in it: from now on no member starts, and running ones are asked to stop."""
    service = service_of(request)
    await find_batch(service, caller_of(request), batch_id)
    store = audited(await service.store(), operator_of(request))
    return reply(batch_values(_existing(await store.cancel_batch(BatchId(batch_id)), batch_id)))


@routes.post("/batches/{batch_id}/retry", Scope.SUBMIT, BatchRetried, "Run members of a batch again")
async def retry_members(request: Request, batch_id: BatchPath, wanted: BatchRetry | None = None) -> Response:
    """Queue members again that did not complete. If the batch has ended, its next round begins."""
    mode = (wanted or BatchRetry()).mode
    service, caller = service_of(request), caller_of(request)
    batch = await find_batch(service, caller, batch_id)
    service.quotas.submit(caller, max(1, batch.failed + (batch.cancelled if mode == "all" else 0)))
    retry = partial(service.client.retry, who=operator_of(request))
    retried = await retry_batch(await service.store(), retry, batch.batch_id, mode)
    return reply({"batch_id": batch_id, "retried": retried})


@routes.get("/batches/{batch_id}/results", Scope.READ, MemberResults, "The results of a batch")
async def get_results(
    request: Request,
    batch_id: BatchPath,
    status: Annotated[
        list[rest.TaskStatus] | None, Query(description="One or several; else every ended member.")
    ] = None,
    limit: PageLimit = PAGE,
    cursor: Cursor = None,
) -> Response:
    """Return how the members that have ended did so, in the order of adding.

    A page may hold fewer than `limit` members: it ends at 4 MiB. While the batch runs, members may end that are before
    the cursor.
    """
    service = service_of(request)
    batch = await find_batch(service, caller_of(request), batch_id)
    states = tuple(map(State, status)) if status else ENDED_STATES
    beyond, page = 0 if cursor is None else read_cursor(cursor), Page("items", limit)
    store = await service.store()
    async with service.listing:
        while jobs := await store.members(batch.batch_id, beyond=beyond, states=states, limit=JOBS_AT_ONCE):
            for job in jobs:
                if not page.add({"task_id": job.job_id, **ending_values(job)}):
                    return page.answer(str(beyond))
                beyond = job.seq
    return page.answer(None)


@routes.get("/batches/{batch_id}/graph", Scope.READ, BatchGraph, "Which members wait for which")
async def get_graph(request: Request, batch_id: BatchPath) -> Response:
    """Return the first 200 members of a batch, and the edges into them."""
    service = service_of(request)
    batch = await find_batch(service, caller_of(request), batch_id)
    store = await service.store()
    nodes, edges, beyond = list[dict[str, str]](), list[dict[str, str]](), 0
    while len(nodes) < GRAPH_NODES and (
        jobs := await store.members(batch.batch_id, beyond=beyond, limit=min(JOBS_AT_ONCE, GRAPH_NODES - len(nodes)))
    ):
        nodes += [{"task_id": job.job_id, "task_type": job.task, "status": job.state.value} for job in jobs]
        upstreams = await store.upstreams([job.job_id for job in jobs])
        edges += [
            {"source": one.source, "target": job.job_id, "on_failure": one.rule.value}
            for job, found in zip(jobs, upstreams, strict=True)
            for one in found
        ]
        beyond = jobs[-1].seq
    more = bool(await store.members(batch.batch_id, beyond=beyond, limit=1))
    return reply({"nodes": nodes, "edges": edges, "more": more})


def _existing(batch: BatchRecord | None, batch_id: str) -> BatchRecord:
    if batch is None:
        raise BatchNotFound(f"no batch {batch_id}; it may have been removed since it ended", batch_id=batch_id)
    return batch
