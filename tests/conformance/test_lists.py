"""Lists of ended jobs reach the last one, page by page, with and without filters."""

from __future__ import annotations

import pytest

from headway.core.job import JobId, State
from headway.core.lease import Report
from headway.core.search import JobSearch, plain_words, stored_arguments
from headway.stores.base import Exchange, JobQuery, Store, end_place, next_page
from headway.stores.searching import scan, source_of
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, register, submit

MANY = 1_050  # More than a page of any store, and than any client asks for at once.
EVERY = 50  # One in this many jobs is of a rare task, tenant and lane.
BAD = (State.FAILED, State.CANCELLED, State.DEAD_LETTER)


async def list_all(store: Store, query: JobQuery) -> list[JobId]:
    """Read all pages of a list."""
    found: list[JobId] = []
    while True:
        page = await store.find(query)
        assert len(page) <= query.limit
        if not page:
            return found
        found += [job.job_id for job in page]
        query = query._replace(before=page[-1].seq)


async def end_many(store: Store, state: State) -> tuple[list[JobId], list[JobId]]:
    """End many jobs in one state. Return all of them, and the rare ones, newest first."""
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


@pytest.mark.parametrize("state", BAD)
async def test_what_ended_last_is_first_in_a_list_by_end(store: Store, clock: ManualClock, state: State) -> None:
    # R5.24: dead letters are in the order in which they came there, not in that of their submits.
    ids = await submit(store, *(a_job(task="rare" if number % 3 else "usual") for number in range(9)))
    await register(store, slots=20, reserved=0)
    leases = {lease.job_id: lease for lease in await claim(store, free=20)}
    order = [ids[number] for number in (4, 0, 8, 2, 2, 6, 1, 7, 3, 5)]
    order = list(dict.fromkeys(order))
    for number, job_id in enumerate(order):
        clock.advance(ms=10 if number % 3 else 0)  # Some of them at the same moment: then by their numbers.
        lease = leases[job_id]
        report = Report(lease.job_id, lease.seq, lease.token, state, reason="bad")
        assert not (await store.exchange(Exchange("w1", finished=[report]))).refused
    ended = {job.job_id: end_place(job) for job in await store.get(ids) if job is not None}
    expected = sorted(ids, key=lambda job_id: ended[job_id], reverse=True)
    assert expected != ids[::-1]

    query = JobQuery(states=(state,), by_end=True)
    assert [job.job_id for job in await store.find(query)] == expected
    assert [job.job_id for job in await store.find(query._replace(task="rare"))] == [
        job_id for job_id in expected if (ids.index(job_id) % 3)
    ]
    for limit in (1, 2, 5):
        pages, going = [], query._replace(limit=limit)
        while page := await store.find(going):
            pages += [job.job_id for job in page]
            going = next_page(going, page[-1])
        assert pages == expected
    # A page goes on where the last one ended, even if that job is gone.
    first = await store.find(query._replace(limit=3))
    await store.purge([state], [first[-1].job_id])
    rest = await store.find(next_page(query, first[-1]))
    assert [job.job_id for job in rest] == expected[3:]


async def test_many_that_ended_at_one_moment_are_all_listed_by_end(store: Store) -> None:
    ids, _ = await end_many(store, State.DEAD_LETTER)
    query = JobQuery(states=(State.DEAD_LETTER,), by_end=True, limit=400)
    found: list[JobId] = []
    while page := await store.find(query):
        found += [job.job_id for job in page]
        query = next_page(query, page[-1])
    assert found == ids


async def test_ids_are_found_like_jobs(store: Store) -> None:
    await end_many(store, State.FAILED)
    await submit(store, a_job(lane="low"), a_job(tenant="acme"), a_job(delay_ms=60_000))
    queries = [JobQuery(limit=500), JobQuery(states=(State.QUEUED,)), JobQuery(states=(State.FAILED,), tenant="acme")]
    queries += [JobQuery(lane="low", limit=3), JobQuery(task="nothing"), JobQuery(before=10, limit=4)]
    queries += [JobQuery(states=(State.FAILED,), by_end=True, limit=30)]
    for query in queries:
        jobs = await store.find(query)
        assert await store.find_ids(query) == [(job.seq, job.job_id) for job in jobs], query
    assert len(await store.find_ids(JobQuery(states=(State.FAILED,), limit=5_000))) == MANY


@pytest.mark.parametrize(
    "words, found",
    [
        (("ann",), [0, 1, 3]),
        (("ANN", "invoice"), [1]),
        (("ärger",), [2]),
        (("C:\\temp",), [4]),
        (('say "hi"',), [4]),
        (("a_n",), []),
        (("x" * 400,), [5]),
    ],
)
async def test_a_search_finds_words_in_arguments(store: Store, words: tuple[str, ...], found: list[int]) -> None:
    texts = [
        '{"to":"Ann"}',
        '{"to":"ann","subject":"Invoice 7"}',
        '{"to":"ÄRGER"}',
        '{"to":"Änn and ann"}',
        '{"path":"C:\\\\temp","text":"say \\"hi\\""}',
        '{"long":"' + "x" * 400 + '"}',
    ]
    ids = await submit(store, *(a_job(payload=b"\x01" + text.encode()) for text in texts))
    visits = [visit async for visit in scan(source_of(store), JobSearch(words=words), lambda _: None, stored_arguments)]
    fitting = [visit.job.job_id for visit in visits if visit.job is not None and visit.fits]
    assert fitting == [ids[number] for number in reversed(found)]
    assert sum(visit.looked for visit in visits) == len(texts)
    look, plain = store.abilities.match_words, plain_words(words)
    if look is not None and plain:  # Jobs without the words are not read.
        may = await look(ids, plain)
        assert {ids[number] for number in found} <= may
        assert (ids[0] in may) == all(word in texts[0].lower() for word in plain)
