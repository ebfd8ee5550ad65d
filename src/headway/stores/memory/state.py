"""Everything that a memory store keeps, and the wake-ups that a verb leaves to be sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from headway.core.job import ClassKey, JobId, NewJob, State
from headway.core.policy.document import INTERACTIVE
from headway.core.policy.enforced import RuleIndex
from headway.core.policy.wait_reasons import WaitInterval
from headway.core.snapshot import ClassView
from headway.core.worker import WorkerInfo, WorkerState, serves
from headway.core.workflow import SETTLED_MAX, BatchId, Edge, NewBatch, ending
from headway.stores.base import JOB_CHANNEL, Document
from headway.stores.memory.queue import ClassQueue, key_order
from headway.stores.memory.record import StoredJob
from headway.stores.notifications import LocalSubscription
from headway.stores.rule_codec import RuleReader


@dataclass(slots=True)
class StoredEdge:
    """An edge, by the numbers of itself and of its dependant."""

    number: int
    target: int
    edge: Edge
    satisfied: bool = False
    again: bool = False  # A new round began while the callback ran, so it is held again when it has ended.


@dataclass(slots=True)
class StoredBatch:
    """A batch with its counts, its members in the order of adding, and its child batches."""

    new: NewBatch
    seq: int
    created_at: int
    open: bool
    total: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # live, children, held, and each kind of ending.
    failing: bool = False
    round: int = 1
    cancel_at: int | None = None
    finished_at: int | None = None
    members: list[int] = field(default_factory=list)
    child_ids: list[BatchId] = field(default_factory=list)

    @property
    def completed(self) -> bool:
        """Whether no member has ended badly."""
        return not (self.counts["failed"] or self.counts["cancelled"])


MINUTE = 60_000  # Milliseconds. Counters are kept by minute, so that ``Stats.recent`` can leave out older ones.


class MemoryState:
    """The tables of a memory store. The store's lock guards them; ``begin`` and ``settle`` enclose each verb."""

    def __init__(self) -> None:
        self.now_at = 0
        self.eligible: list[ClassKey] = []  # The class of each job that became eligible during the verb.
        self.changed: list[JobId] = []  # The jobs that the verb changed. Hot verbs note them only if a client watches.
        self.jobs: dict[JobId, StoredJob] = {}
        self.by_seq: dict[int, StoredJob] = {}  # In the order of submission.
        self.executing: dict[int, StoredJob] = {}
        self.lease_counts: Counter[str] = Counter()  # By worker: how many jobs it holds leases on.
        self.queues: dict[ClassKey, ClassQueue] = {}
        self.sorted_queues: list[tuple[ClassKey, ClassQueue]] = []  # The same queues, in the order of their keys.
        self.has_sessions = False  # Whether a session was ever submitted, so that running jobs are counted by rung.
        self.transient: dict[ClassKey, list[tuple[int, NewJob]]] = {}
        self.delayed: list[tuple[int, int]] = []  # Moment due and sequence number, sorted.
        self.unique: dict[str, JobId] = {}
        self.idempotent: dict[tuple[str, str], tuple[JobId, bytes, int]] = {}
        self.workers: dict[str, WorkerInfo] = {}
        self.claims: dict[str, bytes] = {}  # By worker: the id of its last claim.
        self.waiting: dict[str, tuple[str, ...] | None] = {}  # By waiting worker: its lanes, or None for all.
        self.documents: dict[tuple[str, str], Document] = {}
        self.rule_reader = RuleReader()
        self.rule_index = RuleIndex()
        self.holders: dict[str, set[int]] = {}  # By limit counter: the leases that count against it.
        self.rates: dict[str, int] = {}  # By limit counter: microsecond up to which its starts are used up.
        self.wait_intervals: list[WaitInterval] = []
        self.counters: Counter[tuple[int, str]] = Counter()  # By minute and name.
        self.subscriptions: dict[str, list[LocalSubscription]] = {}
        self.job_channels: set[str] = set()  # The names of the subscriptions to ends of jobs.
        self.batches: dict[BatchId, StoredBatch] = {}
        self.batch_keys: dict[tuple[str, str], BatchId] = {}  # By tenant and key.
        self.edges_from: dict[str, list[StoredEdge]] = {}  # By source, in the order of adding.
        self.edges_to: dict[int, list[StoredEdge]] = {}  # By dependant, in the order given.
        self.steps: dict[JobId, dict[str, bytes]] = {}
        self.unsettled: dict[str, int] = {}  # By source: the number of the last edge that was settled.
        self.uncancelled: dict[BatchId, int] = {}  # By cancelled batch: the last member that was cancelled.
        self.changed_counts: dict[BatchId, Counter[str]] = {}  # What the verb adds to the counts of each batch.
        self.ended_dependants: list[StoredJob] = []  # Jobs with edges into them whose lease the verb has ended.
        self.edges_left = 0  # How many edges the verb may still settle.
        self._sequence = 0
        self._edges = 0

    def begin(self, now_at: int) -> None:
        """Start a verb at a moment of the store's clock."""
        self.now_at = now_at
        self.eligible, self.changed = [], []
        self.edges_left = SETTLED_MAX

    def settle(self, *, but: str | None = None) -> None:
        """Wake a waiting worker for each eligible job, but not the caller, and notify the watchers of changed jobs."""
        eligible, changed = self.eligible, self.changed
        if not eligible and not changed:
            return
        self.eligible, self.changed = [], []
        for key in eligible:
            self._wake_one(key, but)
        if changed:
            for name in self.job_channels:
                self.notify(name, changed)

    def subscribe(self, name: str, subscription: LocalSubscription) -> None:
        """Send the wake-ups of a name to a subscription too."""
        self.subscriptions.setdefault(name, []).append(subscription)
        if name.startswith(JOB_CHANNEL):
            self.job_channels.add(name)

    def unsubscribe(self, name: str, subscription: LocalSubscription) -> None:
        """Send no more wake-ups to a subscription."""
        listed = self.subscriptions.get(name, [])
        if subscription in listed:
            listed.remove(subscription)
            if not listed:
                del self.subscriptions[name]
                self.job_channels.discard(name)

    def wait(self, worker_id: str, lanes: tuple[str, ...] | None) -> None:
        """Register a worker as waiting for jobs of these lanes, or of any. One that waits for them keeps its turn."""
        if self.waiting.get(worker_id, ("",)) != lanes:
            self.waiting.pop(worker_id, None)
            self.waiting[worker_id] = lanes

    def wake_all(self) -> None:
        """Wake every waiting worker, after a change to what it may claim."""
        for worker_id in list(self.waiting):
            if worker_id in self.workers and self.workers[worker_id].lease_ends_at > self.now_at:
                del self.waiting[worker_id]
                self.notify(worker_id)

    def wake_any(self) -> None:
        """Wake one waiting worker, whatever it offers, to settle what a verb has left."""
        for worker_id in self.waiting:
            if worker_id in self.workers and self.workers[worker_id].lease_ends_at > self.now_at:
                del self.waiting[worker_id]
                self.notify(worker_id)
                return

    def moved(self, record: StoredJob, before: State, *, was_held: bool = False) -> None:
        """Note that a job has ended, or is live again, for its batch and its dependants."""
        if record.new.job_id in self.edges_from:
            self.unsettled[record.new.job_id] = 0
        if record.batch_id is not None and before.ended != record.state.ended:
            change = self.changed_counts.setdefault(record.batch_id, Counter())
            if record.state.ended:
                change["live"] -= 1
                change["held"] -= was_held
                change[ending(record.state)] += 1
                change["bad"] += record.state is not State.COMPLETED
            else:
                change["live"] += 1
                change["held"] += record.held
                change[ending(before)] -= 1

    def is_cancelled(self, batch_id: BatchId | None) -> bool:
        return batch_id is not None and self.batches[batch_id].cancel_at is not None

    def notify(self, name: str, job_ids: Iterable[JobId] = ()) -> None:
        for subscription in self.subscriptions.get(name, ()):
            subscription.notify(job_ids)

    def _wake_one(self, key: ClassKey, but: str | None) -> None:
        for worker_id, lanes in self.waiting.items():
            worker = self.workers.get(worker_id)
            if worker is None or worker_id == but or worker.lease_ends_at <= self.now_at:
                continue
            able = not key.needs or serves(key.needs, frozenset(worker.offers))
            if able and (lanes is None or key.lane in lanes):
                del self.waiting[worker_id]
                self.notify(worker_id)
                return

    def next_sequence(self) -> int:
        self._sequence += 1
        return self._sequence

    def next_edge(self) -> int:
        self._edges += 1
        return self._edges

    def count(self, what: str, count: int = 1) -> None:
        """Add to a counter of the current minute."""
        if count:
            self.counters[self.now_at // MINUTE, what] += count

    def queue(self, key: ClassKey) -> ClassQueue:
        """Return the queue of a class, which exists from then on."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = ClassQueue(ClassView(key, 0, None))
            self.has_sessions = self.has_sessions or key.rung == INTERACTIVE
            self.sorted_queues = sorted(self.queues.items(), key=lambda pair: key_order(pair[0]))
        return queue

    def add_lease(self, record: StoredJob, worker_id: str) -> None:
        """Record that a worker executes a job."""
        record.worker_id = worker_id
        self.executing[record.seq] = record
        self.lease_counts[worker_id] += 1

    def remove_lease(self, record: StoredJob) -> None:
        """Record that a job is no longer executed."""
        del self.executing[record.seq]
        self.lease_counts[record.worker_id or ""] -= 1

    def leased(self, worker_id: str) -> list[StoredJob]:
        """Return the jobs that a worker holds leases on, in the order of submission."""
        return [record for _, record in sorted(self.executing.items()) if record.worker_id == worker_id]

    def worker_state(self, worker: WorkerInfo) -> WorkerState:
        return WorkerState.DEAD if worker.lease_ends_at <= self.now_at else worker.state

    def set_worker_state(self, worker_id: str, state: WorkerState) -> None:
        """Mark a worker as draining or dead, so that no verb wakes it for a job."""
        worker = self.workers.get(worker_id)
        if worker is not None:
            self.workers[worker_id] = replace(worker, state=state)
        self.waiting.pop(worker_id, None)

    def free_unique_key(self, record: StoredJob) -> None:
        if record.new.unique_key is not None:
            self.unique.pop(record.new.unique_key, None)

    def forget(self, record: StoredJob) -> None:
        del self.jobs[record.new.job_id]
        del self.by_seq[record.seq]
        self.steps.pop(record.new.job_id, None)
        for edge in self.edges_to.pop(record.seq, ()):
            self.edges_from[edge.edge.source].remove(edge)
            if not self.edges_from[edge.edge.source]:
                del self.edges_from[edge.edge.source]
        if record.batch_id is not None:
            self.batches[record.batch_id].members.remove(record.seq)

    def is_past(self, moment_at: int | None) -> bool:
        return moment_at is not None and moment_at <= self.now_at

    def is_needed(self, record: StoredJob) -> bool:
        """Return whether a live job may still read the result of an ended one."""
        if self.has_live_dependant(record.new.job_id):
            return True
        if record.batch_id is None:
            return False
        return self.batches[record.batch_id].finished_at is None or self.has_live_dependant(record.batch_id)

    def has_live_dependant(self, source: str) -> bool:
        return any(not self.by_seq[edge.target].state.ended for edge in self.edges_from.get(source, ()))

    def in_state(self, state: State) -> list[StoredJob]:
        """Return the jobs in a state, in the order of submission."""
        return [record for record in self.by_seq.values() if record.state is state]
