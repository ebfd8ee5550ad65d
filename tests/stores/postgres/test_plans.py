"""Plans of PostgreSQL for the statements that workers wait for, without statistics."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from headway.core.policy.document import BUILT_IN
from headway.maintenance.recovery import overdue, reap
from headway.stores.postgres import store as postgres_store
from headway.stores.postgres.statements import queries
from headway.stores.postgres.store import PostgresStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import LEASE_MS, a_job, claim, end, register, submit
from tests.stores.postgres.conftest import OpenStore, Outside

MANY = 3_000
HELD = 5


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


async def reads(outside: Outside, schema: str, name: str, *values: object) -> dict[str, int]:
    """Execute a statement. Return the number of rows of each table that it read."""
    found = await outside.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) {queries(schema)[name]}", *values)
    counts: dict[str, int] = {}
    for node in nodes(json.loads(found)[0]["Plan"]):
        if "Relation Name" in node:
            rows = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            table = node["Relation Name"]
            counts[table] = counts.get(table, 0) + round(max(rows, 1) * node["Actual Loops"])
    return counts


@pytest.fixture
async def busy(open_url: OpenStore, url: str, schema: str, outside: Outside) -> PostgresStore:
    """Return a store with many waiting and few running jobs, about which the server has no statistics."""
    store = await open_url(url)
    for table in ("job", "lease", "ready", "class", "worker"):
        await outside.execute(f"ALTER TABLE {schema}.{table} SET (autovacuum_enabled = off)")
    await submit(store, *(a_job() for _ in range(MANY)))
    await register(store, slots=HELD, reserved=0)
    assert len(await claim(store, free=HELD)) == HELD
    return store


async def test_the_jobs_of_a_worker_are_found_without_a_look_at_any_other_job(
    busy: PostgresStore, outside: Outside, schema: str
) -> None:
    # R5.77
    namespace_id = await outside.fetchval(f"SELECT namespace_id FROM {schema}.namespace")
    seen = await reads(outside, schema, "leases_of", "w1", namespace_id, 1_000, False)
    assert seen["job"] == HELD
    assert seen["lease"] == HELD
    assert len(await busy.leases(worker_id="w1")) == HELD


async def test_overdue_leases_are_found_without_a_look_at_any_other_job(
    busy: PostgresStore, outside: Outside, schema: str, clock: ManualClock
) -> None:
    namespace_id = await outside.fetchval(f"SELECT namespace_id FROM {schema}.namespace")
    now_at = clock() + LEASE_MS + 1
    seen = await reads(outside, schema, "leases_expired", False, now_at, namespace_id, 1_000, False)
    assert (seen["job"], seen["lease"]) == (HELD, HELD)
    clock.advance(ms=LEASE_MS + 1)
    assert len(await overdue(busy)) == HELD


async def test_a_dead_worker_that_holds_nothing_costs_no_look_at_the_leases(
    busy: PostgresStore, outside: Outside, schema: str, clock: ManualClock
) -> None:
    clock.advance(ms=LEASE_MS + 1)
    assert await reap(busy, await overdue(busy), BUILT_IN) == HELD
    await register(busy, "w2", slots=HELD, reserved=0)
    clock.advance(5)
    assert len(await claim(busy, "w2", free=HELD)) == HELD
    namespace_id = await outside.fetchval(f"SELECT namespace_id FROM {schema}.namespace")
    seen = await reads(outside, schema, "leases_expired", False, clock(), namespace_id, 1_000, False)
    assert "lease" not in seen or seen["lease"] == 0


async def test_overdue_leases_are_found_even_if_a_workers_count_is_wrong(
    busy: PostgresStore, outside: Outside, schema: str, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock.advance(ms=LEASE_MS + 1)
    assert len(await overdue(busy)) == HELD
    await outside.execute(f"UPDATE {schema}.worker SET running = 0, state = 'dead'")
    monkeypatch.setattr(postgres_store, "THOROUGH_EVERY", 0.0)
    leases = await overdue(busy)
    assert len(leases) == HELD
    await end(busy, leases[0])
