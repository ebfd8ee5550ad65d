"""Watches jobs. The store notifies of changes, and periodic reads find changes whose notification was lost."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import islice

from headway.core.errors import HeadwayError, JobNotFound
from headway.core.event import Event, events_between, merge_output
from headway.core.job import JobId, JobRecord
from headway.observability.job_output import output_events
from headway.runtime.bounded_wait import wait_until_set
from headway.stores.base import JOB_CHANNEL, Store, Subscription

LINGER = 2.0  # Seconds that a subscription stays open after its last watcher, because another often follows soon.
READ_ALL_EVERY = 1.0  # Seconds between reads of all watched jobs, in case a notification was lost.
READ_ALL_PER_SECOND = 1_000  # Maximum jobs per second of these reads, to bound the load on the store.
BATCH = 250  # Jobs in one read.

Read = Callable[[Sequence[JobId]], Awaitable[list[JobRecord | None]]]


class Watcher:
    """Watches any number of jobs with one subscription and one read at a time. Belongs to one loop."""

    def __init__(self, store: Store, read: Read | None = None) -> None:
        self._store = store
        self._read = read or store.get  # The caller's ``read`` also reads the history.
        self._watched: dict[JobId, _Watched] = {}
        self._dirty: dict[JobId, None] = {}  # Jobs to read, in the order of the requests.
        self._asked = asyncio.Event()
        self._subscription: Subscription | None = None
        self._upkeep: list[asyncio.Task[None]] = []

    async def watch_changes(self, job_id: JobId) -> AsyncIterator[JobRecord | None]:
        """Yield the job now and after each possible change. Ends only when the caller stops."""
        watched = self._watched.setdefault(job_id, _Watched())
        changed = asyncio.Event()
        watched.watchers.add(changed)
        self._listen()
        try:
            (job,) = await self._read([job_id])
            watched.begin(job)
            yield job
            while True:
                await changed.wait()
                changed.clear()
                if watched.problem is not None:
                    raise watched.problem
                yield watched.job
        finally:
            watched.watchers.discard(changed)
            if not watched.watchers and self._watched.get(job_id) is watched:
                del self._watched[job_id]
            if not self._watched:
                asyncio.get_running_loop().call_later(LINGER, self._close_if_unused)

    async def ended(self, job_id: JobId) -> JobRecord:
        """Wait until a job has ended. Raises ``JobNotFound``."""
        jobs = self.watch_changes(job_id)
        try:
            async for job in jobs:
                if job is None:
                    raise JobNotFound.of(job_id)
                if job.state.ended:
                    return job
        finally:
            await jobs.aclose()  # type: ignore[attr-defined]
        raise AssertionError("watch_changes() never ends by itself")

    async def events(self, job_id: JobId) -> AsyncIterator[Event]:
        """Yield the events of a job, from its submission to its end."""
        before: JobRecord | None = None
        delivered: tuple[int, ...] = ()  # The position up to which output was delivered.
        jobs = self.watch_changes(job_id)
        try:
            async for job in jobs:
                if job is None:
                    raise JobNotFound.of(job_id)
                events = events_between(before, job, time.time_ns() // 1_000_000)
                output = await output_events(self._store, job, delivered)
                for event in merge_output(events, output, delivered):
                    yield event
                if output:
                    delivered = output[-1].place
                if job.state.ended:
                    return
                before = job
        finally:
            await jobs.aclose()  # type: ignore[attr-defined]

    def close(self) -> None:
        for task in self._upkeep:
            task.cancel()
        self._upkeep = []
        if self._subscription is not None:
            self._subscription.close()
            self._subscription = None

    def _close_if_unused(self) -> None:
        if not self._watched:
            self.close()

    def _listen(self) -> None:
        if self._subscription is None:
            self._subscription = self._store.subscribe(f"{JOB_CHANNEL}{uuid.uuid4().hex}")
            loop = asyncio.get_running_loop()
            self._upkeep = [
                loop.create_task(self._mark_notified(self._subscription)),
                loop.create_task(self._read_marked()),
            ]

    async def _mark_notified(self, subscription: Subscription) -> None:
        """Mark the jobs that the store notifies of. Ends on cancellation."""
        while True:
            notified = await subscription.wait(60.0)
            for job_id in notified or (() if notified is None else list(self._watched)):
                if job_id in self._watched:
                    self._dirty[job_id] = None
                    self._asked.set()

    async def _read_marked(self) -> None:
        """Read the marked jobs, and at intervals all watched jobs. Ends on cancellation."""
        slow_due = time.monotonic() + READ_ALL_EVERY
        while True:
            if not self._dirty:
                self._asked.clear()
                await wait_until_set(self._asked, max(0.0, slow_due - time.monotonic()))
            if time.monotonic() >= slow_due:
                self._dirty |= dict.fromkeys(self._watched)
                slow_due = time.monotonic() + max(READ_ALL_EVERY, len(self._watched) / READ_ALL_PER_SECOND)
            batch = [job_id for job_id in islice(self._dirty, BATCH) if job_id in self._watched]
            for job_id in list(islice(self._dirty, BATCH)):
                del self._dirty[job_id]
            if batch:
                await self._read_batch(batch)

    async def _read_batch(self, job_ids: list[JobId]) -> None:
        try:
            jobs = await self._read(job_ids)
        except HeadwayError as problem:
            for job_id in job_ids:
                if watched := self._watched.get(job_id):
                    watched.fail(problem)
            return
        for job_id, job in zip(job_ids, jobs, strict=True):
            if watched := self._watched.get(job_id):
                watched.see(job)


class _Watched:
    """A job and its watchers."""

    __slots__ = ("job", "mark", "problem", "watchers")

    def __init__(self) -> None:
        self.watchers: set[asyncio.Event] = set()
        self.job: JobRecord | None = None
        self.mark: tuple[object, ...] | None = None  # The job's mark when its watchers were last woken.
        self.problem: HeadwayError | None = None

    def begin(self, job: JobRecord | None) -> None:
        """Set the job that the first watcher has read."""
        if self.mark is None:
            self.job, self.mark = job, _mark(job)

    def see(self, job: JobRecord | None) -> None:
        mark = _mark(job)
        if mark != self.mark or self.problem is not None:
            self.job, self.mark, self.problem = job, mark, None
            self._wake_watchers()

    def fail(self, problem: HeadwayError) -> None:
        self.problem = problem
        self._wake_watchers()

    def _wake_watchers(self) -> None:
        for changed in self.watchers:
            changed.set()


def _mark(job: JobRecord | None) -> tuple[object, ...]:
    """Return the values of a job of which at least one changes with every event."""
    if job is None:
        return ()
    return (
        job.state, job.epoch, job.attempts, job.progress, job.note, job.finished_at, job.cancel_requested_at,
        job.due_at, job.blocked_by, job.assigned, len(job.history),
    )  # fmt: skip
