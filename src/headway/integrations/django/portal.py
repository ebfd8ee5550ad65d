"""Runs blocking methods. On SQLite they run in the calling thread and use its connection and transaction."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from headway.client.portal import Portal

T = TypeVar("T")


class ProjectPortal(Portal):
    """Runs coroutines in the calling thread if ``here`` returns true, else on the loop of a background thread.

    ``share`` lets a loop use this thread's connection. ``close`` closes the loop's connections before the loop ends.
    ``brief`` returns whether connections must be closed after each call.
    """

    def __init__(
        self,
        here: Callable[[], bool],
        share: Callable[[], AbstractContextManager[None]],
        close: Callable[[], Coroutine[Any, Any, None]],
        brief: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._here, self._share, self._close, self._brief = here, share, close, brief

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if not self._here():
            try:
                return super().run(coroutine)
            finally:
                if self._brief():
                    super().run(self._close())
        with contextlib.closing(coroutine), self._runner() as runner:
            return runner.run(coroutine)

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield the items of an async iterator, all on one loop."""
        if not self._here():
            yield from super().iterate(items)
            return
        with self._runner() as runner:
            while True:
                try:
                    item = runner.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item

    @contextlib.contextmanager
    def _runner(self) -> Iterator[asyncio.Runner]:
        runner = asyncio.Runner()
        with self._share():
            runner.get_loop()  # The loop keeps the context variables of this moment.
        with runner:
            try:
                yield runner
            finally:
                runner.run(self._close())


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
