"""The protocol of HTTP workers: register, poll, report, send heartbeats, drain.

A worker needs no library: `examples/workers` has one in a few lines of shell. It gets tasks of all tenants, so it
cannot use a token of one tenant.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Path, Request
from starlette.responses import Response

from headway.core.log_event import LogEvent
from headway.core.policy.writer import policy_data
from headway.core.worker import WorkerState
from headway.observability.job_output import KEPT_MAX
from headway.protocol.conversion import step_json
from headway.protocol.worker import (
    DrainReply,
    DrainRequest,
    OutputReply,
    OutputUpdate,
    PollReply,
    PollRequest,
    RefusedResult,
    RegisterReply,
    RegisterRequest,
    ResultReply,
    ResultReport,
    ResultReports,
    StepReply,
    StepsRequest,
    StepUpdate,
    TaskSteps,
    UnpublishedTask,
    WorkerHeartbeat,
    WorkerHeartbeatReply,
)
from headway.runtime.bounded_wait import end_tasks
from headway.server.auth import Scope
from headway.server.gateway.declaration import check_tasks, new_worker
from headway.server.gateway.handout import hand_out
from headway.server.messages import as_message, read_message
from headway.server.problems import Problem
from headway.server.routing import Routes, caller_of, read_json, reply
from headway.server.service import Service, service_of

log = logging.getLogger("headway.server")

UNPUBLISHED = "it differs from the catalogue, and the token is neither bound to it (--tasks) nor has the scope publish"

routes = Routes("workers", "/internal/workers", whole=True, missing="worker_unknown")

WorkerId = Annotated[
    str, Path(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$", description="From the registration.")
]


@routes.post(
    "/register",
    Scope.WORKER,
    RegisterReply,
    "Register a worker",
    status=201,
    problems=("too_many", "store_full"),
    body=(RegisterRequest,),
)
async def register(request: Request) -> Response:
    """Register a worker under a new id. Only the token that registered it may use the id.

    Its tasks go into the catalogue if the token is bound to them or has the scope `publish`.
    """
    service, caller = service_of(request), caller_of(request)
    settings, in_force = service.app.settings, service.app.in_force
    new = new_worker(await read_message(request, RegisterRequest), service.app)
    check_tasks(new, caller.tasks)
    service.quotas.submit(caller)
    gateway = await service.gateway()
    registration = await gateway.register(
        new, token_id=caller.token_id, bound=caller.tasks, most=service.app.settings.token_workers
    )
    withheld = await gateway.publish(new, allowed=caller.publishes, who=caller.who)
    if withheld:
        facts = {"worker": registration.worker_id, "token": caller.token_id, "tasks": withheld, "reason": UNPUBLISHED}
        log.warning(LogEvent("worker.not_published", **facts))
    return reply(
        RegisterReply(
            worker_id=registration.worker_id,
            heartbeat_seconds=new.heartbeat_ms / 1_000,
            dead_after_seconds=new.lease_ms / 1_000,
            confirm_seconds=new.confirm_ms / 1_000,
            payload_max=settings.payload_max,
            policy_version=in_force.version,
            policy=None if new.tasks is None else policy_data(in_force.policy),
            not_published=[UnpublishedTask(name, UNPUBLISHED) for name in withheld],
        ),
        201,
    )


@routes.post("/{worker_id}/poll", Scope.WORKER, PollReply, "Ask for tasks", problems=("too_many",), body=(PollRequest,))
async def poll(request: Request, worker_id: WorkerId) -> Response:
    """Report results and get tasks, at once or as soon as there are any within `wait_seconds`.

    The poll ends early if a task must stop or the worker must drain. A draining worker gets no tasks.
    """
    body = await read_message(request, PollRequest)
    service, token_id = service_of(request), caller_of(request).token_id
    gateway = await service.gateway()
    registration = await gateway.registry.find(worker_id, token_id)
    if unknown := sorted(set(body.capabilities or ()).difference(registration.capabilities)):
        raise Problem("invalid", f"capabilities: {unknown[0]!r} was not registered")
    async with _until_gone(request, service, waits=body.wait_seconds > 0) as gone:
        polled = await gateway.poll(worker_id, body, token_id=token_id, gone=gone)
    handed = await hand_out(gateway.store, polled.leases, service.addresses)
    if handed.refused:
        await gateway.finish(worker_id, handed.refused, token_id=token_id)
    return reply(
        PollReply(
            tasks=handed.tasks,
            cancel=polled.cancel,
            lost=polled.lost,
            budgets=polled.budgets,
            refused=[RefusedResult(one.task_id, one.code) for one in polled.settled if one.code is not None],
            more=polled.more or handed.more,
            next_due_seconds=polled.next_due,
            state=polled.state,
            policy_version=gateway.in_force.version,
        )
    )


@routes.post(
    "/{worker_id}/result",
    Scope.WORKER,
    ResultReply,
    "Report how tasks ended",
    problems=("lease_lost", "store_full"),
    body=(ResultReport, ResultReports),
)
async def result(request: Request, worker_id: WorkerId) -> Response:
    """Report how one or several tasks ended. A repeat gets the same reply. A different report changes nothing."""
    body = await read_message(request, dict[str, Any])
    several = "results" in body
    reports = as_message(body, ResultReports).results if several else [as_message(body, ResultReport)]
    gateway = await service_of(request).gateway()
    outcomes = await gateway.finish(worker_id, reports, token_id=caller_of(request).token_id)
    if several:
        return reply(ResultReply(acknowledged=True, results=outcomes))
    [only] = outcomes
    if only.status is None:
        raise Problem("lease_lost", f"this worker has no lease of task {only.task_id}; its report changes nothing")
    return reply(ResultReply(acknowledged=True, status=only.status))


@routes.post(
    "/{worker_id}/output", Scope.WORKER, OutputReply, "Send the latest output of a running task", body=(OutputUpdate,)
)
async def output(request: Request, worker_id: WorkerId) -> Response:
    """Store the latest output of a task for readers of its events. Progress wakes the readers: send it too."""
    update = await read_message(request, OutputUpdate)
    if sum(len(chunk.text) for chunk in update.chunks) > KEPT_MAX:
        raise Problem("invalid", f"chunks: at most {KEPT_MAX:,} characters in all, the latest ones")
    gateway, token_id = await service_of(request).gateway(), caller_of(request).token_id
    return reply(OutputReply(await gateway.output(worker_id, update, token_id=token_id)))


@routes.post(
    "/{worker_id}/steps",
    Scope.WORKER,
    TaskSteps,
    "Read the steps of a running task",
    problems=("lease_lost",),
    body=(StepsRequest,),
)
async def steps(request: Request, worker_id: WorkerId) -> Response:
    """Return what earlier attempts of a task have kept, so that this one can skip it."""
    wanted = await read_message(request, StepsRequest)
    gateway, token_id = await service_of(request).gateway(), caller_of(request).token_id
    found = await gateway.steps(worker_id, wanted, token_id=token_id)
    if found is None:
        raise Problem("lease_lost", f"this worker has no lease of task {wanted.task_id}")
    return reply(TaskSteps({key: step_json(value) for key, value in found.items()}))


@routes.post(
    "/{worker_id}/step",
    Scope.WORKER,
    StepReply,
    "Keep a step of a running task",
    problems=("step", "store_full"),
    body=(StepUpdate,),
)
async def step(request: Request, worker_id: WorkerId) -> Response:
    """Keep a value under a name. A stale attempt, whose lease has ended, keeps nothing."""
    update = await read_message(request, StepUpdate)
    gateway, token_id = await service_of(request).gateway(), caller_of(request).token_id
    return reply(StepReply(await gateway.record_step(worker_id, update, token_id=token_id)))


@routes.post(
    "/{worker_id}/heartbeat", Scope.WORKER, WorkerHeartbeatReply, "Send a sign of life", body=(WorkerHeartbeat,)
)
async def heartbeat(request: Request, worker_id: WorkerId) -> Response:
    """Renew the worker and the tasks that it names, or all of them. The reply names the tasks to stop."""
    body = await read_message(request, WorkerHeartbeat)
    gateway = await service_of(request).gateway()
    return reply(await gateway.beat(worker_id, body, token_id=caller_of(request).token_id))


@routes.post(
    "/{worker_id}/drain",
    Scope.WORKER,
    DrainReply,
    "Give a worker no more tasks",
    body=(DrainRequest,),
    body_required=False,
)
async def drain(request: Request, worker_id: WorkerId) -> Response:
    """Hand no more tasks to the worker, which finishes its own. With `leave` they return to the queue at once."""
    body = read_json(text) if (text := await request.body()) else None
    gateway = await service_of(request).gateway()
    token_id = caller_of(request).token_id
    if body is not None and as_message(body, DrainRequest).leave:
        released = await gateway.leave(worker_id, token_id=token_id)
        return reply(DrainReply(acknowledged=True, state=WorkerState.DEAD, released=released))
    await gateway.drain(worker_id, token_id=token_id)
    return reply(DrainReply(acknowledged=True, state=WorkerState.DRAINING, released=0))


@asynccontextmanager
async def _until_gone(request: Request, service: Service, *, waits: bool) -> AsyncIterator[asyncio.Future[Any]]:
    """Yield a future that is done once the client has disconnected or its token is invalid."""
    token_id = caller_of(request).token_id
    with contextlib.ExitStack() as stack:
        ends: list[asyncio.Future[None]] = []
        if waits:
            service.quotas.check_held(token_id)
            ends.append(stack.enter_context(service.hold(token_id)))  # Revoking a token ends what it holds open.
        leaving = asyncio.ensure_future(_disconnected(request))
        gone = asyncio.ensure_future(asyncio.wait([leaving, *ends], return_when=asyncio.FIRST_COMPLETED))
        try:
            yield gone
        finally:
            await end_tasks([gone, leaving])


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
