"""What a worker needs of the source of its jobs: a store, or a server in front of one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from headway.client.members import MemberReader
from headway.core.job import JobId
from headway.core.lease import Lease
from headway.core.policy.document import LimitRule, Policy
from headway.core.policy.retry import Ending
from headway.core.worker import WorkerInfo
from headway.core.workflow import Step, Upstream
from headway.dispatch.job_source import ClaimResult, FinishedRun
from headway.observability.job_output import Chunk
from headway.observability.outage import Outage
from headway.policy_store.catalogue import CronDocument, TaskEntry
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Heartbeat, HeartbeatReply, Progress, Store, Subscription

log = logging.getLogger("headway.worker")


class JobSource(Protocol):
    """Supplies one runner with jobs. One loop makes one exchange after another."""

    @property
    def idle_since(self) -> float:
        """Monotonic time at which the queue was last seen empty; 0 if jobs wait or the source does not check."""
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
        """Report finished jobs and claim for the free slots. After an error the caller repeats the same call."""
        ...

    def handed(self) -> Sequence[Lease]:
        """Return the leases that came along with a wake-up, for slots that were free at the last exchange."""
        ...

    def offer_learned(self, learn: Callable[[str], bool]) -> None:
        """Also serve jobs of tasks that other workers did not know, if ``learn`` finds the task by its name."""
        ...

    def subscribe(self) -> Subscription:
        """Open the subscription that wakes the runner when an exchange may return jobs."""
        ...

    def leave(self) -> None:
        """Announce that this worker wants no more jobs."""
        ...

    async def close(self) -> None: ...


class AppManifest(NamedTuple):
    """The tasks of an app, for processes that have not imported it."""

    tasks: list[TaskEntry]
    limits: Mapping[str, Mapping[str, LimitRule]]  # By task, and by the limit's name.
    crons: list[CronDocument]


class LeaseTimes(NamedTuple):
    """The seconds between a worker's renewals of its leases, and the seconds that they last without renewal."""

    heartbeat: float
    dead_after: float
    confirm: float  # Maximum age of a lease that no heartbeat has named yet.
    grace: float = 5.0  # Time that the worker needs to end a job after its timeout and to report it.


class RegisteredWorker(NamedTuple):
    """A worker after registration: its id there, and the lease times that it must keep."""

    worker: WorkerInfo
    pace: LeaseTimes


# Returns how a job of a dead runner ended, given its id and, where known, its time limit in milliseconds.
EndingOf = Callable[[JobId, int | None], Ending]


class Backend:
    """A worker's connection to a store or server. A runner has one, and its parent has another.

    The defaults are those of a worker without the store, whose server does the rest.
    """

    store: Store | None = None  # The store, if this worker runs chores on it.
    durations_due: asyncio.Event | None = None  # Set when ``learn_first`` should run earlier than planned.
    read_members: MemberReader | None = None  # How jobs read the results of a batch, if not from the app's store.

    def __init__(self, in_force: CurrentPolicy) -> None:
        self.in_force = in_force
        self.outage = Outage(log)

    async def open(self) -> None: ...

    async def close(self) -> None:
        raise NotImplementedError

    async def register(
        self, worker: WorkerInfo, pace: LeaseTimes, known: Callable[[Policy], AppManifest], *, reserved: int | None
    ) -> RegisteredWorker:
        """Register a worker and publish its tasks. ``reserved``: the configured number of reserved slots, if any."""
        raise NotImplementedError

    def job_source(self, worker: WorkerInfo, pace: LeaseTimes, *, offset: float) -> JobSource:
        """Return the job source of a registered worker."""
        raise NotImplementedError

    def subscribe(self, name: str) -> Subscription:
        """Open the subscription of a lease renewer. ``name`` is the worker's id followed by ``LEASE_CHANNEL``."""
        raise NotImplementedError

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        """Renew a worker's leases. Return which jobs it has lost and which it must stop."""
        raise NotImplementedError

    async def check(self) -> None:
        """Make a small request to see whether the store answers. Raises ``StoreError``."""
        raise NotImplementedError

    async def refresh_policy(self) -> None:
        """Check whether another policy is in force. Replies of a server to heartbeats contain it."""

    def set_policy(self, version: int, policy: dict[str, Any]) -> None:
        """Record the policy in force that another process reports. A worker with the store reads it there."""

    async def learn(self, *, idle: bool) -> bool:
        """Publish how long jobs took, if any has ended or the worker was ``idle`` for long. Return whether it did.

        Results that are sent to a server contain the durations.
        """
        return False

    async def learn_first(self) -> float | None:
        """Publish how long jobs of new tasks took. Return the seconds until the next time, if any."""
        return None

    async def upstreams(self, lease: Lease) -> list[Upstream]:
        """Read the sources of a running job with their results. A server has put these into the arguments."""
        return []

    async def trace_ids(self, upstreams: Sequence[Upstream]) -> dict[str, str]:
        """Read the trace ids of the jobs among a job's sources, for the links of its span."""
        return {}

    async def steps(self, lease: Lease) -> dict[str, bytes]:
        """Read the steps that a running job has kept."""
        raise NotImplementedError

    async def record_step(self, step: Step) -> bool:
        """Keep a step of a running job. Return False if the lease has ended."""
        raise NotImplementedError

    async def write_output(self, worker_id: str, lease: Lease, chunks: Sequence[Chunk]) -> None:
        """Write the latest output of a running program, for the readers of its job's events."""
        raise NotImplementedError

    async def give_back(
        self, worker_id: str, leases: Sequence[tuple[JobId, bytes]], ending_of: EndingOf, *, left: bool = False
    ) -> None:
        """End the leases of a worker that is gone. ``leases`` holds the leases that its parent knows.

        ``left``: the worker was stopped, so no list shows it as dead.
        """
        raise NotImplementedError
