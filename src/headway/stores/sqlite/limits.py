"""Checks limits, rates, the ladder and the pool's reserve in the transaction of a claim."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from headway.core.policy.document import LimitRule
from headway.core.policy.ladder import RunningJobs, add_starts, room_on_rung, summarize_running
from headway.core.policy.limits import conforms_at, step_rate
from headway.stores.sqlite.rows import rows

if TYPE_CHECKING:
    from headway.stores.sqlite.transaction import SqliteTransaction

Keys = Sequence[tuple[str, LimitRule]]
FullKey = tuple[str, int | None]  # A key without room, and when it will have room, or None if that is unknown.

_held_text = lru_cache(maxsize=10_000)(rows.strings_text)  # Many jobs count against the same limits.


class LimitCheck:
    """The usage of limits. Reads it once per transaction, on first use, and adds the claims of the transaction."""

    def __init__(self, tx: SqliteTransaction) -> None:
        self._tx = tx
        self._used: dict[str, int] | None = None
        self._reached: dict[str, int | None] = {}
        self._stepped: set[str] = set()
        self._running: RunningJobs | None = None

    def start(self, keys: Keys) -> tuple[FullKey | None, str | None]:
        """Count a start against its keys, and return their text for the lease.

        If a key has no room, count nothing, and return the first such key.
        """
        used, now_at = self._used, self._tx.now_at
        counted: list[str] = []
        steps: dict[str, int | None] = {}
        for key, rule in keys:
            if rule.concurrency is not None:
                if used is None:
                    used = self._used = self._read_usage()
                if used.get(key, 0) >= rule.concurrency:
                    return (key, None), None
                counted.append(key)
            if rule.count is not None:
                reached_us = self._reached[key] if key in self._reached else self._read_rate(key)
                conforms_us, steps[key] = step_rate(rule, reached_us, now_at * 1_000)
                if conforms_at(conforms_us) > now_at:
                    return (key, conforms_at(conforms_us)), None
        if steps:
            self._reached |= steps
            self._stepped |= steps.keys()
        if used is None:
            return None, None
        for key in counted:
            used[key] = used.get(key, 0) + 1
        return None, _held_text(tuple(counted))

    def has_room(self, key: str) -> bool:
        """Return whether a limit without a rate has room for another job, as far as this claim has counted."""
        rule = self._tx.rule_index.rules.limits.get(key.partition("=")[0])
        used = self._used or {}
        return rule is None or rule.concurrency is None or used.get(key, 0) < rule.concurrency

    async def settle(self) -> None:
        """Write the new positions of the rates."""
        if self._stepped:
            steps = [(key, self._reached[key]) for key in sorted(self._stepped)]
            await self._tx.db.run_many("rate_step", steps, self._tx.namespace_id)

    def _read_usage(self) -> dict[str, int]:
        used: dict[str, int] = {}
        for held, count in self._tx.connection.run("limit_usage", self._tx.namespace_id):
            for key in self._tx.rows.read_limit_keys(held):
                used[key] = used.get(key, 0) + count
        return used

    def _read_rate(self, key: str) -> int | None:
        found = self._tx.connection.run("rate", self._tx.namespace_id, self._tx.rows.array([key])).fetchone()
        reached_us: int | None = None if found is None else found[1]
        self._reached[key] = reached_us
        return reached_us

    # ------------------------------------------------------------------ the ladder and the pool

    def room_on_rung(self, rung: str | None) -> tuple[int, str | None]:
        """Return how many jobs of a rung the ladder lets start, and the rung that they are assigned."""
        most, assigned = room_on_rung(self._tx.rule_index.ladder, self.running(), rung)
        return sys.maxsize if most is None else most, assigned

    def assign(self, rung: str | None, starts: int) -> None:
        """Count starts on the ladder. A session has no rung."""
        self._running = add_starts(self._tx.rule_index.ladder, self.running(), rung, starts)

    def running(self) -> RunningJobs:
        """Return the running jobs of the ladder."""
        if self._running is None:
            self._running = _read_running(self._tx)
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


def _read_running(tx: SqliteTransaction) -> RunningJobs:
    """Return the running jobs of the ladder."""
    running = tx.connection.run("running_rungs", tx.namespace_id)
    slots = int(tx.connection.first("live_slots", tx.namespace_id, tx.now_at))
    return summarize_running(tx.rule_index.ladder, slots, ((row[0], row[1] or None, row[2], row[3]) for row in running))
