"""One queue for jobs that are kept and jobs that are not."""

from __future__ import annotations

import pytest

from headway.core.job import NewJob, State
from headway.core.policy.document import Policy
from headway.core.policy.retry import Raised
from tests.conformance.builders import BOOM, a_job
from tests.policies.pool import Pool, example, ids


@pytest.fixture
def policy() -> Policy:
    return example("ioqueue")


@pytest.fixture
async def pool(policy: Policy) -> Pool:
    return await Pool.open(policy, slots=8)


def an_io_job(*, persist: bool = True, max_retries: int = 3, delay_ms: int = 0) -> NewJob:
    return a_job(lane="normal", persist=persist, max_retries=max_retries, delay_ms=delay_ms)


async def test_kept_and_unkept_jobs_share_one_bound(pool: Pool) -> None:
    # R2.1, R2.2, R2.9, R2.31
    await pool.submit(*(an_io_job(persist=number % 2 == 0) for number in range(30)))
    claimed = await pool.claim()
    assert len(claimed) == 8
    assert {lease.persist for lease in claimed} == {True, False}
    assert await pool.claim() == []


async def test_kept_and_unkept_jobs_stand_in_one_line(policy: Policy) -> None:
    # R2.9
    pool = await Pool.open(policy, slots=1)
    submitted = await pool.submit(*(an_io_job(persist=number % 3 == 0) for number in range(9)))
    assert ids(await pool.run(9)) == submitted


async def test_several_workers_take_distinct_jobs(pool: Pool) -> None:
    # R2.50
    await pool.join("w2", slots=8)
    submitted = await pool.submit(*(an_io_job() for _ in range(16)))
    claimed = [*ids(await pool.claim("w1")), *ids(await pool.claim("w2"))]
    assert sorted(claimed) == sorted(submitted)


async def test_a_failed_job_backs_off_twice_as_long_each_time_up_to_a_minute(pool: Pool) -> None:
    # R2.42
    await pool.submit(an_io_job(max_retries=8))
    waits = []
    for _ in range(8):
        await pool.end(*await pool.claim(), ending=Raised(BOOM))
        due_at = (await pool.store.snapshot()).next_due_at
        assert due_at is not None
        waits.append((due_at - pool.clock()) // 1_000)
        pool.clock.advance(ms=due_at - pool.clock())
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


async def test_a_job_that_keeps_failing_runs_four_times(pool: Pool) -> None:
    # R2.12, R2.43
    assert pool.policy.lanes["normal"].max_retries == 3
    [job_id] = await pool.submit(an_io_job())
    runs = 0
    for _ in range(200):
        claimed = await pool.claim()
        runs += len(claimed)
        await pool.end(*claimed, ending=Raised(BOOM))
        pool.clock.advance(1)
    [job] = await pool.store.get([job_id])
    assert job is not None
    assert (runs, job.state) == (4, State.DEAD_LETTER)


async def test_an_unkept_job_is_not_repeated(pool: Pool) -> None:
    # R2.45
    await pool.submit(an_io_job(persist=False))
    await pool.end(*await pool.claim(), ending=Raised(BOOM))
    assert await pool.run(5, seconds=60) == []


async def test_a_job_for_later_is_not_early(pool: Pool) -> None:
    # R2.39
    [later] = await pool.submit(an_io_job(delay_ms=5_000))
    pool.clock.advance(ms=4_999)
    assert await pool.claim() == []
    pool.clock.advance(ms=1)
    assert ids(await pool.claim()) == [later]
