"""Interactive sessions: a client opens one by WebSocket, and the worker that runs it connects."""

from __future__ import annotations

import contextlib
from typing import Any

from fastapi import APIRouter, Request, WebSocket
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from headway.core.errors import HeadwayError
from headway.core.job import JobId
from headway.observability.traces import taken_trace
from headway.protocol.sessions import PATH, RESUME
from headway.server.auth import Principal, Scope, authorise, refuse_socket, subprotocol_of, tenant_for, ticket_for
from headway.server.problems import Problem, problem_of
from headway.server.routes.streams import NOT_FOUND, TICKET_SECONDS
from headway.server.routing import Routes, caller_of, check_depth, encode, read_json, reply
from headway.server.schemas.rest import TicketReply
from headway.server.service import Service, service_of
from headway.server.sessions.admission import SessionDenied
from headway.server.sessions.relay import forward, reach
from headway.server.sessions.session import InteractiveSession

DENIED = 4429
NAME_MAX = 255
REASON_MAX = 120  # Bytes of the reason in a close frame, which has room for 123.

routes = Routes("sessions", "/api/v1")
sockets = APIRouter()


@routes.post("/interactive/ticket", Scope.SUBMIT, TicketReply, "A ticket for a browser's session", status=201)
async def make_ticket(request: Request) -> Response:
    """Make a ticket, valid once within 60 s as `?ticket=` of `/interactive`, to open or resume a session."""
    caller = caller_of(request)
    service_of(request).quotas.open_ticket(caller.token_id)
    text, _ = await ticket_for(request, caller)
    return reply({"ticket": text, "expires_in": TICKET_SECONDS}, 201)


@sockets.websocket("/api/v1/interactive")
async def interact(
    websocket: WebSocket,
    task_type: str = "",
    parameters: str = "{}",
    tenant: str | None = None,
    task_id: str = "",
    resume: str = "",
) -> None:
    """Open or resume a session with a task. It is denied at once if no slot is free."""
    service = service_of(websocket)
    try:
        caller = await authorise(websocket, Scope.SUBMIT)
        service.check_room(caller.token_id)
        if task_id:
            await _come_back(service, caller, websocket, task_id, resume)
        else:
            await _begin(service, caller, websocket, task_type, parameters, tenant)
    except (Problem, HeadwayError) as error:
        await refuse_socket(websocket, error if isinstance(error, Problem) else problem_of(error))


@sockets.websocket(f"{PATH}{{job_id}}")
async def dial(websocket: WebSocket) -> None:
    """Connect the worker that runs a session. It proves that it holds the job."""
    await service_of(websocket).sessions.dial(websocket)


@sockets.websocket(f"{PATH}{{job_id}}/client")
async def take_back(websocket: WebSocket) -> None:
    """Serve a client that another process relays. That process proves its right to do so."""
    await service_of(websocket).sessions.take_back(websocket)


async def _begin(
    service: Service, caller: Principal, websocket: WebSocket, name: str, parameters: str, tenant: str | None
) -> None:
    if not 0 < len(name) <= NAME_MAX:
        raise Problem("invalid", "task_type is missing: name the task to open a session with")
    body = parameters.encode("utf-8", "replace")
    check_depth(body)
    values: Any = read_json(body)
    if not isinstance(values, dict):
        raise Problem("invalid", "parameters must be a JSON object")
    tenant = tenant_for(caller, tenant)
    service.quotas.submit(caller)
    await service.app.follow_policy()
    task = await service.known.find(name)
    if not task.is_interactive:
        await service.known.entries()  # The task may be new, and a session cannot wait for a worker.
        task = await service.known.find(name)
    if not task.is_interactive:
        raise Problem("invalid", f'no interactive task {name!r} is known here (duration="interactive")')
    trace_id = taken_trace(websocket.headers.get("traceparent"))
    try:
        session = await service.sessions.begin(task, values, tenant=tenant, trace_id=trace_id)
    except SessionDenied as reason:
        await _deny(websocket, DENIED, str(reason))
        return
    await _serve(service, caller, websocket, session)


async def _come_back(service: Service, caller: Principal, websocket: WebSocket, task_id: str, secret: str) -> None:
    session = service.sessions.find(task_id, secret, caller.tenant)
    if session is not None:
        await _serve(service, caller, websocket, session)
        return
    job = (await service.client.read_jobs([JobId(task_id[:64])]))[0]
    where = None
    if job is not None and caller.tenant in (None, job.tenant):
        where = await service.sessions.where(job)
    far = None if where is None else await reach(where[0], {**where[1], RESUME: _header(secret)})
    if far is None:
        await _deny(websocket, NOT_FOUND, "no such session, or it is too late to come back")
        return
    await websocket.accept(subprotocol=subprotocol_of(websocket))
    with service.stream(caller.token_id) as revoked:
        await forward(websocket, far, revoked, service.stopping)


async def _serve(service: Service, caller: Principal, websocket: WebSocket, session: InteractiveSession) -> None:
    try:
        await websocket.accept(subprotocol=subprotocol_of(websocket))
    except (WebSocketDisconnect, RuntimeError):
        session.leave()
        return
    with service.stream(caller.token_id) as revoked:
        await session.attach_client(websocket, revoked, service.stopping)


async def _deny(websocket: WebSocket, code: int, reason: str) -> None:
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        await websocket.accept(subprotocol=subprotocol_of(websocket))
        await websocket.send_text(encode({"type": "denied", "error": reason}).decode())
        await websocket.close(code, reason.encode()[:REASON_MAX].decode(errors="ignore"))


def _header(secret: str) -> str:
    """Return a secret encoded for a header."""
    return "".join(letter for letter in secret[:NAME_MAX] if letter.isascii() and (letter.isalnum() or letter in "-_"))
