"""A small application behind the guard, and calls of it with exactly the bytes that a test wants."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, WebSocket
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response, StreamingResponse

from headway.security.tokens import Tokens, create_token
from headway.server import problems
from headway.server.auth import (
    AuthState,
    FailureLimiter,
    Principal,
    Scope,
    authorise,
    refuse_socket,
    subprotocol_of,
    tenant_for,
    ticket_for,
)
from headway.server.guard import Guard
from headway.server.problems import Problem
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock

HERE = ("127.0.0.1", 50_000)
EXTENSIONS: dict[str, Any] = {"websocket.http.response": {}}

Headers = Sequence[tuple[str, str]]


class Answer(NamedTuple):
    """The reply to a request."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        code: str = self.json["code"]
        return code


class GuardedApp:
    """A store and a small application behind a guard. It reads the tokens for each request."""

    def __init__(self, *, may_open: bool = True, limiter: FailureLimiter | None = None, **guard: Any) -> None:
        self.store = MemoryStore(clock=ManualClock())
        self.reads = 0
        self.tokens = Tokens(self._open, may_open=may_open, every=0, clock_every=0)
        self.auth = AuthState(self.tokens, limiter or FailureLimiter())
        self.seen: list[str] = []  # What the application was reached by.
        self.app = application(self)
        self.guard = Guard(self.app, self.tokens, **guard)

    async def _open(self) -> MemoryStore:
        self.reads += 1
        return self.store

    async def token(self, *scopes: str, tenant: str | None = None) -> str:
        """Create a token. Return its text."""
        return (await create_token(self.store, scopes or ["admin"], tenant=tenant, now_at=1))[1]

    async def ask(
        self,
        method: str,
        path: str,
        headers: Headers = (),
        body: bytes | Iterable[bytes] = b"",
        *,
        host: str | None = "localhost:8000",
        token: str | None = None,
        client: tuple[str, int] | None = HERE,
    ) -> Answer:
        """Send a request with only these headers, ``Host`` and the token."""
        parts = [body] if isinstance(body, bytes) else list(body)
        return await self.ask_slowly(method, path, headers, _job_source(parts), host=host, token=token, client=client)

    async def ask_slowly(
        self,
        method: str,
        path: str,
        headers: Headers,
        receive: Callable[[], Awaitable[dict[str, Any]]],
        *,
        host: str | None = "localhost:8000",
        token: str | None = None,
        client: tuple[str, int] | None = HERE,
    ) -> Answer:
        scope = _scope("http", path, headers, host, token, client) | {"method": method}
        return await _answered(self.guard, scope, receive)

    async def connect(
        self,
        path: str,
        headers: Headers = (),
        *,
        subprotocols: Sequence[str] = (),
        host: str | None = "localhost:8000",
        token: str | None = None,
        client: tuple[str, int] | None = HERE,
        denial: bool = True,
    ) -> Answer:
        """Open a WebSocket. Status 101: accepted, and the body is the subprotocol. Status 0: closed without a reply."""
        more = {"subprotocols": list(subprotocols), "extensions": EXTENSIONS if denial else {}}
        scope = _scope("websocket", path, headers, host, token, client) | more
        return await _answered(self.guard, scope, _connecting)


async def call(app: Any, method: str, path: str, *, token: str | None = None) -> Answer:
    """Call an application with only a token. The method ``WS`` opens a WebSocket."""
    kind = "websocket" if method == "WS" else "http"
    scope = _scope(kind, path, (), "localhost", token, HERE)
    if kind == "http":
        return await _answered(app, scope | {"method": method}, _job_source([b""]))
    return await _answered(app, scope | {"subprotocols": [], "extensions": EXTENSIONS}, _connecting)


def application(guarded_app: GuardedApp) -> FastAPI:
    """Build an application with a route for each scope."""
    api = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    api.state.auth = guarded_app.auth
    problems.install(api)

    def told(caller: Principal) -> Response:
        return JSONResponse(
            {"scopes": sorted(caller.scopes), "tenant": caller.tenant, "token": caller.token_id, "open": caller.open}
        )

    def route(path: str, methods: list[str], scope: Scope) -> None:
        async def handle(request: Request) -> Response:
            caller = await authorise(request, scope)
            size = len(await request.body())
            guarded_app.seen.append(f"{request.method} {path} {size}")
            return told(caller)

        api.add_api_route(path, handle, methods=methods)

    methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
    for scope in Scope:
        route(f"/{scope.value}", methods, scope)
    route("/task", ["GET"], Scope.SUBMIT)
    route("/healthz", ["GET"], Scope.PUBLIC)
    route("/api/v1/tasks/bulk", ["POST"], Scope.SUBMIT)
    route("/api/v1/tasks/{task_id}/events", ["GET", "POST"], Scope.READ)

    @api.post("/tenant")
    async def tenant(request: Request) -> Response:
        caller = await authorise(request, Scope.SUBMIT)
        return JSONResponse({"tenant": tenant_for(caller, (await request.json()).get("tenant"))})

    @api.post("/parsed")
    async def parsed(values: dict[str, Any]) -> Response:
        return JSONResponse(values)

    @api.post("/api/v1/tasks/{task_id}/ticket")
    @api.post("/api/v1/interactive/ticket")
    async def ticket(request: Request) -> Response:
        text, _ = await ticket_for(request, await authorise(request, Scope.READ))
        return JSONResponse({"ticket": text})

    @api.get("/bug")
    async def bug(request: Request) -> Response:
        raise RuntimeError("secret of the house")

    @api.get("/stream")
    async def stream(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"a"
            yield b"b"

        return StreamingResponse(parts(), headers={"Server": "x", "Cache-Control": "public"})

    async def socket(websocket: WebSocket) -> None:
        try:
            caller = await authorise(websocket, Scope.READ)
        except Problem as problem:
            await refuse_socket(websocket, problem)
            return
        guarded_app.seen.append(f"socket {caller.who}")
        await websocket.accept(subprotocol=subprotocol_of(websocket))
        await websocket.close()

    api.add_api_websocket_route("/api/v1/tasks/{task_id}/stream", socket)
    api.add_api_websocket_route("/api/v1/interactive", socket)
    return api


def connection(guarded_app: GuardedApp, scope: dict[str, Any]) -> HTTPConnection:
    """Return the connection that a route gets."""
    return HTTPConnection(scope | {"app": guarded_app.app})


def _scope(
    kind: str, path: str, headers: Headers, host: str | None, token: str | None, client: tuple[str, int] | None
) -> dict[str, Any]:
    given = [*([("host", host)] if host is not None else []), *headers]
    if token is not None:
        given.append(("authorization", f"Bearer {token}"))
    bare, _, query = path.partition("?")
    return {
        "type": kind,
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http" if kind == "http" else "ws",
        "path": bare,
        "raw_path": bare.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in given],
        "client": client,
        "server": ("127.0.0.1", 8000),
    }


async def _connecting() -> dict[str, Any]:
    return {"type": "websocket.connect"}


def _job_source(parts: list[bytes]) -> Callable[[], Awaitable[dict[str, Any]]]:
    async def receive() -> dict[str, Any]:
        if not parts:
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    return receive


async def _answered(app: Any, scope: dict[str, Any], receive: Callable[[], Awaitable[dict[str, Any]]]) -> Answer:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except RuntimeError:
        assert sent  # It was answered before it was raised, for the log.
    first = sent[0]
    if first["type"] == "websocket.accept":
        return Answer(101, {}, (first.get("subprotocol") or "").encode())
    if first["type"] == "websocket.close":
        return Answer(0, {}, json.dumps({"code": first.get("reason")}).encode())
    starts = [message for message in sent if message["type"].endswith("response.start")]
    assert len(starts) == 1
    headers: dict[str, str] = {}
    for name, value in first["headers"]:
        assert name.decode() not in headers, f"{name!r} twice"
        headers[name.decode()] = value.decode()
    return Answer(first["status"], headers, b"".join(message.get("body", b"") for message in sent))
