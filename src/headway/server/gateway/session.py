"""The state that one server process caches for an HTTP worker. It can be rebuilt from the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from headway.core.job import JobId
from headway.core.lease import Lease
from headway.dispatch.job_source import StoreJobSource
from headway.runtime.bounded_wait import end_tasks
from headway.server.gateway.registry import Registration, WorkerRegistry
from headway.stores.base import LEASE_CHANNEL, Store, Subscription

LINGER = 5.0  # Seconds that subscriptions stay open after a poll: usually another poll follows.
CLAIMED_FIRST = 16  # Maximum jobs of the first exchange: each may carry a megabyte.
NARROW_MAX = 4  # Job sources kept for polls that offer less than the worker registered.


@dataclass(slots=True, eq=False)
class PendingPoll:
    """An open poll. ``over``: it must end, because another poll takes its place or the server stops."""

    claims: bool
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    over: bool = False
    waits: bool = False  # The store wakes this worker for new jobs.


@dataclass(slots=True)
class DeliveryState:
    """The cancels, drains and budgets that polls have delivered, so that the next poll does not end early for them."""

    budgets: dict[JobId, float] = field(default_factory=dict)
    cancels: set[JobId] = field(default_factory=set)
    drains: bool = False


class WorkerSession:
    """Holds a worker's job source, its leases as last read, and its subscriptions while it polls."""

    def __init__(
        self,
        store: Store,
        registry: WorkerRegistry,
        make_job_source: Callable[[frozenset[str]], StoreJobSource],
        registration: Registration,
        *,
        payload_max: int,
    ) -> None:
        self.registration = registration
        self.payload_max = payload_max  # Bytes of the largest result that is stored.
        self.leases: dict[JobId, Lease] = {}
        self.transient: dict[JobId, Lease] = {}  # Handed out by this process. No store knows which worker has them.
        self.stopped: set[JobId] = set()  # Ended by the server, not by the worker.
        # Separate for polls that claim jobs and polls that do not, because a worker may have one of each open.
        self.delivered = {True: DeliveryState(), False: DeliveryState()}
        self.begun: dict[JobId, float] = {}  # When this process handed out each job, by the monotonic clock.
        self.exchanging = asyncio.Lock()  # A job source serves one exchange at a time.
        self.polls: list[PendingPoll] = []
        self.newest: PendingPoll | None = None  # The poll that claims. Earlier polls only wait.
        self.pending: bytes | None = None  # A claim that the store has not answered.
        self.spent: bytes | None = None  # The last claim that returned jobs.
        self.fresh = True  # The worker has not polled here yet.
        self.batch = CLAIMED_FIRST  # Maximum jobs of the next exchange. It falls when jobs are large.
        self.woken = False  # The store has woken it since the last exchange.
        self.used = time.monotonic()
        self._store = store
        self._registry = registry
        self._make_job_source = make_job_source
        self._job_sources: dict[frozenset[str], StoreJobSource] = {}
        self._last_read = -1.0
        self._leases_changed = True  # The leases may have changed since they were read.
        self._dismissed: set[JobId] = set()
        self._read_lock = asyncio.Lock()
        self._changes_during_read: list[tuple[JobId, Lease | None]] = []  # Changes during a read of the store.
        self._listeners: list[asyncio.Task[None]] = []

    def job_source(self, capabilities: frozenset[str] | None = None) -> StoreJobSource:
        """Return the job source for what a poll offers. That may be less than the worker registered."""
        offers = frozenset(self.registration.offers)
        if capabilities is not None:
            offers = capabilities.union(self.registration.task_offers)
        job_source = self._job_sources.get(offers)
        if job_source is None:
            if len(self._job_sources) > NARROW_MAX:
                self._job_sources.clear()
            job_source = self._job_sources[offers] = self._make_job_source(offers)
        return job_source

    async def read_leases(self, *, within: float = 0.0, payloads: bool = False) -> None:
        """Read the worker's leases, unless they were read ``within`` seconds and the store has reported no change.

        Only a claim that is repeated needs ``payloads``.
        """
        async with self._read_lock:
            if not self._leases_changed and time.monotonic() - self._last_read < within:
                return
            self._leases_changed = False
            self._last_read = time.monotonic()
            self._changes_during_read = []
            held = await self._store.leases(
                worker_id=self.registration.worker_id, limit=self.registration.slots, payloads=payloads
            )
            self.stopped = await self._registry.stopped(self.registration.worker_id)
            # A job that cannot be read is not handed out. The claim or the next renewal ends it as a dead letter.
            self.leases = {lease.job_id: lease for lease in held if lease.unreadable is None}
            for job_id, lease in self._changes_during_read:  # They may be newer than what was read.
                self._put(job_id, lease)
        for delivered in self.delivered.values():
            delivered.cancels &= self.leases.keys() | self.stopped
        self._dismissed &= self.stopped
        self.begun = {job_id: at for job_id, at in self.begun.items() if job_id in self.leases}

    def hold(self, leases: Iterable[Lease]) -> None:
        """Record leases that were handed out."""
        now = time.monotonic()
        for lease in leases:
            self.stopped.discard(lease.job_id)
            if lease.persist:
                self.begun[lease.job_id] = now
                self._note(lease.job_id, lease)
                if lease.budget_ms is not None:
                    for delivered in self.delivered.values():
                        delivered.budgets[lease.job_id] = lease.limit_ms / 1_000
            else:
                self.transient[lease.job_id] = lease
                if len(self.transient) > self.registration.slots:
                    del self.transient[next(iter(self.transient))]

    def release(self, job_ids: Iterable[JobId]) -> None:
        """Record jobs that have ended, and wake the polls, which may have room for more."""
        for job_id in job_ids:
            self._note(job_id, None)
            self.transient.pop(job_id, None)
            self.begun.pop(job_id, None)
            for delivered in self.delivered.values():
                delivered.cancels.discard(job_id)
        self.wake_polls()

    def dismiss(self, job_ids: Iterable[JobId]) -> None:
        """Stop naming these jobs as lost. The worker has reported them, so it runs them no longer."""
        self._dismissed.update(job_ids)

    def _note(self, job_id: JobId, lease: Lease | None) -> None:
        if self._read_lock.locked():
            self._changes_during_read.append((job_id, lease))
        self._put(job_id, lease)

    def _put(self, job_id: JobId, lease: Lease | None) -> None:
        if lease is None:
            self.leases.pop(job_id, None)
        else:
            self.leases[job_id] = lease

    def cancels(self) -> list[JobId]:
        """Return the jobs that the worker must stop."""
        wanted = [job_id for job_id, lease in self.leases.items() if lease.cancel_requested]
        return [*wanted, *self.lost()]

    def lost(self) -> list[JobId]:
        """Return the jobs that the server has ended, except those that the worker has got again since."""
        return sorted(self.stopped - self.leases.keys() - self._dismissed)

    def budgets(self) -> dict[JobId, float]:
        """Return how many seconds from its start each job on the ladder may take."""
        held = self.leases.values()
        return {lease.job_id: lease.limit_ms / 1_000 for lease in held if lease.budget_ms is not None}

    @contextmanager
    def polling(self, *, claims: bool, takes_over: bool, waits: bool) -> Iterator[PendingPoll]:
        """Open a poll of this worker. Of the polls that ask for jobs, only the newest claims any."""
        poll = PendingPoll(claims=claims)
        if claims:
            if takes_over:
                for other in self.polls:
                    other.over = other.over or other.claims
                self.wake_polls()
            self.newest = poll
        self.polls.append(poll)
        if waits:
            self._listen()
        try:
            yield poll
        finally:
            self.polls.remove(poll)
            self.used = time.monotonic()
            if self.newest is poll:
                self.newest = None
            if not self.polls and self._listeners:
                asyncio.get_running_loop().call_later(LINGER, self._close_if_unused)

    def wake_polls(self) -> None:
        for poll in self.polls:
            poll.wake.set()

    async def close(self) -> None:
        listeners, self._listeners = self._listeners, []
        await end_tasks(listeners)

    def _close_if_unused(self) -> None:
        if not self.polls and time.monotonic() - self.used >= LINGER - 0.01:
            for task in self._listeners:
                task.cancel()
            self._listeners = []

    def _listen(self) -> None:
        if self._listeners:
            return
        worker_id, loop = self.registration.worker_id, asyncio.get_running_loop()
        # Subscribe before the tasks start, so that no message is missed.
        jobs, changes = self._store.subscribe(worker_id), self._store.subscribe(worker_id + LEASE_CHANNEL)
        self._listeners = [
            loop.create_task(self._follow(jobs, changes=False)),
            loop.create_task(self._follow(changes, changes=True)),
        ]
        self._leases_changed = True  # The leases may have changed while nothing was subscribed.

    async def _follow(self, subscription: Subscription, *, changes: bool) -> None:
        """Act on messages of the store until cancelled: new jobs, or with ``changes`` a cancel or a drain."""
        try:
            while True:
                if await subscription.wait(60.0) is not None:
                    if changes:
                        self._leases_changed = True
                    else:
                        self.woken = True
                    self.wake_polls()
        finally:
            subscription.close()
