"""Sign-in for browsers: a cookie that stands for a token."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from headway.core.timestamps import write_moment
from headway.security.browser_sessions import SESSION_MS
from headway.server.auth import COOKIE, SECURE_COOKIE, Principal, Scope, authenticate, check_token, cookie_of
from headway.server.problems import Problem
from headway.server.routing import Routes, reply
from headway.server.schemas.dashboard import SessionInfo, SignIn
from headway.server.service import service_of

routes = Routes("session", "/api/v1")


@routes.get("/session", Scope.PUBLIC, SessionInfo, "Who the caller is")
async def get_session(request: Request) -> Response:
    """Return the caller's token and scopes. Without a valid token or cookie `signed_in` is false."""
    service = service_of(request)
    try:
        caller = await authenticate(request.scope, request.app.state.auth)
    except Problem as problem:
        if problem.code != "unauthenticated":
            raise
        return reply(_values(None, None))
    secret = cookie_of(request.scope)
    session = None if secret is None else await service.browsers.find(secret)
    by_cookie = session is not None and session.token_id == caller.token_id
    return reply(_values(caller, session.expires_at if session is not None and by_cookie else None))


@routes.post(
    "/session",
    Scope.PUBLIC,
    SessionInfo,
    "Sign in with a token",
    status=201,
    problems=("unauthenticated", "too_many_attempts"),
)
async def sign_in(request: Request, given: SignIn) -> Response:
    """Check a token and set a cookie that stands for it, for 12 hours or until the token is revoked.

    The cookie is `HttpOnly` and `SameSite=Strict`. Requests that change something count only from pages of this server.
    """
    service = service_of(request)
    caller = await check_token(request.scope, request.app.state.auth, given.token)
    if caller.token_id is None:
        raise Problem("unauthenticated", "this needs a token")
    secret, session = await service.browsers.start(caller.token_id)
    response = reply(_values(caller, session.expires_at), 201)
    _set_cookie(request, response, secret, SESSION_MS // 1_000)
    return response


@routes.delete("/session", Scope.PUBLIC, SessionInfo, "Sign out")
async def sign_out(request: Request) -> Response:
    """End the session of the cookie, on every server."""
    secret = cookie_of(request.scope)
    if secret is not None:
        await service_of(request).browsers.end(secret)
    response = reply(_values(None, None))
    _set_cookie(request, response, "", 0)
    return response


def _set_cookie(request: Request, response: Response, secret: str, seconds: int) -> None:
    """Set the cookie. Over TLS its name keeps it from being set or read by any other host."""
    secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")
    response.set_cookie(
        SECURE_COOKIE if secure else COOKIE,
        secret,
        max_age=seconds,
        path="/",
        secure=secure,
        httponly=True,
        samesite="strict",
    )


def _values(caller: Principal | None, expires_at: int | None) -> dict[str, object]:
    return {
        "signed_in": caller is not None,
        "open": caller is not None and caller.open,
        "token_id": None if caller is None else caller.token_id,
        "tenant": None if caller is None else caller.tenant,
        "scopes": [] if caller is None else sorted(caller.scopes),
        "expires_at": write_moment(expires_at),
    }
