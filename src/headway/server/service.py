"""The state that the routes of one process share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator

from starlette.requests import HTTPConnection

from headway.client.app import Headway
from headway.client.client import Client
from headway.core.errors import StoreError
from headway.core.policy.document import Policy
from headway.core.policy.estimate import Forecast
from headway.core.policy.positions import QueuePositions
from headway.core.snapshot import Snapshot
from headway.estimates.accuracy import EstimateAccuracy
from headway.estimates.forecaster import Forecaster
from headway.maintenance.bulk import BulkRunner
from headway.observability.redaction import ArgumentRedactor
from headway.observability.store_check import StoreCheck
from headway.protocol.sessions import AddressSigner
from headway.runtime.bounded_wait import end_tasks
from headway.security.browser_sessions import BrowserSessions
from headway.security.tokens import Tokens
from headway.server.auth import FailureLimiter
from headway.server.gateway.service import WorkerGateway
from headway.server.instances import Instances
from headway.server.live_updates import LiveUpdates
from headway.server.problems import Problem
from headway.server.quotas import Quotas
from headway.server.sessions.admission import SessionBroker
from headway.server.shared_read import Coalescer, QueueView
from headway.server.submit_batcher import SubmitBatcher
from headway.server.task_catalogue import TaskCache, TaskOptionCache
from headway.server.views import Views
from headway.stores.base import Store

STREAMS_MAX = 10_000
LISTS_MAX = 4  # Pages that are read and encoded at the same time. Further requests wait.
FORECAST_AGE = 1.0  # Seconds for which requests share one forecast,
FORECAST_RENEWED = 0.1  # and for which they share it if many jobs have joined the queue: bursts are common.


class Service:
    """The app, its store and caches between requests. Nothing here needs to outlive the process."""

    def __init__(self, app: Headway, *, may_open: bool = True) -> None:
        self.app = app
        self.known = TaskCache(app)
        self.variants = TaskOptionCache()
        self.submit_batcher = SubmitBatcher(app.submitter)
        self.tokens = Tokens(self.store, may_open=may_open)
        self.limiter = FailureLimiter()
        self.browsers = BrowserSessions(self.store)
        self.quotas = Quotas(lambda: app.settings)
        self.addresses = AddressSigner(self.store)
        self.instances = Instances(self.store, f"{socket.gethostname()}:{os.getpid()}")
        self.queue_view: Coalescer[QueueView] = Coalescer(self._read_queue)
        self.scores = EstimateAccuracy()
        self._forecaster = Forecaster()
        self._forecasts: Coalescer[Forecast] = Coalescer(self._build_forecast)
        self.keeping: asyncio.Task[None] | None = None  # The task that runs the chores.
        self.views = Views(self)
        self.live = LiveUpdates(
            {
                "now": self.views.overview,
                "workers": self.views.workers,
                "tenants": self.views.tenants,
                "limits": self.views.limits,
            }
        )
        self._bulk: BulkRunner | None = None
        self._operations: set[asyncio.Task[object]] = set()
        self.check = StoreCheck(self._snapshot)
        self.listing = asyncio.Semaphore(LISTS_MAX)
        self.streams = 0  # Open streams.
        # By token: how many streams it has open, and a future that is done once the token is invalid.
        self._endings: dict[str | None, tuple[int, asyncio.Future[None]]] = {}
        self._stopping: asyncio.Future[None] | None = None
        self._gateway: WorkerGateway | None = None
        self.sessions = SessionBroker(self)  # The interactive sessions that this process has admitted.

    @property
    def client(self) -> Client:
        return self.app.client

    async def store(self) -> Store:
        """Return the store, opened on the running loop."""
        return await self.app.client.store()

    async def _snapshot(self) -> object:
        return await (await self.store()).snapshot()

    async def gateway(self) -> WorkerGateway:
        if self._gateway is None:
            store = await self.store()
            if self._gateway is None:
                gateway = self._gateway = WorkerGateway(
                    store, self.app.in_force, payload_max=self.app.settings.payload_max
                )
                self.stopping.add_done_callback(lambda _: gateway.stop())
        return self._gateway

    async def policy(self) -> Policy:
        await self.app.follow_policy()
        return self.app.policy

    @property
    def stopping(self) -> asyncio.Future[None]:
        """A future that is done once the server is about to stop, so that open connections must end."""
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_future()
        return self._stopping

    def stop(self) -> None:
        """End streams and long polls. Their clients reconnect to this server or another."""
        if not self.stopping.done():
            self.stopping.set_result(None)

    @contextlib.contextmanager
    def stream(self, token_id: str | None) -> Iterator[asyncio.Future[None]]:
        """Count an open stream. Yield a future that is done once its token is invalid."""
        self.streams += 1
        try:
            with self.hold(token_id) as ended:
                yield ended
        finally:
            self.streams -= 1

    @contextlib.contextmanager
    def hold(self, token_id: str | None) -> Iterator[asyncio.Future[None]]:
        """Count what a token holds open. Yield a future that is done once the token is invalid."""
        users, ended = self._endings.get(token_id) or (0, asyncio.ensure_future(self.tokens.ended(token_id)))
        self._endings[token_id] = users + 1, ended
        try:
            with self.quotas.hold(token_id):
                yield ended
        finally:
            users, ended = self._endings.pop(token_id)
            if users > 1:
                self._endings[token_id] = users - 1, ended
            else:
                ended.cancel()

    def used_ticket(self, token_id: str | None) -> None:
        """Record that a ticket of a token was used."""
        self.quotas.use_ticket(token_id)

    def check_room(self, token_id: str | None) -> None:
        """Raise ``Problem`` if this process or this token has too many streams."""
        self.quotas.check_held(token_id)
        if self.streams >= STREAMS_MAX:
            raise Problem("too_many_streams", f"{self.streams:,} streams are open here; try again later")

    async def close(self) -> None:
        await end_tasks(self._operations)
        await self.sessions.close()
        if self._gateway is not None:
            await self._gateway.close()
        await self.app.aclose()

    async def redactor(self) -> ArgumentRedactor:
        """Return what hides secrets in arguments. It follows the catalogue."""
        await self.known.read_secrets()
        return ArgumentRedactor(self.app.settings.redact, self.known.secrets)

    async def bulk(self) -> BulkRunner:
        """Return what runs the bulk actions of this process."""
        store = await self.store()
        if self._bulk is None:
            self._bulk = BulkRunner(store, lambda: self.app.policy, await self.redactor())
        return self._bulk

    def start_bulk(self, operation_id: str) -> None:
        """Start a bulk action. If this process stops, the chore of another one goes on with it."""

        async def run() -> None:
            with contextlib.suppress(StoreError):  # The chore tries again.
                await (await self.bulk()).run(operation_id)

        task = asyncio.create_task(run())
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)

    async def forecast(self, age: float | None = None) -> Forecast:
        """Return a forecast shared by concurrent callers, at most a second old or this many seconds."""
        return await self._forecasts.recent(FORECAST_AGE if age is None else age)

    async def forecast_of(self, snapshot: Snapshot) -> Forecast:
        """Return the shared forecast, or a newer one if many jobs have joined the queue by this snapshot."""
        forecast = await self.forecast()
        return forecast if forecast.covers(snapshot) else await self.forecast(min(FORECAST_AGE, FORECAST_RENEWED))

    async def _build_forecast(self) -> Forecast:
        return await self._forecaster.build(await self.store(), await self.policy())

    async def _read_queue(self) -> QueueView:
        snapshot = await (await self.store()).snapshot()
        views = {view.key: view for view in snapshot.classes}
        return QueueView(snapshot, views, QueuePositions(snapshot, self.app.policy))


def service_of(connection: HTTPConnection) -> Service:
    service: Service = connection.app.state.service
    return service
