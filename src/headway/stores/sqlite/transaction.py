"""One transaction: its connection, its time, and the notifications after its commit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Protocol

from headway.core.job import ClassKey
from headway.core.policy.document import INTERACTIVE
from headway.core.policy.enforced import RuleIndex
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import serves
from headway.core.workflow import HELD_AT
from headway.stores.base import LEASE_CHANNEL, RULES, WAITING_COUNTED
from headway.stores.rule_codec import RuleReader
from headway.stores.sql.ordering import Requeue
from headway.stores.sql.rows import Row
from headway.stores.sql.settle import settle_edges
from headway.stores.sql.transaction import MINUTE, Transaction
from headway.stores.sqlite.connection import SqliteConnection
from headway.stores.sqlite.limits import LimitCheck
from headway.stores.sqlite.notifier import PipeNotifier
from headway.stores.sqlite.rows import rows

TOTALS_KEPT_MINUTES = 1_440  # Totals are kept by the minute for a day.


# The tables with rows of a job, once it has ended.
_DELETES = (
    "outcomes_delete", "attempts_delete", "steps_delete", "edges_delete", "dependants_delete", "lines_delete",
    "jobs_delete",
)  # fmt: skip

# A job that a claim leases: the key of its blocked queue or '', its row, and its terms, which are the limits that it
# holds, its assigned rung, what it was blocked by, and for how long.
TakenJob = tuple[str, Any, str | None, str | None, str | None, int | None]


class SqliteCache:
    """The cache of a process between transactions: ids of namespace and classes, and the rules."""

    def __init__(self) -> None:
        self.namespace_id = 0  # 0 until the namespace exists; only a write creates it.
        self.class_ids: dict[ClassKey, int] = {}
        self.rules_version = -1
        self.rule_index = RuleIndex()
        self.rule_reader = RuleReader()

    def forget_namespace(self) -> None:
        self.namespace_id = 0

    def forget_rules(self) -> None:
        self.rules_version = -1

    def copy(self) -> SqliteCache:
        """Return a copy for a transaction that may be rolled back."""
        made = SqliteCache()
        made.namespace_id, made.class_ids = self.namespace_id, dict(self.class_ids)
        made.rules_version, made.rule_index = self.rules_version, self.rule_index
        made.rule_reader = self.rule_reader
        return made

    def adopt(self, learned: SqliteCache) -> None:
        """Take the values of a copy whose transaction is durable."""
        self.namespace_id = learned.namespace_id
        self.class_ids.update(learned.class_ids)
        self.rule_index, self.rules_version = learned.rule_index, learned.rules_version


class Hooks(Protocol):
    """Registers actions for the end of a transaction."""

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run an action once the transaction is durable, and only then."""
        ...

    def after_rollback(self, action: Callable[[], object]) -> None:
        """Run an action if the transaction is rolled back."""
        ...

    def borrow(self, memory: SqliteCache) -> SqliteCache:
        """Return the cache that the transaction may change."""
        ...


class SqliteRunner:
    """Executes statements at once, for verbs that await them."""

    def __init__(self, connection: SqliteConnection) -> None:
        self._connection = connection

    async def run(self, name: str, *values: Any) -> Sequence[Any]:
        found: list[Any] = self._connection.run(name, *values).fetchall()
        return found

    async def rows(self, name: str, *values: Any) -> Sequence[Row]:
        return self._connection.rows(name, *values)

    async def row(self, name: str, *values: Any) -> Any:
        return self._connection.run(name, *values).fetchone()

    async def first(self, name: str, *values: Any) -> Any:
        return self._connection.first(name, *values)

    async def run_many(self, name: str, rows: Sequence[Sequence[Any]], *shared: Any) -> None:
        self._connection.run_many(name, [(*shared, *row) for row in rows] if shared else rows)


class SqliteTransaction(Transaction):
    """A transaction on a file that one process writes at a time; ``settle`` notifies after the commit."""

    rows = rows

    def __init__(
        self,
        connection: SqliteConnection,
        *,
        now_at: int,
        namespace_id: int,
        memory: SqliteCache,
        notifier: PipeNotifier,
        hooks: Hooks,
    ) -> None:
        super().__init__(SqliteRunner(connection), now_at=now_at, namespace_id=namespace_id)
        self.connection = connection
        self._memory = memory
        self._class_ids = memory.class_ids
        self._rule_index: RuleIndex | None = None
        self._set_aside: tuple[bool, bool, bool] | None = None
        self._new_classes: list[ClassKey] = []
        self._notifier = notifier
        self._hooks = hooks

    @property
    def rule_index(self) -> RuleIndex:
        if self._rule_index is None:
            version = self.connection.first("rules_version", self.namespace_id) or 0
            if version != self._memory.rules_version:
                parts = self.connection.run("documents", self.namespace_id, RULES, None)
                rules = self._memory.rule_reader.join((name, body) for _, name, _, body in parts)
                self._memory.rule_index = RuleIndex(rules)
                self._memory.rules_version = version
                self._hooks.after_rollback(self._memory.forget_rules)
            self._rule_index = self._memory.rule_index
        return self._rule_index

    async def rules_changed(self) -> None:
        self.connection.run("rules_changed", self.namespace_id)
        self._rule_index = None

    # ------------------------------------------------------------------ classes and their order

    def known_class_id(self, key: tuple[str, tuple[str, ...], str | None, bool]) -> int | None:
        """Return the cached id of a class, or None. A tuple equals the ClassKey of the same values."""
        return self._class_ids.get(key)  # type: ignore[call-overload, no-any-return]

    async def class_id(self, key: ClassKey) -> int:
        known = self._class_ids.get(key)
        if known is None:
            values = (key.lane, key.rung or "", rows.array(sorted(key.needs)), int(key.persist))
            known = int(self.connection.first("class_add", self.namespace_id, *values))
            self._class_ids[key] = known
            self._new_classes.append(key)
            # A rollback takes a new class with it, and then its number must not be remembered.
            self._hooks.after_rollback(partial(self._class_ids.pop, key, 0))
        return known

    async def find_class(self, key: ClassKey) -> int | None:
        return await self.class_id(key)

    async def count_classes(self) -> int:
        return int(self.connection.first("classes_count", self.namespace_id))

    async def next_numbers(self, count: int) -> Sequence[int]:
        last = int(self.connection.first("next_sequence", count))
        return range(last - count + 1, last + 1)

    async def last_key(self, class_id: int, sharer: str, read: dict[int, Any]) -> int | None:
        if class_id not in read:
            head = self.connection.run("line_head", class_id).fetchone() or (None, None)
            read[class_id] = head, dict(self.connection.run("last_running_keys", class_id))
        head, running = read[class_id]
        waiting: int | None = self.connection.first("last_waiting_key", class_id, sharer, *head)
        runs = running.get(sharer)
        return waiting if runs is None else runs if waiting is None else max(waiting, runs)

    async def make_fair(self, class_id: int, number: int) -> int:
        self.connection.run("fair_ready", class_id)
        self.connection.run("fair_leases", class_id)
        return int(self.connection.first("fair_class", class_id, number))

    async def put_ready(
        self, job: Requeue, order_key: int, eligible_at: int, sharer: str | None, *, front: bool
    ) -> None:  # fmt: skip
        self.connection.run("ready_again", job.class_id, order_key, job.seq, eligible_at, *job[6:], sharer)
        self.connection.run("job_set_place", job.class_id, order_key, None, job.seq)

    async def leave_ready(self, class_id: int, blocked_by: str, order_key: int, seq: int, tenant: Any) -> bool:
        self.connection.run("line_leave", class_id, tenant or "", order_key, seq)
        return await super().leave_ready(class_id, blocked_by, order_key, seq, tenant)

    async def put_delayed(self, job: Requeue, due_at: int) -> None:
        self.connection.run("delay", self.namespace_id, due_at, job.seq, job.class_id, *job[6:])
        self.connection.run("job_set_place", job.class_id, None, due_at, job.seq)

    async def take_due(self, limit: int) -> Sequence[Requeue]:
        due = self.connection.run("delayed_due", self.namespace_id, self.now_at, limit).fetchall()
        if not due:
            return ()
        last = Requeue(*due[-1][:-1])
        self.connection.run("delayed_taken", self.namespace_id, due[-1][-1], last.seq)
        return [Requeue(*columns) for *columns, _ in due]

    # ------------------------------------------------------------------ blocked queues

    @property
    def has_blocked(self) -> bool:
        return self._read_set_aside()[0]

    @property
    def has_open_blocked(self) -> bool:
        blocked, is_open, _ = self._read_set_aside()
        return blocked and is_open

    def blocked_queues_changed(self) -> None:
        self._set_aside = None

    def _read_set_aside(self) -> tuple[bool, bool, bool]:
        """Read whether there are blocked queues, open ones, and unsettled edges, with one statement for each claim."""
        if self._set_aside is None:
            blocked, is_open, unsettled = self.connection.run("set_aside", self.namespace_id).fetchone()
            self._set_aside = (bool(blocked), bool(is_open), bool(unsettled))
        return self._set_aside

    async def update_blocked_queue(self, class_id: int, blocked_by: str) -> None:
        self.connection.run("blocked_set_head", class_id, blocked_by, self.namespace_id)
        self.connection.run("blocked_delete_empty", self.namespace_id, rows.array([blocked_by]), class_id)

    # ------------------------------------------------------------------ leases

    async def write_leases(self, class_id: int, worker_id: str, token: bytes, taken: Sequence[TakenJob]) -> None:
        """Lease the front of a class and of its blocked queues, which no other process can have changed since."""
        last = {job[0]: job[1] for job in taken}  # The row of the last job taken from each queue.
        terms = taken[0][2:]
        if last.keys() == {""} and all(job[2:] == terms for job in taken):
            front = last[""][:2]
            self.connection.run("claim_front", worker_id, token, self.now_at, class_id, *front, *terms[:2])
        else:
            leases = [
                (row[1], class_id, worker_id, token, self.now_at, row[2], row[3] + 1, row[4] + 1, row[5], row[6],
                 row[21], row[0], row[17], held, assigned, blocked_for, blocked_ms, row[22], row[23])
                for _, row, held, assigned, blocked_for, blocked_ms in taken
            ]  # fmt: skip
            leases.sort()
            self.connection.run_many("claim_lease", leases)
        self.connection.run_many("claim_taken", [(class_id, key, row[0], row[1]) for key, row in last.items()])

    async def note_claim(self, claim_id: bytes, kept: int, worker_id: str) -> None:
        self.connection.run("worker_claimed", claim_id, worker_id)

    async def lock_waiters(self) -> bool:
        return False  # One process writes at a time, so no submit can come between.

    async def executing(self, count: int) -> Sequence[Any]:
        return await self.db.run("executing", self.namespace_id)

    async def snapshot(self) -> Snapshot:
        found = self.connection.run("snapshot_classes", WAITING_COUNTED, self.now_at, self.namespace_id).fetchall()
        laddered = bool(self.rule_index.ladder.rungs) or any(rung == INTERACTIVE for _, rung, *_ in found)
        floor = LimitCheck(self).running() if laddered else None
        views = []
        for lane, rung, needs, persist, fair, line, oldest_at, head_key, open_queues, *blocked_keys in found:
            key = rows.class_key(lane, rung, needs, persist)
            waiting = min(line + open_queues, WAITING_COUNTED)
            if not persist and waiting:
                oldest_at = self.now_at
            head_key = min((found for found in (head_key, *blocked_keys) if found is not None), default=0)
            blocked = self.rule_index.blocked_reason(lane, key.rung, floor)
            views.append(ClassView(key, waiting, oldest_at, head_key, bool(fair), blocked))
        next_due_at = self.connection.first("next_due", self.namespace_id, self.now_at, HELD_AT)
        return Snapshot(self.now_at, tuple(views), next_due_at, floor)

    # ------------------------------------------------------------------ workflows

    @property
    def has_unsettled(self) -> bool:
        return self._read_set_aside()[2]

    def exclude_others(self) -> None:
        """Do nothing, because one process writes at a time."""

    async def settle_edges(self) -> bool:
        return await settle_edges(self)

    # ------------------------------------------------------------------ pruning

    async def delete_jobs(self, completed: list[int], bad: list[int]) -> int:
        seqs = rows.array(completed + bad)
        for statement in _DELETES:
            self.connection.run(statement, seqs)
        return len(completed) + len(bad)

    async def scan_completed(self, after: int, before_at: int, limit: int) -> Sequence[Any]:
        return await self.db.run("prune_scan", after, before_at, limit)

    async def fold_totals(self) -> None:
        before = self.now_at // MINUTE - TOTALS_KEPT_MINUTES
        self.connection.run("prune_tally_fold", before)
        self.connection.run("prune_tally", before)

    # ------------------------------------------------------------------ totals and notifications

    def forget_changes(self) -> None:
        """Discard the collected changes after a rollback, including new classes."""
        self.eligible.clear()
        self.changed.clear()
        while self._new_classes:
            self._class_ids.pop(self._new_classes.pop(), None)

    def count(self, counts: Mapping[str, int]) -> None:
        for what, count in counts.items():
            self.connection.run("count", self.namespace_id, self.now_at // MINUTE, what, count)

    def notify_worker(self, worker_id: str) -> None:
        self._notify_after_commit(worker_id + LEASE_CHANNEL)

    def _notify_after_commit(self, name: str) -> None:
        self._hooks.after_commit(partial(self._notifier.notify, name))

    async def wake_all(self) -> None:
        for worker_id, _, _ in self._waiting_workers():
            self._wake(worker_id)

    async def wake_any(self) -> None:
        for worker_id, _, _ in self._waiting_workers()[:1]:
            self._wake(worker_id)

    def _waiting_workers(self) -> list[tuple[str, str, str | None]]:
        found: list[tuple[str, str, str | None]]
        found = self.connection.run("workers_waiting", self.namespace_id, self.now_at).fetchall()
        return found

    def _wake(self, worker_id: str) -> None:
        self.connection.run("worker_unwait", worker_id)
        self._notify_after_commit(worker_id)

    async def settle(self, *, but: str | None = None) -> None:
        """Wake waiting workers, except the caller, for jobs that became eligible, and notify watchers."""
        if self.eligible:
            await self._wake_workers(but)
        if self.changed:
            self._hooks.after_commit(partial(self._notifier.notify_watchers, self.changed))

    async def _wake_workers(self, but: str | None) -> None:
        """Wake one waiting worker that can serve the job, for each job that became eligible."""
        waiting = self._waiting_workers()
        if not waiting:
            return
        keys = await self.classes()
        for class_id in self.eligible:
            key = keys[class_id]
            for index, (worker_id, offers, lanes) in enumerate(waiting):
                if worker_id == but or (lanes is not None and key.lane not in _names(lanes)):
                    continue
                if serves(key.needs, _names(offers)):
                    self._wake(worker_id)
                    del waiting[index]
                    break
            if not waiting:
                return


@lru_cache(maxsize=256)
def _names(text: str) -> frozenset[str]:
    return frozenset(rows.read_strings(text))
