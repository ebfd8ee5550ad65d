"""A store that may be unavailable. Callers then continue without it instead of waiting."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import TypeVar

from headway.core.errors import HeadwayError, StoreError, StoreFull, StoreUnavailable
from headway.core.log_event import LogEvent
from headway.runtime.bounded_wait import end_tasks
from headway.stores.base import Store, Subscription

log = logging.getLogger("headway.stores")

T = TypeVar("T")

TIMEOUT = 1.0  # Seconds that one call may wait for the transient store in total.
PROMPT = 0.5  # Fraction of PATIENCE in which a store must answer to count as back. A slower one would delay every call.
RECONNECT = 0.1  # Seconds before the first attempt to reconnect, doubled each time.
RECONNECT_MAX = 2.0  # Maximum seconds between attempts to reconnect.
WARN_AGAIN = 30.0  # Seconds until a warning is repeated, doubled each time.
WARN_AGAIN_MAX = 3_600.0  # Maximum seconds between warnings.


class WaitAllowance:
    """The time that one call may wait for the transient store, over all its requests."""

    def __init__(self) -> None:
        self._left = TIMEOUT

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """Raise ``TimeoutError`` once the time is used up."""
        began = monotonic()
        try:
            async with asyncio.timeout(max(0.0, self._left)):
                yield
        finally:
            self._left -= monotonic() - began


class OptionalStore:
    """The store of transient jobs. Durable jobs continue without it.

    While the store is unavailable, no caller waits for it. One task tries to reconnect, and then calls ``returned`` to
    send the store what it missed. A store that could not be opened is built again.
    """

    def __init__(self, make: Callable[[], Store], returned: Callable[[Store], Awaitable[None]]) -> None:
        self._make = make
        self._returned = returned
        self._store = make()
        self.abilities = self._store.abilities
        self.returns = 0  # How often it has recovered.
        self._opened = False
        self.away: str | None = None  # Why the store is unavailable, or None while it answers.
        self._since = 0.0  # When it became unavailable, on the monotonic clock.
        self._reconnecting: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open the store, now or once it is available. Raises ``StoreError`` for a permanent error."""
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._open()
        except (StoreUnavailable, StoreFull, TimeoutError) as problem:
            self._lost(problem)

    async def close(self) -> None:
        reconnecting, self._reconnecting = self._reconnecting, None
        if reconnecting is not None and reconnecting.get_loop() is asyncio.get_running_loop():
            await end_tasks([reconnecting])
        elif reconnecting is not None and not reconnecting.get_loop().is_closed():
            reconnecting.get_loop().call_soon_threadsafe(reconnecting.cancel)
        if self._opened:
            await self._store.close()

    async def ask(self, call: Callable[[Store], Awaitable[T]], allowance: WaitAllowance | None = None) -> T | None:
        """Call the store within the rest of an allowance. Return None if the store is unavailable."""
        if self.away is not None:
            self._start_reconnecting()
            return None
        try:
            async with (allowance or WaitAllowance()).limit():
                return await call(self._store)
        except (StoreError, TimeoutError) as problem:
            self._lost(problem)
            return None

    async def require(self, call: Callable[[Store], Awaitable[T]]) -> T:
        """Call the store for what no other store can do. Raises ``StoreUnavailable``."""
        if self.away is not None:
            self._start_reconnecting()
            raise _missing(self.away)
        try:
            async with asyncio.timeout(TIMEOUT):
                return await call(self._store)
        except (StoreUnavailable, TimeoutError) as problem:
            self._lost(problem)
            raise _missing(_text(problem)) from problem

    def subscribe(self, name: str) -> Subscription | None:
        """Open a subscription if the store was ever opened, else return None. The subscription reconnects by itself."""
        return self._store.subscribe(name) if self._opened else None

    async def _open(self) -> None:
        if not self._opened:
            try:
                await self._store.open()
            except BaseException:
                self._store = self._make()  # A closed store cannot be opened again.
                raise
            self._opened = True
        await self._returned(self._store)

    def _lost(self, problem: Exception) -> None:
        if self.away is None:
            self._since = time.monotonic()
            log.warning(LogEvent("transient_store.unavailable", error=_text(problem)))
        self.away = _text(problem)
        self._start_reconnecting()

    def _age(self) -> float:
        """Return for how many seconds the store has been unavailable."""
        return round(time.monotonic() - self._since, 1)

    def _start_reconnecting(self) -> None:
        reconnecting = self._reconnecting
        if reconnecting is None or reconnecting.done() or reconnecting.get_loop().is_closed():
            self._reconnecting = asyncio.get_running_loop().create_task(self._reconnect())

    async def _reconnect(self) -> None:
        """Try to reconnect, less and less often, until the store answers."""
        delay, warned_at, warn_after = RECONNECT, time.monotonic(), WARN_AGAIN
        while self.away is not None:
            await asyncio.sleep(delay * random.uniform(0.7, 1.3))
            delay = min(delay * 2, RECONNECT_MAX)
            try:
                async with asyncio.timeout(TIMEOUT * (PROMPT if self._opened else 1.0)):
                    await self._open()
            except (HeadwayError, TimeoutError) as problem:
                self.away = _text(problem)
                if time.monotonic() - warned_at > warn_after:
                    log.warning(LogEvent("transient_store.unavailable", after=self._age(), error=self.away))
                    warned_at, warn_after = time.monotonic(), min(warn_after * 2, WARN_AGAIN_MAX)
            else:
                self.away = None
                self.returns += 1
                log.warning(LogEvent("transient_store.recovered", after=self._age()))


def _missing(problem: str) -> StoreUnavailable:
    return StoreUnavailable(f"transient jobs cannot be submitted, their store is away: {problem}")


def _text(problem: Exception) -> str:
    return str(problem) or f"no answer within {TIMEOUT:g} s"
