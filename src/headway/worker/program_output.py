"""Writes the output of running programs to the backend, for the readers of job events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from headway.core.errors import HeadwayError
from headway.core.job import JobId
from headway.core.lease import Lease
from headway.core.log_event import LogEvent
from headway.observability.job_output import OutputTail
from headway.runtime.bounded_wait import end_tasks
from headway.worker.backend.base import Backend

log = logging.getLogger("headway.worker")

EVERY = 1.0  # Seconds between writes for one job. A program that ends sooner has its output only in the result.
LAST = 2.0  # Seconds that the last write may take, because it delays the report of the job.
NOTE_MAX = 200  # Characters of the last line that progress shows.

Note = Callable[[Lease, float, str], None]


class _OutputTask:
    """The output of one running job, and the task that writes it."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.tail = OutputTail()
        self.task: asyncio.Task[None] | None = None
        self.written = False


class OutputWriter:
    """Collects and writes the output of a runner's programs. Only the runner's loop uses it.

    ``note`` reports progress, which wakes the readers.
    """

    def __init__(self, backend: Backend, worker_id: Callable[[], str], note: Note) -> None:
        self._backend = backend
        self._worker_id = worker_id
        self._note = note
        self.jobs: dict[JobId, _OutputTask] = {}  # Jobs whose programs have printed something.

    def add(self, lease: Lease, stream: str, text: str) -> None:
        """Add what a program printed. The next write, within ``EVERY`` seconds, contains it."""
        if not lease.persist:
            return
        job = self.jobs.get(lease.job_id)
        if job is None or job.lease.token != lease.token:
            job = self.jobs[lease.job_id] = _OutputTask(lease)
        job.tail.add(stream, text, time.time_ns() // 1_000_000)
        if job.task is None:
            job.task = asyncio.get_running_loop().create_task(self._keep_writing(job))

    async def end(self, lease: Lease) -> None:
        """Write the last of a job's output, if any was written before. The runner then reports the job's end."""
        job = self.jobs.pop(lease.job_id, None)
        if job is None or job.task is None:
            return
        await end_tasks([job.task])
        if job.written and job.tail.changed:
            try:
                async with asyncio.timeout(LAST):
                    await self._write(job)
            except TimeoutError:
                log.debug(LogEvent("output.late", job=lease.job_id, task=lease.task))

    async def _keep_writing(self, job: _OutputTask) -> None:
        """Write new output every ``EVERY`` seconds. ``end`` cancels this loop."""
        while True:
            await asyncio.sleep(EVERY)
            if job.tail.changed:
                await self._write(job)

    async def _write(self, job: _OutputTask) -> None:
        try:
            await self._backend.write_output(self._worker_id(), job.lease, job.tail.take())
        except HeadwayError as problem:  # The next write repeats what the tail has not dropped by then.
            job.tail.changed = True
            log.debug(LogEvent("output.failed", job=job.lease.job_id, error=str(problem)))
            return
        job.written = True
        self._note(job.lease, 0.0, job.tail.last_line[:NOTE_MAX])
