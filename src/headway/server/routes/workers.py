"""The protocol of workers that speak HTTP: register, poll, report, send heartbeats, drain.

A worker needs no library: `examples/workers` has one in a few lines of shell. It is given tasks of all tenants, so a
token of one tenant cannot be a worker's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Path, Request
from starlette.responses import Response

from headway.core.policy.reader import policy_data
from headway.server.auth import Scope
from headway.server.gateway.translate import (
    check_tasks,
    given_tasks,
    new_worker,
    read_held,
    read_output,
    read_poll,
    read_result,
    unreadable,
    vouched,
)
from headway.server.problems import Problem
from headway.server.replies import reply
from headway.server.routing import Routes, caller_of
from headway.server.schemas.worker import (
    Acknowledged,
    DrainBody,
    DrainedBody,
    HeardBody,
    HeartbeatBody,
    OneOrMore,
    OutputBody,
    OutputTaken,
    PollBody,
    PolledBody,
    RegisterBody,
    RegisterReplyBody,
    ResultBody,
)
from headway.server.service import Service, service_of

log = logging.getLogger("headway.server")

POLL_INTERVAL_MS = 1_000
UNPUBLISHED = "it differs from the catalogue, and the token is neither bound to it (--tasks) nor has the scope publish"

routes = Routes("workers", "/internal/workers")

WorkerId = Annotated[
    str, Path(min_length=1, max_length=64, pattern=r"^[0-9A-Za-z_-]+$", description="From the registration.")
]
KNOWN = ("worker_unknown",)


@routes.post(
    "/register",
    scope=Scope.WORKER,
    whole=True,
    answers={201: RegisterReplyBody},
    problems=("too_many", "store_full"),
    summary="Register a worker",
)
async def register(request: Request, body: RegisterBody) -> Response:
    """Make a worker known. Its id is new each time; only the token that registered it may speak for it.

    What it says of its tasks goes into the catalogue if the token is bound to them or has the scope `publish`.
    """
    service, caller = service_of(request), caller_of(request)
    settings, in_force = service.app.settings, service.app.in_force
    new = new_worker(body, service.app)
    check_tasks(new, caller.tasks)
    service.quotas.submit(caller)
    gateway = await service.gateway()
    registration = await gateway.register(
        new, token_id=caller.token_id, bound=caller.tasks, most=service.app.settings.token_workers
    )
    withheld = await gateway.publish(new, allowed=caller.publishes, who=caller.who)
    if withheld:
        facts = {"worker": registration.worker_id, "token": caller.token_id, "tasks": withheld, "reason": UNPUBLISHED}
        log.warning("worker.not_published", extra={"headway": facts})
    return reply(
        {
            "worker_id": registration.worker_id,
            "poll_interval_ms": POLL_INTERVAL_MS,
            "heartbeat_seconds": new.heartbeat_ms / 1_000,
            "dead_after_seconds": new.lease_ms / 1_000,
            "confirm_seconds": new.confirm_ms / 1_000,
            "payload_max": settings.payload_max,
            "policy_version": in_force.version,
            "policy": None if body.tasks is None else policy_data(in_force.policy),
            "not_published": [{"task_type": name, "reason": UNPUBLISHED} for name in withheld],
        },
        201,
    )


@routes.post(
    "/{worker_id}/poll",
    scope=Scope.WORKER,
    whole=True,
    answers={200: PolledBody},
    problems=(*KNOWN, "too_many"),
    summary="Ask for tasks",
)
async def poll(request: Request, worker_id: WorkerId, body: PollBody) -> Response:
    """Hand in what has ended and get tasks, at once or as soon as there are any in `wait_seconds`.

    Ends early with news: a task to stop, a drain. A draining worker gets no tasks.
    """
    service, token_id = service_of(request), caller_of(request).token_id
    gateway = await service.gateway()
    registration = await gateway.registry.find(worker_id, token_id)
    ask = read_poll(body, registration.capabilities, service.app.settings.payload_max)
    async with _until_gone(request, service, patient=ask.wait > 0) as gone:
        polled = await gateway.poll(worker_id, ask, token_id=token_id, gone=gone)
    leases, unsigned = await vouched(polled.leases, service.addresses)
    tasks, bad = given_tasks(leases)
    bad += unsigned
    if bad:
        await gateway.finish(worker_id, [unreadable(lease) for lease in bad], token_id=token_id)
    return reply(
        {
            "tasks": tasks,
            "cancel": polled.cancel,
            "lost": polled.lost,
            "budgets": polled.budgets,
            "refused": [{"task_id": one.job_id, "code": "lease_lost"} for one in polled.settled if one.state is None],
            "more": polled.more,
            "next_due_seconds": polled.next_due,
            "state": polled.state.value,
            "policy_version": gateway.in_force.version,
        }
    )


@routes.post(
    "/{worker_id}/result",
    scope=Scope.WORKER,
    whole=True,
    answers={200: Acknowledged},
    problems=(*KNOWN, "lease_lost", "store_full"),
    summary="Report how tasks ended",
)
async def result(request: Request, worker_id: WorkerId, body: OneOrMore) -> Response:
    """Report how a task ended, or several. The same report again gets the same answer; another one changes nothing."""
    service, token_id = service_of(request), caller_of(request).token_id
    gateway = await service.gateway()
    given = [body] if isinstance(body, ResultBody) else body.results
    ended = [read_result(one, service.app.settings.payload_max) for one in given]
    settled = await gateway.finish(worker_id, ended, token_id=token_id)
    if not isinstance(body, ResultBody):
        each = [
            {
                "task_id": one.job_id,
                "status": None if one.state is None else one.state.value,
                "code": "lease_lost" if one.state is None else None,
            }
            for one in settled
        ]
        return reply({"acknowledged": True, "results": each})
    [only] = settled
    if only.state is None:
        raise Problem("lease_lost", f"this worker has no lease of task {only.job_id}; its report changes nothing")
    return reply({"acknowledged": True, "status": only.state.value})


@routes.post(
    "/{worker_id}/output",
    scope=Scope.WORKER,
    whole=True,
    answers={200: OutputTaken},
    problems=KNOWN,
    summary="Send the latest output of a running task",
)
async def output(request: Request, worker_id: WorkerId, body: OutputBody) -> Response:
    """Keep the latest output of a task, which readers of its events see. Send progress too: that wakes them."""
    gateway, token_id = await service_of(request).gateway(), caller_of(request).token_id
    job_id, fence, chunks = read_output(body)
    return reply({"acknowledged": await gateway.output(worker_id, job_id, fence, chunks, token_id=token_id)})


@routes.post(
    "/{worker_id}/heartbeat",
    scope=Scope.WORKER,
    whole=True,
    answers={200: HeardBody},
    problems=KNOWN,
    summary="Send a sign of life",
)
async def heartbeat(request: Request, worker_id: WorkerId, body: HeartbeatBody) -> Response:
    """Renew the worker and its tasks: those it names, or all. Answers with what it must stop."""
    gateway = await service_of(request).gateway()
    kept = await gateway.beat(
        worker_id,
        read_held(body.tasks),
        number=body.seq,
        draining=body.status == "draining",
        token_id=caller_of(request).token_id,
    )
    in_force = gateway.in_force
    other = body.policy_version is not None and body.policy_version != in_force.version
    return reply(
        {
            "acknowledged": True,
            "cancel": kept.cancel,
            "lost": kept.lost,
            "budgets": kept.budgets,
            "state": kept.state.value,
            "policy_version": in_force.version,
            "policy": policy_data(in_force.policy) if other else None,
            "ignored": kept.ignored,
        }
    )


@routes.post(
    "/{worker_id}/drain",
    scope=Scope.WORKER,
    whole=True,
    answers={200: DrainedBody},
    problems=KNOWN,
    summary="Give a worker no more tasks",
)
async def drain(request: Request, worker_id: WorkerId, body: DrainBody | None = None) -> Response:
    """Stop handing tasks to the worker; it finishes those it has. With `leave` they go back, and the worker is gone."""
    gateway = await service_of(request).gateway()
    token_id = caller_of(request).token_id
    if body is not None and body.leave:
        released = await gateway.leave(worker_id, token_id=token_id)
        return reply({"acknowledged": True, "state": "dead", "released": released})
    await gateway.drain(worker_id, token_id=token_id)
    return reply({"acknowledged": True, "state": "draining", "released": 0})


@asynccontextmanager
async def _until_gone(request: Request, service: Service, *, patient: bool) -> AsyncIterator[asyncio.Future[None]]:
    """Watch whether the client is still there and still may ask. Gives what is done once that is over."""
    token_id = caller_of(request).token_id
    if not patient:
        async with _watched([asyncio.ensure_future(_disconnected(request))]) as gone:
            yield gone
        return
    service.quotas.check_held(token_id)
    with service.hold(token_id) as ended:  # A token that is revoked ends what it holds open.
        leaving = asyncio.ensure_future(asyncio.shield(ended))
        async with _watched([asyncio.ensure_future(_disconnected(request)), leaving]) as gone:
            yield gone


@asynccontextmanager
async def _watched(watching: list[asyncio.Future[None]]) -> AsyncIterator[asyncio.Future[None]]:
    """Yield a future that is done once one of these is; they are cancelled afterwards."""
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def over(_: asyncio.Future[None]) -> None:
        if not gone.done():
            gone.set_result(None)

    for watch in watching:
        watch.add_done_callback(over)
    try:
        yield gone
    finally:
        for watch in watching:
            watch.remove_done_callback(over)
            watch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*watching, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
