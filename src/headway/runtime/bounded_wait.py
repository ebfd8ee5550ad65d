"""Waits for a bounded time, even for calls that cannot be cancelled at once."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
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
