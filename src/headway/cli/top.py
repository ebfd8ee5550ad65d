"""``headway top``: watch the store."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Generator
from typing import TYPE_CHECKING, Annotated

from headway.cli import render
from headway.cli.help import flag
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, TargetOptions, ask, reading, run
from headway.core.errors import StoreError
from headway.core.job import State
from headway.runtime.bounded_wait import wait_until_set
from headway.stores.base import JobQuery
from headway.stores.open import mask
from headway.version import __version__

if TYPE_CHECKING:
    from rich.console import Group

REFRESH = 1.0  # Seconds between reads of the store…
SHARE = 0.2  # …or more, so that reading takes at most this part of the time.
SHOWN = 10  # Running jobs, and recent ones.


def top(*, once: Annotated[bool, flag("Print one screen and exit.")] = False, place: TargetOptions = HERE) -> None:
    """Watch lanes, workers and jobs, refreshed every second. Press q or Ctrl-C to end."""
    if once or not sys.stdout.isatty():
        render.console().print(ask(place, lambda operator: _screen(operator, place)))
    else:
        with contextlib.suppress(KeyboardInterrupt):
            run(_watch(place))


async def _watch(place: TargetOptions) -> None:
    """Draw until a key ends it."""
    from rich.console import RenderableType
    from rich.live import Live

    async with reading(place) as operator:
        console = render.console()
        shown: RenderableType = await _screen(operator, place)
        ended = asyncio.Event()
        with _keys(ended), Live(shown, console=console, screen=True, auto_refresh=False) as live:
            while not ended.is_set():
                live.update(shown, refresh=True)
                began = time.monotonic()
                await wait_until_set(ended, REFRESH)
                try:
                    shown = await _screen(operator, place)
                except StoreError as problem:
                    shown = render.text(problem, "red")
                took = time.monotonic() - began - REFRESH
                await wait_until_set(ended, max(0.0, took / SHARE - REFRESH))


@contextlib.contextmanager
def _keys(ended: asyncio.Event) -> Generator[None]:
    """Set the event when q is pressed, without Enter. Ctrl-C still interrupts."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    loop = asyncio.get_running_loop()

    def pressed() -> None:
        if sys.stdin.read(1) in ("q", "Q", ""):
            ended.set()

    tty.setcbreak(descriptor)
    loop.add_reader(descriptor, pressed)
    try:
        yield
    finally:
        loop.remove_reader(descriptor)
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def _screen(operator: Operator, place: TargetOptions) -> Group:
    """Draw the store as it is now."""
    from rich.console import Group, RenderableType
    from rich.text import Text

    from headway.cli import tables
    from headway.cli.jobs import jobs_table

    settings = place.settings()
    stats = await operator.stats()
    running = await operator.find(JobQuery(states=(State.EXECUTING,), limit=SHOWN))
    recent = await operator.find(JobQuery(limit=SHOWN))
    paused = (await operator.paused()).names()
    alive = stats.live_workers
    busy, slots = sum(worker.running for worker in alive), sum(worker.slots for worker in alive)
    parts: list[RenderableType] = [
        Text(f"Headway {__version__}  ", "bold")
        + render.text(f"{mask(settings.store)}, namespace {settings.namespace}, {render.local(stats.now_at)}", "dim"),
        Text(f"{render.plural(len(alive), 'worker')}, {busy} of {slots} slots busy"),
        Text(f"{render.lately(stats)}  ", "dim") + tables.counts_line(stats.last_minute),
        *([render.text(f"paused: {', '.join(paused)}", "yellow")] if paused else []),
        Text(),
        tables.lanes_table(stats, await operator.policy()),
    ]
    if alive:
        parts += [Text(), tables.workers_table(stats, dead=False)]
    if running:
        parts += [Text(), tables.running_table(running, stats.now_at)]
    if recent:
        parts += [Text(), Text("Newest jobs", "dim"), jobs_table(recent, stats.now_at)]
    return Group(*parts)
