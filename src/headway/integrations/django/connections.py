"""Closes old database connections before and after each job, as Django does for each request."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, reset_queries

from headway.client.app import Headway

CHECK_EVERY = 1.0  # Seconds between checks of the connection that coroutines share; a check costs a thread switch.
IDLE_AFTER = 0.2  # Seconds from the end of the last coroutine to the last check.


def keep_connections_fresh(app: Headway) -> None:
    """Wrap every task of an app. Only workers do this, because a direct call is part of its caller's request."""
    for task in app.tasks.values():
        if not hasattr(task.fn, "keeps_connections_fresh"):
            wrapped: Any = around_coroutine(task.fn, _coroutines) if task.is_async else around_function(task.fn)
            wrapped.keeps_connections_fresh = True
            task.fn = wrapped


def around_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that closes old connections of its thread before and after the job."""

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        _begin()
        try:
            return function(*args, **kwargs)
        finally:
            close_old_connections()

    return wrapped


def around_coroutine(function: Callable[..., Any], jobs: Coroutines) -> Callable[..., Any]:
    """Return a coroutine function that counts its jobs. The async ORM uses one thread and connection for all."""

    @functools.wraps(function)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        await jobs.begin()
        try:
            return await function(*args, **kwargs)
        finally:
            jobs.end()

    return wrapped


class Coroutines:
    """Counts the running async jobs of a worker. Checks their connection at intervals, and soon after the last job.

    A switch to the ORM's thread before and after each job would cost more than most jobs.
    """

    def __init__(self) -> None:
        self._running = 0
        self._checked_at = -CHECK_EVERY
        self._timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        self._running += 1
        if time.monotonic() - self._checked_at >= CHECK_EVERY:
            self._checked_at = time.monotonic()
            await sync_to_async(_begin, thread_sensitive=True)()

    def end(self) -> None:
        self._running -= 1
        if not self._running and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(IDLE_AFTER, self._idle)

    def _idle(self) -> None:
        self._timer = None
        if not self._running:
            closing = sync_to_async(close_old_connections, thread_sensitive=True)()
            self._closing = asyncio.get_running_loop().create_task(closing)


_coroutines = Coroutines()


def _begin() -> None:
    reset_queries()
    close_old_connections()
