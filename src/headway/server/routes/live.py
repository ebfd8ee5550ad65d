"""Live views by server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Query, Request
from starlette.responses import Response

from headway.core.suggest import did_you_mean
from headway.server.auth import Principal, Scope
from headway.server.problems import FIELD_MAX, Problem
from headway.server.routes.streams import EventResponse
from headway.server.routing import Routes, caller_of
from headway.server.service import Service, service_of

routes = Routes("streams", "/api/v1", whole=True)


@routes.get(
    "/live",
    Scope.READ,
    (None, "Server-sent events `update`: an object by view, with the members that have changed."),
    "What changes, as it changes",
    problems=("too_many_streams",),
)
async def get_live(
    request: Request,
    views: Annotated[
        str, Query(max_length=200, description="Names with commas: now, workers, tenants, limits.")
    ] = "now",
) -> Response:
    """Stream views of the queue: at most one message a second, with the members that have changed.

    The first message has all members. `now` is the object of `/queue/overview`, the others are those of their routes.
    """
    service, caller = service_of(request), caller_of(request)
    names = tuple(dict.fromkeys(name.strip() for name in views.split(",") if name.strip()))
    for name in names:
        if name not in service.live.names:
            known = sorted(service.live.names)
            suggestion = did_you_mean(name[:FIELD_MAX], known)
            raise Problem("invalid", f"views: no view {name[:FIELD_MAX]!r}{suggestion} (views: {', '.join(known)})")
    if not names:
        raise Problem("invalid", "views: name at least one view")
    service.check_room(caller.token_id)
    return EventResponse(_events(service, caller, names), media_type="text/event-stream")


async def _events(service: Service, caller: Principal, names: tuple[str, ...]) -> AsyncIterator[bytes]:
    with service.stream(caller.token_id) as revoked:
        yield b"retry: 1000\n\n"
        async for message in service.live.follow(names, [service.stopping, revoked]):
            yield b"event: update\ndata: %s\n\n" % message if message else b": still here\n\n"
