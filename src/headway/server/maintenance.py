"""Run the chores of a server. HTTP workers cannot run chores themselves, because they have no store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from headway.core.errors import StoreError
from headway.core.log_event import LogEvent
from headway.maintenance.bulk import RESUME_EVERY
from headway.maintenance.loop import Chore, run_chores
from headway.maintenance.standard import standard_chores
from headway.metrics.recorder import PUBLISH_EVERY
from headway.observability.outage import Outage
from headway.policy_store.current import READ_EVERY
from headway.policy_store.rule_documents import write_rules
from headway.runtime.bounded_wait import end_tasks
from headway.server.gateway.chores import gateway_chores
from headway.server.gateway.service import WorkerGateway
from headway.server.service import Service

log = logging.getLogger("headway.server")

OPEN_AGAIN = 2.0  # Seconds between attempts to open the store.


@asynccontextmanager
async def run_maintenance(service: Service) -> AsyncIterator[None]:
    """Run the chores while the server serves. There is no leader: any number of processes may run them."""
    keeping = _begin(service)
    try:
        yield
    finally:
        await end_tasks([keeping])


class MountedMaintenance:
    """Middleware that starts the chores with the first request of an application that is mounted in another one.

    Frameworks do not run the lifespan of a mounted application. The chores then end with the loop.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._service.keeping is None and scope.get("root_path") and scope["type"] != "lifespan":
            _begin(self._service)
        await self._app(scope, receive, send)


def _begin(service: Service) -> asyncio.Task[None]:
    service.keeping = keeping = asyncio.create_task(_keep(service))
    keeping.add_done_callback(_log_end)
    return keeping


def _log_end(keeping: asyncio.Task[None]) -> None:
    if not keeping.cancelled() and (problem := keeping.exception()) is not None:
        log.error(LogEvent("maintenance.stopped", error=str(problem)), exc_info=problem)


async def _keep(service: Service) -> None:
    outage = Outage(log)
    gateway = await _open(service, outage)
    settings, in_force, store = service.app.settings, gateway.in_force, gateway.store

    async def follow() -> None:
        """Refresh the policy, and write its rules again in case the process that applied it died before it could."""
        if await in_force.refresh(store, every=0):
            await write_rules(store, in_force.policy)

    chores = [
        *gateway_chores(gateway, service.tokens),
        Chore("accuracy", PUBLISH_EVERY, lambda: service.scores.settle(store, gateway.recorder)),
        Chore("policy", READ_EVERY, follow),
        Chore("bulk", RESUME_EVERY, await service.bulk()),
        *standard_chores(
            store,
            in_force,
            gateway.recorder,
            heartbeat=settings.heartbeat / 2,  # HTTP workers may have only this process to reap for them.
            dead_after=settings.dead_after,
            knows_task=gateway.knows,
            has_workers=lambda: bool(gateway.registry.count),
        ),
    ]
    try:
        await run_chores(chores, outage)
    finally:
        with contextlib.suppress(StoreError):
            await gateway.recorder.retire(store)


async def _open(service: Service, outage: Outage) -> WorkerGateway:
    """Open the store, however long that takes. Meanwhile the server replies that the store is unavailable."""
    while True:
        try:
            gateway = await service.gateway()
        except StoreError as problem:
            outage.failed("open", problem, retry_in=OPEN_AGAIN)
            await asyncio.sleep(OPEN_AGAIN)
        else:
            outage.succeeded("open")
            return gateway
