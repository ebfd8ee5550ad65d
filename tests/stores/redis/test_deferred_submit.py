"""Deferred submits: jobs from threads while no worker waits. Clients cannot tell them from other jobs."""

from __future__ import annotations

import pytest

from headway.core.job import JobId, NewJob, State
from headway.stores.base import JobQuery
from headway.stores.redis.deferred_submit import LENGTH_MAX
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import a_job, ask, claimed_ids, register, state_of, submit, the_job
from tests.servers import Valkey
from tests.stores.redis.conftest import OpenStore, StartServer, drain, recount

STREAM = "{headway:default}:in"


def length(server: Valkey) -> int:
    """Return the number of jobs in the stream."""
    return int(server.ask("XLEN", STREAM)[1:])


def post(store: RedisStore, *jobs: NewJob) -> list[JobId]:
    """Submit jobs one after the other, as a thread without an event loop does."""
    made = []
    for job in jobs:
        answers = store.submit_blocking([job])
        assert answers is not None
        made += [answer.job_id for answer in answers]
    return made


@pytest.fixture
def posted(store: RedisStore, server: Valkey) -> list[JobId]:
    """Submit jobs of which all but the first are deferred."""
    job_ids = post(store, *(a_job() for _ in range(4)))
    assert length(server) == 3
    return job_ids


async def test_whoever_asks_for_posted_jobs_finds_them(
    store: RedisStore, server: Valkey, posted: list[JobId], open_url: OpenStore
) -> None:
    other = await open_url(server.url)
    assert [job.state for job in await other.get(posted) if job] == [State.QUEUED] * 4
    assert length(server) == 0
    assert await recount(store) == {State.QUEUED: 4}


@pytest.mark.parametrize("verb", ["stats", "find", "cancel", "diagnose_job", "snapshot", "purge"])
async def test_each_verb_takes_in_what_was_posted_before_it(store: RedisStore, posted: list[JobId], verb: str) -> None:
    match verb:
        case "stats":
            assert (await store.stats()).lanes["medium"].waiting == 4
        case "find":
            assert [job.job_id for job in await store.find(JobQuery((State.QUEUED,), limit=9))] == posted[::-1]
        case "cancel":
            assert await store.cancel(posted) == [State.CANCELLED] * 4
        case "diagnose_job":
            diagnosis = await store.diagnose_job(posted[3])
            assert diagnosis is not None
            assert diagnosis.ahead == 3
        case "snapshot":
            assert [view.waiting for view in (await store.snapshot()).classes] == [4]
        case _:
            assert await store.purge([State.COMPLETED], posted) == 0
            assert await recount(store) == {State.QUEUED: 4}


async def test_jobs_keep_their_order_whichever_way_they_came(store: RedisStore, posted: list[JobId]) -> None:
    later = await submit(store, a_job(), a_job())
    last = post(store, a_job(), a_job(), a_job(lane="low"), a_job())
    await register(store, slots=20)
    claimed = await claimed_ids(store, free=20)
    low = last.pop(2)
    assert claimed == [*posted, *later, *last, low]


async def test_a_job_that_was_posted_twice_is_one(store: RedisStore, server: Valkey, posted: list[JobId]) -> None:
    job = a_job()
    assert post(store, job, job) == [job.job_id] * 2
    assert length(server) == 5
    assert await recount(store) == {State.QUEUED: 5}
    assert post(store, a_job(), job)[1] == job.job_id
    assert [answer.deduplicated for answer in await store.submit([job])] == [False]
    assert await recount(store) == {State.QUEUED: 6}
    assert (await store.stats()).totals["submitted"] == 6


async def test_a_posted_job_is_as_old_as_its_post(store: RedisStore, posted: list[JobId]) -> None:
    entries = await store._client.ask("XRANGE", STREAM, "-", "+")
    moments = [int(entry[0].partition(b"-")[0]) for entry in entries]
    jobs = [await the_job(store, job_id) for job_id in posted[1:]]
    assert [(job.submitted_at, job.eligible_at) for job in jobs] == [(moment, moment) for moment in moments]


async def test_a_worker_that_waits_is_woken_for_a_posted_job(store: RedisStore, posted: list[JobId]) -> None:
    await register(store, slots=20)
    assert await drain(store) == posted
    subscription = store.subscribe("w1")
    await ask(store, wait=True)
    (job_id,) = post(store, a_job())
    assert await subscription.wait(5) is not None
    assert await claimed_ids(store) == [job_id]


async def test_whoever_was_told_that_somebody_waits_calls(
    store: RedisStore, server: Valkey, posted: list[JobId]
) -> None:
    await register(store, slots=20)
    assert await drain(store) == posted
    await ask(store, wait=True)
    post(store, a_job())  # This one could not know.
    calls = server.ask("INFO", "commandstats").count(b"cmdstat_xadd")
    server.ask("CONFIG", "RESETSTAT")
    await ask(store, wait=True)
    post(store, a_job())
    assert calls == 1
    assert b"cmdstat_xadd" not in server.ask("INFO", "commandstats")


async def test_the_deferred_jobs_stay_few_while_no_worker_runs(store: RedisStore, server: Valkey) -> None:
    longest = 0
    for _ in range(3 * LENGTH_MAX):
        post(store, a_job())
        longest = max(longest, length(server))
    assert longest == LENGTH_MAX
    assert await recount(store) == {State.QUEUED: 3 * LENGTH_MAX}


@pytest.mark.parametrize(
    "job",
    [
        a_job(tenant="acme"), a_job(delay_ms=60_000), a_job(unique_key="one"), a_job(idempotency_key="one"),
        a_job(expires_ms=60_000), a_job(limits=("api=1",)), a_job(trace_id="abc"),
    ],
    ids=["tenant", "delay", "unique", "idempotent", "expires", "limits", "trace"],
)  # fmt: skip
async def test_a_job_that_asks_for_more_goes_by_a_call(
    store: RedisStore, server: Valkey, posted: list[JobId], job: NewJob
) -> None:
    post(store, job)
    assert length(server) == 0  # A call has taken it in.
    assert await state_of(store, job.job_id) is State.QUEUED


async def test_in_a_class_that_tenants_share_a_posted_job_has_a_turn_too(store: RedisStore) -> None:
    await submit(store, *(a_job(tenant="acme") for _ in range(50)))
    *_, job_id = post(store, a_job(), a_job())
    await register(store, slots=20)
    assert job_id in await claimed_ids(store, free=6)


async def test_a_full_server_refuses_a_post_and_keeps_nothing_of_it(
    store: RedisStore, server: Valkey, posted: list[JobId]
) -> None:
    server.ask("CONFIG", "SET", "maxmemory", "1000000")
    assert store.submit_blocking([a_job()]) is None  # The long way says why.
    assert length(server) == 3
    assert not store._deferred.open  # So that nothing is posted again and again to a server that refuses it.
    assert await recount(store) == {State.QUEUED: 4}  # What is there already is taken in all the same.


async def test_posted_jobs_survive_a_killed_server(start_server: StartServer, open_url: OpenStore) -> None:
    server = start_server("appendonly yes", "appendfsync always")
    store = await open_url(server.url)
    job_ids = post(store, *(a_job() for _ in range(50)))
    server.kill()
    server.start()
    await register(store, slots=100)
    assert await drain(store) == job_ids
