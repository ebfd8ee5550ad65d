"""The loop around a chore."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from headway.core.errors import StoreError, StoreUnavailable
from headway.core.log_event import LogEvent
from headway.observability.outage import Outage

log = logging.getLogger("headway.worker")

FAILED_AGAIN = 10.0  # Seconds after which a chore is tried again that failed for no reason we know.


async def every(
    interval: float,
    chore: Callable[[], Awaitable[float | None]],
    *,
    name: str,
    outage: Outage | None = None,
    news: asyncio.Event | None = None,
) -> None:
    """Do a chore at a jittered interval, or after as many seconds as it asks for, or at once when there is news.

    An outage of the store only delays it. So does every other error: a chore that stopped would be missed too late.
    """
    outage = outage or Outage(log)
    failed = ""
    while True:
        asked = None
        try:
            asked = await chore()
        except StoreUnavailable as problem:
            outage.failed(name, problem)
        except StoreError as problem:
            if failed != str(problem):  # The same again is worth no line.
                log.warning(LogEvent("maintenance.failed", chore=name, error=str(problem)))
            failed = str(problem)
        except Exception as problem:
            event = LogEvent("maintenance.failed", chore=name, retry_in=FAILED_AGAIN, error=str(problem))
            log.exception(event)
            asked = FAILED_AGAIN
        else:
            failed = ""
            if outage.failing:
                outage.succeeded(name)
        left = interval * random.uniform(0.7, 1.3) if asked is None else max(0.01, asked)
        if news is None:
            await asyncio.sleep(left)
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await news.wait()
        news.clear()
