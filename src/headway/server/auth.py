"""Authentication: bearer tokens, tickets for the streams of browsers, and a limit on failed attempts."""

from __future__ import annotations

import functools
import ipaddress
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from urllib.parse import parse_qsl

from starlette.requests import HTTPConnection
from starlette.types import Scope as AsgiScope
from starlette.websockets import WebSocket

from headway.core.errors import StoreUnavailable
from headway.security.audit import OPEN
from headway.security.browser_sessions import BrowserSessions
from headway.security.tickets import make_ticket, redeem_ticket
from headway.security.tokens import TokenGrant, Tokens, id_of
from headway.server.problems import Problem, answer

BEARER = b"bearer "
PROTOCOL = "headway.v1"  # The subprotocol that a WebSocket client offers beside its token.
BEARER_PROTOCOL = "headway.bearer."
DENIAL = "websocket.http.response"  # The ASGI extension for a response instead of a handshake.
NEVER_IN_URLS = frozenset({"token", "access_token", "bearer", "authorization", "api_key", "apikey"})
STREAMS = ("/stream", "/events")  # The routes that a ticket for the path before them opens.
SESSIONS = "/interactive"
TICKET = "/ticket"
SIGN_IN = "/api/v1/session"  # The route that sets the cookie.
COOKIE, SECURE_COOKIE = "headway", "__Host-headway"  # The cookie of a browser's session; the second over TLS.

# What browsers write into Sec-Fetch-Site for requests of the same origin, and of no page at all.
OWN_SITES = frozenset({None, b"same-origin", b"none"})
FAILURES_MAX = 20
FAILURES_SECONDS = 60.0
REMEMBERED_MAX = 10_000


class Scope(StrEnum):
    """The scope that a route needs. ``ADMIN`` includes all others. ``PUBLIC`` needs no token."""

    PUBLIC = "public"
    SUBMIT = "submit"
    READ = "read"
    WORKER = "worker"
    PUBLISH = "publish"  # No route needs it: it lets a worker publish its tasks.
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller. ``open``: no token exists, and every caller on this machine may do everything."""

    scopes: frozenset[Scope]
    tenant: str | None = None
    token_id: str | None = None
    open: bool = False
    tasks: tuple[str, ...] | None = None  # Patterns of the tasks that a worker token is bound to.
    rate: str | None = None  # How often its token may submit, if the token has a rate.
    browser: bool = False  # The session of a browser.

    def may(self, scope: Scope) -> bool:
        return scope is Scope.PUBLIC or scope in self.scopes or Scope.ADMIN in self.scopes

    @property
    def publishes(self) -> bool:
        """Whether a worker with this token may change the catalogue, limits and crons of its tasks."""
        return self.open or self.tasks is not None or self.may(Scope.PUBLISH)

    @property
    def operates(self) -> bool:
        """Whether this is an operator, whose actions on jobs the audit records."""
        return self.token_id is not None and Scope.ADMIN in self.scopes

    @property
    def who(self) -> str:
        """The name of the caller in the audit."""
        return self.token_id or OPEN


ANYBODY = Principal(frozenset())
EVERYTHING = Principal(frozenset(Scope) - {Scope.PUBLIC}, open=True)


class FailureLimiter:
    """Counts failed attempts by address and by token id, in bounded memory.

    A valid token always passes, so that no client can lock out another. Its 256 bits cannot be guessed.
    """

    def __init__(
        self,
        *,
        most: int = FAILURES_MAX,
        seconds: float = FAILURES_SECONDS,
        remembered: int = REMEMBERED_MAX,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._seconds = seconds
        self._remembered = remembered
        self._clock = clock
        # Failures and since when, by address and by token id. Two maps, so that many ids do not evict an address.
        self._addresses: dict[str, tuple[int, float]] = {}
        self._ids: dict[str, tuple[int, float]] = {}

    def count(self, address: str, token_id: str) -> int:
        """Count a failure. Return 0, or the seconds until the next attempt."""
        waits = [self._count(self._addresses, address)]
        if token_id:
            waits.append(self._count(self._ids, token_id))
        return max(waits)

    def uncount(self, address: str, token_id: str) -> None:
        """Remove a failure: the token was valid, but too new to be known here."""
        for counts, key in ((self._addresses, address), (self._ids, token_id)):
            if key in counts:
                count, since = counts[key]
                counts[key] = (count - 1, since)

    def _count(self, counts: dict[str, tuple[int, float]], key: str) -> int:
        now = self._clock()
        count, since = counts.get(key, (0, now))
        if now - since >= self._seconds:
            counts.pop(key)  # It becomes the newest entry.
            count, since = 0, now
        elif not count and len(counts) >= self._remembered:
            del counts[next(iter(counts))]
        counts[key] = (count + 1, since)
        return math.ceil(since + self._seconds - now) if count >= self._most else 0


@functools.lru_cache(maxsize=1_000)
def _network(address: str) -> str:
    """Return the key to count failures by. For IPv6 it is the network, because a host has billions of addresses."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:100]
    if parsed.version == 4:
        return str(parsed)
    return str(parsed.ipv4_mapped or ipaddress.ip_network((parsed, 64), strict=False))


@dataclass(frozen=True, slots=True)
class AuthState:
    """The state of authentication. The application keeps it as ``app.state.auth``."""

    tokens: Tokens
    limiter: FailureLimiter = field(default_factory=FailureLimiter)
    used_ticket: Callable[[str | None], None] = lambda _: None  # Called with the token whose ticket was used.
    browsers: BrowserSessions | None = None


async def authorise(connection: HTTPConnection, scope: Scope) -> Principal:
    """Return the caller, if it has this scope. Raises ``Problem``."""
    if scope is Scope.PUBLIC:
        return ANYBODY
    auth: AuthState = connection.app.state.auth
    caller = await authenticate(connection.scope, auth)
    require(caller, scope)
    return caller


def require(caller: Principal, scope: Scope) -> None:
    """Raise ``Problem`` unless a caller has a scope."""
    if not caller.may(scope):
        raise Problem("forbidden", f"this needs a token with the scope {scope.value}", scope=scope.value)


async def authenticate(scope: AsgiScope, auth: AuthState) -> Principal:
    """Return the caller. Raises ``Problem``: unauthenticated, too_many_attempts, malformed; and ``StoreError``.

    Before it fails, it reads the tokens once more, whether the token is unknown or wrong.
    """
    tokens = auth.tokens
    await tokens.refresh()
    query = _query(scope)
    if any(name.lower() in NEVER_IN_URLS or id_of(value) for name, value in query.items()):
        raise Problem(
            "malformed", "a token in an address is logged; revoke this token and send the new one as Authorization"
        )
    presented = _presented(scope)
    if presented is not None:
        return await check_token(scope, auth, presented)
    if (ticket := query.get("ticket")) is not None:
        return await _by_ticket(scope, auth, ticket)
    if auth.browsers is not None and (secret := cookie_of(scope)) is not None:
        session = await auth.browsers.find(secret)
        if session is not None and (grant := tokens.grant(session.token_id)) is not None:
            return replace(_caller(grant), browser=True)
    if tokens.open:
        return EVERYTHING
    if tokens.may_open and not tokens.seen:  # The tokens could not be read.
        raise StoreUnavailable("the store does not answer, so the server cannot tell whether a token is needed")
    raise unauthenticated()


async def check_token(scope: AsgiScope, auth: AuthState, presented: str) -> Principal:
    """Return the caller that a token stands for. Raises ``Problem`` and counts the failure if it is not valid."""
    tokens = auth.tokens
    grant = tokens.check(presented) or await _check_again(scope, tokens, auth.limiter, presented)
    await tokens.note_use(grant.token_id)
    return _caller(grant)


def cookie_of(scope: AsgiScope) -> str | None:
    """Return the secret in the cookie of a browser's session, if the request may use it.

    A browser does not send the cookie with requests of other sites. One that did would name the site here.
    """
    found, site = None, None
    for name, value in scope["headers"]:
        if name == b"cookie":
            for part in value.decode("latin-1").split(";"):
                key, _, text = part.strip().partition("=")
                if key in (COOKIE, SECURE_COOKIE) and (found is None or key == SECURE_COOKIE):
                    found = text
        elif name == b"sec-fetch-site":
            site = value
    return found if site in OWN_SITES else None


def unauthenticated(*, presented: bool = False) -> Problem:
    """Return the reply to callers without a valid token. It does not say what is wrong with the token."""
    why = ', error="invalid_token"' if presented else ""
    return Problem(
        "unauthenticated",
        "this needs a token that is known, not expired and not revoked: Authorization: Bearer hw_…",
        headers={"WWW-Authenticate": f'Bearer realm="headway"{why}'},
    )


def tenant_for(caller: Principal, wanted: str | None) -> str | None:
    """Return the tenant that a caller acts for: that of the token, else the named one. Raises ``Problem``."""
    if caller.tenant is None:
        return wanted
    if wanted is not None and wanted != caller.tenant:
        raise Problem("tenant_mismatch", "this token is for another tenant")
    return caller.tenant


async def ticket_for(connection: HTTPConnection, caller: Principal) -> tuple[str, int]:
    """Return a new ticket for the path before ``/ticket``, and when it expires."""
    auth: AuthState = connection.app.state.auth
    store = await auth.tokens.store()
    path: str = connection.scope["path"]
    return await make_ticket(store, token_id=caller.token_id, subject=path.removesuffix(TICKET))


def subprotocol_of(websocket: WebSocket) -> str | None:
    """Return the subprotocol to accept a WebSocket with, if the client offered ours. It never is the token.

    A browser that offers subprotocols closes a connection that is accepted without one, so it must offer ours, too.
    """
    return PROTOCOL if PROTOCOL in websocket.scope.get("subprotocols", []) else None


async def refuse_socket(websocket: WebSocket, problem: Problem) -> None:
    """Refuse a WebSocket with a problem, or with a close code if the server supports no response."""
    if DENIAL in websocket.scope.get("extensions", {}):
        await websocket.send_denial_response(answer(problem))
    else:
        await websocket.close(code=1008, reason=problem.code)


async def _check_again(scope: AsgiScope, tokens: Tokens, limiter: FailureLimiter, presented: str) -> TokenGrant:
    address, token_id = _address(scope), id_of(presented)
    _count_failure(limiter, address, token_id)
    await tokens.follow_anew()
    grant = tokens.check(presented)
    if grant is None:
        raise unauthenticated(presented=True)
    limiter.uncount(address, token_id)
    return grant


async def _by_ticket(scope: AsgiScope, auth: AuthState, text: str) -> Principal:
    tokens, limiter = auth.tokens, auth.limiter
    subject = _subject(scope)
    ticket = None if subject is None else await redeem_ticket(await tokens.store(), text, subject=subject)
    if ticket is not None:
        auth.used_ticket(ticket.token_id)
        if ticket.token_id is None and tokens.open:
            return EVERYTHING
        if ticket.token_id is not None and (grant := tokens.grant(ticket.token_id)) is not None:
            return _caller(grant)
    _count_failure(limiter, _address(scope), "")
    raise unauthenticated(presented=True)


def _count_failure(limiter: FailureLimiter, address: str, token_id: str) -> None:
    if wait := limiter.count(address, token_id):
        raise Problem("too_many_attempts", "too many attempts with a wrong token", headers={"Retry-After": str(wait)})


@functools.lru_cache(maxsize=1_000)
def _caller(grant: TokenGrant) -> Principal:
    known = frozenset(scope for scope in Scope if scope.value in grant.scopes)
    return Principal(known - {Scope.PUBLIC}, grant.tenant, grant.token_id, tasks=grant.tasks, rate=grant.rate)


def _subject(scope: AsgiScope) -> str | None:
    """Return the path that a ticket must be for to open this one, or None if no ticket opens it."""
    path: str = scope["path"]
    if scope["type"] == "http" and scope["method"] != "GET":
        return None
    for stream in STREAMS:
        if path.endswith(stream):
            return path.removesuffix(stream)
    return path if path.endswith(SESSIONS) else None


def _presented(scope: AsgiScope) -> str | None:
    """Return the token in the header or in the subprotocols of a WebSocket, whose headers browsers cannot set."""
    found: str | None = None
    for name, value in scope["headers"]:
        if name == b"authorization":
            if found is not None:
                raise Problem("malformed", "there are several Authorization headers")
            found = value[len(BEARER) :].strip().decode("latin-1") if value[: len(BEARER)].lower() == BEARER else ""
    if found is None and scope["type"] == "websocket":
        for offered in scope.get("subprotocols", ()):
            if offered.startswith(BEARER_PROTOCOL):
                return str(offered.removeprefix(BEARER_PROTOCOL))
    return found


def _query(scope: AsgiScope) -> dict[str, str]:
    try:
        text = scope.get("query_string", b"").decode("latin-1")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=100))
    except ValueError as problem:
        raise Problem("malformed", "there are more than 100 parameters in the address") from problem


def _address(scope: AsgiScope) -> str:
    client = scope.get("client")
    return _network(client[0]) if client else "local"
