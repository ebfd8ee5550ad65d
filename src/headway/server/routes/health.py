"""Probes and metrics."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from headway.metrics.export import render
from headway.server.auth import Scope
from headway.server.problems import Problem
from headway.server.routing import Routes, reply
from headway.server.schemas.rest import HealthReply, Readiness
from headway.server.service import service_of

routes = Routes("health")


@routes.get("/healthz", Scope.PUBLIC, HealthReply, "Is the process alive")
async def get_health() -> Response:
    """Return 200 while the process is alive, even if the store is unavailable."""
    return reply({"status": "ok"})


@routes.get("/readyz", Scope.PUBLIC, Readiness, "Can it serve", problems=("stopping",))
async def get_readiness(request: Request) -> Response:
    """Return 200 if the store answers and the server is not about to stop."""
    service = service_of(request)
    if service.stopping.done():
        raise Problem("stopping", "the server is about to stop")
    if await service.check.problem():
        raise Problem("store_unavailable", "the store cannot be reached just now", headers={"Retry-After": "1"})
    return reply({"status": "ok"})


@routes.get(
    "/metrics",
    Scope.READ,
    (None, "The metrics, in the text format of Prometheus or OpenMetrics."),
    "Metrics",
    whole=True,
)
async def get_metrics(request: Request) -> Response:
    """Return the metrics of the whole store, the same from any of its servers."""
    service = service_of(request)
    body, media = await render(await service.store(), await service.policy(), request.headers.get("accept", ""))
    return Response(body, headers={"Content-Type": media})
