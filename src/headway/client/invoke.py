"""Calls a task's function with its dependencies resolved, on a loop or in a thread."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
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
            value = await self._stack.enter_async_context(_ReraisingAsync(asynccontextmanager(provider)(**arguments)))
        elif inspect.isgeneratorfunction(provider):
            value = self._stack.enter_context(_Reraising(contextmanager(provider)(**arguments)))
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
            manager = _OnLoop(asynccontextmanager(provider)(**arguments), self._bounce)
            value = self._stack.enter_context(manager)
        elif inspect.isgeneratorfunction(provider):
            value = self._stack.enter_context(_Reraising(contextmanager(provider)(**arguments)))
        else:
            value = provider(**arguments)
            if inspect.isawaitable(value):
                value = self._bounce(_await(value))
        self._known[provider] = value
        return value


# A dependency sees the task's error but cannot suppress it. Otherwise the job would count as a success, and outer
# dependencies would commit what they should roll back.


class _Reraising(AbstractContextManager[Any]):
    """A context manager that never suppresses an error."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    def __enter__(self) -> Any:
        return self._manager.__enter__()

    def __exit__(self, *problem: Any) -> None:
        self._manager.__exit__(*problem)


class _ReraisingAsync(AbstractAsyncContextManager[Any]):
    """An async context manager that never suppresses an error."""

    def __init__(self, manager: AbstractAsyncContextManager[Any]) -> None:
        self._manager = manager

    async def __aenter__(self) -> Any:
        return await self._manager.__aenter__()

    async def __aexit__(self, *problem: Any) -> None:
        await self._manager.__aexit__(*problem)


class _OnLoop(AbstractContextManager[Any]):
    """An async context manager for use in a thread. It never suppresses an error."""

    def __init__(self, manager: AbstractAsyncContextManager[Any], bounce: RunOnLoop) -> None:
        self._manager, self._bounce = manager, bounce

    def __enter__(self) -> Any:
        return self._bounce(self._manager.__aenter__())

    def __exit__(self, *problem: Any) -> None:
        self._bounce(self._manager.__aexit__(*problem))


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
