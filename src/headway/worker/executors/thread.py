"""Runs plain functions in a separate thread pool, so that store I/O never waits for them."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from headway.client.context import current
from headway.client.invoke import invoke_plain, run_on_loop
from headway.client.task import no_loop
from headway.runtime.bounded_wait import done_even_if_cancelled
from headway.worker.active_job import ActiveJob
from headway.worker.executors.base import Executor

CallOutcome = tuple[Any, BaseException | None]


class ThreadExecutor(Executor):
    """Calls the task in a thread of its own pool. A thread cannot be stopped, so its slot stays busy until it ends."""

    threaded = True

    def __init__(self, slots: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="headway-task")

    async def call(self, job: ActiveJob) -> Any:
        loop = asyncio.get_running_loop()
        variables = contextvars.copy_context()
        # The outcome comes back as a value: a future cannot carry StopIteration, nor a loop survive SystemExit.
        running = self._begin(loop, lambda: variables.run(_call, job, loop))
        cancelled = await done_even_if_cancelled(running)  # A running thread keeps its slot busy.
        value, error = running.result()
        if error is not None:
            raise error
        if cancelled:
            raise asyncio.CancelledError
        return value

    def _begin(self, loop: asyncio.AbstractEventLoop, work: Callable[[], CallOutcome]) -> asyncio.Future[CallOutcome]:
        return loop.run_in_executor(self._pool, work)

    def stop(self, job: ActiveJob) -> None:
        job.context.cancelled = True

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _call(job: ActiveJob, loop: asyncio.AbstractEventLoop) -> CallOutcome:
    task = job.task
    current.set(job.context)
    try:
        args, kwargs = task.signature.decode(job.lease.payload)
        if task.options.context:
            args.insert(0, job.context)
        bounce = run_on_loop(loop) if task.signature.dependencies else no_loop
        return invoke_plain(task.fn, args, kwargs, task.signature.dependencies, job.context, bounce), None
    except BaseException as error:
        return None, error
