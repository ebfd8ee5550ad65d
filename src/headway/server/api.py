"""The ASGI application: all routes, the guard around them, and the OpenAPI document."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from headway.client.app import Headway
from headway.server import problems
from headway.server.docs import add_docs
from headway.server.guard import AROUND, EFFECT, Guard
from headway.server.maintenance import MountedMaintenance, run_maintenance
from headway.server.messages import describe_messages
from headway.server.routes import admin, batches, fasdis, health, interactive, policy, queue, streams, tasks, workers
from headway.server.service import Service
from headway.version import __version__

ABOUT = """Submit tasks, watch them, ask why they wait, and run them from any language.

Errors are `application/problem+json` with a stable `code`. Times are RFC 3339 in UTC.
With tokens in use, send `Authorization: Bearer hw_…`; each operation names the scope it needs.
"""
LICENSE = {"name": "MIT", "identifier": "MIT"}
TAGS = {
    "tasks": "Submit tasks, look at them, cancel and retry them.",
    "batches": "Counted sets of tasks, with their results.",
    "queue": "The queue in numbers, and its dead letters.",
    "policy": "The policy in force.",
    "streams": "What happens to a task, as it happens.",
    "sessions": "Tasks that talk with the client that opened them.",
    "operating": "Workers, pauses, the catalogue and the audit.",
    "workers": "The protocol of workers that speak HTTP.",
    "fasdis": "One call to schedule a task, one to look at it.",
    "health": "What machines ask: probes and metrics.",
}
FAMILIES = (tasks, batches, queue, policy, streams, interactive, admin, workers, fasdis, health)


def headway_api(
    app: Headway, *, hosts: Iterable[str] = (), origins: Iterable[str] = (), may_open: bool = True
) -> FastAPI:
    """Build the ASGI application of an app, to serve it or to mount it in another application.

    ``hosts``: further host names that it accepts while no token exists. ``origins``: origins of pages that may open
    its WebSockets. ``may_open``: accept callers without a token while none exists. The guard then refuses requests
    from other machines.
    """
    service = Service(app, may_open=may_open)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        try:
            async with run_maintenance(service):
                yield
        finally:
            service.stop()
            await service.close()

    api = _DocumentedApi(
        title="Headway",
        version=__version__,
        description=ABOUT,
        license_info=LICENSE,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        lifespan=lifespan,
        redirect_slashes=False,
    )
    api.state.service = api.state.auth = service
    problems.install(api, _allowed_methods)
    for family in FAMILIES:
        api.include_router(family.routes.router)
    api.include_router(streams.sockets)
    api.include_router(interactive.sockets)
    add_docs(api)
    api.add_middleware(MountedMaintenance, service=service)
    body_max = app.settings.http_payload_max + AROUND
    api.add_middleware(Guard, tokens=service.tokens, hosts=hosts, origins=origins, body_max=body_max)
    return api


def _allowed_methods(path: str) -> set[str]:
    """Return the methods of a path. A GET without an effect implies HEAD."""
    found: set[str] = set()
    for family in FAMILIES:
        for route in family.routes.router.routes:
            if isinstance(route, APIRoute) and route.path_regex.match(path):
                found |= route.methods or set()
    return found | {"HEAD"} if "GET" in found and not path.endswith(EFFECT) else found


def client_of(app: Headway) -> Callable[[], Any]:
    """Return a FastAPI dependency that opens the app: ``queue: Annotated[Headway, Depends(client_of(app))]``."""

    async def client() -> Headway:
        await app.client.store()
        return app

    return client


class _DocumentedApi(FastAPI):
    """An application whose OpenAPI document has our problems instead of the framework's errors."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            schema = super().openapi()
            schemas = schema["components"]["schemas"]
            for name in ("HTTPValidationError", "ValidationError"):
                schemas.pop(name, None)
            schemas |= describe_messages()
            schemas["Problem"] = _PROBLEM
            schema["components"]["securitySchemes"] = {
                "bearer": {"type": "http", "scheme": "bearer", "description": "A token: `headway token create`."}
            }
            for operations in schema["paths"].values():
                for operation in operations.values():
                    unprocessable = operation["responses"].get("422")
                    if unprocessable and "application/json" in unprocessable.get("content", {}):
                        del operation["responses"]["422"]["content"]["application/json"]
        return self.openapi_schema or {}


_PROBLEM = {
    "type": "object",
    "description": "What went wrong. `code` is stable; `detail` is for people.",
    "required": ["type", "title", "status", "detail", "code"],
    "properties": {
        "type": {"type": "string", "example": "urn:headway:problem:job_not_found"},
        "title": {"type": "string", "example": "Not Found"},
        "status": {"type": "integer", "example": 404},
        "detail": {"type": "string", "example": "no task 01999e2f; it may have been removed since it ended"},
        "code": {"type": "string", "example": "job_not_found"},
    },
}
