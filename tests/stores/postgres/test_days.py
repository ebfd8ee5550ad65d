"""Completed jobs are in one partition for each day, so that old days can be dropped as a whole."""

from __future__ import annotations

from headway.core.job import State
from headway.core.policy.document import DAY, Keep
from headway.stores.base import JobQuery
from headway.testing.clock import ManualClock
from tests.conformance.builders import claim_one, end, ended_job, register, state_of, submit_one
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


MANY = 20_000
FILL = """
WITH j AS (
  INSERT INTO {schema}.job (seq, namespace_id, class_id, submitted_at, timeout_ms, max_retries, job_id, task, payload)
  SELECT nextval('{schema}.sequence'), j.namespace_id, j.class_id, j.submitted_at, 1, 0, 'many-' || n, 'many', ''
    FROM {schema}.job j, generate_series(1, $1::int) n WHERE j.job_id = $2
  RETURNING seq)
INSERT INTO {schema}.outcome (seq, finished_at, state, epoch, attempts, crashes)
SELECT j.seq, o.finished_at, o.state, 1, 1, 0 FROM j, {schema}.outcome o
"""


async def test_a_day_of_many_completed_jobs_is_dropped_and_not_deleted_row_by_row(
    open_url: OpenStore, url: str, schema: str, outside: Outside, clock: ManualClock
) -> None:
    store = await open_url(url)
    await store.prune(Keep())
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store))
    await outside.execute(FILL.format(schema=schema), MANY, job_id)
    failed = await ended_job(store, State.FAILED)
    counts = {
        name: await outside.fetchval(f"SELECT count(*) FROM {schema}.{name}") for name in await days(outside, schema)
    }
    [table] = [name for name, count in counts.items() if count == MANY + 1]
    clock.advance(ms=4 * DAY)
    touched = 0
    while found := await store.prune(Keep(), limit=5_000):
        assert found <= 5_000
        touched += found
    assert touched == MANY + 1
    assert [job.job_id for job in await store.find(JobQuery())] == [failed]
    # Not one of their endings has been removed: all of them go with their day.
    assert await outside.fetchval(f"SELECT count(*) FROM {schema}.{table}") == MANY + 1
    again = await open_url(url)
    assert await again.prune(Keep()) == 0
    assert table not in await days(outside, schema)
    assert await state_of(again, failed) == "failed"


async def test_a_day_stays_while_one_of_its_jobs_is_kept(
    open_url: OpenStore, url: str, schema: str, outside: Outside, clock: ManualClock
) -> None:
    store = await open_url(url)
    await store.prune(Keep())
    job_id = await ended_job(store, State.COMPLETED)
    before = await days(outside, schema)
    [table] = [name for name in before if await outside.fetchval(f"SELECT count(*) FROM {schema}.{name}")]
    clock.advance(ms=5 * DAY)
    again = await open_url(url)
    assert await again.prune(Keep(completed_ms=30 * DAY)) == 0
    assert await state_of(again, job_id) == "completed"
    after = await days(outside, schema)
    assert table in after
    assert not set(before) <= set(after)  # Empty days are gone.
