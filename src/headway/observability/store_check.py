"""Checks within a time limit whether a store answers, for readiness probes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from headway.core.errors import StoreError
from headway.runtime.bounded_wait import forget

ANSWER_WITHIN = 0.7  # Seconds; the usual time limit of a probe is one second.
FRESH = 0.5  # Seconds for which one answer of the store serves all probes.


class StoreCheck:
    """Sends a store at most one request at a time, and waits at most ``ANSWER_WITHIN`` for the answer."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._ask = ask
        self._asking: asyncio.Task[object] | None = None
        self._asked = 0.0  # When the current request was sent, on the monotonic clock.
        self._answered = -FRESH

    async def problem(self) -> str | None:
        """Return why the store cannot be used now, or None if it answers."""
        if time.monotonic() - self._answered < FRESH:
            return None
        if self._asking is None or self._asking.done():
            self._asked = time.monotonic()
            self._asking = asyncio.get_running_loop().create_task(self._ask())
            self._asking.add_done_callback(forget)
        asking = self._asking
        left = self._asked + ANSWER_WITHIN - time.monotonic()
        if not asking.done() and left > 0:
            await asyncio.wait({asking}, timeout=left)
        if not asking.done():
            return "the store does not answer"
        if asking.cancelled():
            return "the store cannot be reached"
        error = asking.exception()
        if error is None:
            self._answered = time.monotonic()
            return None
        if isinstance(error, (StoreError, TimeoutError, OSError)):
            return "the store cannot be reached"
        raise error
