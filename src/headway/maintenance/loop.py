"""The loop around a chore."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from headway.core.errors import StoreError, StoreUnavailable
from headway.core.log_event import LogEvent
from headway.observability.outage import Outage
from headway.runtime.bounded_wait import wait_until_set

log = logging.getLogger("headway.worker")

ERROR_RETRY = 10.0  # Seconds before a retry after an unexpected error; each such error logs a traceback.

ChoreFunction = Callable[[], Awaitable[float | None]]


class Chore(NamedTuple):
    """Bounded work that a process repeats. ``run`` returns the seconds until it wants to run again, or None.

    ``name`` appears in logs. ``interval`` is in seconds and applies when ``run`` returns None. A chore with
    ``own_outage`` uses another database than the store, so its failures are not an outage of the store. ``wake`` runs
    it at once.
    """

    name: str
    interval: float
    run: ChoreFunction
    own_outage: bool = False
    wake: asyncio.Event | None = None


async def run_chores(chores: Iterable[Chore], outage: Outage) -> None:
    """Run chores side by side until cancelled."""
    async with asyncio.TaskGroup() as group:
        for chore in chores:
            own = None if chore.own_outage else outage
            group.create_task(every(chore.interval, chore.run, name=chore.name, outage=own, wake=chore.wake))


async def every(
    interval: float, chore: ChoreFunction, *, name: str, outage: Outage | None = None, wake: asyncio.Event | None = None
) -> None:
    """Repeat a chore at a jittered interval, after the seconds that it returned, or at once when ``wake`` is set.

    No error ends the loop, because a chore that has stopped goes unnoticed until its work is missed.
    """
    outage = outage or Outage(log)
    last_error = ""
    while True:
        delay = None
        try:
            delay = await chore()
        except StoreUnavailable as problem:
            outage.failed(name, problem)
        except StoreError as problem:
            if last_error != str(problem):
                log.warning(LogEvent("maintenance.failed", chore=name, error=str(problem)))
            last_error = str(problem)
        except Exception as problem:
            event = LogEvent("maintenance.failed", chore=name, retry_in=ERROR_RETRY, error=str(problem))
            log.exception(event)
            delay = ERROR_RETRY
        else:
            last_error = ""
            if outage.failing:
                outage.succeeded(name)
        left = interval * random.uniform(0.7, 1.3) if delay is None else max(0.01, delay)
        if wake is None:
            await asyncio.sleep(left)
            continue
        await wait_until_set(wake, left)
        wake.clear()
