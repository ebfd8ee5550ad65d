"""``headway up``: the quickest way to see jobs run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

from headway.cli.render import console
from headway.cli.serve import NO_FLAGS as NO_HTTP_FLAGS
from headway.cli.serve import HttpFlags, check_installed
from headway.cli.worker import NO_FLAGS, AppPath, LogLevel, Processes, WorkerFlags, log_up
from headway.client.settings import load_settings
from headway.core.errors import ConfigError, StoreError
from headway.core.job import State
from headway.runtime.bounded_wait import end_tasks
from headway.runtime.fast_loop import run_on_fast_loop
from headway.stores.base import JobQuery, Store
from headway.stores.open import open_store

if TYPE_CHECKING:
    from headway.cli.live import LiveView
    from headway.runtime.service_manager import ServiceManager
    from headway.runtime.signals import Signals
    from headway.server.uvicorn_server import UvicornServer
    from headway.worker.control import RunnerReady

DEMO_APP = "headway.demo:app"
REFRESH = 0.5  # Seconds between reads of the store…
SHARE = 0.1  # …or more, so that reading takes at most this part of the time.
SHOWN = 8  # Running jobs on the screen.


def up(
    app: AppPath = None,
    /,
    *,
    processes: Processes = 1,
    flags: WorkerFlags = NO_FLAGS,
    http: HttpFlags = NO_HTTP_FLAGS,
    log_level: LogLevel = "info",
) -> int:
    """Start a store, a worker and the HTTP interface here, with a live view on a terminal.

    Without an app it runs the built-in demo tasks: demo.noop, demo.echo,
    demo.sleep, demo.fail, demo.cpu and demo.progress. Submit to it from another
    terminal, in the same folder, or over HTTP. Without a terminal it logs.
    """
    from headway.observability.logs import configure_logs
    from headway.runtime.service_manager import ServiceManager
    from headway.worker.parent import Parent

    path = app or DEMO_APP
    overrides = flags.overrides()
    form = flags.log_form()
    manager = ServiceManager.from_environment()
    server = EmbeddedServer.take(http, manager)
    parent = partial(Parent, path, processes=processes, log_level=log_level, manager=manager)
    if form == "json" or not sys.stdout.isatty() or console().is_dumb_terminal:
        configure_logs(form, log_level)

        async def serve() -> int:
            def begin(up: RunnerReady, store: Store) -> None:
                log_up(up, store)
                if server is not None:
                    server.open(up)

            return await _with_server(parent(overrides=overrides, on_up=begin).run(), server)

        return run_on_fast_loop(serve())

    from headway.cli.live import LiveView
    from headway.runtime.signals import Signals

    # The runners no longer see a terminal, yet what their jobs print should appear at once.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")

    async def serve_and_show() -> int:
        signals = Signals()
        watching: list[asyncio.Task[None]] = []

        def watch(up: RunnerReady, store: Store) -> None:
            display.up = up
            if server is not None:
                display.address = server.address
                display.dashboard = server.dashboard
                server.open(up)
            watching.append(asyncio.get_running_loop().create_task(_watch(store, display)))

        # The display reads the runners' lines, and shows them its own way.
        working = parent(overrides=overrides | {"log": "json"}, signals=signals, on_up=watch)
        draining = asyncio.create_task(_show_draining(display, signals))
        try:
            return await _with_server(working.run(), server)
        finally:
            await end_tasks((draining, *watching))
            await _refresh_last(display)

    with LiveView(path, demo=path == DEMO_APP, log_level=log_level) as display:
        return run_on_fast_loop(serve_and_show())


class EmbeddedServer:
    """The HTTP interface of ``headway up``, on the loop of the worker's parent: it runs no code of tasks."""

    def __init__(self, http: HttpFlags, manager: ServiceManager) -> None:
        from headway.server.uvicorn_server import address_of, bind

        self._http = http
        self._manager = manager
        manager.expect("server")
        settings = load_settings(http.settings())
        self._tls = http.tls()
        self._listener = bind(settings.host, settings.port)
        self._server: UvicornServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self.failed = asyncio.Event()
        self.address = address_of(self._listener, tls=bool(self._tls))
        self.dashboard = f"{self.address}/ui/" if settings.ui else None

    @classmethod
    def take(cls, http: HttpFlags, manager: ServiceManager) -> EmbeddedServer | None:
        """Bind the address first, so that a busy one is an error before anything starts. None: not installed."""
        try:
            check_installed()
        except ConfigError as problem:
            print(f"without HTTP: {problem}", file=sys.stderr)
            return None
        return cls(http, manager)

    def open(self, up: RunnerReady) -> None:
        """Serve the store of the worker."""
        self._serving = asyncio.get_running_loop().create_task(self._serve(up))
        self._serving.add_done_callback(lambda task: self.failed.set() if task.exception() else None)

    async def _serve(self, up: RunnerReady) -> None:
        from headway.client.app import Headway
        from headway.server.serve_process import make_server

        given = self._http.settings() | {"store": up.store, "namespace": up.namespace, "history": up.history}
        app = Headway(**given, transient_store=up.transient_store)
        hosts, origins = self._http.allow_host, self._http.allow_origin
        self._server = await make_server(
            app,
            self._listener,
            hosts=hosts,
            origins=origins,
            tls=self._tls,
            on_started=lambda: self._manager.started("server"),
        )
        await self._server.run_here()

    async def close(self) -> None:
        if self._server is not None:
            self._server.leave()
        try:
            if self._serving is not None:
                await self._serving
        finally:
            self._listener.close()


async def _with_server(working: Coroutine[Any, Any, int], server: EmbeddedServer | None) -> int:
    """Run until a signal stops it, then close the connections that still listen. Fails if the HTTP interface fails."""
    if server is None:
        return await working
    work = asyncio.create_task(working)
    failing = asyncio.create_task(server.failed.wait())
    await asyncio.wait({work, failing}, return_when=asyncio.FIRST_COMPLETED)
    if failing.done():
        os.kill(os.getpid(), signal.SIGTERM)  # As if we had been asked: what runs is brought to its end.
    failing.cancel()
    try:
        return await work
    finally:
        await server.close()


async def _refresh_last(display: LiveView) -> None:
    """Show what the drain left: the last look may be older than the last job."""
    if display.up is None:
        return
    up = display.up
    store = open_store(up.store, up.namespace, transient=up.transient_store)
    with contextlib.suppress(StoreError):
        await store.open()
        display.show(await store.stats(), ())
        await store.close()


async def _watch(store: Store, display: LiveView) -> None:
    """Look at the store again and again for the display; ends with the worker."""
    while True:
        began = time.monotonic()
        try:
            stats = await store.stats()
            running = await store.find(JobQuery(states=(State.EXECUTING,), limit=SHOWN))
            display.show(stats, running)
        except StoreError as problem:
            display.trouble(str(problem))
        took = time.monotonic() - began
        await asyncio.sleep(max(REFRESH, took / SHARE))


async def _show_draining(display: LiveView, signals: Signals) -> None:
    await signals.drain.wait()
    display.draining = True
