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
from headway.core.preview import SubmitPreview
from headway.core.snapshot import Plan, Snapshot
from headway.core.worker import WorkerInfo, WorkerState
from headway.core.workflow import BatchId, BatchQuery, BatchRecord, Graph, GraphReply, Step, Upstream
from headway.stores.transport import Transport

# The format of what stores write, and the oldest Headway that may read or write it.
FORMAT = 1
OLDEST_READER = 1
OLDEST_WRITER = 1

WAITING_COUNTED = 1_000  # Jobs of a class that a snapshot counts exactly; counting more would cost time at every claim.
DUE_BATCH_MAX = 200  # Delayed jobs that one exchange makes eligible at most, so that it stays short.
WAIT_SAMPLE_INTERVAL_MS = 700  # Milliseconds between two samples of what classes wait for, at least.
SKIPPED_MAX = 100  # Jobs that one take skips at most because they expired or a limit of their own holds them.
RULES = "rules"  # Documents of this kind are what a store checks claims by: parts of core's ``Rules``.

TIMEOUT = 2.0  # Seconds for a submit, or for making a connection, before the store counts as unavailable.
REFUSED_WITHIN = 1.0  # Seconds for a server that refuses connections to start again.
NEXT_CALL_SECONDS = 0.5  # Seconds for the call after one that timed out, so that a request of several calls waits once.
JOB_SECONDS = 0.005  # Seconds that each job of a batch adds to the time of a submit.

Clock = Callable[[], int]


class Progress(NamedTuple):
    """The progress of a running job. The latest report replaces the one before."""

    job_id: JobId
    seq: int
    token: bytes
    fraction: float
    note: str | None


class Exchange(NamedTuple):
    """One round trip of a worker: what has ended, what to claim.

    ``claim_id`` is random and new for each claim. It is the token of every lease that the claim yields. Repeating the
    last one that yielded any returns the same leases. A worker never uses an older one again.
    ``wait`` registers a worker that gets nothing as waiting, for jobs of ``wait_lanes`` or of any lane. A worker with
    only reserved slots free names the lanes that may use them.
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

    The store takes back leases that were claimed over ``confirm_ms`` ago and that the worker does not name, because
    the reply to their claim was lost. ``register`` makes the worker known. Without it the store refuses an unknown or
    dead worker.
    """

    worker: WorkerInfo
    lease_ms: int
    confirm_ms: int
    held: Sequence[tuple[JobId, bytes]] = ()
    register: bool = False


class HeartbeatReply(NamedTuple):
    """The answer to a heartbeat: which leases are gone, which jobs an operator or client wants stopped.

    ``grants``: how long each job of the worker may run that can be lowered or halted, whether this has changed or not.
    Jobs that the worker has not named yet are among them.
    """

    now_at: int
    state: WorkerState
    lost: Sequence[JobId] = ()
    cancel: Sequence[JobId] = ()
    grants: Sequence[RunBudget] = ()


class JobQuery(NamedTuple):
    """A query for jobs, newest first. ``before`` is the sequence number at which the previous page ended.

    ``by_end`` sorts jobs that failed, were cancelled or are dead letters by their end, latest first. ``ended_before``
    is then the moment and the sequence number at which the previous page ended.
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
    """One lane in numbers. Delayed, held and leased jobs do not count as waiting."""

    waiting: int = 0
    delayed: int = 0
    executing: int = 0
    oldest_at: int | None = None
    held: int = 0


class TenantStats(NamedTuple):
    """The jobs of one tenant. Delayed jobs do not count as waiting. ``oldest_at``: as in ``waiting_of``."""

    waiting: int = 0
    running: int = 0
    oldest_at: int | None = None


class BlockedStats(NamedTuple):
    """The jobs that wait for one limit counter or pause, by lane. ``open_at``: when its rate allows the next start."""

    lanes: Mapping[str, int] = {}
    open_at: int | None = None

    @property
    def waiting(self) -> int:
        """Return how many jobs wait, of all lanes."""
        return sum(self.lanes.values())


class QueueBreakdown(NamedTuple):
    """The jobs by tenant, and those that wait for limits and pauses by counter.

    Each waiting number is exact up to ``WAITING_COUNTED`` for each class, and a lower bound beyond.
    """

    now_at: int
    tenants: dict[str, TenantStats]
    blocked: dict[str, BlockedStats]


@dataclass(frozen=True, slots=True)
class Stats:
    """The store in numbers."""

    now_at: int
    lanes: dict[str, LaneStats]
    workers: tuple[WorkerInfo, ...]
    totals: dict[str, int]  # Ever since the store was made: submitted, claimed, and each ending.
    last_minute: dict[str, int]  # The same over the last full minute and the one under way.
    kept: dict[str, int]  # Jobs that ended badly and are still kept, by state.

    @property
    def live_workers(self) -> list[WorkerInfo]:
        return [worker for worker in self.workers if worker.state is not WorkerState.DEAD]


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
        """Store all the jobs or none. Return one answer for each job, in order.

        The store does not store a job again whose id, idempotency key or unique key it knows. The answer then names
        the job that it has. The same id with another task or payload, or the same key with another digest, raises
        ``IdempotencyConflict`` naming the index.
        Jobs that are due become eligible, and the store wakes at most one waiting worker for each.
        """
        ...

    async def exchange(self, request: Exchange) -> ExchangeReply:
        """End leases, record progress, make due jobs eligible and claim by the plan, in one step.

        A report counts only if its job is executing with the same token. A claim sets ``executing``, raises the epoch
        and counts the attempt. The store never leases more than the plan's totals, nor more than the worker has slots.
        A worker that is draining, dead, or past its deadline gets no lease. Nor does a plan that was made before a new
        class came up: then the answer has a snapshot from which the worker makes another plan.
        """
        ...

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        """Move a worker's deadline. Return the leases that it has lost and the jobs that it must stop."""
        ...

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000, payloads: bool = True) -> list[Lease]:
        """Read a worker's leases, or without one the leases of workers that let their deadline pass.

        Without ``payloads``, which may be large, the leases have empty ones.
        """
        ...

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        """Mark a worker dead: it gets nothing more and must register anew.

        ``left``: the worker was stopped and has reported every job. The store forgets it, unless it still holds leases.
        """
        ...

    async def drain(self, worker_id: str) -> bool:
        """Ask a worker to claim nothing more and to leave. Return False if no live worker has this id."""
        ...

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        """Cancel queued jobs at once and ask executing ones to stop. Return each job's state afterwards."""
        ...

    async def preempt(self, amendments: Sequence[Preemption]) -> list[bool]:
        """Lower running elastic jobs to a shorter rung and halt sessions. Return which of them changed anything.

        What a lowered job no longer holds on the ladder is free at once. Its slot, and that of a halted session, is
        free when the job has ended. The store notifies the worker that holds the lease.
        """
        ...

    async def retry(self, job_ids: Sequence[JobId], *, alone: bool = False) -> list[State | None]:
        """Queue ended jobs again with all counts reset. Return each job's state afterwards.

        A completed job stays, and so does one whose unique key another live job now holds. The dependants that were
        cancelled because of a retried job are held again, and so on down the graph, unless ``alone``.

        A retried job that has edges is held while a source of it is live, also one that this call retries. It runs at
        once if no source is live, or if another source would cancel it.
        """
        ...

    async def reschedule(
        self, job_ids: Sequence[JobId], *, lane: str | None = None, now: bool = False
    ) -> list[State | None]:
        """Move queued jobs to another lane, or let delayed ones run now, or both. Return each job's state afterwards.

        A job that moves waits from now on, behind all jobs of its new class. Without ``now`` a delayed job stays
        delayed. Jobs that are not queued, and jobs for which nothing changes, stay as they are.
        """
        ...

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]: ...

    async def find(self, query: JobQuery) -> list[JobRecord]: ...

    async def submit_graph(self, graph: Graph) -> GraphReply:
        """Store the batch, the jobs and the edges of a graph, or nothing of it.

        Jobs are deduplicated as in ``submit``. Edges from a job that is deduplicated come from the existing job, and
        a deduplicated job keeps the edges that it has. A source may have ended: its edge is then settled at once.
        Raises ``BadEdge`` naming the index of a node whose source is unknown, of another tenant, or repeated; also
        ``BatchNotFound`` and, for a batch without live member that is not open, ``BatchClosed``.
        """
        ...

    async def close_batch(self, batch_id: BatchId) -> BatchRecord | None:
        """Let a batch end once all its members have ended. Return the batch afterwards, or None if it is unknown."""
        ...

    async def cancel_batch(self, batch_id: BatchId) -> BatchRecord | None:
        """Cancel a batch with its child batches: from now on none of its members starts, and no job can be added.

        Members are cancelled in bounded steps by this and later verbs. Return the batch afterwards, or None.
        """
        ...

    async def get_batches(self, batch_ids: Sequence[BatchId]) -> list[BatchRecord | None]: ...

    async def find_batches(self, query: BatchQuery) -> list[BatchRecord]: ...

    async def members(
        self, batch_id: BatchId, *, beyond: int = 0, states: Sequence[State] = (), limit: int = 500
    ) -> list[JobRecord]:
        """Read jobs of a batch in the order of adding, behind the sequence number ``beyond``."""
        ...

    async def upstreams(self, job_ids: Sequence[JobId], *, results: bool = False) -> list[list[Upstream]]:
        """Read what each job waits or waited for, in the order in which its edges were given."""
        ...

    async def record_step(self, step: Step) -> bool:
        """Keep a step of a running job. Return False if the lease has ended.

        A key that the job has already keeps its first value. Raises ``StepError`` beyond the limits of
        ``core.workflow``.
        """
        ...

    async def steps(self, job_id: JobId) -> dict[str, bytes]:
        """Read the steps of a job, in the order in which they were kept."""
        ...

    async def find_ids(self, query: JobQuery) -> list[tuple[int, JobId]]:
        """Find the same jobs in the same order, but read only the number and the id of each."""
        ...

    async def snapshot(self) -> Snapshot: ...

    async def stats(self) -> Stats: ...

    async def waiting_of(self, tenant: str) -> dict[str, LaneStats]:
        """Count a tenant's jobs that wait, in each lane that has any. ``oldest_at``: since when the first one waits.

        Delayed and executing jobs do not count. The time it takes does not depend on the jobs of other tenants.
        """
        ...

    async def breakdown(self, *, limit: int = 1_000) -> QueueBreakdown:
        """Count the jobs of up to ``limit`` tenants in each class, and of up to ``limit`` blocked queues.

        The time it takes grows with the tenants and counters, not with the jobs of each.
        """
        ...

    async def diagnose(self) -> QueueDiagnostics:
        """Read what waits, what runs and which workers could run it, in a time that does not grow with the jobs."""
        ...

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        """Read one job and the queue around it. Return None if there is no such job."""
        ...

    async def preview(self, job: NewJob) -> SubmitPreview:
        """Return what ``submit`` would do with one job, and keep nothing. Raises ``IdempotencyConflict``."""
        ...

    async def record_wait_reasons(self, reasons: Mapping[ClassKey, str]) -> None:
        """Record what each class with waiting jobs waits for, unless another process did so a moment ago."""
        ...

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        """Cancel a batch of expired jobs and remove a batch of what need not be kept. Return how many it touched.

        Also settles edges that earlier verbs left. Keeps an ended job while a live job has an edge from it, and the
        members of a batch while the batch, or a live job with an edge from the batch, has not ended.
        """
        ...

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        """Remove ended jobs now: those named, or a batch of those in these states."""
        ...

    async def read(self, kind: str, name: str | None = None) -> list[Document]: ...

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        """Write a document, or without a body remove it. Return the new version.

        Return None if the stored version is not ``if_version``. Version 0 means that the document does not exist.
        """
        ...

    def subscribe(self, name: str) -> Subscription:
        """Subscribe to a worker's id, to its id with LEASE_CHANNEL behind it, or to JOB_CHANNEL and a unique name."""
        ...

    async def schema(self) -> tuple[int | None, int]:
        """Return the schema that the store has, None if it has none yet, and the one that this Headway brings it to.

        May be called before ``open``. Raises ``NotAStore``, ``StoreTooNew``.
        """
        ...

    async def describe(self) -> dict[str, str]:
        """Return what an operator wants to know of this store, such as its address, versions and durability."""
        ...


class PreparedSubmit(Protocol):
    """A submit that is executed on a caller's connection. If it returns None, the caller prepares another one."""

    def run(self, connection: Any) -> list[SubmitReply] | None:
        """Execute the submit on a blocking connection."""
        ...

    async def arun(self, connection: Any) -> list[SubmitReply] | None:
        """Execute the submit on an async connection."""
        ...


class PreparedGraph(Protocol):
    """A graph that is submitted on a caller's connection. If this returns None, the caller prepares another one."""

    def run(self, connection: Any) -> GraphReply | None:
        """Submit the graph on a blocking connection."""
        ...

    async def arun(self, connection: Any) -> GraphReply | None:
        """Submit the graph on an async connection."""
        ...


class ExternalSubmitter(Protocol):
    """Submits inside a transaction of the caller. If the caller rolls back, the jobs never existed."""

    async def prepare_submit(self, jobs: Sequence[NewJob]) -> PreparedSubmit:
        """Prepare a submit of all the jobs or none."""
        ...

    async def prepare_graph(self, graph: Graph) -> PreparedGraph:
        """Prepare a submit of a whole graph or nothing of it."""
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

    transport: Transport  # What protects the connection to it.

    async def add(self, jobs: Sequence[JobRecord]) -> None:
        """Keep ended jobs, all or none. Adding a job twice is adding it once. Raises ``StoreUnavailable``."""
        ...

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]: ...

    async def find(self, query: JobQuery) -> list[JobRecord]:
        """Find ended jobs, newest first."""
        ...

    async def close(self) -> None: ...


class CopySummary(NamedTuple):
    """The contents of a copy of a whole store."""

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


MatchWords = Callable[[Sequence[JobId], Sequence[str]], Awaitable[set[JobId]]]


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
    # Return what a migration would change, one line for each step. May be called before ``open``.
    pending_changes: Callable[[], Coroutine[Any, Any, list[str]]] | None = None
    # Return once what the store has leased to a waiting worker since its last exchange, unless a lease may be older
    # than this many milliseconds. The next exchange then returns it, if it still stands.
    handed: Callable[[str, int], ExchangeReply | None] | None = None
    # Return those of some jobs whose arguments may contain all of some words, which are ASCII and in lower case. It
    # leaves out only jobs without them.
    match_words: MatchWords | None = None
    # Return whether no job waits or will, given the number of classes that the caller knows. Costs next to nothing.
    quiet: Callable[[int], Awaitable[bool]] | None = None


_QUEUED = State.QUEUED  # Looked up once, since Python 3.11 searches for an enum's member and its value each time.
_NAMES = {state: state.value for state in State}


def counted_as(report: Report) -> str:
    """Return the name under which the totals of a store count a report.

    A job that goes back to the queue was ``retried`` if its attempt failed, ``snoozed`` if the task asked to run later,
    and ``released`` if its worker gave it back.
    """
    if report.state is not _QUEUED:
        return _NAMES[report.state]
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


LEASE_CHANNEL = ".keeper"  # Behind a worker's id: the channel of its cancels and of new policies.
JOB_CHANNEL = "watch."  # Before a unique name: a channel of every job that changes.
POLICIES = "policy"  # The kind of the documents that every worker is notified of.
