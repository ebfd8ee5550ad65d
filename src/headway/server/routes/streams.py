"""Streams of a task's events by server-sent events and WebSocket, and tickets for browsers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, WebSocket
from starlette.responses import Response, StreamingResponse
from starlette.types import Message, Send

from headway.core.errors import HeadwayError
from headway.core.event import EVENT_KINDS
from headway.core.job import JobId
from headway.core.timestamps import write_moment
from headway.runtime.bounded_wait import end_tasks
from headway.server.auth import Principal, Scope, authorise, refuse_socket, subprotocol_of, ticket_for
from headway.server.event_stream import StreamItem, follow, knows_end, read_place, write_place
from headway.server.problems import Problem, problem_of
from headway.server.routes.task_lookup import TaskId, find
from headway.server.routing import Routes, caller_of, encode, reply
from headway.server.schemas.rest import TicketReply
from headway.server.serializers import ending_values, estimate_values
from headway.server.service import Service, service_of

SEND_SECONDS = 30.0  # Seconds for a reader to make room, else its stream ends.
TOO_SLOW, RESTARTING, NOT_FOUND = 1013, 1012, 4404
TICKET_SECONDS = 60

routes = Routes("streams", "/api/v1")
sockets = APIRouter(prefix="/api/v1")


@routes.post("/tasks/{task_id}/ticket", Scope.READ, TicketReply, "A ticket for a browser's stream", status=201)
async def make_ticket(request: Request, task_id: TaskId) -> Response:
    """Make a ticket, valid once within 60 s as `?ticket=` of this task's `/stream` or `/events`."""
    service, caller = service_of(request), caller_of(request)
    await find(service, caller, task_id)
    service.quotas.open_ticket(caller.token_id)
    text, _ = await ticket_for(request, caller)
    return reply({"ticket": text, "expires_in": TICKET_SECONDS}, 201)


@routes.get(
    "/tasks/{task_id}/events",
    Scope.READ,
    (None, f"Server-sent events: {', '.join(EVENT_KINDS)}, and estimate while the task waits."),
    "A task's story, as it happens",
    also={204: (None, "It has ended, and `Last-Event-ID` says that the client knows: browsers do not come back.")},
    problems=("too_many_streams",),
)
async def get_events(
    request: Request,
    task_id: TaskId,
    last_event_id: Annotated[str | None, Header(max_length=100, description="Where an earlier stream ended.")] = None,
    ticket: Annotated[str | None, Query(max_length=100, description="In place of a token, for browsers.")] = None,
) -> Response:
    """Stream the events of a task until it has ended. A client that reconnects with Last-Event-ID misses nothing."""
    service, caller = service_of(request), caller_of(request)
    job = await find(service, caller, task_id)
    if knows_end(job, read_place(last_event_id)):
        return Response(status_code=204)
    service.check_room(caller.token_id)
    items = _events(service, caller, JobId(task_id), last_event_id)
    return EventResponse(items, media_type="text/event-stream")


class EventResponse(StreamingResponse):
    """A response with server-sent events. It ends for a client that does not read, which may reconnect."""

    async def stream_response(self, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(SEND_SECONDS):
                await send(message)

        with contextlib.suppress(TimeoutError):
            await super().stream_response(send_soon)


async def _events(service: Service, caller: Principal, job_id: JobId, last: str | None) -> AsyncIterator[bytes]:
    with service.stream(caller.token_id) as revoked:
        yield b"retry: 1000\n\n"
        async with contextlib.aclosing(follow(service, job_id, read_place(last), revoked)) as items:
            # An error of the store ends the stream. The client reconnects with Last-Event-ID.
            with contextlib.suppress(HeadwayError):
                async for one in items:
                    yield _event_text(one)


def _event_text(item: StreamItem) -> bytes:
    if item.event is not None and item.job is not None:
        event = item.event
        data = {"kind": event.kind, "task_id": event.job_id, "at": write_moment(event.at), **event.data}
        if event.kind == "finished":
            data |= ending_values(item.job)
        return b"id: %s\nevent: %s\ndata: %s\n\n" % (
            write_place(event.place).encode(),
            event.kind.encode(),
            encode(data),
        )
    if item.job is not None:
        data = {"kind": "estimate", "task_id": item.job.job_id, **(estimate_values(item.estimate) or {})}
        return b"event: estimate\ndata: %s\n\n" % encode(data)
    return b": still here\n\n"


@sockets.websocket("/tasks/{task_id}/stream")
async def stream(websocket: WebSocket, task_id: str, after: str | None = None, abandon: bool = False) -> None:
    """Stream a task's events as messages, and close once it has ended.

    The `type` of a message is the kind of the event, but `duration` for downgraded, `result` for finished, and `queue`
    for an estimate, which takes the place of queued.

    ``abandon``: no other client wants the result, so the task is cancelled when its reader disconnects.
    """
    service = service_of(websocket)
    try:
        caller = await authorise(websocket, Scope.READ)
        if abandon and not caller.may(Scope.SUBMIT):
            raise Problem("forbidden", "to cancel a task this needs a token with the scope submit", scope="submit")
        await find(service, caller, task_id[:64])
        service.check_room(caller.token_id)
    except (Problem, HeadwayError) as error:
        await refuse_socket(websocket, error if isinstance(error, Problem) else problem_of(error))
        return
    await websocket.accept(subprotocol=subprotocol_of(websocket))
    with service.stream(caller.token_id) as revoked:
        items = follow(service, JobId(task_id), read_place(after), revoked)
        if not await _while_connected(websocket, _send_items(websocket, items)) and abandon:
            await service.client.cancel([JobId(task_id)])


async def _send_items(websocket: WebSocket, items: AsyncGenerator[StreamItem]) -> None:
    code, reason = RESTARTING, "come back with ?after= and the last id"
    try:
        async with contextlib.aclosing(items):
            async for one in items:
                message = _message(one)
                if message is not None:
                    async with asyncio.timeout(SEND_SECONDS):
                        await websocket.send_text(message)
                if one.event is not None and one.event.kind == "finished":
                    code, reason = 1000, "ended"
    except TimeoutError:
        code, reason = TOO_SLOW, "reads too slowly"
    except HeadwayError as error:
        code, reason = (NOT_FOUND if error.code == "job_not_found" else RESTARTING), error.code
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(SEND_SECONDS):
            await websocket.close(code, reason)


async def _while_connected(websocket: WebSocket, sending: Coroutine[Any, Any, None]) -> bool:
    """Send while the client is connected, and ignore what it sends. Return False if it left before the end."""

    async def until_gone() -> None:
        while (await websocket.receive())["type"] != "websocket.disconnect":
            pass

    sender = asyncio.ensure_future(sending)
    tasks = {sender, asyncio.ensure_future(until_gone())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return sender.done()
    finally:
        await end_tasks(tasks)


def _message(item: StreamItem) -> str | None:
    """Return the message for an item, or None for a keep-alive: WebSockets have pings of their own."""
    if item.event is None or item.event.kind == "queued":
        if item.job is None or item.estimate is None:
            return None
        estimate = estimate_values(item.estimate)
        values: dict[str, Any] = {"type": "queue", "position": item.estimate.position, "estimate": estimate}
        return encode(values | {"task_id": item.job.job_id}).decode()
    event = item.event
    kind = {"finished": "result", "downgraded": "duration"}.get(event.kind, event.kind)
    values = {"type": kind, "id": write_place(event.place), "task_id": event.job_id, "at": write_moment(event.at)}
    values |= ending_values(item.job) if item.job is not None and kind == "result" else event.data
    return encode(values).decode()
