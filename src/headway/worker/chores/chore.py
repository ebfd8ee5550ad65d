"""The loop around a chore."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable

from headway.core.errors import StoreError

log = logging.getLogger("headway.worker")

FAILED_AGAIN = 10.0  # Seconds after which a chore is tried again that failed for no reason we know.


async def every(
    interval: float, chore: Callable[[], Awaitable[float | None]], *, news: asyncio.Event | None = None
) -> None:
    """Do a chore at a jittered interval, or after as many seconds as it asks for, or at once when there is news.

    Store trouble only delays it, and so does what nobody thought of: a chore that stopped would be missed too late.
    """
    while True:
        asked = None
        try:
            asked = await chore()
        except StoreError as problem:
            log.warning("a chore could not be done, later again: %s", problem)
        except Exception:
            log.exception("a chore failed; it is tried again in %g s", FAILED_AGAIN)
            asked = FAILED_AGAIN
        left = interval * random.uniform(0.7, 1.3) if asked is None else max(0.01, asked)
        if news is None:
            await asyncio.sleep(left)
            continue
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(left):
                await news.wait()
        news.clear()
