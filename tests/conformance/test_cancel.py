"""Cancelling: at once while queued, by request while executing, never after the end."""

from __future__ import annotations

import asyncio

import pytest

from headway.core.job import State
from headway.core.lease import ReportStatus
from headway.core.policy.retry import Returned, Stopped, TimedOut
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
    submit,
    submit_one,
    the_job,
)


async def test_a_queued_job_is_cancelled_at_once(store: Store, clock: ManualClock) -> None:
    # R2.74
    job_id = await submit_one(store)
    clock.advance(ms=3)
    assert await store.cancel([job_id], "not wanted") == [State.CANCELLED]
    job = await the_job(store, job_id)
    assert (job.state, job.reason, job.finished_at) == (State.CANCELLED, "not wanted", clock())
    await register(store)
    assert await claim(store) == []


async def test_a_delayed_job_is_cancelled_at_once(store: Store, clock: ManualClock) -> None:
    # R2.74
    job_id = await submit_one(store, a_job(delay_ms=1_000))
    assert await store.cancel([job_id]) == [State.CANCELLED]
    assert (await the_job(store, job_id)).due_at is None
    assert (await store.snapshot()).next_due_at is None
    clock.advance(seconds=1)
    await register(store)
    assert await claim(store) == []


async def test_an_executing_job_is_asked_to_stop_and_confirms(store: Store, clock: ManualClock) -> None:
    # R5.43, R2.74
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    asked_at = clock()
    assert await store.cancel([job_id]) == [State.EXECUTING]
    clock.advance(ms=5)
    assert await store.cancel([job_id]) == [State.EXECUTING]
    assert (await the_job(store, job_id)).cancel_requested_at == asked_at
    [seen] = await store.leases(worker_id="w1")
    assert seen == lease._replace(cancel_requested=True)
    assert await end(store, lease, Stopped()) is ReportStatus.OK
    job = await the_job(store, job_id)
    assert (job.state, job.reason) == (State.CANCELLED, "cancelled while executing")


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.CANCELLED, State.DEAD_LETTER])
async def test_an_ended_job_stays_as_it_is_and_its_state_is_told(store: Store, state: State) -> None:
    # R5.43
    job_id = await ended_job(store, state)
    before = await the_job(store, job_id)
    assert await store.cancel([job_id], "too late") == [state]
    assert await the_job(store, job_id) == before


async def test_an_unknown_job_gives_nothing(store: Store) -> None:
    # R5.43
    known = await submit_one(store)
    assert await store.cancel([an_id(), known, an_id()]) == [None, State.CANCELLED, None]
    assert await store.cancel([]) == []


async def test_only_the_named_job_leaves_the_queue(store: Store) -> None:
    first, second, third = await submit(store, a_job(), a_job(), a_job())
    await store.cancel([second])
    await register(store)
    assert await claimed_ids(store) == [first, third]


async def test_a_cancel_that_races_a_claim_has_one_winner(store: Store) -> None:
    # R5.43
    await register(store, slots=100)
    for _ in range(20):
        job_id = await submit_one(store)
        leases, [state] = await asyncio.gather(claim(store, free=1), store.cancel([job_id]))
        assert state is (State.EXECUTING if leases else State.CANCELLED)
        job = await the_job(store, job_id)
        assert job.state is state
        for lease in leases:
            await end(store, lease)


async def test_a_cancel_that_races_a_result_has_one_winner(store: Store) -> None:
    # R5.43
    await register(store)
    for _ in range(20):
        job_id = await submit_one(store)
        lease = await claim_one(store)
        answer, [state] = await asyncio.gather(end(store, lease, Returned(b"1")), store.cancel([job_id]))
        assert answer is ReportStatus.OK
        assert state in (State.EXECUTING, State.COMPLETED)
        assert await state_of(store, job_id) is State.COMPLETED


async def test_a_cancelled_job_asks_nothing_of_its_next_run(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    await store.cancel([job_id])
    await store.retry([job_id])
    assert not (await claim_one(store)).cancel_requested
    assert (await the_job(store, job_id)).cancel_requested_at is None


async def test_a_job_cancelled_while_it_ran_keeps_the_timeout_it_ran_with(store: Store) -> None:
    await register(store)
    job_id = await submit_one(store, a_job(timeout_ms=60_000))
    lease = await claim_one(store)
    await store.cancel([job_id])
    await end(store, lease, TimedOut(BOOM))  # Its worker has not heard of that, and wants it to go on for longer.
    job = await the_job(store, job_id)
    assert (job.state, job.timeout_ms) == (State.CANCELLED, 60_000)
