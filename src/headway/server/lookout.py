"""One look at the store for all who need a picture at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


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
