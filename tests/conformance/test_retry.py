"""Retries by an operator: an ended job runs again as if new, and keeps its history."""

from __future__ import annotations

import pytest

from headway.core.job import State
from headway.core.policy.retry import Crashed, Raised, TimedOut
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_job,
    an_id,
    claim,
    claim_one,
    claimed_ids,
    end,
    ended_job,
    register,
    state_of,
    submit_one,
    the_job,
)


@pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED, State.DEAD_LETTER])
async def test_an_ended_job_is_queued_again_under_its_id(store: Store, clock: ManualClock, state: State) -> None:
    # R5.26: from the dead letters, with counts reset.
    job_id = await ended_job(store, state)
    clock.advance(ms=9)
    assert await store.retry([job_id]) == [State.QUEUED]
    job = await the_job(store, job_id)
    assert (job.state, job.attempts, job.crashes, job.eligible_at) == (State.QUEUED, 0, 0, clock())
    assert (job.started_at, job.finished_at, job.worker_id) == (None, None, None)
    assert (job.result, job.error, job.reason) == (None, None, None)
    await register(store)
    assert await claimed_ids(store) == [job_id]


async def test_a_completed_job_stays(store: Store) -> None:
    job_id = await ended_job(store, State.COMPLETED)
    before = await the_job(store, job_id)
    assert await store.retry([job_id]) == [State.COMPLETED]
    assert await the_job(store, job_id) == before


async def test_a_live_job_stays_where_it_is(store: Store) -> None:
    job_id = await submit_one(store)
    assert await store.retry([job_id]) == [State.QUEUED]
    await register(store)
    await claim_one(store)
    before = await the_job(store, job_id)
    assert await store.retry([job_id]) == [State.EXECUTING]
    assert await the_job(store, job_id) == before
    assert await claim(store) == []


async def test_an_unknown_job_gives_nothing(store: Store) -> None:
    assert await store.retry([an_id()]) == [None]


async def test_a_repeated_retry_queues_a_job_once(store: Store) -> None:
    # R5.26: idempotent.
    job_id = await ended_job(store, State.DEAD_LETTER)
    assert await store.retry([job_id]) == await store.retry([job_id]) == [State.QUEUED]
    await register(store)
    assert await claimed_ids(store) == [job_id]


async def test_history_is_kept_and_goes_on(store: Store) -> None:
    job_id = await submit_one(store, a_job(max_retries=0))
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM))
    await store.retry([job_id])
    await end(store, await claim_one(store), Crashed("signal 9"))
    job = await the_job(store, job_id)
    assert [(attempt.number, attempt.epoch, attempt.reason) for attempt in job.history] == [
        (1, 1, "max_retries_exceeded"), (1, 2, "max_retries_exceeded"),
    ]  # fmt: skip
    assert job.state is State.DEAD_LETTER


async def test_a_retried_job_has_all_its_attempts_and_its_own_timeout_again(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store, a_job(max_retries=1, timeout_ms=1_000))
    await register(store, lease_ms=10**9)
    for generation in range(2):
        for attempt in range(2):
            lease = await claim_one(store)
            assert (lease.attempts, lease.epoch) == (attempt + 1, 2 * generation + attempt + 1)
            assert lease.timeout_ms == (1_500 if attempt else 1_000)
            await end(store, lease, TimedOut(BOOM))
            clock.advance(seconds=60)
        assert await state_of(store, job_id) is State.DEAD_LETTER
        await store.retry([job_id])


async def test_a_retried_job_goes_to_the_back(store: Store) -> None:
    # R5.68
    old = await ended_job(store, State.FAILED)
    waiting = await submit_one(store)
    await store.retry([old])
    assert await claimed_ids(store) == [waiting, old]


async def test_a_job_stays_whose_unique_key_a_live_job_now_holds(store: Store) -> None:
    old = await ended_job(store, State.FAILED, a_job(unique_key="u"))
    new = await submit_one(store, a_job(unique_key="u"))
    assert await store.retry([old]) == [State.FAILED]
    await store.cancel([new])
    assert await store.retry([old, new]) == [State.QUEUED, State.CANCELLED]
    assert await submit_one(store, a_job(unique_key="u")) == old
