"""Waits: for a bounded time, even for calls that cannot be cancelled at once, and for tasks to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, call: Coroutine[Any, Any, T]) -> T:
    """Return what a call returns, or raise ``TimeoutError`` after this many seconds.

    ``asyncio.timeout`` waits until the cancelled call has ended, which a driver may delay. This function cancels the
    call and does not wait for its end.
    """
    task = asyncio.get_running_loop().create_task(call)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        if not task.done():
            task.cancel()
            task.add_done_callback(forget)
    if not task.done():
        raise TimeoutError
    return task.result()


def forget(task: asyncio.Task[Any]) -> None:
    """Read how an abandoned task ended, so that asyncio does not log it."""
    if not task.cancelled():
        task.exception()


async def wait_until_set(event: asyncio.Event, seconds: float) -> bool:
    """Wait until an event is set, at most this many seconds. Return whether it was set."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False


async def done_even_if_cancelled(future: asyncio.Future[Any]) -> bool:
    """Wait until a future is done, even if the caller is cancelled meanwhile. Return whether it was."""
    cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled = True
    return cancelled


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait until all have ended, however they end."""
    ending = list(tasks)
    for task in ending:
        task.cancel()
    await asyncio.gather(*ending, return_exceptions=True)
