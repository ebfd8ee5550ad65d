"""Expiry: a job that has waited too long is cancelled and never starts."""

from __future__ import annotations

from headway.core.job import State
from headway.core.policy.document import Keep
from headway.core.policy.retry import Released
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    a_job,
    claim,
    claim_one,
    claimed_ids,
    end,
    register,
    state_of,
    submit,
    submit_one,
    the_job,
)


async def test_a_job_may_be_claimed_until_it_expires_and_not_then(store: Store, clock: ManualClock) -> None:
    first, second = await submit(store, a_job(expires_ms=1_000), a_job(expires_ms=1_000))
    await register(store)
    clock.advance(ms=999)
    assert await claimed_ids(store, free=1) == [first]
    clock.advance(ms=1)
    assert await claimed_ids(store, free=1) == []
    job = await the_job(store, second)
    assert (job.state, job.reason, job.finished_at) == (State.CANCELLED, "expired", clock())
    assert job.attempts == 0


async def test_an_expired_job_does_not_hide_the_one_behind_it(store: Store, clock: ManualClock) -> None:
    _, fresh = await submit(store, a_job(expires_ms=1_000), a_job())
    await register(store)
    clock.advance(ms=1_000)
    assert await claimed_ids(store, free=2) == [fresh]


async def test_pruning_cancels_what_has_expired_though_nobody_claims(store: Store, clock: ManualClock) -> None:
    waiting, delayed, later = await submit(
        store, a_job(expires_ms=1_000), a_job(delay_ms=5_000, expires_ms=1_000), a_job(expires_ms=1_001)
    )
    clock.advance(ms=1_000)
    assert await store.prune(Keep()) == 2
    assert [await state_of(store, job_id) for job_id in (waiting, delayed, later)] == [
        State.CANCELLED, State.CANCELLED, State.QUEUED,
    ]  # fmt: skip
    assert (await the_job(store, waiting)).reason == "expired"
    assert await store.prune(Keep()) == 0
    assert (await store.snapshot()).next_due_at is None


async def test_pruning_expires_in_batches(store: Store, clock: ManualClock) -> None:
    await submit(store, *(a_job(expires_ms=10) for _ in range(5)))
    clock.advance(ms=10)
    assert [await store.prune(Keep(), limit=2) for _ in range(4)] == [2, 2, 1, 0]


async def test_a_job_that_runs_does_not_expire(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store, a_job(expires_ms=1_000))
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=2_000)
    assert await store.prune(Keep()) == 0
    await end(store, lease)
    assert await state_of(store, job_id) is State.COMPLETED


async def test_a_job_back_in_the_queue_after_its_time_is_not_begun_again(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store, a_job(expires_ms=1_000))
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=2_000)
    await end(store, lease, Released())
    assert await claim(store) == []
    assert await state_of(store, job_id) is State.CANCELLED


async def test_an_expired_job_frees_its_unique_key(store: Store, clock: ManualClock) -> None:
    first = await submit_one(store, a_job(unique_key="u", expires_ms=1_000))
    clock.advance(ms=1_000)
    await store.prune(Keep())
    assert await submit_one(store, a_job(unique_key="u")) != first


async def test_expired_jobs_are_counted_as_cancelled(store: Store, clock: ManualClock) -> None:
    await submit(store, a_job(expires_ms=10), a_job(expires_ms=10, needs=("gpu",)))
    await register(store)
    clock.advance(ms=10)
    await claim(store)
    await store.prune(Keep())
    stats = await store.stats()
    assert (stats.totals["cancelled"], stats.kept) == (2, {"cancelled": 2})
