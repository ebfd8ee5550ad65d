"""What a server does beside answering: the chores of workers that come over HTTP, which cannot reach the store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from headway.core.errors import StoreError
from headway.core.log_event import LogEvent
from headway.maintenance.clock_jumps import ClockJumpDetector
from headway.maintenance.cron import CronSubmitter
from headway.maintenance.loop import every
from headway.maintenance.preemption import EVERY as ROOM_EVERY
from headway.maintenance.preemption import Preemptor
from headway.maintenance.pruner import Pruner
from headway.maintenance.reaper import Reaper
from headway.maintenance.wait_sampling import WaitSampler
from headway.metrics.documents import STALE, MetricsCompactor
from headway.metrics.recorder import PUBLISH_EVERY
from headway.observability.outage import Outage
from headway.policy_store.current import LOOK_EVERY
from headway.policy_store.rule_documents import write_rules
from headway.server.gateway.revocation import EVERY as DISMISS_EVERY
from headway.server.gateway.revocation import RevocationEnforcer
from headway.server.gateway.service import WorkerGateway
from headway.server.gateway.timeouts import EVERY as OVERTIME_EVERY
from headway.server.gateway.timeouts import RegistrationPruner, TimeoutEnforcer
from headway.server.service import Service

log = logging.getLogger("headway.server")

LEARN_EVERY = 5.0
FORGET_EVERY = 30.0
OPEN_AGAIN = 2.0  # Seconds between tries to open the store.


@asynccontextmanager
async def run_maintenance(service: Service) -> AsyncIterator[None]:
    """Do the chores while the server serves. No leader: any number of servers and workers may do them."""
    keeping = _begin(service)
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


class MountedMaintenance:
    """A layer that begins the chores with the first request, where the application is mounted into another.

    Frameworks do not run the lifespan of what is mounted. The chores then end with the loop.
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
    keeping.add_done_callback(_tell_end)
    return keeping


def _tell_end(keeping: asyncio.Task[None]) -> None:
    if not keeping.cancelled() and (problem := keeping.exception()) is not None:
        log.error(LogEvent("maintenance.stopped", error=str(problem)), exc_info=problem)


async def _keep(service: Service) -> None:
    outage = Outage(log)
    gateway = await _open(service, outage)
    settings, in_force, store = service.app.settings, gateway.in_force, gateway.store
    wait_sampler, preemptor = WaitSampler(store, in_force, lambda: 0.0), Preemptor(store, in_force)

    async def follow() -> None:
        """Learn of the policy, also while polls wait; should whoever applied it have died, put its rules in force."""
        if await in_force.refresh(store, every=0):
            await write_rules(store, in_force.policy)

    async def look() -> float | None:
        """Sample what jobs wait for, if nobody but us serves any workers."""
        return await wait_sampler() if gateway.registry.count else None

    async def make_room() -> float | None:
        """The same for room on the ladder."""
        return await preemptor() if gateway.registry.count else None

    jumps = ClockJumpDetector(settings.dead_after)
    reaper = Reaper(store, in_force, settings.dead_after, recorder=gateway.recorder, jumps=jumps)
    chores: list[tuple[str, float, Callable[[], Awaitable[float | None]]]] = [
        ("overtime", OVERTIME_EVERY, TimeoutEnforcer(store, in_force, gateway.registry, recorder=gateway.recorder)),
        ("dismissing", DISMISS_EVERY, RevocationEnforcer(gateway, service.tokens)),
        ("forgetting", FORGET_EVERY, RegistrationPruner(store, gateway.registry)),
        ("learning", LEARN_EVERY, gateway.learn),
        ("scores", PUBLISH_EVERY, lambda: service.scores.settle(store, gateway.recorder)),
        ("counters", PUBLISH_EVERY, lambda: gateway.recorder.publish(store)),
        ("retirer", STALE / 5, MetricsCompactor(store)),
        ("reaper", settings.heartbeat / 6, reaper),
        ("pruner", settings.heartbeat, Pruner(store, in_force, jumps)),
        ("ticker", 5.0, CronSubmitter(store, gateway.knows)),
        ("witness", 1.0, look),
        ("steward", ROOM_EVERY, make_room),
        ("policy", LOOK_EVERY, follow),
    ]
    try:
        async with asyncio.TaskGroup() as group:
            for name, interval, chore in chores:
                group.create_task(every(interval, chore, name=name, outage=outage))
    finally:
        with contextlib.suppress(StoreError):
            await gateway.recorder.retire(store)


async def _open(service: Service, outage: Outage) -> WorkerGateway:
    """Open the store, however long that takes: a server that cannot reach it says so to whoever asks."""
    while True:
        try:
            gateway = await service.gateway()
        except StoreError as problem:
            outage.failed("open", problem, retry_in=OPEN_AGAIN)
            await asyncio.sleep(OPEN_AGAIN)
        else:
            outage.succeeded("open")
            return gateway
