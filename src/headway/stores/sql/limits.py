"""Checks limits, rates, the ladder and the pool's reserve in the transaction of a claim."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from headway.core.policy.document import Ladder, LimitRule
from headway.core.policy.enforced import EnforcedRules, lets_start
from headway.core.policy.ladder import RunningJobs, add_start, summarize_running
from headway.core.policy.limits import clamp_rate, conforms_at, step_rate
from headway.stores.sql.transaction import StatementRunner, Transaction

Keys = Sequence[tuple[str, LimitRule]]


class LimitCheck:
    """The usage of limits. Reads it once per transaction, on first use, and adds the claims of the transaction."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._held: Counter[str] | None = None
        self._reached: dict[str, int | None] = {}
        self._stepped: set[str] = set()
        self._running: RunningJobs | None = None

    # ------------------------------------------------------------------ limits

    async def full_key(self, keys: Keys) -> tuple[str, int | None] | None:
        """Return the first key without room, and when it will have room, or None if that is unknown."""
        now_us = self._tx.now_at * 1_000
        for key, rule in keys:
            if rule.concurrency is not None and (await self._in_use())[key] >= rule.concurrency:
                return key, None
            if rule.count is not None:
                conforms_us, _ = step_rate(rule, await self._reached_us(key), now_us)
                if conforms_at(conforms_us) > self._tx.now_at:
                    return key, conforms_at(conforms_us)
        return None

    async def take(self, keys: Keys) -> str | None:
        """Count a start against its keys. Return the text of the keys for the lease."""
        held = []
        for key, rule in keys:
            if rule.concurrency is not None:
                (await self._in_use())[key] += 1
                held.append(key)
            if rule.count is not None:
                _, self._reached[key] = step_rate(rule, await self._reached_us(key), self._tx.now_at * 1_000)
                self._stepped.add(key)
        return self._tx.rows.strings_text(held)

    async def settle(self) -> None:
        """Write the new positions of the rates."""
        if self._stepped:
            steps = [(key, self._reached[key]) for key in sorted(self._stepped)]
            await self._tx.db.run_many("rate_step", steps, self._tx.namespace_id)

    async def _in_use(self) -> Counter[str]:
        if self._held is None:
            self._held = Counter()
            for held, count in await self._tx.db.run("limit_usage", self._tx.namespace_id):
                for key in self._tx.rows.read_held(held):
                    self._held[key] += count
        return self._held

    async def _reached_us(self, key: str) -> int | None:
        if key not in self._reached:
            self._reached |= await read_rates(self._tx, [key])
        return self._reached[key]

    # ------------------------------------------------------------------ the ladder and the pool

    async def assign(self, rung: str | None) -> None:
        """Count a start on the ladder. A session has no rung."""
        self._running = add_start(self._tx.rule_index.ladder, await self.running(), rung)

    async def running(self) -> RunningJobs:
        """Return the running jobs of the ladder."""
        if self._running is None:
            tx = self._tx
            self._running = await read_running(tx.db, tx.namespace_id, tx.rule_index.ladder, tx.now_at)
        return self._running

    async def pool_room(self) -> int:
        """Return how many more jobs of lanes outside the pool's reserve may run."""
        tx = self._tx
        reserve = tx.rule_index.rules.pool_reserve
        if reserve is None:
            return sys.maxsize
        running = await tx.db.run("running_lanes", tx.namespace_id)
        counted = sum(count for lane, count in running if reserve.rule == "leave_free" or lane not in reserve.lanes)
        slots = int(await tx.db.first("live_slots", tx.namespace_id, tx.now_at))
        return max(0, slots - reserve.slots - int(counted))


async def read_rates(tx: Transaction, keys: Iterable[str]) -> dict[str, int | None]:
    """Return the position of each rate by key, in microseconds, or None for an unused rate."""
    wanted = list(keys)
    found = await tx.db.run("rate", tx.namespace_id, tx.rows.array(wanted))
    return dict.fromkeys(wanted) | dict(found)


async def read_running(db: StatementRunner, namespace_id: int, ladder: Ladder, now_at: int) -> RunningJobs:
    """Return the running jobs of the ladder."""
    running = await db.run("running_rungs", namespace_id)
    slots = int(await db.first("live_slots", namespace_id, now_at))
    return summarize_running(ladder, slots, ((row[0], row[1] or None, row[2], row[3]) for row in running))


async def block(
    tx: Transaction, class_id: int, blocked_by: str, order_key: int, seq: int, full: tuple[str, int | None]
) -> None:
    """Move a job to the blocked queue of a key without room. If the job is there already, close that queue."""
    key, open_at = full
    if blocked_by == key:
        await tx.db.run("blocked_close", open_at, tx.namespace_id, key, class_id)
    else:
        await tx.move_to_blocked_queue(class_id, blocked_by, order_key, seq, key, open_at)
        if blocked_by:
            await tx.update_blocked_queue(class_id, blocked_by)
    tx.blocked_queues_changed()


async def unblock_head(tx: Transaction, class_id: int, blocked_by: str) -> None:
    """Record that a job has left a blocked queue."""
    await tx.update_blocked_queue(class_id, blocked_by)
    tx.blocked_queues_changed()


async def give_back(tx: Transaction, held: str) -> None:
    """Open the blocked queues for the keys of a lease that ends."""
    for key in tx.rows.read_held(held):
        opened = [class_id for (class_id,) in await tx.db.run("blocked_release", tx.namespace_id, key)]
        if opened:
            tx.eligible += opened
            tx.blocked_queues_changed()


async def classes_with_room(tx: Transaction) -> list[int]:
    """Return the classes that may have room on the ladder or in the pool after a job has ended."""
    rules = tx.rule_index.rules
    if not rules.rungs and rules.pool_reserve is None:
        return []
    lanes = tx.rows.array(sorted(rules.pool_reserve.lanes)) if rules.pool_reserve else None
    found = await tx.db.run("classes_waiting", tx.namespace_id, bool(rules.rungs), lanes)
    return [class_id for (class_id,) in found]


async def adopt_rules(tx: Transaction, before: EnforcedRules) -> None:
    """Apply changed rules: recompute the limits that leases hold, and open all blocked queues."""
    if not lets_start(before, tx.rule_index.rules):
        return
    held: list[tuple[int, str | None]] = []
    for seq, task, tenant, limits in await tx.db.run("running", tx.namespace_id):
        bound = tx.rows.read_held(limits)
        keys = tx.rule_index.keys(tx.rows.read_text(task) or "", tx.rows.read_text(tenant), bound)
        held.append((seq, tx.rows.strings_text([key for key, rule in keys if rule.concurrency is not None])))
    await tx.db.run_many("lease_set_limits", held)
    for key, reached_us in await tx.db.run("rates", tx.namespace_id):
        rule = tx.rule_index.rules.limits.get(key.partition("=")[0])
        clamped_us = clamp_rate(rule, reached_us, tx.now_at * 1_000)
        if clamped_us is None:
            await tx.db.run("rate_forget", tx.namespace_id, key)
        elif clamped_us != reached_us:
            await tx.db.run_many("rate_step", [(key, clamped_us)], tx.namespace_id)
    await tx.db.run("blocked_open_all", tx.namespace_id)
    await tx.wake_all()
