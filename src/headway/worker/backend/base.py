"""What a worker exchanges with the source of its jobs: a store, or a server in front of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headway.core.job import JobId
from headway.core.lease import Lease
from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.retry import Ending
from headway.core.worker import WorkerInfo
from headway.dispatch.job_source import ClaimResult, FinishedRun
from headway.observability.job_output import Chunk
from headway.observability.outage import Outage
from headway.policy_store.catalogue import CronDocument, TaskEntry
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Heartbeat, HeartbeatReply, Progress, Store, Subscription


class JobSource(Protocol):
    """What hands one runner its jobs. Used by one loop, one exchange after another."""

    @property
    def idle_since(self) -> float:
        """When nothing was last seen to wait, on the monotonic clock; 0 if something does, or if it does not look."""
        ...

    async def exchange(
        self,
        finished: Sequence[FinishedRun],
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
        """Open the subscription that wakes when an exchange may bring something."""
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

    def job_source(self, worker: WorkerInfo, pace: LeaseTimes, *, offset: float) -> JobSource:
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
