"""What a worker exchanges with the source of its jobs: a store, or a server in front of one."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from headway.core.errors import StoreError
from headway.core.job import JobId
from headway.core.lease import Lease, Report
from headway.core.policy.document import LimitRule, Policy, reserved_slots
from headway.core.policy.retry import Ending
from headway.core.worker import WorkerInfo
from headway.dispatch.job_source import ClaimResult, FinishedRun, StoreJobSource
from headway.estimates.costs import TaskCosts
from headway.maintenance.recovery import end_worker
from headway.metrics.recorder import MetricsRecorder
from headway.observability.job_output import Chunk, write_output
from headway.observability.outage import Outage
from headway.policy_store.catalogue import CronDocument, TaskEntry, publish_crons, publish_tasks
from headway.policy_store.current import CurrentPolicy
from headway.policy_store.rule_documents import declare_limits, write_rules
from headway.stores.base import Heartbeat, HeartbeatReply, Progress, Store, Subscription
from headway.worker.backend.policy_file import apply_file

log = logging.getLogger("headway.worker")

ReportT = TypeVar("ReportT")


class JobSource(Protocol[ReportT]):
    """What hands one runner its jobs. Used by one loop, one exchange after another.

    It takes each ending as a word of its own: a store takes a report, a server takes the ending itself.
    """

    @property
    def idle_since(self) -> float:
        """When nothing was last seen to wait, on the monotonic clock; 0 if something does, or if it does not look."""
        ...

    def reports_for(self, ran: Sequence[FinishedRun]) -> list[ReportT]:
        """Learn from jobs that have run, and put their endings into the words that go with the next exchange."""
        ...

    async def exchange(
        self,
        finished: Sequence[ReportT],
        progress: Sequence[Progress],
        *,
        free: int,
        free_below: int,
        woken: bool = False,
    ) -> ClaimResult:
        """Hand in what has ended and claim for the free slots; the same again after an error."""
        ...

    def offer_learned(self, learn: Callable[[str], bool]) -> None:
        """Serve also jobs of tasks that other workers did not know, if ``learn`` finds the task by its name."""
        ...

    def subscribe(self) -> Subscription:
        """Open the ear that rings when an exchange may bring something."""
        ...

    def leave(self) -> None:
        """Nothing more is wanted."""
        ...

    async def close(self) -> None: ...


class AppManifest(NamedTuple):
    """The tasks of an app, for processes that have not imported it."""

    tasks: list[TaskEntry]
    limits: Mapping[str, Mapping[str, LimitRule]]  # By task, and by the limit's name.
    crons: list[CronDocument]


class LeaseTimes(NamedTuple):
    """How often a worker renews, and for how long its leases last without. In seconds."""

    heartbeat: float
    dead_after: float
    confirm: float  # How old a lease may get before the worker must have named it.
    grace: float = 5.0  # How long after its time is up the worker may need to end a job and say so.


class RegisteredWorker(NamedTuple):
    """A worker as it was admitted: by its name there, and at the pace it has to keep."""

    worker: WorkerInfo
    pace: LeaseTimes


# Tells how a job of a dead runner ended, by its id and, where that is known, by how long it might have run.
EndingOf = Callable[[JobId, int | None], Ending]


class Backend(Protocol):
    """Where a worker gets its jobs. A runner has one, and its parent has another."""

    in_force: CurrentPolicy
    outage: Outage
    store: Store | None  # The store itself, if this worker may do chores there.

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def register(
        self, worker: WorkerInfo, pace: LeaseTimes, known: Callable[[Policy], AppManifest], *, reserved: int | None
    ) -> RegisteredWorker:
        """Make a worker and its tasks known. ``reserved``: how many slots it was told to keep, if it was."""
        ...

    def job_source(self, worker: WorkerInfo, pace: LeaseTimes, *, offset: float) -> JobSource[Any]:
        """Return what hands a registered worker its jobs."""
        ...

    def subscribe(self, name: str) -> Subscription:
        """Open the subscription of a worker's lease renewal: the worker's id with LEASE_CHANNEL behind it."""
        ...

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        """Keep a worker's leases; hear what it has lost and what it must stop."""
        ...

    async def check(self) -> None:
        """Ask for something small, to see whether the store answers. Raises ``StoreError``."""
        ...

    async def refresh_policy(self) -> None:
        """Look whether another policy is in force now."""
        ...

    def told(self, version: int, policy: dict[str, Any]) -> None:
        """Note the policy in force that another process reports."""
        ...

    async def learn(self, *, idle: bool) -> bool:
        """Share what jobs took, if any has ended or the worker was ``idle`` for long. Gives whether it did so."""
        ...

    async def write_output(self, worker_id: str, lease: Lease, chunks: Sequence[Chunk]) -> None:
        """Write the latest output of a running program, for the readers of its job's events."""
        ...

    async def give_back(
        self, worker_id: str, held: Sequence[tuple[JobId, bytes]], fate: EndingOf, *, left: bool = False
    ) -> None:
        """End what a worker held that is gone; ``held`` are the leases that its parent knows of.

        ``left``: it was stopped, so that no list shows it as dead.
        """
        ...


class StoreBackend:
    """Talks to a store. ``file``: the policy file the worker was started with, and its path."""

    def __init__(
        self,
        store: Store,
        in_force: CurrentPolicy,
        *,
        file: tuple[Policy, str] | None = None,
        recorder: MetricsRecorder | None = None,
    ) -> None:
        self.store: Store | None = store
        self.in_force = in_force
        self.outage = Outage(log)
        self._store = store
        self._file = file
        self._durations = TaskCosts()
        self.recorder = recorder or MetricsRecorder()

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        with contextlib.suppress(StoreError):
            await self.recorder.retire(self._store)
        await self._store.close()

    async def register(
        self, worker: WorkerInfo, pace: LeaseTimes, known: Callable[[Policy], AppManifest], *, reserved: int | None
    ) -> RegisteredWorker:
        store = self._store
        if self._file is not None:  # One that is new comes into force first.
            await apply_file(store, *self._file, now_at=(await store.snapshot()).now_at)
        await self.in_force.refresh(store, every=0)
        policy = self.in_force.policy
        worker = replace(worker, reserved=reserved_slots(policy, worker.slots, reserved))
        beat = Heartbeat(worker, int(pace.dead_after * 1_000), int(pace.confirm * 1_000), register=True)
        answer = await store.renew(beat)
        tasks, limits, crons = known(policy)
        await publish_tasks(store, tasks)
        for task, declared in limits.items():
            await declare_limits(store, task, declared)
        await self._durations.publish(store)
        await publish_crons(store, crons, {entry.name for entry in tasks}, answer.now_at)
        return RegisteredWorker(worker, pace)

    def job_source(self, worker: WorkerInfo, pace: LeaseTimes, *, offset: float) -> JobSource[Report]:
        return StoreJobSource(
            self._store,
            self.in_force,
            worker.worker_id,
            worker.offers,
            durations=self._durations,
            recorder=self.recorder,
            offset=offset,
            confirm=pace.confirm,
        )

    def subscribe(self, name: str) -> Subscription:
        return self._store.subscribe(name)

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._store.renew(beat)

    async def check(self) -> None:
        await self._store.snapshot()

    async def refresh_policy(self) -> None:
        if await self.in_force.refresh(self._store, every=0):
            await write_rules(self._store, self.in_force.policy)  # Should its applier have died in between.

    def told(self, version: int, policy: dict[str, Any]) -> None: ...

    async def learn(self, *, idle: bool) -> bool:
        await self.recorder.publish(self._store)
        if not self._durations.noted and not idle:
            return False
        await self._durations.publish(self._store)
        return True

    async def write_output(self, worker_id: str, lease: Lease, chunks: Sequence[Chunk]) -> None:
        await write_output(self._store, lease.job_id, lease.epoch, chunks)

    async def give_back(
        self, worker_id: str, held: Sequence[tuple[JobId, bytes]], fate: EndingOf, *, left: bool = False
    ) -> None:
        def ending(lease: Lease) -> Ending:
            return fate(lease.job_id, lease.limit_ms)

        await end_worker(self._store, worker_id, self.in_force.policy, ending, recorder=self.recorder, left=left)
