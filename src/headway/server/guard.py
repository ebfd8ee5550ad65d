"""ASGI middleware that checks every request before it is read, and adds headers to every response.

It costs a few microseconds. A server without tokens trusts every caller. The guard therefore refuses requests from
other machines and from pages of other sites.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import time
from array import array
from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Send
from starlette.types import Scope as AsgiScope

from headway.core.errors import StoreError
from headway.runtime.bounded_wait import within
from headway.security.binding import reaches_only_here
from headway.security.tokens import Tokens
from headway.server.auth import COOKIE, DENIAL, OWN_SITES, SIGN_IN, unauthenticated
from headway.server.problems import Problem, answer

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# Ends of paths, because the application may be mounted below a path of another one.
EFFECT = "/task"  # This GET has an effect, so it is guarded like a POST.
HEALTH = "/healthz"  # It answers even if the store does not.
READY = "/readyz"  # It must answer within a second.
READY_SECONDS = 0.2  # Maximum seconds that this route waits for the tokens.
HERE = frozenset({"localhost", "127.0.0.1", "[::1]"})
TEST_HOST = "testserver"

HEADERS_MAX = 100
NAME_MAX = 300  # Characters of a header that names a host, an origin or a content type.
AROUND = 64 << 10  # Bytes of a body in addition to the parameters of its task.
BODY_MAX = (256 << 10) + AROUND  # Unless the settings let a task have more.
BULK_MAX = 4 << 20
BODY_SECONDS = 30.0
DEPTH_MAX = 64

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)

_WATCHED = frozenset(
    b"authorization content-encoding content-length content-type forwarded host origin sec-fetch-site "
    b"transfer-encoding x-real-ip".split()
)
# Headers that proxies add: names, suffixes, and a part of a name.
_FORWARDING = frozenset(
    b"cdn-loop cf-ray via x-azure-socketip x-envoy-external-address x-original-host x-original-url x-remote-addr "
    b"x-remote-ip x-rewrite-url".split()
)
_FORWARDING_ENDS = (b"client-ip", b"clientip", b"connecting-ip", b"connecting-ipv6", b"real-ip", b"user-ip")
ADDED = (
    (b"content-security-policy", CSP.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_REPLACED = frozenset({b"server", *(name for name, _ in ADDED)})
# For files whose address is a digest of them. No cache stores anything else.
IMMUTABLE = "public, max-age=31536000, immutable"
_STORED = (b"cache-control", IMMUTABLE.encode())
_Headers = dict[bytes, bytes]
COOKIE_NAME = COOKIE.encode() + b"="

# A string, or one without an end, so that an invalid body takes no more time than a valid one.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_is_here = functools.lru_cache(maxsize=1_000)(reaches_only_here)
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # One level down or up.
_NO_BRACKETS = bytes(letter for letter in range(256) if letter not in b"[]{}")


class Guard:
    """The middleware. ``hosts``: further host names that a server without tokens accepts. ``origins``: other origins
    whose pages may open WebSockets.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        *,
        hosts: Iterable[str] = (),
        origins: Iterable[str] = (),
        body_max: int = BODY_MAX,
        bulk_max: int = BULK_MAX,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._hosts = HERE | {host.lower() for host in hosts}
        self._origins = frozenset(origin.lower().encode() for origin in origins)
        self._body_max = body_max
        self._bulk_max = max(body_max, bulk_max)
        self._slow = _SlowBodyTimer(body_seconds)

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        path: str = scope["path"]
        if not self._tokens.fresh() and not path.endswith(HEALTH):
            with contextlib.suppress(StoreError, TimeoutError):  # Routes refuse the request if needed.
                if path.endswith(READY):
                    await within(READY_SECONDS, self._tokens.refresh())
                else:
                    await self._tokens.refresh()
        guarded = _GuardedResponse(send)
        try:
            body = self._admit(scope, path)
        except Problem as problem:
            await _refuse(scope, receive, guarded.send, problem)
            return
        if body is not None:
            body.receive_more = receive
            guarded.body = body
        read, write = receive if body is None else body.receive, guarded.send
        if scope["type"] == "http" and scope["method"] == "HEAD" and not path.endswith(EFFECT):
            head = _HeadResponse(read, write)
            scope, read, write = {**scope, "method": "GET"}, head.receive, head.send
        try:
            await self._app(scope, read, write)
        except ClientDisconnect:  # The client disconnected while it sent its body.
            return
        except Exception:
            if guarded.started:
                raise
            if body is None or body.problem is None:
                # The ASGI server would reply without our headers. It still gets the error and logs it.
                mistake = Problem("internal", "the server made a mistake; its log tells more")
                await _refuse(scope, receive, guarded.send, mistake)
                raise
        if body is not None and body.problem is not None and not guarded.started:
            guarded.body = None
            await _refuse(scope, receive, guarded.send, body.problem)

    def _admit(self, scope: AsgiScope, path: str) -> _BoundedBody | None:
        """Check the head of a request. Return how to read its body, if it may have one."""
        headers: _Headers = {}
        guarded, forwarded = self._tokens.guarded, False
        given = scope["headers"]
        if len(given) > HEADERS_MAX:
            raise Problem("malformed", f"there are more than {HEADERS_MAX} headers")
        for name, value in given:
            if name == b"cookie":  # There may be several.
                headers[name] = headers.get(name, b"") + b";" + value
            elif name in _WATCHED:
                if name in headers:
                    raise Problem("malformed", f"there are several {name.decode('latin-1')} headers")
                headers[name] = value
            if guarded and not forwarded:
                forwarded = name in _FORWARDING or name.endswith(_FORWARDING_ENDS) or b"forwarded" in name
        if headers.get(b"transfer-encoding", b"chunked").strip().lower() != b"chunked":
            # A proxy may have read another body than our parser would.
            raise Problem("malformed", "Transfer-Encoding must be chunked", headers={"Connection": "close"})
        if scope["type"] == "websocket":
            if guarded:
                self._check_open(scope, headers, forwarded)
                _check_site(headers)
            self._check_origin(headers)
            return None
        method: str = scope["method"]
        unsafe = method not in SAFE
        if guarded:
            self._check_open(scope, headers, forwarded)
            if unsafe or path.endswith(EFFECT):
                _check_site(headers)
                self._check_origin(headers)
        elif unsafe and headers.get(b"authorization", b"")[:7].lower() != b"bearer ":
            if COOKIE_NAME not in headers.get(b"cookie", b"") and not path.endswith(SIGN_IN):
                raise unauthenticated()  # A browser never sends a bearer token by itself.
            self._check_page(headers)
        return self._expect(headers, path, unsafe=unsafe)

    def _check_open(self, scope: AsgiScope, headers: _Headers, forwarded: bool) -> None:
        """Check that a request to a server without tokens comes from this machine."""
        host = headers.get(b"host", b"")
        # Long names are not cached, because a client could fill the memory with them.
        if len(host) > NAME_MAX or host_name(host) not in self._hosts:
            raise Problem("wrong_host", "without tokens this server accepts only host names of this machine")
        if forwarded:
            raise Problem("forwarded", "without tokens this server refuses requests that a proxy forwards")
        client = scope.get("client")
        if client and not _is_here(client[0]) and TEST_HOST not in self._hosts:
            raise Problem("forbidden", "without tokens this server serves only this machine")

    def _check_page(self, headers: _Headers) -> None:
        """Check that a request with a cookie comes from a page of this server. The browser sends the cookie by itself.

        Browsers name the site in one header or the other. A client that names neither is not a browser, and sends its
        token in a header.
        """
        if headers.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
            raise Problem("forbidden_origin", "pages of other sites may not do this")
        if b"sec-fetch-site" not in headers and b"origin" not in headers:
            raise Problem("forbidden_origin", "a request with a cookie must come from a page of this server")
        self._check_origin(headers)

    def _check_origin(self, headers: _Headers) -> None:
        origin, host = headers.get(b"origin"), headers.get(b"host", b"")
        if origin is None or origin.lower() in self._origins:
            return
        if len(origin) <= NAME_MAX and len(host) <= NAME_MAX and same_origin(origin, host):
            return
        raise Problem("forbidden_origin", "pages of other sites may not do this")

    def _expect(self, headers: _Headers, path: str, *, unsafe: bool) -> _BoundedBody | None:
        length = headers.get(b"content-length")
        if length is None and b"transfer-encoding" not in headers:
            if not unsafe:
                return None
            size = 0
        elif length is None:
            size = 1
        elif length.isdigit():
            size = int(length) if len(length) < 16 else 1 << 50
        else:
            raise Problem("malformed", "Content-Length must be a number")
        if headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise Problem("unsupported_media_type", "bodies must not be compressed")
        as_json = is_json(headers.get(b"content-type", b"")[:NAME_MAX])
        if unsafe and size and not as_json:
            raise _not_json()
        most = self._bulk_max if path.endswith("/bulk") or "/internal/" in path else self._body_max
        if size > most:
            raise _too_large(most)
        return _BoundedBody(most, self._slow, as_json=as_json or not unsafe)


class _BoundedBody:
    """A body with bounds of size and time."""

    __slots__ = ("_as_json", "_done", "_most", "_size", "_slow", "began", "problem", "reader", "receive_more")

    receive_more: Receive

    def __init__(self, most: int, slow: _SlowBodyTimer, *, as_json: bool) -> None:
        self._most = most
        self._slow = slow
        self._as_json = as_json
        self._size = 0
        self._done = False
        self.began = time.monotonic()
        self.reader: asyncio.Task[Any] | None = None
        self.problem: Problem | None = None

    async def receive(self) -> Message:
        if self.problem is not None:
            raise self.problem
        if self._done:  # From now on only the end of the connection can come.
            return await self.receive_more()
        self.reader = asyncio.current_task()
        self._slow.watch(self)
        try:
            message = await self.receive_more()
        except asyncio.CancelledError:
            self._raise_if_late()
            raise
        finally:
            self._slow.leave(self)
        if message["type"] == "http.request":
            part = message.get("body", b"")
            self._size += len(part)
            if self._size > self._most:
                self.problem = _too_large(self._most)
            elif part and not self._as_json:
                self.problem = _not_json()
            if self.problem is not None:
                raise self.problem
            self._done = not message.get("more_body", False)
        return message

    def _raise_if_late(self) -> None:
        """Raise ``Problem`` if the timer has cancelled the read. Any other cancel goes on."""
        if self.problem is not None and self.reader is not None and self.reader.uncancel() == 0:
            raise self.problem from None


class _SlowBodyTimer:
    """Cancels reads of bodies that take too long. One timer serves all, because one for each would cost more."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reading: set[_BoundedBody] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, body: _BoundedBody) -> None:
        self._reading.add(body)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds / 4, self._cancel_late)

    def leave(self, body: _BoundedBody) -> None:
        self._reading.discard(body)

    def _cancel_late(self) -> None:
        self._timer = None
        latest = time.monotonic() - self._seconds
        for body in [body for body in self._reading if body.began <= latest]:
            self.leave(body)
            if body.reader is not None:
                body.problem = Problem("malformed", "the body did not come in time", headers={"Connection": "close"})
                body.reader.cancel()
        if self._reading:
            self._timer = asyncio.get_running_loop().call_later(self._seconds / 4, self._cancel_late)


class _GuardedResponse:
    """Sends a response with our headers, or instead the problem of the request."""

    __slots__ = ("_send", "body", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.body: _BoundedBody | None = None
        self.started = False

    async def send(self, message: Message) -> None:
        kind = message["type"]
        if kind in ("http.response.start", "websocket.http.response.start"):
            if self.body is not None and self.body.problem is not None and message["status"] >= 400:
                return  # The application complains about a body that it never got. The guard replies with the cause.
            self.started = True
            given = message.get("headers", ())
            stored = _STORED in given
            kept = [pair for pair in given if pair[0].lower() not in _REPLACED]
            added = [_STORED if pair[0] == b"cache-control" else pair for pair in ADDED] if stored else ADDED
            message["headers"] = [*kept, *added]
        elif kind == "http.response.body" and not self.started:
            return
        elif kind in ("websocket.accept", "websocket.close"):
            self.started = True
        await self._send(message)


class _HeadResponse:
    """Replies to a HEAD with the head of the GET response. The body is dropped, and a stream ends at once."""

    __slots__ = ("_receive", "_send", "_started")

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._started = asyncio.Event()

    async def receive(self) -> Message:
        if self._started.is_set():
            return {"type": "http.disconnect"}
        return await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._send(message)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            self._started.set()


def too_deep(body: bytes) -> bool:
    """Return whether JSON nests too deeply for a parser. It takes linear time for any input."""
    if body.count(b"[") + body.count(b"{") <= DEPTH_MAX:
        return False
    steps = array("b", _STRING.sub(b"", body).translate(_STEPS, _NO_BRACKETS))
    return max(accumulate(steps), default=0) > DEPTH_MAX


async def _refuse(scope: AsgiScope, receive: Receive, send: Send, problem: Problem) -> None:
    if scope["type"] == "websocket" and DENIAL not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": 1008, "reason": problem.code})
        return
    await answer(problem)(scope, receive, send)


def _check_site(headers: _Headers) -> None:
    if headers.get(b"sec-fetch-site") not in OWN_SITES:
        raise Problem("forbidden_origin", "pages of other sites may not do this")


def _too_large(most: int) -> Problem:
    # The rest of the body is not read.
    return Problem("too_large", f"the body is larger than {most:,} bytes", headers={"Connection": "close"}, most=most)


def _not_json() -> Problem:
    return Problem("unsupported_media_type", "the body must be application/json")


@functools.lru_cache(maxsize=100)
def is_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"


@functools.lru_cache(maxsize=1_000)
def host_name(host: bytes) -> str:
    """Return the name in a Host header without the port, or an empty string if it is malformed."""
    text = host.decode("latin-1").lower()
    name, colon, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not colon:
        return text
    return name if port.isdigit() else ""


@functools.lru_cache(maxsize=1_000)
def same_origin(origin: bytes, host: bytes) -> bool:
    scheme, slashes, place = origin.decode("latin-1").lower().partition("://")
    port = {"http": ":80", "https": ":443"}.get(scheme)
    if not slashes or port is None:
        return False
    own = host.decode("latin-1").lower()
    return bool(own) and place.removesuffix(port) == own.removesuffix(port)
