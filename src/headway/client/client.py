"""The async client: every operation of an application or an operator on a store."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import ClassVar

from headway.client.job_reader import JobReader
from headway.client.settings import seconds
from headway.client.watcher import Watcher
from headway.core.diagnostics import JobDiagnostics
from headway.core.errors import ConfigError, HeadwayError, IllegalMove, JobNotFound, ResultTimeout
from headway.core.event import Event
from headway.core.job import JobId, JobRecord, NewJob, State, SubmitReply
from headway.core.log_event import LogEvent
from headway.core.policy.document import Policy
from headway.core.policy.estimate import Estimate
from headway.core.workflow import Graph, GraphReply
from headway.estimates.forecaster import Forecaster
from headway.observability.traces import shown_trace
from headway.security.audited_store import audited
from headway.stores.base import ExternalSubmitter, JobQuery, PreparedGraph, PreparedSubmit, Stats, Store
from headway.stores.paging import get_in_steps, without_values

log = logging.getLogger("headway.jobs")

BATCH = 1_000  # Jobs in one round trip.

Move = Callable[[Sequence[JobId]], Awaitable[list[State | None]]]


class Client:
    """Opens a store on first use: once for each event loop, or once in all if the store can serve several loops.

    ``history`` returns the address of the database that keeps ended jobs which the store no longer has, or None.
    """

    # The client calls the guard with each store before use; the guard may raise. Tests use it to refuse real stores.
    guard: ClassVar[Callable[[Store], None] | None] = None

    def __init__(self, make_store: Callable[[], Store], history: Callable[[], str | None] = lambda: None) -> None:
        self._make_store = make_store
        self._history = history
        self._links: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _StoreHandle] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()
        self._shared: Store | None = None
        self._shared_opening: concurrent.futures.Future[Store] | None = None
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Future[None]] = {}
        self._pid = os.getpid()
        self._abandoned: list[object] = []

    async def store(self) -> Store:
        """Return the open store of the running loop."""
        return (await self._link()).store

    async def watcher(self) -> Watcher:
        """Return the job watcher of the running loop."""
        return (await self._link()).watcher

    def opened(self, loop: asyncio.AbstractEventLoop | None) -> Store | None:
        """Return the store of a loop if it is open already. Other threads than the loop's may call this."""
        link = self._links.get(loop) if loop is not None and self._pid == os.getpid() else None
        return None if link is None else self._check(link.store)

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        """Submit jobs in one round trip, all or none."""
        return await (await self.store()).submit(jobs)

    async def submit_graph(self, graph: Graph) -> GraphReply:
        """Submit a graph in one round trip, all or nothing of it."""
        return await (await self.store()).submit_graph(graph)

    async def prepare_submit(self, jobs: Sequence[NewJob]) -> PreparedSubmit:
        """Prepare a submit on the caller's own connection. Raises ``ConfigError`` if the store cannot do that."""
        return await (await self._external()).prepare_submit(jobs)

    async def prepare_graph(self, graph: Graph) -> PreparedGraph:
        """Prepare a graph on the caller's own connection. Raises ``ConfigError`` if the store cannot do that."""
        return await (await self._external()).prepare_graph(graph)

    async def _external(self) -> ExternalSubmitter:
        external = (await self.store()).abilities.external_submit
        if external is None:
            raise ConfigError("connection= requires the PostgreSQL store; no other store can join your transaction")
        return external

    async def get(self, job_id: JobId) -> JobRecord:
        """Read a job. Raises ``JobNotFound``."""
        job = (await self.read_jobs([job_id]))[0]
        if job is None:
            raise JobNotFound.of(job_id)
        return job

    async def read_jobs(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        """Read jobs from the store and the history."""
        return await (await self._link()).job_reader.get(job_ids)

    async def ended(self, job_id: JobId, timeout: float | timedelta | None) -> JobRecord:
        """Wait until a job has ended. Raises ``ResultTimeout``, ``JobNotFound``."""
        link = await self._link()
        try:
            async with asyncio.timeout(None if timeout is None else seconds(timeout, "timeout")):
                return await link.watcher.ended(job_id)
        except TimeoutError:
            (job,) = await self.read_jobs([job_id])  # A timeout of 0 must still return a job that has ended.
            if job is not None and job.state.ended:
                return job
            raise ResultTimeout(f"job {job_id} has not ended within {timeout} s; it continues", job_id=job_id) from None

    async def events(self, job_id: JobId) -> AsyncGenerator[Event]:
        events = (await self._link()).watcher.events(job_id)
        async with contextlib.aclosing(events) as open_events:  # type: ignore[type-var]
            async for event in open_events:
                yield event

    async def cancel(self, job_ids: Sequence[JobId], *, who: str | None = None) -> list[State | None]:
        """Cancel jobs. ``who`` names the operator for the audit; None stands for a client of the jobs."""
        store = audited(await self.store(), who)
        return await _move(store, job_ids, store.cancel)

    async def retry(
        self, job_ids: Sequence[JobId], *, who: str | None = None, alone: bool = False
    ) -> list[State | None]:  # fmt: skip
        """Queue ended jobs again, and unless ``alone`` hold their cancelled dependants. ``who``: as in ``cancel``."""
        store = audited(await self.store(), who)
        return await _move(store, job_ids, partial(store.retry, alone=alone))

    async def retry_one(self, job_id: JobId, *, who: str | None = None, alone: bool = False) -> State:
        """Queue an ended job again. Raises ``IllegalMove``, ``JobNotFound``."""
        state = (await self.retry([job_id], who=who, alone=alone))[0]
        if state is None:
            raise await self.absent(job_id)
        if state is State.COMPLETED:
            raise IllegalMove(f"job {job_id} completed and cannot be retried", job_id=job_id)
        if state.ended:
            raise IllegalMove(f"job {job_id} cannot be retried: another live job has its unique key", job_id=job_id)
        return state

    async def absent(self, job_id: JobId) -> HeadwayError:
        """Return the error for a job that the store does not have: it is in the history, or unknown."""
        job = (await self.read_jobs([job_id]))[0]
        if job is None:
            return JobNotFound(f"no job {job_id} in the store", job_id=job_id)
        return IllegalMove(
            f"job {job_id} is history: it ended as {job.state.value} and only its record is kept, so it can neither be "
            "retried nor cancelled; submit it anew",
            job_id=job_id,
        )

    async def find(self, query: JobQuery) -> list[JobRecord]:
        """Find jobs in the store and the history, newest first."""
        return await (await self._link()).job_reader.find(query)

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics:
        """Read the diagnostics of a job. Raises ``JobNotFound``."""
        diagnosis = await (await self.store()).diagnose_job(job_id)
        if diagnosis is None:
            raise JobNotFound.of(job_id)
        return diagnosis

    async def estimate(self, job_id: JobId, policy: Policy) -> Estimate | None:
        """Return when a job will start, or None once it has started or ended. Raises ``JobNotFound``."""
        link = await self._link()
        return await link.forecaster.estimate(link.store, await self.diagnose_job(job_id), policy)

    async def stats(self) -> Stats:
        return await (await self.store()).stats()

    async def close(self) -> None:
        """Close the connections of the running loop. The last loop also closes the shared store."""
        link = self._links.pop(asyncio.get_running_loop(), None)
        if link is not None:
            link.watcher.close()
            await link.job_reader.close()
            if link.store is not self._shared:
                await link.store.close()
        if self._shared is not None and not self._links:
            shared, self._shared, self._shared_opening = self._shared, None, None
            await shared.close()

    async def _link(self) -> _StoreHandle:
        if self._pid != os.getpid():
            self._forget_parent()
        loop = asyncio.get_running_loop()
        link = self._links.get(loop)
        if link is not None:
            self._check(link.store)
            return link
        if (opening := self._opening.get(loop)) is not None:
            await asyncio.shield(opening)
            return await self._link()
        opened: asyncio.Future[None] = loop.create_future()
        self._opening[loop] = opened
        try:
            link = _StoreHandle(await self._open(), self._history())
            self._links[loop] = link
            return link
        finally:
            del self._opening[loop]
            opened.set_result(None)

    async def _open(self) -> Store:
        with self._lock:  # Loops in several threads may open at once.
            begun = self._shared_opening
            store = self._check(self._make_store()) if begun is None else None
            if store is not None and store.abilities.any_loop:
                self._shared_opening = concurrent.futures.Future()
            opening = self._shared_opening
        if store is None:
            return await asyncio.wrap_future(begun) if begun is not None else await self._open()
        try:
            await store.open()
        except BaseException as problem:
            if opening is not None:
                self._shared_opening = None
                opening.set_exception(problem)
                opening.exception()  # Marks it as retrieved if no other caller waits.
            raise
        if opening is not None:
            self._shared = store
            opening.set_result(store)
        return store

    def _check(self, store: Store) -> Store:
        """Call the guard, if one is set, and return the store."""
        if Client.guard is not None:
            Client.guard(store)
        return store

    def _forget_parent(self) -> None:
        """Drop what the parent process opened before a fork. Keep references, so that nothing of it is closed here."""
        self._abandoned += [self._shared, *self._links.values()]
        self._shared = self._shared_opening = None
        self._links = weakref.WeakKeyDictionary()
        self._opening = {}
        self._pid = os.getpid()


async def _move(store: Store, job_ids: Sequence[JobId], move: Move) -> list[State | None]:
    """Move jobs to other states, and log each job whose state has changed."""
    before: list[JobRecord | None] = []
    if log.isEnabledFor(logging.INFO):
        before = [job and without_values(job) async for job in get_in_steps(store.get, job_ids)]
    after = await move(job_ids)
    for job, state in zip(before, after, strict=False):
        if job is not None and state is not None and state is not job.state:
            facts = {"job": job.job_id, "task": job.task, "lane": job.lane}
            trace_id = shown_trace(job.trace_id, job.job_id)
            log.info(LogEvent(f"job.{state.value}", **facts, trace_id=trace_id, reason="by hand"))
    return after


class _StoreHandle:
    """The store of one event loop, with its reader, watcher and forecaster."""

    def __init__(self, store: Store, history: str | None) -> None:
        self.store = store
        self.job_reader = JobReader(store, history)
        self.watcher = Watcher(store, self.job_reader.get)
        self.forecaster = Forecaster()
