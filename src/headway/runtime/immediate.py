"""Runs a coroutine that never waits."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread, without an event loop. Raises ``RuntimeError`` if it waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        value: T = done.value
        return value
    coroutine.close()
    raise RuntimeError(f"{coroutine!r} waited, but its store answers at once")
