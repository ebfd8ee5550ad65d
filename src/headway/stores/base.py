"""The contract of a store: batch verbs, each atomic, each safe to repeat after a lost reply.

A store keeps jobs, leases, workers and documents. It decides nothing: it executes plans and reports that
core made, under conditions it checks itself (tokens, states, totals). It reads one clock, its own.
What only some stores can do is declared in ``Abilities``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from headway.core.diagnostics import JobDiagnostics, QueueDiagnostics
from headway.core.errors import IdempotencyConflict
from headway.core.job import ClassKey, JobId, JobRecord, NewJob, State, SubmitReply
from headway.core.lease import Lease, Report, ReportStatus
from headway.core.policy.document import Keep
from headway.core.policy.ladder import Preemption, RunBudget
from headway.core.snapshot import Plan, Snapshot
from headway.core.worker import WorkerInfo, WorkerState

# The format of what stores write, and the oldest Headway that may read or write it.
FORMAT = 1
OLDEST_READER = 1
OLDEST_WRITER = 1

WAITING_COUNTED = 1_000  # A snapshot counts a class exactly up to here.
DUE_BATCH_MAX = 200  # Delayed jobs made eligible by one exchange at most.
WAIT_SAMPLE_INTERVAL_MS = 700  # Samples of what classes wait for are at least so far apart.
SKIPPED_MAX = 100  # Jobs that one take passes over at most: expired, or held back by limits of their own.
RULES = "rules"  # Documents of this kind are what a store checks claims by: parts of core's ``Rules``.

# Seconds that a submit, and the making of a connection, may take before the store counts as away,
TIMEOUT = 2.0
REFUSED_WITHIN = 1.0  # and seconds that a server which refuses connections is given to start again.
AWAY_WITHIN = 0.5  # Seconds for a call right after one that was given up: a request of several waits once.
JOB_SECONDS = 0.005  # Each job of a batch gives a submit this many seconds more.

Clock = Callable[[], int]


class Progress(NamedTuple):
    """How far a running job has come; the latest word replaces the one before."""

    job_id: JobId
    seq: int
    token: bytes
    fraction: float
    note: str | None


class Exchange(NamedTuple):
    """One round trip of a worker: what has ended, what to claim.

    ``claim_id`` is random and new for each claim; it is the token of every lease it yields. Repeating the last
    one that yielded any gives the same leases; an older one must never be used again.
    ``wait`` registers the worker as waiting if it gets nothing, for jobs of ``wait_lanes`` or of any lane:
    a worker with only reserved slots free need not be woken for others.
    ``handover``: while the worker waits, a store with ``Abilities.handed`` may lease submitted jobs to it by this plan.
    """

    worker_id: str | None
    claim_id: bytes = b""
    finished: Sequence[Report] = ()
    plan: Plan | None = None
    progress: Sequence[Progress] = ()
    wait: bool = False
    want_snapshot: bool = False
    wait_lanes: tuple[str, ...] | None = None
    handover: bool = False


class ExchangeReply(NamedTuple):
    """The answer to an exchange. ``refused`` names the reports that were not newly taken."""

    now_at: int
    leases: Sequence[Lease] = ()
    refused: Sequence[tuple[JobId, ReportStatus]] = ()
    snapshot: Snapshot | None = None
    more: bool = False
    worker_state: WorkerState = WorkerState.ACTIVE


class Heartbeat(NamedTuple):
    """A heartbeat: the worker's deadline moves to ``lease_ms`` from now, and these are the leases it holds.

    Leases it does not name and claimed over ``confirm_ms`` ago go back to the queue unharmed: the reply to
    their claim was lost. ``register`` makes the worker known; without it an unknown or dead worker is refused.
    """

    worker: WorkerInfo
    lease_ms: int
    confirm_ms: int
    held: Sequence[tuple[JobId, bytes]] = ()
    register: bool = False


class HeartbeatReply(NamedTuple):
    """The answer to a heartbeat: which leases are gone, which jobs an operator or client wants stopped.

    ``grants`` tell how long those of its jobs may run that can be lowered or halted: all of them, changed or not, and
    also those that it has not named yet.
    """

    now_at: int
    state: WorkerState
    lost: Sequence[JobId] = ()
    cancel: Sequence[JobId] = ()
    grants: Sequence[RunBudget] = ()


class JobQuery(NamedTuple):
    """Which jobs to find; newest first. ``before`` is the sequence number where the page before ended.

    ``by_end``: of jobs that failed, were cancelled or are dead letters, those that ended last come first;
    ``ended_before`` is then the moment and the number of the job where the page before ended.
    """

    states: tuple[State, ...] = ()
    task: str | None = None
    lane: str | None = None
    tenant: str | None = None
    worker_id: str | None = None
    submitted_before_at: int | None = None
    submitted_after_at: int | None = None
    before: int | None = None
    limit: int = 100
    by_end: bool = False
    ended_before: tuple[int, int] | None = None


class LaneStats(NamedTuple):
    """One lane in numbers. Delayed and leased jobs do not count as waiting."""

    waiting: int = 0
    delayed: int = 0
    executing: int = 0
    oldest_at: int | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """The store in numbers."""

    now_at: int
    lanes: dict[str, LaneStats]
    workers: tuple[WorkerInfo, ...]
    totals: dict[str, int]  # Ever since the store was made: submitted, claimed, and each ending.
    last_minute: dict[str, int]  # The same over the last full minute and the one under way.
    kept: dict[str, int]  # Jobs that ended badly and are still kept, by state.


@dataclass(frozen=True, slots=True)
class Document:
    """A small named value with a version: catalogue, crons, policy."""

    kind: str
    name: str
    version: int
    body: bytes


class Subscription(Protocol):
    """A place where wake-ups arrive."""

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        """Wait for a wake-up, at most this many seconds. Return the jobs it names, or None if none came.

        An empty answer means "something changed": look at everything.
        """
        ...

    @property
    def call(self) -> Callable[[Callable[[], None]], None] | None:
        """Call a function at every wake-up from now on, on the running loop. None: this subscription only waits."""
        ...

    def close(self) -> None: ...


class Store(Protocol):
    """Where live jobs are kept. Every verb is atomic and may be repeated after a lost reply."""

    abilities: Abilities
    namespace: str

    async def open(self) -> None:
        """Connect, and make or migrate what the store needs. Raises ``NotAStore``, ``StoreTooNew``."""
        ...

    async def close(self) -> None: ...

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        """Keep all the jobs, or none. Returns one answer a job, in order.

        A job whose id, idempotency key or unique key is known is not kept again: its answer is the job
        that is. The same id with another task or payload, or the same key with another digest, raises
        ``IdempotencyConflict`` naming the index.
        Jobs that are due become eligible and waiting workers are woken, at most one a job.
        """
        ...

    async def exchange(self, request: Exchange) -> ExchangeReply:
        """End leases, note progress, make due jobs eligible and claim by the plan, in one step.

        A report counts only on an equal token of an executing job. A claim sets ``executing``, raises
        the epoch and counts the attempt. Never more leases than the plan's totals, nor than the worker has slots;
        none at all for a worker that is draining, dead, or past its deadline until it renews, nor by a plan that was
        made before a class came up: then the answer has a snapshot to make another one from.
        """
        ...

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        """Move a worker's deadline; say what it has lost and what it must stop."""
        ...

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000) -> list[Lease]:
        """Read a worker's leases, or those whose worker has let its deadline pass."""
        ...

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        """Mark a worker dead: it gets nothing more and must register anew.

        ``left``: it was stopped and has handed in everything. Then forget it, unless it still holds leases.
        """
        ...

    async def drain(self, worker_id: str) -> bool:
        """Ask a worker to take nothing more and to leave. False if no live worker has this id."""
        ...

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        """Cancel queued jobs at once and ask executing ones to stop. Gives each job's state afterwards."""
        ...

    async def preempt(self, amendments: Sequence[Preemption]) -> list[bool]:
        """Lower running elastic jobs to a shorter rung and halt sessions. Tells which of it changed anything.

        What a lowered job no longer holds on the ladder is free at once; its slot, and that of a halted session,
        only when it has ended. The worker that holds its lease is told.
        """
        ...

    async def retry(self, job_ids: Sequence[JobId]) -> list[State | None]:
        """Queue ended jobs again with all counts reset. Gives each job's state afterwards.

        A completed job stays, and so does one whose unique key another live job now holds.
        """
        ...

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]: ...

    async def find(self, query: JobQuery) -> list[JobRecord]: ...

    async def snapshot(self) -> Snapshot: ...

    async def stats(self) -> Stats: ...

    async def waiting_of(self, tenant: str) -> dict[str, LaneStats]:
        """Count a tenant's jobs that wait, in each lane that has any. ``oldest_at``: since when the foremost waits.

        Delayed and executing jobs are not counted. It takes no longer while other tenants have more jobs.
        """
        ...

    async def diagnose(self) -> QueueDiagnostics:
        """Read what waits, what runs and which workers could run it. It counts nothing that grows with the jobs."""
        ...

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        """Read one job in the middle of all that, or None if there is no such job."""
        ...

    async def record_wait_reasons(self, reasons: Mapping[ClassKey, str]) -> None:
        """Note what each class with waiting jobs waits for now. Nothing, if another process did so a moment ago."""
        ...

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        """Cancel a batch of expired jobs and remove a batch of what need not be kept. Gives how many it touched."""
        ...

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        """Remove ended jobs now: those named, or a batch of those in these states."""
        ...

    async def read(self, kind: str, name: str | None = None) -> list[Document]: ...

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        """Write a document, or remove it (no body). Gives the new version, or None if the version was another.

        ``if_version`` 0 means "only if it does not exist".
        """
        ...

    def subscribe(self, name: str) -> Subscription:
        """Open an ear: a worker's id, its id with KEEPER behind it, or WATCHER and a name of one's own."""
        ...

    async def schema(self) -> tuple[int | None, int]:
        """Which schema the store has (None: there is nothing yet), and which one this Headway brings it to.

        May be asked before ``open``. Raises ``NotAStore``, ``StoreTooNew``.
        """
        ...

    async def describe(self) -> dict[str, str]:
        """What an operator wants to know of this store: address, versions, durability."""
        ...


class PreparedSubmit(Protocol):
    """A submit that waits to be executed on a caller's connection. The answer None means: prepare another one."""

    def run(self, connection: Any) -> list[SubmitReply] | None:
        """Execute it on a connection that blocks."""
        ...

    async def arun(self, connection: Any) -> list[SubmitReply] | None:
        """Execute it on a connection that is awaited."""
        ...


class ExternalSubmitter(Protocol):
    """Submits inside a transaction of the caller. If the caller rolls back, the jobs never existed."""

    async def prepare_submit(self, jobs: Sequence[NewJob]) -> PreparedSubmit:
        """Prepare a submit of all the jobs or none."""
        ...

    def prepare_submit_blocking(self, jobs: Sequence[NewJob]) -> PreparedSubmit | None:
        """Prepare a submit in any thread without waiting. None: only ``prepare_submit`` can do this one."""
        ...


class ArchiveSource(Protocol):
    """Holds ended jobs until an archiver has taken them."""

    async def unarchived(self, limit: int) -> list[JobRecord]:
        """Return the oldest ended jobs that no archive has. After the first call the store holds ended jobs for it."""
        ...

    async def archived(self, jobs: Sequence[JobRecord]) -> None:
        """Record that an archive has these jobs."""
        ...


class Archive(Protocol):
    """Keeps the records of ended jobs that a store forgets. Belongs to one event loop."""

    async def add(self, jobs: Sequence[JobRecord]) -> None:
        """Keep ended jobs, all or none. Adding a job twice is adding it once. Raises ``StoreUnavailable``."""
        ...

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]: ...

    async def find(self, query: JobQuery) -> list[JobRecord]:
        """Find ended jobs, newest first."""
        ...

    async def close(self) -> None: ...


class CopySummary(NamedTuple):
    """What a copy of a whole store holds."""

    jobs: int
    namespaces: tuple[str, ...]


class BackupStore(Protocol):
    """Copies a whole store into a file, and makes a store from one. Neither needs the store to be open."""

    async def copy_to(self, target: Path) -> CopySummary:
        """Copy the store as it is at one moment into a new file, while other processes use it."""
        ...

    async def restore_from(self, source: Path) -> CopySummary:
        """Make the store from a copy, with its workers and leases. Raises ``StoreError`` if the store exists."""
        ...


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a store can do, so that no caller asks for its class: facts, then the verbs that only some stores have.

    A verb is None where the store does not have it.
    """

    durable: bool
    shared: bool  # Other processes may open it.
    any_loop: bool  # One instance serves several event loops.
    remote: bool = False  # A server does the work, so this process has the processor meanwhile.
    path: Path | None = None  # The file of a store in a file.

    # Submit from a thread without an event loop. The answer None means: submit the same jobs by ``Store.submit``.
    submit_blocking: Callable[[Sequence[NewJob]], list[SubmitReply] | None] | None = None
    external_submit: ExternalSubmitter | None = None
    archive_source: ArchiveSource | None = None
    backup: BackupStore | None = None
    # Bring the schema to this Headway's version and return the numbers of the steps taken. A store without this verb
    # changes its schema when it is opened.
    migrate: Callable[[], Coroutine[Any, Any, list[int]]] | None = None
    # Return, once, what the store has leased to a waiting worker since its last exchange, unless a lease may be older
    # than this many milliseconds: then the next exchange returns it, if it still stands.
    handed: Callable[[str, int], ExchangeReply | None] | None = None
    # Return whether no job waits or will, given the number of classes that the caller knows. Costs next to nothing.
    quiet: Callable[[int], Awaitable[bool]] | None = None


def counted_as(report: Report) -> str:
    """Return the name under which the totals of a store count a report.

    A job that goes back to the queue was ``retried`` if its attempt failed, ``snoozed`` if the task asked to run later,
    and ``released`` if its worker gave it back.
    """
    if report.state is not State.QUEUED:
        return report.state.value
    if report.error is not None:
        return "retried"
    return "released" if report.front else "snoozed"


def submit_within(timeout: float, jobs: Sequence[NewJob]) -> float:
    """Return the seconds that a submit of these jobs may take."""
    return timeout + JOB_SECONDS * len(jobs)


def next_page(query: JobQuery, last: JobRecord) -> JobQuery:
    """Return the query for the page behind one that ended with this job."""
    if query.by_end:
        return query._replace(ended_before=end_place(last))
    return query._replace(before=last.seq)


def end_place(job: JobRecord) -> tuple[int, int]:
    """Return a job's place among those that have ended: the moment, and its number for those of one moment."""
    return job.finished_at or 0, job.seq


def check_same(known: object, given: object, job: NewJob, index: int, what: str) -> None:
    """Refuse a job whose id or idempotency key already stands for another one."""
    if known != given:
        raise IdempotencyConflict(
            f"the {what} {(job.job_id if what == 'job id' else job.idempotency_key)!r} was used before, "
            "with another task or payload",
            index=index,
            job_id=job.job_id,
            idempotency_key=job.idempotency_key,
        )


LEASE_CHANNEL = ".keeper"  # The channel of a worker's lease renewal: it gets cancels,
POLICIES = "policy"  # and when a document of this kind is written, which concerns every worker.
JOB_CHANNEL = "watch."  # Ears told of every job that changes.
