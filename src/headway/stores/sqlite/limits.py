"""Caps: limits, rates, the ladder and the pool's reserve, checked in the transaction that claims."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from headway.core.policy.document import LimitRule
from headway.core.policy.enforced import lets_start
from headway.core.policy.ladder import RunningJobs, add_start, summarize_running
from headway.core.policy.limits import clamp_rate, conforms_at, step_rate
from headway.stores.sqlite import rows
from headway.stores.sqlite.transaction import SqliteTransaction

Keys = Sequence[tuple[str, LimitRule]]


class SqliteLimitCheck:
    """What is in use, read once a transaction when first asked and kept up with its claims."""

    def __init__(self, tx: SqliteTransaction) -> None:
        self._tx = tx
        self._held: Counter[str] | None = None
        self._reached: dict[str, int | None] = {}
        self._stepped: set[str] = set()
        self._floor: RunningJobs | None = None

    # ------------------------------------------------------------------ limits

    def full_key(self, keys: Keys) -> tuple[str, int | None] | None:
        """Return the first of these keys that has no room, and when it will have, if that is known."""
        now_us = self._tx.now_at * 1_000
        for key, rule in keys:
            if rule.concurrency is not None and self._in_use()[key] >= rule.concurrency:
                return key, None
            if rule.count is not None:
                conforms_us, _ = step_rate(rule, self._reached_us(key), now_us)
                if conforms_at(conforms_us) > self._tx.now_at:
                    return key, conforms_at(conforms_us)
        return None

    def take(self, keys: Keys) -> str | None:
        """Count a start against its keys. Gives the text that its lease remembers them by."""
        held = []
        for key, rule in keys:
            if rule.concurrency is not None:
                self._in_use()[key] += 1
                held.append(key)
            if rule.count is not None:
                _, self._reached[key] = step_rate(rule, self._reached_us(key), self._tx.now_at * 1_000)
                self._stepped.add(key)
        return rows.json_list(held) if held else None

    def settle(self) -> None:
        """Write what the starts took from their rates."""
        for key in sorted(self._stepped):
            self._tx.db.run("rate_step", self._tx.namespace_id, key, self._reached[key])

    def _in_use(self) -> Counter[str]:
        if self._held is None:
            self._held = Counter()
            for held, count in self._tx.db.run("limit_usage", self._tx.namespace_id):
                for key in rows.read_held(held):
                    self._held[key] += count
        return self._held

    def _reached_us(self, key: str) -> int | None:
        if key not in self._reached:
            self._reached[key] = self._tx.db.first("rate", self._tx.namespace_id, key)
        return self._reached[key]

    # ------------------------------------------------------------------ the ladder and the pool

    def assign(self, rung: str | None) -> None:
        """Count a start on the ladder; a session is given no rung."""
        self._floor = add_start(self._tx.rule_index.ladder, self.floor(), rung)

    def floor(self) -> RunningJobs:
        """What runs on the ladder."""
        if self._floor is None:
            running = self._tx.db.run("running_rungs", self._tx.namespace_id)
            self._floor = summarize_running(self._tx.rule_index.ladder, live_slots(self._tx), running)
        return self._floor

    def pool_room(self) -> int:
        """How many more jobs of lanes outside the reserve may run, if slots are reserved in the whole pool."""
        reserve = self._tx.rule_index.rules.pool_reserve
        if reserve is None:
            return sys.maxsize
        running = self._tx.db.run("running_lanes", self._tx.namespace_id)
        counted = sum(count for lane, count in running if reserve.rule == "leave_free" or lane not in reserve.lanes)
        return max(0, live_slots(self._tx) - reserve.slots - int(counted))


def live_slots(tx: SqliteTransaction) -> int:
    """The slots of the workers that take jobs."""
    return int(tx.db.first("live_slots", tx.namespace_id, tx.now_at))


def block(
    tx: SqliteTransaction, class_id: int, park: str, order_key: int, seq: int, full: tuple[str, int | None]
) -> None:
    """Let a job wait for a key without room; if it does so already, its park is shut."""
    key, open_at = full
    if park == key:
        tx.db.run("park_shut", open_at, tx.namespace_id, key, class_id)
    else:
        tx.db.run("park_move", key, tx.now_at, class_id, park, order_key, seq)
        tx.db.run("job_set_park", key, seq)
        tx.db.run("park_put", tx.namespace_id, key, class_id, open_at, order_key, seq)
        tx.db.run("park_head", class_id, key, tx.namespace_id)
        if park:
            unblock_head(tx, class_id, park)
    tx.parks_changed()


def unblock_head(tx: SqliteTransaction, class_id: int, park: str) -> None:
    """A job has left a park: another is first now, or none is left."""
    tx.db.run("park_head", class_id, park, tx.namespace_id)
    tx.db.run("park_empty", tx.namespace_id, park, class_id)
    tx.parks_changed()


def give_back(tx: SqliteTransaction, held: str) -> None:
    """A lease ends: what waits for its keys may try again."""
    for key in rows.read_held(held):
        opened = [class_id for (class_id,) in tx.db.run("park_release", tx.namespace_id, key)]
        if opened:
            tx.eligible += opened
            tx.parks_changed()


def classes_with_room(tx: SqliteTransaction) -> list[int]:
    """Return the classes that may have room on the ladder, or in the pool, now that a job has left it."""
    rules = tx.rule_index.rules
    if not rules.rungs and rules.pool_reserve is None:
        return []
    lanes = rows.json_list(sorted(rules.pool_reserve.lanes)) if rules.pool_reserve else None
    found = tx.db.run("classes_waiting", tx.namespace_id, bool(rules.rungs), lanes)
    return [class_id for (class_id,) in found]


def adopt_rules(tx: SqliteTransaction) -> None:
    """Go by the rules as they are now: count leases anew, and let all that was put aside try again."""
    before = tx.rule_index.rules
    tx.adopt_rules()
    if not lets_start(before, tx.rule_index.rules):
        return
    for seq, task, tenant, limits in tx.db.run("running", tx.namespace_id).fetchall():
        bound = rows.read_held(limits)
        held = [key for key, rule in tx.rule_index.keys(task, tenant, bound) if rule.concurrency is not None]
        tx.db.run("lease_set_limits", rows.json_list(held) if held else None, seq)
    for key, reached_us in tx.db.run("rates", tx.namespace_id).fetchall():
        rule = tx.rule_index.rules.limits.get(key.partition("=")[0])
        clamped_us = clamp_rate(rule, reached_us, tx.now_at * 1_000)
        if clamped_us is None:
            tx.db.run("rate_forget", tx.namespace_id, key)
        elif clamped_us != reached_us:
            tx.db.run("rate_step", tx.namespace_id, key, clamped_us)
    tx.db.run("park_open_all", tx.namespace_id)
    tx.wake_all()
