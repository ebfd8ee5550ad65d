"""Calls a task inside the middlewares of its app."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headway.client.app import Middleware
from headway.client.context import Context
from headway.worker.outcomes import Encoded


async def plain_value(call: Awaitable[Any]) -> Any:
    """Return the value itself, also when a process has already encoded it."""
    value = await call
    return value.value() if isinstance(value, Encoded) and value.error is None else value


async def call_inside(middlewares: list[Middleware], context: Context, innermost: Callable[[], Awaitable[Any]]) -> Any:
    """Call the task inside all middlewares. The first middleware is the outermost."""

    async def layer(index: int) -> Any:
        if index == len(middlewares):
            return await innermost()

        async def call_next(_: Context | None = None) -> Any:
            return await layer(index + 1)

        return await middlewares[index](context, call_next)

    return await layer(0)
