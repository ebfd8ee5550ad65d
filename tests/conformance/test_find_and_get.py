"""Reading jobs: by id in the order requested, and by filter, newest first, page by page."""

from __future__ import annotations

import pytest

from headway.core.job import JobId, State
from headway.core.policy.retry import Raised
from headway.stores.base import JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_job,
    an_id,
    claim_one,
    end,
    ended_job,
    register,
    submit,
    submit_one,
)


async def found(store: Store, query: JobQuery) -> list[JobId]:
    return [job.job_id for job in await store.find(query)]


async def test_get_answers_in_the_order_asked(store: Store) -> None:
    one, two = await submit(store, a_job(), a_job())
    unknown = an_id()
    jobs = await store.get([two, unknown, one, two])
    assert [job and job.job_id for job in jobs] == [two, None, one, two]
    assert await store.get([]) == []


async def test_find_gives_the_same_jobs_as_get(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM))
    assert await store.find(JobQuery()) == await store.get([job_id])


async def test_all_jobs_are_found_newest_first(store: Store) -> None:
    job_ids = await submit(store, *(a_job(an_id(number)) for number in (70_003, 70_001, 70_002)))
    assert await found(store, JobQuery()) == list(reversed(job_ids))


async def test_jobs_are_found_by_state(store: Store) -> None:
    by_state = {state: await ended_job(store, state) for state in State if state.ended}
    by_state[State.EXECUTING] = await submit_one(store)
    await register(store)
    await claim_one(store)
    by_state[State.QUEUED] = await submit_one(store)
    for state, job_id in by_state.items():
        assert await found(store, JobQuery(states=(state,))) == [job_id]
    everything = await found(store, JobQuery())
    assert await found(store, JobQuery(states=tuple(State))) == everything
    assert set(everything) == set(by_state.values())
    live = (State.QUEUED, State.EXECUTING)
    assert set(await found(store, JobQuery(states=live))) == {by_state[state] for state in live}


async def test_delayed_jobs_are_found_as_queued(store: Store) -> None:
    waiting, delayed = await submit(store, a_job(), a_job(delay_ms=1_000))
    assert await found(store, JobQuery(states=(State.QUEUED,))) == [delayed, waiting]


@pytest.mark.parametrize(
    "query, expected",
    [
        pytest.param(JobQuery(task="mail"), [2, 0], id="task"),
        pytest.param(JobQuery(lane="low"), [3, 2], id="lane"),
        pytest.param(JobQuery(tenant="acme"), [3, 0], id="tenant"),
        pytest.param(JobQuery(task="mail", lane="low"), [2], id="task and lane"),
        pytest.param(JobQuery(task="mail", tenant="other"), [], id="nothing"),
        pytest.param(JobQuery(states=(State.QUEUED,), tenant="acme"), [3, 0], id="state and tenant"),
        pytest.param(JobQuery(states=(State.FAILED,), tenant="acme"), [], id="no such state"),
    ],
)
async def test_jobs_are_found_by_what_they_are(store: Store, query: JobQuery, expected: list[int]) -> None:
    job_ids = await submit(
        store,
        a_job(task="mail", tenant="acme"),
        a_job(task="export"),
        a_job(task="mail", lane="low"),
        a_job(task="export", lane="low", tenant="acme"),
    )
    assert await found(store, query) == [job_ids[index] for index in expected]


async def test_jobs_are_found_by_the_worker_that_has_or_had_them(store: Store) -> None:
    await register(store, "w1")
    await register(store, "w2")
    one, two, three, _ = await submit(store, a_job(), a_job(), a_job(), a_job())
    await end(store, await claim_one(store, "w1"))
    await claim_one(store, "w2")
    await claim_one(store, "w1")
    assert await found(store, JobQuery(worker_id="w1")) == [three, one]
    assert await found(store, JobQuery(worker_id="w2")) == [two]
    assert await found(store, JobQuery(worker_id="w1", states=(State.EXECUTING,))) == [three]
    assert await found(store, JobQuery(worker_id="w1", states=(State.COMPLETED,))) == [one]
    assert await found(store, JobQuery(worker_id="w1", states=(State.QUEUED,))) == []


async def test_jobs_are_found_by_age(store: Store, clock: ManualClock) -> None:
    job_ids = []
    for _ in range(3):
        job_ids.append(await submit_one(store))
        clock.advance(ms=100)
    start_at = clock() - 300
    assert await found(store, JobQuery(submitted_before_at=start_at + 100)) == job_ids[:1]
    assert await found(store, JobQuery(submitted_after_at=start_at + 100)) == [job_ids[2], job_ids[1]]
    between = JobQuery(submitted_after_at=start_at + 100, submitted_before_at=start_at + 200)
    assert await found(store, between) == [job_ids[1]]


@pytest.mark.parametrize("states", [(), (State.QUEUED,), (State.CANCELLED,), (State.QUEUED, State.CANCELLED)])
async def test_pages_follow_each_other_without_gap_or_repeat(store: Store, states: tuple[State, ...]) -> None:
    job_ids = await submit(store, *(a_job() for _ in range(20)))
    await store.cancel(job_ids[::2])
    query = JobQuery(states=states, limit=3)
    pages: list[JobId] = []
    while page := await store.find(query):
        assert len(page) <= 3
        pages += [job.job_id for job in page]
        await submit_one(store)  # What comes later does not shift the pages.
        query = query._replace(before=page[-1].seq)
    wanted = {(): job_ids, (State.QUEUED,): job_ids[1::2], (State.CANCELLED,): job_ids[::2]}.get(states, job_ids)
    assert pages == list(reversed(wanted))


async def test_sequence_numbers_rise_with_submission(store: Store) -> None:
    await submit(store, *(a_job() for _ in range(5)))
    numbers = [job.seq for job in await store.find(JobQuery())]
    assert numbers == sorted(set(numbers), reverse=True)
