"""What the verbs need of a transaction: statements by their names, the rules in force, and the database's own ways."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from headway.core.job import ClassKey, JobId
from headway.core.lease import ReportStatus
from headway.core.policy.enforced import RuleIndex
from headway.core.snapshot import Snapshot
from headway.stores.base import Exchange
from headway.stores.sql.rows import Row, RowCodec

if TYPE_CHECKING:
    from headway.stores.sql.ordering import Requeue

MINUTE = 60_000  # Milliseconds.
ALL = 1_000_000  # More rows than there can be leases.
LOWEST = -(2**63)  # Below every order key.


class StatementRunner(Protocol):
    """A connection that knows the statements by their names. Values go in the order of a statement's header."""

    async def run(self, name: str, *values: Any) -> Sequence[Any]:
        """Return all rows, to be read by position."""
        ...

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:
        """Return all rows, to be read by name; for verbs that are not hot."""
        ...

    async def row(self, name: str, *values: Any) -> Any:
        """Return the first row, or None."""
        ...

    async def first(self, name: str, *values: Any) -> Any:
        """Return the first column of the first row, or None."""
        ...

    async def run_many(self, name: str, rows: Sequence[Sequence[Any]], *shared: Any) -> None:
        """Execute a statement for each of the rows, whose values follow those that all of them share."""
        ...


class Transaction(ABC):
    """Gathers what a verb changed, and wakes and notifies the workers and clients that it concerns."""

    rows: RowCodec

    def __init__(self, db: StatementRunner, *, now_at: int, namespace_id: int) -> None:
        self.db = db
        self.now_at = now_at
        self.namespace_id = namespace_id
        self.eligible: list[int] = []  # The class of each job that became eligible.
        self.changed: list[JobId] = []

    @property
    @abstractmethod
    def rule_index(self) -> RuleIndex:
        """The rules in force."""

    @abstractmethod
    async def rules_changed(self) -> None:
        """Note that a part of the rules was written, and read them anew."""

    # ------------------------------------------------------------------ classes and their order

    @abstractmethod
    async def class_id(self, key: ClassKey) -> int:
        """Return the number of a class; one that is new becomes known."""

    @abstractmethod
    async def find_class(self, key: ClassKey) -> int | None:
        """Return the number of a class from which jobs are to be claimed, if there is one."""

    @abstractmethod
    async def count_classes(self) -> int: ...

    async def classes(self) -> dict[int, ClassKey]:
        """Return all classes by their numbers, those of other processes too."""
        found = await self.db.run("classes", self.namespace_id)
        return {class_id: self.rows.class_key(*columns) for class_id, *columns in found}

    @abstractmethod
    async def next_numbers(self, count: int) -> Sequence[int]:
        """Take the next numbers of the one sequence that orders everything."""

    @abstractmethod
    async def make_fair(self, class_id: int, number: int) -> int:
        """Let tenants share a class from now on. Return its clock, which begins no later than ``number``."""

    @abstractmethod
    async def put_ready(
        self, job: Requeue, order_key: int, eligible_at: int, sharer: str | None, *, front: bool
    ) -> None:  # fmt: skip
        """Let a job wait in its class that ran, ended or was delayed before."""

    @abstractmethod
    async def put_delayed(self, job: Requeue, due_at: int) -> None:
        """Hold a job back until it is due."""

    @abstractmethod
    async def take_due(self, limit: int) -> Sequence[Requeue]:
        """Take out the delayed jobs that have fallen due, earliest first."""

    # ------------------------------------------------------------------ blocked queues

    @property
    @abstractmethod
    def has_blocked(self) -> bool:
        """Whether any job waits for a limit of its own."""

    @property
    @abstractmethod
    def has_open_blocked(self) -> bool:
        """Whether a blocked queue may be open, as far as the store knows without reading."""

    @abstractmethod
    def blocked_queues_changed(self) -> None:
        """Record that jobs have entered or left a blocked queue, or that one has opened."""

    @abstractmethod
    async def move_to_blocked_queue(
        self, class_id: int, blocked_by: str, order_key: int, seq: int, key: str, open_at: int | None
    ) -> None:  # fmt: skip
        """Move a waiting job from its class, or another blocked queue, to that of a key without room."""

    @abstractmethod
    async def update_blocked_queue(self, class_id: int, blocked_by: str) -> None:
        """Record which job of a blocked queue is first after one has left. Delete an empty queue."""

    # ------------------------------------------------------------------ leases

    async def lock_leases(self, seqs: Sequence[int], asker: str | None) -> dict[int, Any]:
        """Return the leases with these numbers: number, token, cancel_at, unique key and the limits they hold."""
        return {row[0]: row for row in await self.db.run("leases_by_seq", self.rows.array(seqs))}

    async def finish_quickly(self, request: Exchange) -> list[tuple[JobId, ReportStatus]] | None:
        """Finish the jobs of an exchange in one step, if the database can do that here; None if not."""
        return None

    @abstractmethod
    async def write_leases(
        self, class_id: int, blocked_by: str, worker_id: str, token: bytes, taken: Sequence[tuple[Any, ...]]
    ) -> None:
        """Lease jobs and remove them from where they wait.

        ``taken``: for each its row, the limits it holds, the rung it was given, what it was blocked for and how long.
        """

    @abstractmethod
    async def note_claim(self, claim_id: bytes, kept: int, worker_id: str) -> None:
        """Remember the last claim that gave a worker something, and how many of its leases are kept."""

    @abstractmethod
    async def lock_waiters(self) -> bool:
        """Keep jobs from being submitted unseen by a worker that begins to wait. Return whether it must look again."""

    @abstractmethod
    async def executing(self, count: int) -> Sequence[Any]:
        """Return the leases, of which the workers hold ``count``: task, lane, worker, started_at, limits."""

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """Return the snapshot of what waits that plans are made from."""

    # ------------------------------------------------------------------ pruning

    @abstractmethod
    async def delete_jobs(self, completed: list[int], bad: list[int]) -> int:
        """Delete ended jobs: those that completed, and those that ended badly. Return how many there were."""

    @abstractmethod
    async def scan_completed(self, after: int, before_at: int, limit: int) -> Sequence[Any]:
        """Return ended jobs by number: number, whether it completed before a moment, and its namespace."""

    @abstractmethod
    async def fold_totals(self) -> None:
        """Add the totals of old minutes to those of all time."""

    # ------------------------------------------------------------------ totals and notifications

    @abstractmethod
    def count(self, counts: Mapping[str, int]) -> None:
        """Add to this minute's totals."""

    @abstractmethod
    def notify_worker(self, worker_id: str) -> None:
        """Notify a worker, once this is durable, that it should renew its leases now."""

    @abstractmethod
    async def wake_all(self) -> None:
        """Wake every waiting worker: what they may claim has changed."""
