"""Interactive sessions: a client opens one by WebSocket, and the worker that runs it dials in."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, WebSocket
from starlette.responses import Response
from starlette.websockets import WebSocketDisconnect

from headway.core.errors import HeadwayError
from headway.engine.sessions import PATH
from headway.engine.traces import taken_trace
from headway.server.auth import Caller, Scope, authorise, refuse_socket, subprotocol_of, tenant_for, ticket_for
from headway.server.problems import Problem, problem_of
from headway.server.routes.streams import NOT_FOUND, TICKET_SECONDS
from headway.server.routes.tasks import encode, reply
from headway.server.routing import Routes, caller_of, check_depth, read_json
from headway.server.service import Service, service_of
from headway.server.session import Session
from headway.server.sessions import Denied
from headway.server.shapes import Ticket

DENIED = 4429
REASON_MAX = 120  # Bytes of a close frame's reason; it has room for 123.

routes = Routes("sessions", "/api/v1")
sockets = APIRouter()
SOCKET_SCOPES = {"/api/v1/interactive": Scope.SUBMIT, f"{PATH}{{job_id}}": Scope.PUBLIC}


@routes.post(
    "/interactive/ticket",
    scope=Scope.SUBMIT,
    answers={201: Ticket},
    summary="A ticket for a browser's session",
)
async def make_ticket(request: Request) -> Response:
    """Make a ticket, good once within 60 s as `?ticket=` of `/interactive`: to open a session, or to come back."""
    text, _ = await ticket_for(request, caller_of(request))
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
    """Open a session with a task, or come back to one; denied at once if there is no place for it."""
    service = service_of(websocket)
    try:
        caller = await authorise(websocket, Scope.SUBMIT)
        service.check_room()
        if task_id:
            session = service.sessions.find(task_id, resume, caller.tenant)
            denied = (NOT_FOUND, "no such session, or it is too late to come back")
        else:
            session, denied = await _begin(service, caller, websocket, task_type, parameters, tenant)
    except (Problem, HeadwayError) as error:
        await refuse_socket(websocket, error if isinstance(error, Problem) else problem_of(error))
        return
    try:
        await websocket.accept(subprotocol=subprotocol_of(websocket))
        if session is None:
            await _deny(websocket, *denied)
            return
    except (WebSocketDisconnect, RuntimeError):
        if session is not None:
            session.leave()
        return
    with service.stream(caller.token_id) as revoked:
        await session.attach_client(websocket, revoked, service.stopping)


@sockets.websocket(f"{PATH}{{job_id}}")
async def dial(websocket: WebSocket) -> None:
    """Let in the worker that runs a session; it proves that it holds the job."""
    await service_of(websocket).sessions.dial(websocket)


async def _begin(
    service: Service, caller: Caller, websocket: WebSocket, name: str, parameters: str, tenant: str | None
) -> tuple[Session | None, tuple[int, str]]:
    if not 0 < len(name) <= 255:
        raise Problem("invalid", "task_type names the task to open a session with")
    check_depth(parameters.encode("utf-8", "replace"))
    values: Any = read_json(parameters.encode("utf-8", "replace"))
    if not isinstance(values, dict):
        raise Problem("invalid", "parameters is a JSON object")
    await service.app.follow_policy()
    task = await service.known.find(name)
    if not task.is_interactive:
        raise Problem("invalid", f'no interactive task {name!r} is known here (duration="interactive")')
    trace_id = taken_trace(websocket.headers.get("traceparent"))
    try:
        found = await service.sessions.begin(task, values, tenant=tenant_for(caller, tenant), trace_id=trace_id)
    except Denied as reason:
        return None, (DENIED, str(reason))
    return found, (DENIED, "")


async def _deny(websocket: WebSocket, code: int, reason: str) -> None:
    await websocket.send_text(encode({"type": "denied", "error": reason}).decode())
    await websocket.close(code, reason.encode()[:REASON_MAX].decode(errors="ignore"))
