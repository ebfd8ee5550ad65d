"""The process that submits for a contender, in the contender's own environment; told what to do by lines of JSON.

A contender is a module with:

``PACKAGES``             distributions whose versions are reported
``CONFIGURATION``        what was set to make it fast, in words
``ENVIRONMENT``          variables its worker needs (may be missing)
``command(test)``        arguments of Python that start a worker for a test: ``drain``, ``naps`` or ``idle``
``setup()``              what submitting needs first, such as tables (may be missing)
``submit(task, *args)``  submit one job of a task: ``noop``, ``nap`` or ``stamp``
``submit_many(batch)``   submit no-ops with these arguments by its bulk call (missing if it has none)

Each of the last three may be async.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import inspect
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.jobs import TEXT

BATCH = 5_000  # Jobs in one bulk call.
AT_ONCE = 50


class Submitter:
    def __init__(self, module: Any) -> None:
        self._module = module
        self._waits = inspect.iscoroutinefunction(module.submit)

    def hello(self) -> dict[str, Any]:
        module = self._module
        return {
            "configuration": module.CONFIGURATION,
            "environment": getattr(module, "ENVIRONMENT", {}),
            "versions": {name: importlib.metadata.version(name) for name in module.PACKAGES},
            "bulk": hasattr(module, "submit_many"),
            "commands": {test: module.command(test) for test in ("drain", "naps", "idle")},
        }

    async def one_by_one(self, count: int) -> None:
        """Submit jobs one by one, each after the reply to the one before."""
        submit = self._module.submit
        if self._waits:
            for number in range(count):
                await submit("noop", number, TEXT)
        else:
            for number in range(count):
                submit("noop", number, TEXT)

    async def together(self, count: int) -> None:
        """Submit jobs from this many concurrent callers."""
        submit = getattr(self._module, "submit_async", self._module.submit)
        await asyncio.gather(*(submit("noop", number, TEXT) for number in range(count)))

    async def bulk(self, count: int, text: str = TEXT) -> None:
        for start in range(0, count, BATCH):
            batch = [(number, text) for number in range(start, min(start + BATCH, count))]
            await _maybe(self._module.submit_many(batch))

    async def fill(self, count: int, text: str = TEXT) -> None:
        """Submit no-ops by the bulk call if there is one."""
        if hasattr(self._module, "submit_many"):
            await self.bulk(count, text)
        else:
            await self._many("noop", lambda number: (number, text), count)

    async def naps(self, count: int) -> None:
        await self._many("nap", lambda _: (), count)

    async def stamps(self, count: int, gap: float) -> None:
        """Submit at an even pace. Each job carries the moment at which its submission began."""
        due = time.perf_counter()
        for _ in range(count):
            await _maybe(self._module.submit("stamp", time.time_ns()))
            due = max(due + gap, time.perf_counter())
            await asyncio.sleep(due - time.perf_counter())

    async def call(self, name: str, **arguments: Any) -> None:
        """Call a function that only this contender has."""
        await _maybe(getattr(self._module, name)(**arguments))

    async def _many(self, task: str, arguments: Callable[[int], tuple[Any, ...]], count: int) -> None:
        submit = self._module.submit
        if not self._waits:
            for number in range(count):
                submit(task, *arguments(number))
            return
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            await asyncio.gather(*(submit(task, *arguments(number)) for number in numbers))


async def _maybe(answer: Awaitable[Any] | Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


async def serve(name: str, answers: Any) -> None:
    def answer(**facts: Any) -> None:
        answers.write(json.dumps(facts) + "\n")

    try:
        module = importlib.import_module(name)
        if hasattr(module, "setup"):
            await _maybe(module.setup())
        submitter = Submitter(module)
        answer(**submitter.hello())
    except Exception as problem:
        answer(error=f"{type(problem).__name__}: {problem}")
        return
    while line := await asyncio.to_thread(sys.stdin.readline):
        request = json.loads(line)
        verb = getattr(submitter, request.pop("do"))
        began, cpu = time.perf_counter(), time.process_time()
        try:
            await verb(**request)
        except Exception as problem:
            answer(error=f"{type(problem).__name__}: {problem}")
        else:
            answer(seconds=time.perf_counter() - began, cpu_seconds=time.process_time() - cpu)


def main() -> None:
    # Only replies go to the real standard output. Output of libraries goes to the log.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    import uvloop

    uvloop.run(serve(sys.argv[1], answers))
    # Threads of some clients would keep the process from exiting.
    os._exit(0)


if __name__ == "__main__":
    main()
