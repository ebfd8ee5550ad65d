"""``headway up``: the quickest way to see jobs run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from typing import TYPE_CHECKING

from headway.cli.worker import NO_FLAGS, AppPath, LogLevel, Processes, WorkerFlags, log_up, run_on_fast_loop
from headway.core.errors import StoreError
from headway.core.job import State
from headway.stores.base import JobQuery, Store
from headway.stores.open import open_store

if TYPE_CHECKING:
    from headway.cli.display import Display
    from headway.worker.control import Up
    from headway.worker.stopping import Signals

DEMO_APP = "headway.cli.demo:app"
LOOK = 0.5  # Seconds between looks at the store…
SHARE = 0.1  # …or more, so that looking takes at most this part of the time.
SHOWN = 8  # Running jobs on the screen.


def up(
    app: AppPath = None,
    /,
    *,
    processes: Processes = 1,
    flags: WorkerFlags = NO_FLAGS,
    log_level: LogLevel = "info",
) -> int:
    """Start Headway here: a store, a worker, and on a terminal a view of what happens.

    Without an app it runs the built-in demo tasks: demo.noop, demo.echo,
    demo.sleep, demo.fail, demo.cpu and demo.progress. Submit to it from another
    terminal, in the same folder. Where there is no terminal, it logs.
    """
    from headway.engine.logs import configure_logs
    from headway.worker.parent import Parent

    path = app or DEMO_APP
    overrides = flags.overrides()
    form = flags.log_form()
    if not _on_terminal() or form == "json":
        configure_logs(form, log_level)

        async def serve() -> int:
            parent = Parent(path, processes=processes, overrides=overrides, log_level=log_level, on_up=log_up)
            return await parent.run()

        return run_on_fast_loop(serve())

    from headway.cli.display import Display
    from headway.worker.stopping import Signals

    # The runners no longer see a terminal, yet what their jobs print should appear at once.
    os.environ.setdefault("PYTHONUNBUFFERED", "1")

    async def serve_and_show() -> int:
        signals = Signals()
        watching: list[asyncio.Task[None]] = []

        def watch(up: Up, store: Store) -> None:
            display.up = up
            watching.append(asyncio.get_running_loop().create_task(_watch(store, display)))

        # The display reads the runners' lines, and shows them its own way.
        settings = overrides | {"log": "json"}
        parent = Parent(
            path, processes=processes, overrides=settings, log_level=log_level, signals=signals, on_up=watch
        )
        draining = asyncio.create_task(_tell_draining(display, signals))
        try:
            return await parent.run()
        finally:
            for task in (draining, *watching):
                task.cancel()
            await asyncio.gather(draining, *watching, return_exceptions=True)
            await _look_once_more(display)

    with Display(path, demo=path == DEMO_APP, log_level=log_level) as display:
        return run_on_fast_loop(serve_and_show())


def _on_terminal() -> bool:
    from headway.cli.show import console

    return sys.stdout.isatty() and not console().is_dumb_terminal


async def _look_once_more(display: Display) -> None:
    """Show what the drain left: the last look may be older than the last job."""
    if display.up is None:
        return
    store = open_store(display.up.store, display.up.namespace)
    with contextlib.suppress(StoreError):
        await store.open()
        display.show(await store.stats(), ())
        await store.close()


async def _watch(store: Store, display: Display) -> None:
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
        await asyncio.sleep(max(LOOK, took / SHARE))


async def _tell_draining(display: Display, signals: Signals) -> None:
    await signals.drain.wait()
    display.draining = True
