"""Lists of ended jobs reach the last one, page by page, with and without filters."""

from __future__ import annotations

import pytest

from headway.core.job import JobId, State
from headway.core.lease import Report
from headway.stores.base import Exchange, JobQuery, Store
from tests.conformance.builders import a_job, claim, register, submit

MANY = 1_050  # More than a page of any store, and than any client asks for at once.
EVERY = 50  # Each of so many jobs is of a rare task, tenant and lane.
BAD = (State.FAILED, State.CANCELLED, State.DEAD_LETTER)


async def list_all(store: Store, query: JobQuery) -> list[JobId]:
    """Follow the pages of a list to its end."""
    found: list[JobId] = []
    while True:
        page = await store.find(query)
        assert len(page) <= query.limit
        if not page:
            return found
        found += [job.job_id for job in page]
        query = query._replace(before=page[-1].seq)


async def end_many(store: Store, state: State) -> tuple[list[JobId], list[JobId]]:
    """Bring many jobs to one ending. Return all of them, and those that are rare; newest first."""
    jobs = [
        a_job(task="rare", tenant="acme", lane="low", max_retries=0) if number % EVERY == 7 else a_job(max_retries=0)
        for number in range(MANY)
    ]
    ids = await submit(store, *jobs)
    if state is State.CANCELLED:
        await store.cancel(ids)
    else:
        await register(store, slots=2 * MANY, reserved=0)
        while leases := await claim(store, free=2 * MANY):
            reports = [Report(lease.job_id, lease.seq, lease.token, state, reason="bad") for lease in leases]
            assert not (await store.exchange(Exchange("w1", finished=reports))).refused
    rare = [job.job_id for job in jobs if job.task == "rare"]
    return ids[::-1], rare[::-1]


@pytest.mark.parametrize("state", BAD)
async def test_a_list_of_ended_jobs_reaches_the_last_one(store: Store, state: State) -> None:
    others = await submit(store, *(a_job(needs=("a worker that is not there",)) for _ in range(3)))
    ids, rare = await end_many(store, state)
    assert (await store.stats()).kept[state.value] == MANY

    in_state = JobQuery(states=(state,))
    assert [job.job_id for job in await store.find(in_state._replace(limit=5 * MANY))] == ids
    assert await list_all(store, in_state._replace(limit=200)) == ids
    assert await list_all(store, in_state._replace(limit=333)) == ids
    assert [job.job_id for job in await store.find(in_state._replace(limit=1))] == ids[:1]
    for query in (
        in_state._replace(task="rare"), in_state._replace(tenant="acme"), in_state._replace(lane="low"),
        in_state._replace(task="rare", tenant="acme", lane="low"),
    ):  # fmt: skip
        assert [job.job_id for job in await store.find(query)] == rare
        assert await list_all(store, query._replace(limit=2)) == rare
    assert await list_all(store, in_state._replace(task="reports.export", limit=500)) == [
        job_id for job_id in ids if job_id not in set(rare)
    ]
    assert await list_all(store, in_state._replace(task="unknown", limit=500)) == []
    assert await list_all(store, JobQuery(states=BAD, task="rare", limit=3)) == rare
    assert await list_all(store, JobQuery(task="rare", limit=3)) == rare
    assert set(await list_all(store, JobQuery(limit=400))) == {*ids, *others}


async def test_a_list_of_several_states_misses_none(store: Store) -> None:
    ids = await submit(store, *(a_job(max_retries=0) for _ in range(600)))
    await store.cancel(ids[100:350])
    await register(store, slots=1_000, reserved=0)
    leases = await claim(store, free=350)
    assert len(leases) == 350
    states = [State.FAILED if number % 3 else State.DEAD_LETTER for number in range(len(leases))]
    await store.exchange(
        Exchange(
            "w1",
            finished=[
                Report(lease.job_id, lease.seq, lease.token, state, reason="bad")
                for lease, state in zip(leases, states, strict=True)
            ],
        )
    )
    assert [job.job_id for job in await store.find(JobQuery(states=BAD, limit=1_000))] == ids[::-1]
    assert await list_all(store, JobQuery(states=BAD, limit=70)) == ids[::-1]
    assert await list_all(store, JobQuery(states=(State.CANCELLED, State.DEAD_LETTER), limit=7)) == [
        job_id
        for job_id in ids[::-1]
        if job_id
        in set(ids[100:350])
        | {lease.job_id for lease, state in zip(leases, states, strict=True) if state is State.DEAD_LETTER}
    ]
