"""The interface of a transaction: statements by name, the rules in force, and operations that differ by database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.job import ClassKey, JobId, State
from headway.core.policy.enforced import RuleIndex
from headway.core.snapshot import Snapshot
from headway.core.workflow import SETTLED_MAX, ending
from headway.stores.sql.rows import Row, RowCodec

if TYPE_CHECKING:
    from headway.stores.sql.ordering import Requeue

MINUTE = 60_000  # Milliseconds.
ALL = 1_000_000  # More rows than there can be leases.
LOWEST = -(2**63)  # Below every order key.

# By job that has a mark: the number of its batch, and True if an edge comes from it.
JobMarks = Mapping[JobId, tuple[int | None, bool | None]]


class StatementRunner(Protocol):
    """A connection that executes statements by name. Values are in the order of the statement's header."""

    async def run(self, name: str, *values: Any) -> Sequence[Any]:
        """Return all rows, readable by position."""
        ...

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:
        """Return all rows, readable by name. Slower than ``run``."""
        ...

    async def row(self, name: str, *values: Any) -> Any:
        """Return the first row, or None."""
        ...

    async def first(self, name: str, *values: Any) -> Any:
        """Return the first column of the first row, or None."""
        ...

    async def run_many(self, name: str, rows: Sequence[Sequence[Any]], *shared: Any) -> None:
        """Execute a statement for each row. The values of a row follow the shared values."""
        ...


class Transaction(ABC):
    """Collects changes, and wakes and notifies the workers and clients concerned."""

    rows: RowCodec

    def __init__(self, db: StatementRunner, *, now_at: int, namespace_id: int) -> None:
        self.db = db
        self.now_at = now_at
        self.namespace_id = namespace_id
        self.eligible: list[int] = []  # The class of each job that became eligible.
        self.changed: list[JobId] = []
        self.unsettled: dict[int, int] = {}  # By source: the number of the last dependant that was settled.
        self.uncancelled: dict[int, int] = {}  # By cancelled batch: the number of the last member that was cancelled.
        self.changed_counts: dict[int, Counter[str]] = {}  # What the transaction adds to the counts of each batch.
        self.edges_left = SETTLED_MAX  # How many edges the transaction may still settle.

    @property
    @abstractmethod
    def rule_index(self) -> RuleIndex:
        """The rules in force."""

    @abstractmethod
    async def rules_changed(self) -> None:
        """Record that a part of the rules was written, and read the rules again."""

    # ------------------------------------------------------------------ classes and their order

    @abstractmethod
    async def class_id(self, key: ClassKey) -> int:
        """Return the id of a class. Add a new class."""

    async def classes(self) -> dict[int, ClassKey]:
        """Return all classes by id, including those that other processes added."""
        found = await self.db.run("classes", self.namespace_id)
        return {class_id: self.rows.class_key(*columns) for class_id, *columns in found}

    @abstractmethod
    async def next_numbers(self, count: int) -> Sequence[int]:
        """Return the next numbers of the sequence that orders all jobs."""

    async def last_key(self, class_id: int, sharer: str, read: dict[int, Any]) -> int | None:
        """Return the highest order key of a tenant's jobs that wait or run in a class.

        ``read``: where a transaction may keep what it has read of each class for the places of one call.
        """
        found: int | None = await self.db.first("last_key", class_id, sharer)
        return found

    @abstractmethod
    async def make_fair(self, class_id: int, number: int) -> int:
        """Make a class fair between tenants. Return its clock, which starts no later than ``number``."""

    @abstractmethod
    async def put_ready(
        self, job: Requeue, order_key: int, eligible_at: int, sharer: str | None, *, front: bool
    ) -> None:  # fmt: skip
        """Put a job into its class that ran, ended or was delayed before."""

    async def leave_ready(self, class_id: int, blocked_by: str, order_key: int, seq: int, tenant: Any) -> bool:
        """Remove a job from where it waits, unless a claim takes it. Return False if it is not there any more."""
        return bool(await self.db.run("ready_delete", class_id, blocked_by, order_key, seq))

    @abstractmethod
    async def put_delayed(self, job: Requeue, due_at: int) -> None:
        """Delay a job until it is due."""

    @abstractmethod
    async def take_due(self, limit: int) -> Sequence[Requeue]:
        """Remove and return the delayed jobs that are due, earliest first."""

    # ------------------------------------------------------------------ blocked queues

    @property
    @abstractmethod
    def has_blocked(self) -> bool:
        """Whether any job is in a blocked queue."""

    @abstractmethod
    def blocked_queues_changed(self) -> None:
        """Record that jobs have entered or left a blocked queue, or that one has opened."""

    @abstractmethod
    async def update_blocked_queue(self, class_id: int, blocked_by: str) -> None:
        """Record which job of a blocked queue is first after one has left. Delete an empty queue."""

    # ------------------------------------------------------------------ leases

    async def lock_leases(self, seqs: Sequence[int], asker: str | None) -> dict[int, Any]:
        """Return the leases with these numbers: number, token, cancel_at, unique key and held limits."""
        return {row[0]: row for row in await self.db.run("leases_by_seq", self.rows.array(seqs))}

    async def set_limit_keys(self, leases: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Record the limits that count each lease, by number. ``leases`` are all leases."""
        await self.db.run_many("lease_set_limits", [(seq, self.rows.strings_text(keys)) for seq, keys in leases])

    @abstractmethod
    async def executing(self, count: int) -> Sequence[Any]:
        """Return all leases: task, lane, worker, started_at, limits. The workers report ``count`` of them."""

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Return the snapshot of waiting jobs, from which plans are made."""

    # ------------------------------------------------------------------ workflows

    @property
    @abstractmethod
    def has_unsettled(self) -> bool:
        """Whether earlier transactions have left edges to settle, or members to cancel."""

    @property
    def has_moves(self) -> bool:
        """Whether this transaction has edges to settle, members to cancel or counts of batches to write."""
        return bool(self.unsettled or self.changed_counts or self.uncancelled)

    @abstractmethod
    def exclude_others(self) -> None:
        """Make sure that no other transaction of the namespace writes beside this one. May start the verb again."""

    @abstractmethod
    async def settle_edges(self) -> bool:
        """Settle what this and earlier transactions have left, up to a bound. Return whether something is left."""

    def moved(self, row: Row, before: State, after: State, *, held: int = 0) -> None:
        """Note that a job has ended or is live again, for its dependants and its batch.

        ``held``: by how much the held members of the batch become more.
        """
        batch_seq = row["batch_seq"]
        if row["awaited"] or batch_seq is not None:
            self.exclude_others()
        if row["awaited"]:
            self.unsettled[row["seq"]] = 0
        if batch_seq is None:
            return
        if after.ended:
            self.members_ended(batch_seq, after)
        else:
            change = self.changed_counts.setdefault(batch_seq, Counter())
            change["live"] += 1
            change[ending(before)] -= 1
        self.changed_counts[batch_seq]["held"] += held

    def members_ended(self, batch_seq: int, state: State, count: int = 1) -> None:
        """Note that members of a batch have ended in this state."""
        change = self.changed_counts.setdefault(batch_seq, Counter())
        change["live"] -= count
        change[ending(state)] += count
        if state is not State.COMPLETED:
            change["bad"] += count

    # ------------------------------------------------------------------ pruning

    @abstractmethod
    async def delete_jobs(self, completed: list[int], bad: list[int]) -> int:
        """Delete completed jobs, and jobs that ended otherwise. Return the number of deleted jobs."""

    @abstractmethod
    async def scan_completed(self, after: int, before_at: int, limit: int) -> Sequence[Any]:
        """Return ended jobs in order: number, whether the job completed before ``before_at``, and namespace."""

    @abstractmethod
    async def fold_totals(self) -> None:
        """Add the totals of old minutes to those of all time."""

    # ------------------------------------------------------------------ totals and notifications

    @abstractmethod
    def count(self, counts: Mapping[str, int]) -> None:
        """Add to this minute's totals."""

    @abstractmethod
    def notify_worker(self, worker_id: str) -> None:
        """Notify a worker after the commit that it should renew its leases now."""

    @abstractmethod
    async def wake_all(self) -> None:
        """Wake every waiting worker, because it may be able to claim now."""

    @abstractmethod
    async def wake_any(self) -> None:
        """Wake one waiting worker, whatever it offers, to settle what this transaction has left."""
