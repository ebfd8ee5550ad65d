"""Checks limits, rates, the ladder and the pool's reserve in the transaction of a claim."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from headway.core.policy.document import LimitRule
from headway.core.policy.ladder import RunningJobs, add_start, summarize_running
from headway.core.policy.limits import conforms_at, step_rate
from headway.stores.sql.limits import read_rates
from headway.stores.sqlite.rows import rows

if TYPE_CHECKING:
    from headway.stores.sqlite.transaction import SqliteTransaction

Keys = Sequence[tuple[str, LimitRule]]

_held_text = lru_cache(maxsize=10_000)(rows.strings_text)  # Many jobs count against the same limits.


class LimitCheck:
    """The usage of limits. Reads it once per transaction, on first use, and adds the claims of the transaction."""

    def __init__(self, tx: SqliteTransaction) -> None:
        self._tx = tx
        self._used: dict[str, int] | None = None
        self._reached: dict[str, int | None] = {}
        self._stepped: set[str] = set()
        self._running: RunningJobs | None = None

    # ------------------------------------------------------------------ limits

    async def full_key(self, keys: Keys) -> tuple[str, int | None] | None:
        """Return the first key without room, and when it will have room, or None if that is unknown."""
        for key, rule in keys:
            if rule.concurrency is not None:
                used = await self._read_usage() if self._used is None else self._used
                if used.get(key, 0) >= rule.concurrency:
                    return key, None
            if rule.count is not None:
                conforms_us, _ = step_rate(rule, await self._reached_us(key), self._tx.now_at * 1_000)
                if conforms_at(conforms_us) > self._tx.now_at:
                    return key, conforms_at(conforms_us)
        return None

    async def take(self, keys: Keys) -> str | None:
        """Count a start against its keys. Return the text of the keys for the lease."""
        held = []
        for key, rule in keys:
            if rule.concurrency is not None:
                used = await self._read_usage() if self._used is None else self._used
                used[key] = used.get(key, 0) + 1
                held.append(key)
            if rule.count is not None:
                _, self._reached[key] = step_rate(rule, await self._reached_us(key), self._tx.now_at * 1_000)
                self._stepped.add(key)
        return _held_text(tuple(held))

    async def settle(self) -> None:
        """Write the new positions of the rates."""
        if self._stepped:
            steps = [(key, self._reached[key]) for key in sorted(self._stepped)]
            await self._tx.db.run_many("rate_step", steps, self._tx.namespace_id)

    async def _read_usage(self) -> dict[str, int]:
        used: dict[str, int] = {}
        for held, count in await self._tx.db.run("limit_usage", self._tx.namespace_id):
            for key in self._tx.rows.read_limit_keys(held):
                used[key] = used.get(key, 0) + count
        self._used = used
        return used

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
            self._running = await _read_running(self._tx)
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


async def block(
    tx: SqliteTransaction, class_id: int, blocked_by: str, order_key: int, seq: int, full: tuple[str, int | None]
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


async def _read_running(tx: SqliteTransaction) -> RunningJobs:
    """Return the running jobs of the ladder."""
    running = await tx.db.run("running_rungs", tx.namespace_id)
    slots = int(await tx.db.first("live_slots", tx.namespace_id, tx.now_at))
    return summarize_running(tx.rule_index.ladder, slots, ((row[0], row[1] or None, row[2], row[3]) for row in running))
