"""Caps: limits, rates, the ladder and the pool's reserve, checked in the transaction that claims alone."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

from headway.core.policy.document import INTERACTIVE, LimitRule
from headway.core.policy.enforced import EnforcedRules, lets_start
from headway.core.policy.ladder import RunningJobs, add_start, summarize_running
from headway.core.policy.limits import clamp_rate, conforms_at, step_rate
from headway.core.snapshot import Snapshot
from headway.stores.postgres import rows
from headway.stores.postgres.transaction import PostgresCache, PostgresTransaction, StatementRunner

Keys = Sequence[tuple[str, LimitRule]]


class PostgresLimitCheck:
    """What is in use, read once a transaction when first asked and kept up with its claims."""

    def __init__(self, tx: PostgresTransaction) -> None:
        self._tx = tx
        self._held: Counter[str] | None = None
        self._reached: dict[str, int | None] = {}
        self._stepped: set[str] = set()
        self._floor: RunningJobs | None = None

    # ------------------------------------------------------------------ limits

    async def full_key(self, keys: Keys) -> tuple[str, int | None] | None:
        """Return the first of these keys that has no room, and when it will have, if that is known."""
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
        """Count a start against its keys. Gives the text that its lease remembers them by."""
        held = []
        for key, rule in keys:
            if rule.concurrency is not None:
                (await self._in_use())[key] += 1
                held.append(key)
            if rule.count is not None:
                _, self._reached[key] = step_rate(rule, await self._reached_us(key), self._tx.now_at * 1_000)
                self._stepped.add(key)
        return rows.strings_text(held)

    async def settle(self) -> None:
        """Write what the starts took from their rates."""
        if self._stepped:
            keys = sorted(self._stepped)
            reached = [self._reached[key] for key in keys]
            await self._tx.db.run("rate_step", self._tx.namespace_id, keys, reached)

    async def _in_use(self) -> Counter[str]:
        if self._held is None:
            self._held = Counter()
            for row in await self._tx.db.run("limit_usage", self._tx.namespace_id):
                for key in rows.read_held(row["held"]):
                    self._held[key] += row["count"]
        return self._held

    async def know_rates(self, keys: Iterable[str]) -> None:
        """Read how far several rates have come, in one go."""
        new = {key for key in keys if key not in self._reached}
        if new:
            self._reached |= dict.fromkeys(new)
            for row in await self._tx.db.run("rate", self._tx.namespace_id, list(new)):
                self._reached[row["rate_key"]] = row["reached_us"]

    async def _reached_us(self, key: str) -> int | None:
        await self.know_rates([key])
        return self._reached[key]

    # ------------------------------------------------------------------ the ladder and the pool

    async def assign(self, rung: str | None) -> None:
        """Count a start on the ladder; a session is given no rung."""
        self._floor = add_start(self._tx.rule_index.ladder, await self.floor(), rung)

    async def floor(self) -> RunningJobs:
        """What runs on the ladder."""
        if self._floor is None:
            self._floor = await read_running(self._tx.db, self._tx.memory, self._tx.now_at)
        return self._floor

    async def pool_room(self) -> int:
        """How many more jobs of lanes outside the reserve may run, if slots are reserved in the whole pool."""
        reserve = self._tx.rule_index.rules.pool_reserve
        if reserve is None:
            return sys.maxsize
        running = await self._tx.db.run("running_lanes", self._tx.namespace_id)
        counted = sum(
            row["count"] for row in running if reserve.rule == "leave_free" or row["lane"] not in reserve.lanes
        )
        return max(0, await live_slots(self._tx) - reserve.slots - int(counted))


async def live_slots(tx: PostgresTransaction) -> int:
    """The slots of the workers that take jobs."""
    return int(await tx.db.first("live_slots", tx.namespace_id, tx.now_at))


async def read_running(db: StatementRunner, memory: PostgresCache, now_at: int) -> RunningJobs:
    """Picture what runs on the ladder."""
    running = await db.run("running_rungs", memory.namespace_id)
    slots = int(await db.first("live_slots", memory.namespace_id, now_at))
    return summarize_running(
        memory.rule_index.ladder, slots, ((row[0], row[1] or None, row[2], row[3]) for row in running)
    )


async def with_sessions(db: StatementRunner, memory: PostgresCache, seen: Snapshot) -> Snapshot:
    """Add what runs to a picture where sessions may be among it, ladder or not."""
    if seen.floor is not None or all(view.key.rung != INTERACTIVE for view in seen.classes):
        return seen
    return seen._replace(floor=await read_running(db, memory, seen.now_at))


async def block(
    tx: PostgresTransaction, class_id: int, park: str, order_key: int, seq: int, full: tuple[str, int | None]
) -> None:
    """Let a job wait for a key without room; if it does so already, its park is shut."""
    key, open_at = full
    tx.parked = True
    if park == key:
        await tx.db.run("park_shut", open_at, tx.namespace_id, key, class_id)
        return
    await tx.db.run("park_move", key, tx.now_at, class_id, park, order_key, seq)
    await tx.db.run("park_put", tx.namespace_id, key, class_id, open_at, order_key, seq)
    if park:
        await unblock_head(tx, class_id, park)


async def unblock_head(tx: PostgresTransaction, class_id: int, park: str) -> None:
    """A job has left a park: another is first now, or none is left."""
    await tx.db.run("park_left", tx.namespace_id, park, class_id)


async def give_back(tx: PostgresTransaction, held: str) -> None:
    """A lease ends: what waits for its keys may try again."""
    for key in rows.read_held(held):
        tx.eligible += [row["class_id"] for row in await tx.db.run("park_release", tx.namespace_id, key)]


async def classes_with_room(tx: PostgresTransaction) -> list[int]:
    """Return the classes that may have room on the ladder, or in the pool, now that a job has left it."""
    rules = tx.rule_index.rules
    if not rules.rungs and rules.pool_reserve is None:
        return []
    lanes = sorted(rules.pool_reserve.lanes) if rules.pool_reserve else None
    found = await tx.db.run("classes_waiting", tx.namespace_id, bool(rules.rungs), lanes)
    return [row["class_id"] for row in found]


async def adopt_rules(tx: PostgresTransaction, before: EnforcedRules) -> None:
    """Go by the rules as they are now: count leases anew, and let all that was put aside try again."""
    if not lets_start(before, tx.rule_index.rules):
        return
    seqs: list[int] = []
    held: list[str | None] = []
    for row in await tx.db.run("running", tx.namespace_id):
        task, tenant = rows.read_text(row["task"]) or "", rows.read_text(row["tenant"])
        keys = tx.rule_index.keys(task, tenant, rows.read_held(row["limits"]))
        seqs.append(row["seq"])
        held.append(rows.strings_text([key for key, rule in keys if rule.concurrency is not None]))
    await tx.db.run("lease_set_limits", seqs, held)
    for row in await tx.db.run("rates", tx.namespace_id):
        rule = tx.rule_index.rules.limits.get(row["rate_key"].partition("=")[0])
        clamped_us = clamp_rate(rule, row["reached_us"], tx.now_at * 1_000)
        if clamped_us is None:
            await tx.db.run("rate_forget", tx.namespace_id, row["rate_key"])
        elif clamped_us != row["reached_us"]:
            await tx.db.run("rate_step", tx.namespace_id, [row["rate_key"]], [clamped_us])
    await tx.db.run("park_open_all", tx.namespace_id)
    await tx.wake_all()
