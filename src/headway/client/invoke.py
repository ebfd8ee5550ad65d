"""Calls a task's function with its dependencies resolved, on a loop or in a thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from typing import Any, TypeVar

from headway.client.context import Context
from headway.client.options import Dependency

T = TypeVar("T")

RunOnLoop = Callable[[Coroutine[Any, Any, Any]], Any]


async def invoke_async(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dependencies: Mapping[str, Dependency],
    context: Context,
) -> Any:
    """Await a function with its dependencies, and close the dependencies afterwards in reverse order."""
    if not dependencies:
        return await function(*args, **kwargs)
    async with AsyncExitStack() as stack:
        resolver = _AsyncResolver(context, stack)
        found = {name: await resolver.resolve(dependency) for name, dependency in dependencies.items()}
        return await function(*args, **kwargs, **found)


def invoke_plain(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    dependencies: Mapping[str, Dependency],
    context: Context,
    bounce: RunOnLoop,
) -> Any:
    """Call a plain function with its dependencies, all in this thread.

    ``bounce`` runs a coroutine of an async dependency on an event loop in another thread and waits for it.
    """
    if not dependencies:
        return function(*args, **kwargs)
    with ExitStack() as stack:
        resolver = _PlainResolver(context, stack, bounce)
        found = {name: resolver.resolve(dependency) for name, dependency in dependencies.items()}
        return function(*args, **kwargs, **found)


# A dependency sees the task's error but cannot suppress it, because the functions that close it return None. Otherwise
# the job would count as a success, and outer dependencies would commit what they should roll back.


class _AsyncResolver:
    def __init__(self, context: Context, stack: AsyncExitStack) -> None:
        self._context, self._stack = context, stack
        self._known: dict[Any, Any] = {}

    async def resolve(self, dependency: Dependency) -> Any:
        provider = dependency.provider
        if dependency.cache and provider in self._known:
            return self._known[provider]
        arguments: dict[str, Any] = {}
        for name, needed in _needs(provider).items():
            arguments[name] = self._context if needed is None else await self.resolve(needed)
        if inspect.isasyncgenfunction(provider):
            manager = asynccontextmanager(provider)(**arguments)
            value = await manager.__aenter__()

            async def close(*problem: Any) -> None:
                await manager.__aexit__(*problem)

            self._stack.push_async_exit(close)
        elif inspect.isgeneratorfunction(provider):
            value = _enter(self._stack, provider, arguments)
        else:
            value = provider(**arguments)
            if inspect.isawaitable(value):
                value = await value
        self._known[provider] = value
        return value


class _PlainResolver:
    def __init__(self, context: Context, stack: ExitStack, bounce: RunOnLoop) -> None:
        self._context, self._stack, self._bounce = context, stack, bounce
        self._known: dict[Any, Any] = {}

    def resolve(self, dependency: Dependency) -> Any:
        provider = dependency.provider
        if dependency.cache and provider in self._known:
            return self._known[provider]
        arguments = {
            name: self._context if needed is None else self.resolve(needed) for name, needed in _needs(provider).items()
        }
        if inspect.isasyncgenfunction(provider):
            manager = asynccontextmanager(provider)(**arguments)
            value = self._bounce(manager.__aenter__())

            def close(*problem: Any) -> None:
                self._bounce(manager.__aexit__(*problem))

            self._stack.push(close)
        elif inspect.isgeneratorfunction(provider):
            value = _enter(self._stack, provider, arguments)
        else:
            value = provider(**arguments)
            if inspect.isawaitable(value):
                value = self._bounce(_await(value))
        self._known[provider] = value
        return value


def _enter(stack: ExitStack | AsyncExitStack, provider: Any, arguments: Mapping[str, Any]) -> Any:
    manager = contextmanager(provider)(**arguments)
    value = manager.__enter__()

    def close(*problem: Any) -> None:
        manager.__exit__(*problem)

    stack.push(close)
    return value


async def _await(value: Any) -> Any:
    return await value


def _needs(provider: Any) -> dict[str, Dependency | None]:
    """Return the parameters of a provider that the worker fills in. None stands for the job's context."""
    needs: dict[str, Dependency | None] = {}
    try:
        parameters = inspect.signature(provider, eval_str=True).parameters
    except (NameError, ValueError):
        parameters = inspect.signature(provider).parameters
    for parameter in parameters.values():
        if isinstance(parameter.default, Dependency):
            needs[parameter.name] = parameter.default
        elif parameter.annotation in (Context, "Context"):
            needs[parameter.name] = None
    return needs


def run_on_loop(loop: asyncio.AbstractEventLoop) -> RunOnLoop:
    """Return a function that runs coroutines on the loop of another thread and waits for them."""

    def bounce(coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result()

    return bounce
