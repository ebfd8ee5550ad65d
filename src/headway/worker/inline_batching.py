"""Starts jobs in batches: jobs that never suspend share one asyncio task."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

from headway.client.context import current
from headway.worker.active_job import ActiveJob


class TaskBatcher:
    """Runs jobs in order in one asyncio task, because a task for each would cost more than a small job.

    A job that suspends keeps the task for itself. So does a job that has set a context variable or was asked to stop,
    so that the next job finds nothing that it left behind.
    """

    def __init__(self, attempt: Callable[[ActiveJob], Coroutine[Any, Any, None]]) -> None:
        self._attempt = attempt
        self._loop = asyncio.get_running_loop()
        self._queue: deque[ActiveJob] = deque()
        self._batch: asyncio.Task[None] | None = None  # The asyncio task that takes the next job.
        self._job: ActiveJob | None = None  # The job that runs in it.
        self._suspending: set[str] = set()  # Names of tasks that suspend; each of their jobs gets an asyncio task.

    def begin(self, job: ActiveJob) -> None:
        """Start a job at the next turn of the loop."""
        if job.task.name in self._suspending:
            self._loop.create_task(self._run_alone(job))
            return
        self._queue.append(job)
        if self._batch is None:
            self._next_batch()

    def _next_batch(self) -> None:
        """Start the next batch. Called when the last one has ended or has reached a job that suspends."""
        self._batch = None
        if self._job is not None:
            self._suspending.add(self._job.task.name)
            self._job = None
            queue, self._queue = self._queue, deque()
            for job in queue:
                self.begin(job)
        elif self._queue:
            self._batch = self._loop.create_task(self._run())
            self._loop.call_soon(self._next_batch)  # Runs right after the first step of the task.

    async def _run(self) -> None:
        task = self._batch
        while self._queue and self._batch is task and task is not None:
            self._job = job = self._queue.popleft()
            job.handle = task
            current.set(job.context)
            before = copy_context()
            await self._attempt(job)
            if self._job is job:
                self._job = None
            if task.cancelling() or _context_changed(before):
                return

    async def _run_alone(self, job: ActiveJob) -> None:
        job.handle = asyncio.current_task()
        current.set(job.context)
        await self._attempt(job)


def _context_changed(before: Context) -> bool:
    """Return whether a job has set any context variable. The comparison is cheap if it has not."""
    try:
        return copy_context() != before
    except Exception:  # Some values cannot be compared.
        return True
