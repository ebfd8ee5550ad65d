"""Begins jobs, several in one asyncio task as long as none of them waits for anything."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any

from headway.client.context import current
from headway.worker.active_job import ActiveJob


class TaskBatcher:
    """Runs jobs in the order they are given. A task for each would cost more than a small job does itself.

    A job that has waited keeps the task it runs in for itself. So does one that has set a context variable or was
    told to stop: no job finds anything that another left behind.
    """

    def __init__(self, attempt: Callable[[ActiveJob], Coroutine[Any, Any, None]]) -> None:
        self._attempt = attempt
        self._loop = asyncio.get_running_loop()
        self._line: deque[ActiveJob] = deque()
        self._stint: asyncio.Task[None] | None = None  # The task that takes the next job of the line.
        self._job: ActiveJob | None = None  # The job it is at.
        self._patient: set[str] = set()  # The tasks that were seen to wait; each of their jobs begins by itself.

    def begin(self, job: ActiveJob) -> None:
        """Let a job begin as soon as the loop turns."""
        if job.task.name in self._patient:
            self._loop.create_task(self._run_alone(job))
            return
        self._line.append(job)
        if self._stint is None:
            self._next_stint()

    def _next_stint(self) -> None:
        """Called when the batch before has ended, or has come to a job that waits."""
        self._stint = None
        if self._job is not None:
            self._patient.add(self._job.task.name)
            self._job = None
            line, self._line = self._line, deque()
            for job in line:
                self.begin(job)
        elif self._line:
            self._stint = self._loop.create_task(self._run())
            self._loop.call_soon(self._next_stint)  # So, right after the task's first step.

    async def _run(self) -> None:
        task = self._stint
        while self._line and self._stint is task and task is not None:
            self._job = job = self._line.popleft()
            job.handle = task
            current.set(job.context)
            before = copy_context()
            await self._attempt(job)
            if self._job is job:
                self._job = None
            if task.cancelling() or _touched(before):
                return

    async def _run_alone(self, job: ActiveJob) -> None:
        job.handle = asyncio.current_task()
        current.set(job.context)
        await self._attempt(job)


def _touched(before: Context) -> bool:
    """Return whether a job has set any context variable. Costs next to nothing if not."""
    try:
        return copy_context() != before
    except Exception:  # Values that cannot be compared.
        return True
