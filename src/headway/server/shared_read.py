"""One read of the store for all requests that need it at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from headway.core.job import ClassKey
from headway.core.policy.positions import QueuePositions
from headway.core.snapshot import ClassView, Snapshot

T = TypeVar("T")

SharedView: TypeAlias = Callable[[], Coroutine[Any, Any, T]]


class QueueView(NamedTuple):
    """The waiting jobs at one moment."""

    snapshot: Snapshot
    views: dict[ClassKey, ClassView]
    places: QueuePositions

    @property
    def now_at(self) -> int:
        return self.snapshot.now_at


class Coalescer(Generic[T]):
    """Coalesces concurrent reads: callers share one read that started after each of them asked."""

    def __init__(self, read: Callable[[], Awaitable[T]]) -> None:
        self._read = read
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None
        self._seen: tuple[float, T] | None = None  # The last view, and when it was asked for.

    async def fresh(self) -> T:
        """Return a view no older than this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
        return await asyncio.shield(self._next)

    async def recent(self, seconds: float) -> T:
        """Return a view no older than this many seconds."""
        if self._seen is not None and time.monotonic() - self._seen[0] < seconds:
            return self._seen[1]
        return await self.fresh()

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None
        asked = time.monotonic()
        found = await self._read()
        self._seen = asked, found
        return found


def shared_for(seconds: float, read: Callable[[], Awaitable[T]]) -> SharedView[T]:
    """Return a function that reads for all its callers of this many seconds at once."""
    return partial(Coalescer(read).recent, seconds)
