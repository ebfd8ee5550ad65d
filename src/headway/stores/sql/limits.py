"""Reads what runs against limits and the ladder, and applies changed rules."""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.policy.enforced import EnforcedRules, lets_start
from headway.core.policy.limits import clamp_rate
from headway.stores.sql.transaction import Transaction


async def read_rates(tx: Transaction, keys: Iterable[str]) -> dict[str, int | None]:
    """Return the position of each rate by key, in microseconds, or None for an unused rate."""
    wanted = list(keys)
    found = await tx.db.run("rate", tx.namespace_id, tx.rows.array(wanted))
    return dict.fromkeys(wanted) | dict(found)


async def unblock_head(tx: Transaction, class_id: int, blocked_by: str) -> None:
    """Record that a job has left a blocked queue."""
    await tx.update_blocked_queue(class_id, blocked_by)
    tx.blocked_queues_changed()


async def give_back(tx: Transaction, held: Iterable[str]) -> None:
    """Open the blocked queues for the keys of leases that end."""
    keys = dict.fromkeys(key for text in held for key in tx.rows.read_limit_keys(text))
    opened = [class_id for (class_id,) in await tx.db.run("blocked_release", tx.namespace_id, tx.rows.array(keys))]
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
    held: list[tuple[int, list[str]]] = []
    for seq, task, tenant, limits in await tx.db.run("running", tx.namespace_id):
        bound = tx.rows.read_held(limits)
        keys = tx.rule_index.keys(tx.rows.read_text(task) or "", tx.rows.read_text(tenant), bound)
        held.append((seq, [key for key, rule in keys if rule.concurrency is not None]))
    await tx.set_limit_keys(held)
    for key, reached_us in await tx.db.run("rates", tx.namespace_id):
        rule = tx.rule_index.rules.limits.get(key.partition("=")[0])
        clamped_us = clamp_rate(rule, reached_us, tx.now_at * 1_000)
        if clamped_us is None:
            await tx.db.run("rate_forget", tx.namespace_id, key)
        elif clamped_us != reached_us:
            await tx.db.run_many("rate_step", [(key, clamped_us)], tx.namespace_id)
    await tx.db.run("blocked_open_all", tx.namespace_id)
    await tx.wake_all()
