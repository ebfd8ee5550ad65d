"""Completed jobs lie by the day they ended on, so that old days go whole."""

from __future__ import annotations

from headway.core.policy.document import DAY, Keep
from headway.testing.clock import ManualClock
from tests.conformance.builders import claim_one, end, register, state_of, submit_one
from tests.stores.postgres.conftest import OpenStore, Outside

TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = $1 AND tablename ~ '^outcome_[0-9]+$' ORDER BY 1"


async def days(outside: Outside, schema: str) -> list[str]:
    return [row["tablename"] for row in await outside.fetch(TABLES, schema)]


async def test_a_job_that_completes_lies_in_the_table_of_its_day_and_goes_with_it(
    open_url: OpenStore, url: str, schema: str, outside: Outside, clock: ManualClock
) -> None:
    store = await open_url(url)
    await store.prune(Keep())
    before = await days(outside, schema)
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store))
    [table] = [name for name in before if await outside.fetchval(f"SELECT count(*) FROM {schema}.{name}")]
    clock.advance(ms=40 * DAY)
    assert await state_of(store, job_id) == "completed"
    again = await open_url(url)  # Another process, whose turn it is to see to the tables.
    assert await again.prune(Keep()) == 1
    after = await days(outside, schema)
    assert table not in after
    assert set(after).isdisjoint(before) or len(after) >= 3
    await register(again, lease_ms=90_000)
    job_id = await submit_one(again)
    await end(again, await claim_one(again))
    assert await outside.fetchval(f"SELECT count(*) FROM {schema}.outcome_any_day") == 0


async def test_a_day_that_has_begun_elsewhere_stays_there(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    store = await open_url(url)
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store))  # Before anybody made a table for its day.
    await store.prune(Keep())
    assert await outside.fetchval(f"SELECT count(*) FROM {schema}.outcome_any_day") == 1
    assert await state_of(store, job_id) == "completed"
