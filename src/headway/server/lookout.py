"""One look at the store for all who need a picture at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, NamedTuple, TypeVar

from headway.core.job import ClassKey
from headway.core.policy.position import Places
from headway.core.snapshot import ClassView, Snapshot

T = TypeVar("T")


class Picture(NamedTuple):
    """What waits, at one moment: for all who asked then."""

    snapshot: Snapshot
    views: dict[ClassKey, ClassView]
    places: Places

    @property
    def now_at(self) -> int:
        return self.snapshot.now_at


class Lookout(Generic[T]):
    """Shares looks: whoever asks gets one that began after they asked, and nobody looks twice at a time."""

    def __init__(self, look: Callable[[], Awaitable[T]]) -> None:
        self._look = look
        self._under_way: asyncio.Task[T] | None = None
        self._next: asyncio.Task[T] | None = None

    async def fresh(self) -> T:
        """Give a picture no older than this call."""
        if self._next is None:
            self._next = asyncio.create_task(self._after(self._under_way))
        return await asyncio.shield(self._next)

    async def _after(self, before: asyncio.Task[T] | None) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._under_way, self._next = self._next, None
        return await self._look()
