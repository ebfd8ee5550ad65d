"""Runs async methods for code without an event loop, on one loop in a background thread."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from headway.runtime.bounded_wait import end_tasks

P = ParamSpec("P")
T = TypeVar("T")

_PACKAGE = Path(__file__).parent.parent


class Portal:
    """Runs coroutines on its own loop and waits for them. Starts the loop on first use, and again after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._warned = False

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. An interrupt of the caller cancels the coroutine."""
        self.warn_on_loop()
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncIterator[T]) -> Iterator[T]:

        async def step() -> tuple[bool, T | None]:
            try:
                return True, await anext(items)
            except StopAsyncIteration:
                return False, None

        async def close() -> None:
            if (aclose := getattr(items, "aclose", None)) is not None:
                await aclose()

        try:
            while True:
                going, item = self.run(step())
                if not going:
                    return
                yield item  # type: ignore[misc]
        finally:
            self.run(close())

    @property
    def started(self) -> asyncio.AbstractEventLoop | None:
        """The loop, if this process or its parent has started it."""
        return self._loop

    def loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="headway-blocking", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        with self._lock:
            if self._loop is not None and self._thread is not None and self._pid == os.getpid():
                asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
                self._loop.close()
            self._loop = self._thread = None

    def warn_on_loop(self) -> None:
        """Warn once if the caller's thread runs an event loop, which a blocking call would stop."""
        if self._warned:
            return
        if asyncio._get_running_loop() is None:  # Half the time of ``get_running_loop``, which raises here.
            return
        self._warned = True
        warnings.warn(
            "a blocking Headway verb was called on a running event loop and stops it meanwhile; "
            "await the verb with an `a` in front (aenqueue, aresult, …) instead",
            RuntimeWarning,
            stacklevel=_depth_of_caller(),
        )


class _HasPortal(Protocol):
    @property
    def _portal(self) -> Portal: ...


Owner = TypeVar("Owner", bound=_HasPortal)


def blocking(method: Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Owner, P], T]:
    """Return the blocking twin of an async method, with the same signature."""

    @functools.wraps(method)
    def run(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._portal.run(method(self, *args, **kwargs))

    run.__name__ = method.__name__.removeprefix("a")
    run.__doc__ = f"Blocking twin of ``{method.__name__}``. {method.__doc__}"
    return run


def _depth_of_caller() -> int:
    """Return the ``stacklevel`` of the first frame outside Headway."""
    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and Path(frame.f_code.co_filename).is_relative_to(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    return depth


async def _end_tasks() -> None:
    """Cancel all other tasks of this loop and wait for them to end."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await end_tasks(tasks)
