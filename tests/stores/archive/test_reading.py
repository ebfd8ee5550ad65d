"""Reading the history: a job has the same values, place and number of occurrences in store and history."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import pytest

from headway.client.job_reader import JobReader
from headway.core.errors import JobError, StoreUnavailable
from headway.core.job import PAYLOAD_VERSION, JobId, JobRecord, RetryRule, State
from headway.core.policy.document import Keep
from headway.core.policy.retry import Raised, Returned
from headway.maintenance.archiver import Archiver
from headway.stores.base import Exchange, JobQuery, Progress, Store
from headway.stores.postgres.archive.archive import PostgresArchive
from headway.testing.clock import ManualClock
from tests.conformance.builders import BOOM, a_job, an_id, claim, claim_one, end, register, submit, submit_one, the_job
from tests.conftest import postgres

NOWHERE = "postgresql://postgres@127.0.0.1:1/none"
ENDINGS = [state for state in State if state.ended]
DAY = 24 * 3_600_000
FAULT = JobError("OSError", "no \0 way", "Traceback …")

pytestmark = pytest.mark.parametrize("store_name", ["redis"])


@pytest.fixture
async def job_reader(store: Store) -> AsyncIterator[JobReader]:
    made = JobReader(store, postgres().url)
    yield made
    await made.close()


async def forget(store: Store, *job_ids: JobId) -> None:
    """Remove ended jobs from the store, as the policy will one day."""
    assert await store.purge(ENDINGS, job_ids) == len(job_ids)


async def some_endings(store: Store, clock: ManualClock) -> list[JobId]:
    """End jobs in every way, with a value in every field of one."""
    await register(store, offers=("gpu",))
    whole = a_job(
        payload=PAYLOAD_VERSION + b'{"name":"J\xc3\xb6rg \\u0000 \\ud800","amount":1.10}',
        lane="high",
        needs=("gpu",),
        rung="fast",
        tenant="acme",
        retry=RetryRule("linear", 10, 20, 0.5),
        max_retries=1,
        expires_ms=99 * DAY,
        idempotency_key="k1",
        unique_key="u1",
        trace_id="t1",
        limits=("email=7",),
    )
    done = await submit_one(store, whole)
    for ending in (
        Raised(FAULT),
        Returned(PAYLOAD_VERSION + b"1.50"),
    ):
        lease = await claim_one(store, offers=("gpu",))
        clock.advance(ms=123)
        await store.exchange(
            Exchange(None, progress=[Progress(lease.job_id, lease.seq, lease.token, 0.25, "a quarter")])
        )
        await end(store, lease, ending)
        clock.advance(seconds=1)
    dead = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}", max_retries=0))
    await end(store, await claim_one(store), Raised(BOOM))
    failed = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}"))
    await end(store, await claim_one(store), Raised(JobError("ValueError", "bad", retriable=False)))
    cancelled = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}"))
    asked = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}", delay_ms=5_000))
    await store.cancel([cancelled, asked])
    return [done, dead, failed, cancelled, asked]


def told(job: JobRecord | None) -> JobRecord:
    """Return a job without the time of the read."""
    assert job is not None
    return replace(job, seen_at=0)


async def test_a_job_is_what_it_was(
    store: Store, chore: Archiver, job_reader: JobReader, clock: ManualClock
) -> None:  # fmt: skip
    # R5.102
    job_ids = await some_endings(store, clock)
    before = [told(await the_job(store, job_id)) for job_id in job_ids]
    assert {job.state for job in before} == set(ENDINGS)
    assert before[0].progress == 0.25
    await chore()
    await forget(store, *job_ids)
    assert await store.get(job_ids) == [None] * len(job_ids)
    [attempt] = before[0].history
    kept = replace(attempt, error=replace(FAULT, message="no \ufffd way"))  # PostgreSQL keeps no NUL in text.
    before[0] = replace(before[0], history=(kept,))
    assert [told(job) for job in await job_reader.get(job_ids)] == before
    assert [told(job) for job in await job_reader.find(JobQuery())] == list(reversed(before))


async def test_ids_are_answered_in_the_order_asked_wherever_they_are(
    store: Store, chore: Archiver, job_reader: JobReader, clock: ManualClock
) -> None:
    done, dead, *_ = await some_endings(store, clock)
    await chore()
    await forget(store, dead)
    asked = [dead, an_id(), done, dead, JobId("no\0such")]
    assert [job and job.job_id for job in await job_reader.get(asked)] == [dead, None, done, dead, None]
    assert await job_reader.get([]) == []


async def test_before_anything_was_archived_there_is_just_the_store(store: Store, job_reader: JobReader) -> None:
    job_id = await submit_one(store)
    assert [job.job_id for job in await job_reader.find(JobQuery())] == [job_id]
    assert await job_reader.get([an_id()]) == [None]


async def test_dead_letters_stay_thirty_days_in_the_store_and_then_in_the_history(
    store: Store, chore: Archiver, job_reader: JobReader, clock: ManualClock
) -> None:
    # R5.25
    await register(store)
    job_id = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}", max_retries=0))
    await end(store, await claim_one(store), Raised(BOOM))
    await chore()
    clock.advance(ms=30 * DAY - 1)
    await store.prune(Keep())
    assert (await the_job(store, job_id)).state is State.DEAD_LETTER
    clock.advance(ms=1)
    await store.prune(Keep())
    assert await store.get([job_id]) == [None]
    assert [job and job.state for job in await job_reader.get([job_id])] == [State.DEAD_LETTER]


async def test_what_was_retried_is_what_the_store_says(
    store: Store, chore: Archiver, job_reader: JobReader, clock: ManualClock
) -> None:
    _, dead, failed, *_ = await some_endings(store, clock)
    await chore()
    assert await store.retry([dead]) == [State.QUEUED]
    await forget(store, failed)
    assert [job and job.state for job in await job_reader.get([dead])] == [State.QUEUED]
    bad = (State.DEAD_LETTER, State.FAILED)
    assert [job.job_id for job in await job_reader.find(JobQuery(bad))] == [failed]
    assert [job.job_id for job in await job_reader.find(JobQuery((State.QUEUED,)))] == [dead]


async def test_a_page_is_full_though_some_of_the_history_lives_again(
    store: Store, chore: Archiver, job_reader: JobReader
) -> None:
    await register(store)
    first, second, third, fourth = [
        await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}", max_retries=0)) for _ in range(4)
    ]
    for lease in await claim(store, free=4):
        await end(store, lease, Raised(BOOM))
    await chore()
    await forget(store, second, third)
    await store.retry([fourth])
    page = await job_reader.find(JobQuery((State.DEAD_LETTER,), limit=2))
    assert [job.job_id for job in page] == [third, second]
    page = await job_reader.find(JobQuery((State.DEAD_LETTER,), limit=2, before=page[-1].seq))
    assert [job.job_id for job in page] == [first]


async def test_namespaces_do_not_see_each_others_history(store: Store, chore: Archiver, clock: ManualClock) -> None:
    job_ids = await some_endings(store, clock)
    await chore()
    other = PostgresArchive(postgres().url, "other", mark=PAYLOAD_VERSION)
    assert await other.get(job_ids) == [None] * len(job_ids)
    assert await other.find(JobQuery()) == []
    await other.close()


async def paged(job_reader: JobReader, query: JobQuery) -> list[JobId]:
    """Return the jobs on all pages, as a caller of the service reads them."""
    found: list[JobRecord] = []
    while True:
        page = await job_reader.find(query._replace(before=found[-1].seq if found else None))
        assert len(page) <= query.limit
        found += page
        if len(page) < query.limit:  # Then there is no more.
            return [job.job_id for job in found]


def fits(job: JobRecord, query: JobQuery) -> bool:
    return (
        (not query.states or job.state in query.states)
        and query.task in (None, job.task)
        and query.lane in (None, job.lane)
        and query.tenant in (None, job.tenant)
        and query.worker_id in (None, job.worker_id)
        and (query.submitted_before_at is None or job.submitted_at < query.submitted_before_at)
        and (query.submitted_after_at is None or job.submitted_at >= query.submitted_after_at)
    )


@pytest.mark.parametrize("limit", [1, 2, 7, 100])
async def test_pages_show_each_job_once_in_its_place_wherever_it_is(
    store: Store, chore: Archiver, job_reader: JobReader, clock: ManualClock, seed: int, limit: int
) -> None:
    # R5.102
    rng = random.Random(seed)
    await register(store, "w1", slots=50)
    await register(store, "w2", slots=50)
    start_at, known = clock.now_at, dict[JobId, JobRecord]()
    archived, forgotten = set[JobId](), set[JobId]()

    async def learn() -> list[JobRecord]:
        found = [job for job in await store.get(list(known)) if job is not None]
        known.update({job.job_id: job for job in found})
        return found

    for _ in range(30):
        clock.advance(ms=10)
        jobs = [
            a_job(
                task=rng.choice(["a", "b"]), lane=rng.choice(["high", "low"]), tenant=rng.choice([None, "acme"]),
                payload=PAYLOAD_VERSION + b"{}", max_retries=0,
            )
            for _ in range(rng.randint(1, 3))
        ]  # fmt: skip
        for job_id in await submit(store, *jobs):
            known[job_id] = await the_job(store, job_id)
        for lease in await claim(store, rng.choice(["w1", "w2"]), free=rng.randint(0, 4)):
            await end(store, lease, Raised(BOOM) if rng.random() < 0.5 else Returned(PAYLOAD_VERSION + b"1"))
        live = await learn()
        if rng.random() < 0.3:
            await store.cancel([job.job_id for job in rng.sample(live, k=min(2, len(live)))])
        if rng.random() < 0.5:
            await chore()
            archived = {job.job_id for job in await learn() if job.state.ended} | archived
        ended = [job.job_id for job in await learn() if job.state.ended and job.job_id in archived]
        gone = rng.sample(ended, k=len(ended) // 2)
        await forget(store, *gone)
        forgotten.update(gone)
        bad = [job_id for job_id in ended if job_id not in forgotten and known[job_id].state is not State.COMPLETED]
        again = rng.sample(bad, k=min(1, len(bad)))
        await store.retry(again)
        archived -= set(again)
    await learn()
    assert len(forgotten) > 10
    assert len(known) > len(archived) > len(forgotten)
    queries = [
        JobQuery(),
        *(JobQuery((state,)) for state in State),
        JobQuery((State.QUEUED, State.COMPLETED), task="a"),
        JobQuery(lane="low"),
        JobQuery(tenant="acme", lane="high"),
        JobQuery(worker_id="w2"),
        JobQuery((State.COMPLETED,), submitted_after_at=start_at + 100),
        JobQuery(submitted_before_at=start_at + 150),
        JobQuery(task="never"),
    ]
    for query in queries:
        fitting = sorted((job for job in known.values() if fits(job, query)), key=lambda job: -job.seq)
        assert await paged(job_reader, query._replace(limit=limit)) == [job.job_id for job in fitting], query


# ---------------------------------------------------------------------- while the history is away


@pytest.fixture
async def lonely(store: Store) -> JobReader:
    return JobReader(store, NOWHERE)


async def test_what_lives_is_read_while_the_history_is_away(
    store: Store, lonely: JobReader, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = await submit_one(store)
    with caplog.at_level(logging.WARNING, "headway.history"):
        assert [job.job_id for job in await lonely.find(JobQuery())] == [job_id]
        assert [job and job.job_id for job in await lonely.get([job_id, an_id()])] == [job_id, None]
    assert [record.levelname for record in caplog.records] == ["WARNING"], "one that is away is not asked all the time"
    assert "history.unavailable" in caplog.text


async def test_nobody_is_told_that_a_job_never_was_while_the_history_is_away(lonely: JobReader) -> None:
    with pytest.raises(StoreUnavailable):
        await lonely.get([an_id()])


async def test_a_history_that_restarts_is_asked_again(
    store: Store, chore: Archiver, job_reader: JobReader, clock: ManualClock
) -> None:
    job_ids = await some_endings(store, clock)
    await chore()
    await forget(store, *job_ids)
    assert None not in await job_reader.get(job_ids)
    connection = await asyncpg.connect(postgres().url)
    cut: Sequence[Any] = await connection.fetch(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
    )
    await connection.close()
    assert cut
    assert None not in await job_reader.get(job_ids)
