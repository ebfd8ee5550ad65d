"""The parts of a transaction that only PostgreSQL has, and the notifications of workers and clients."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from headway.core.job import ClassKey
from headway.core.policy.document import DAY
from headway.core.policy.enforced import RuleIndex
from headway.core.snapshot import Snapshot
from headway.stores.base import WAITING_COUNTED
from headway.stores.postgres.connections import ServerError
from headway.stores.postgres.demands import NeedsExclusive, demand_of
from headway.stores.postgres.rows import read_snapshot, rows
from headway.stores.postgres.runner import PostgresCache, PostgresRunner, read_rules
from headway.stores.sql.ordering import Requeue
from headway.stores.sql.transaction import MINUTE, Transaction

TOTALS_KEPT_MINUTES = 60  # Totals are kept by the minute for an hour; every process has its own rows.


class PostgresTransaction(Transaction):
    """A transaction that runs beside others. ``settle`` sends notifications with the commit."""

    rows = rows

    def __init__(
        self,
        db: PostgresRunner,
        *,
        now_at: int,
        memory: PostgresCache,
        has_blocked: bool = False,
        has_unsettled: bool = False,
        alone: bool = False,
    ) -> None:
        super().__init__(db, now_at=now_at, namespace_id=memory.namespace_id)
        self.runner = db
        self.memory = memory
        self.alone = alone
        self._has_blocked = has_blocked
        self._has_unsettled = has_unsettled
        self._added: set[ClassKey] = set()  # Classes that this transaction may have added, and may still take back.
        self._rung: list[str] = []  # Workers that are to renew their leases.
        self._counts: dict[str, int] = {}

    @property
    def rule_index(self) -> RuleIndex:
        return self.memory.rule_index

    async def rules_changed(self) -> None:
        await self.db.run("rules_changed", self.namespace_id)
        await read_rules(self.db, self.memory)

    # ------------------------------------------------------------------ classes and their order

    async def class_id(self, key: ClassKey) -> int:
        known = self.memory.class_ids.get(key)
        if known is None:
            values = (key.lane, key.rung or "", sorted(key.needs), key.persist)
            known = int(await self.db.first("class_add", self.namespace_id, *values))
            self._added.add(key)
        return known

    async def classes(self) -> dict[int, ClassKey]:
        found = await super().classes()
        self._learn_classes({key: class_id for class_id, key in found.items()})
        return found

    def _learn_classes(self, found: Mapping[ClassKey, int]) -> None:
        """Keep the ids of classes for later transactions, apart from those that a rollback would remove."""
        self.memory.class_ids.update((key, class_id) for key, class_id in found.items() if key not in self._added)

    async def next_numbers(self, count: int) -> Sequence[int]:
        return [number for (number,) in await self.db.run("next_sequence", count)]

    async def make_fair(self, class_id: int, number: int) -> int:
        return int(await self.db.first("make_fair", class_id, number))

    async def put_ready(
        self, job: Requeue, order_key: int, eligible_at: int, sharer: str | None, *, front: bool
    ) -> None:  # fmt: skip
        if front and sharer is None:
            await self.db.run("class_rewind", job.class_id)
        await self.db.run("ready_again", job.class_id, order_key, job.seq, eligible_at, *job[4:], sharer)

    async def put_delayed(self, job: Requeue, due_at: int) -> None:
        await self.db.run("delay", self.namespace_id, due_at, job.seq, job.class_id, *job[6:])

    async def take_due(self, limit: int) -> Sequence[Requeue]:
        return [Requeue(*row) for row in await self.db.run("delayed_due", self.namespace_id, self.now_at, limit)]

    # ------------------------------------------------------------------ blocked queues

    @property
    def has_blocked(self) -> bool:
        return self._has_blocked

    def blocked_queues_changed(self) -> None:
        self._has_blocked = True

    async def update_blocked_queue(self, class_id: int, blocked_by: str) -> None:
        await self.db.run("blocked_update", self.namespace_id, blocked_by, class_id)

    # ------------------------------------------------------------------ leases

    async def lock_leases(self, seqs: Sequence[int], asker: str | None) -> dict[int, Any]:
        await self.db.run("workers_lock", seqs, asker)
        return await super().lock_leases(seqs, asker)

    async def set_limit_keys(self, leases: Sequence[tuple[int, Sequence[str]]]) -> None:
        columns = self.memory.rule_columns
        if leases:
            texts = [self.rows.strings_text(keys) or "[]" for _, keys in leases]
            seqs = [seq for seq, _ in leases]
            await self.db.run("lease_set_limits", seqs, texts, columns.rungs, columns.uncounted_lanes)
        await self.db.run("limit_usage_clear", self.namespace_id)
        await self.db.run("limit_usage_fill", self.namespace_id)

    async def executing(self, count: int) -> Sequence[Any]:
        """Read the leases, starting at the lowest number of the last read if that returns all of them.

        Starting at the lowest possible number would read the dead rows of leases that have ended.
        """
        found = await self.db.run("executing", self.namespace_id, self.memory.first_lease)
        if len(found) != count:
            found = await self.db.run("executing", self.namespace_id, 0)
        if found:
            self.memory.first_lease = found[0]["seq"]
        return found

    async def snapshot(self) -> Snapshot:
        heads = self.memory.heads
        known = heads.known()
        began = time.monotonic()
        rungs = self.memory.rule_columns.rungs
        snapshot = await self.db.first("snapshot", self.namespace_id, self.now_at, WAITING_COUNTED, *known, rungs)
        seen, numbers, found = read_snapshot(snapshot, self.now_at, self.rule_index)
        heads.note(found, None if known[0] else time.monotonic() - began)
        self._learn_classes(numbers)
        return seen

    # ------------------------------------------------------------------ workflows

    @property
    def has_unsettled(self) -> bool:
        return self._has_unsettled

    def exclude_others(self) -> None:
        if not self.alone:
            raise NeedsExclusive

    async def settle_edges(self) -> bool:
        if not (self.has_moves or self.has_unsettled):
            return False
        if self.has_moves:
            self.exclude_others()
        elif not self.alone and not await self.db.first("settle_turn", self.namespace_id):
            return True  # Another session settles it.
        counts = [(seq, kind, count) for seq, change in self.changed_counts.items() for kind, count in change.items()]
        counts += [(seq, "live", 0) for seq in self.changed_counts]
        sources, batches = self.unsettled, self.uncancelled
        self.unsettled, self.uncancelled, self.changed_counts = {}, {}, {}
        try:
            row = await self.runner.row(
                "settle", self.namespace_id, self.now_at, self.alone, self.has_unsettled, self.edges_left,
                list(sources), list(sources.values()), [None] * len(sources), list(batches), list(batches.values()),
                *([list(column) for column in zip(*counts, strict=True)] or (None, None, None)),
                *self.memory.rule_columns.steps,
            )  # fmt: skip
        except ServerError as problem:
            demand = demand_of(problem)
            if demand is None:
                raise
            raise demand from problem
        self.eligible += row["eligible"] or ()
        self.changed += row["told"] or ()
        self.count(dict(zip(row["kinds"], row["counts"], strict=True)))
        self._has_unsettled = row["remains"]
        if row["remains"]:
            await self.wake_any()
        return bool(row["remains"])

    # ------------------------------------------------------------------ pruning

    async def delete_jobs(self, completed: list[int], bad: list[int]) -> int:
        return len(await self.db.run("jobs_delete", completed, bad))

    async def scan_completed(self, after: int, before_at: int, limit: int) -> Sequence[Any]:
        return await self.db.run("prune_scan", after, before_at, (before_at // DAY + 1) * DAY, limit)

    async def fold_totals(self) -> None:
        await self.db.run("prune_tally", self.namespace_id, self.now_at // MINUTE - TOTALS_KEPT_MINUTES)

    # ------------------------------------------------------------------ totals and notifications

    def count(self, counts: Mapping[str, int]) -> None:
        for what, count in counts.items():
            self._counts[what] = self._counts.get(what, 0) + count

    def notify_worker(self, worker_id: str) -> None:
        self._rung.append(worker_id)

    async def wake_all(self) -> None:
        await self.db.run("wake_all", self.namespace_id, self.now_at)

    async def wake_any(self) -> None:
        await self.db.run("wake_any", self.namespace_id, self.now_at)

    async def settle(self, *, but: str | None = None) -> None:
        """Wake waiting workers for eligible jobs, write the totals, and notify watchers of changed jobs.

        An exchange that begins to wait holds the gate and writes its totals then, so the order is the same here.
        """
        if self.eligible:
            await self.db.run("wake", self.namespace_id, self.now_at, self.eligible, but)
        if self._counts:
            kinds, counts = list(self._counts), list(self._counts.values())
            await self.db.run("count", self.namespace_id, self.now_at, kinds, counts)
        for worker_id in self._rung:
            await self.db.run("notify", self.namespace_id, "k", worker_id)
        if self.changed:
            await self.db.run("notify_jobs", self.namespace_id, self.changed)
