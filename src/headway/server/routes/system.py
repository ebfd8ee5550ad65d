"""The server itself: checks, facts about its store, and its settings."""

from __future__ import annotations

from dataclasses import asdict

from fastapi import Request
from starlette.responses import Response

from headway.client.health_checks import examine, recovery
from headway.server.auth import Scope
from headway.server.routing import Routes, reply
from headway.server.schemas.dashboard import SystemReply
from headway.server.service import service_of
from headway.version import __version__

routes = Routes("operating", "/api/v1", whole=True)


@routes.get("/system", Scope.ADMIN, SystemReply, "Checks of the server and its store")
async def get_system(request: Request) -> Response:
    """Check store, workers and documents as `headway doctor` does, and show the settings without secrets."""
    service = service_of(request)
    settings, store, facts = service.app.settings, await service.store(), dict[str, str]()
    checks = [check async for check in examine(store, settings, facts, writing=False)]
    return reply(
        {
            "ok": all(check.status != "fail" for check in checks),
            "version": __version__,
            "namespace": store.namespace,
            "checks": [asdict(check) for check in checks],
            "store": facts,
            "settings": settings.masked(),
            "recovery": recovery(settings),
        }
    )
