"""Transient jobs: best effort, at most once, ranked with all others. The store keeps no record of them."""

from __future__ import annotations

import pytest

from headway.core.errors import IdempotencyConflict
from headway.core.job import SubmitReply
from headway.core.lease import ReportStatus
from headway.core.policy.retry import Raised
from headway.stores.base import JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    CONFIRM_MS,
    LEASE_MS,
    a_claim_id,
    a_job,
    beat,
    claim,
    claimed_ids,
    end,
    reap,
    register,
    submit,
    submit_one,
)


async def test_a_transient_job_runs_with_all_it_was_given(store: Store, clock: ManualClock) -> None:
    payload = bytes(range(256))
    job = a_job(
        task="ping", payload=payload, lane="low", timeout_ms=77, tenant="acme", trace_id="t", needs=("gpu",),
        persist=False,
    )  # fmt: skip
    assert await store.submit([job]) == [SubmitReply(job.job_id)]
    clock.advance(ms=5)
    await register(store, offers=("gpu",))
    [lease] = await claim(store, offers=("gpu",))
    assert (lease.job_id, lease.task, lease.payload, lease.lane) == (job.job_id, "ping", payload, "low")
    assert (lease.tenant, lease.trace_id, lease.timeout_ms, lease.needs) == ("acme", "t", 77, ("gpu",))
    assert (lease.persist, lease.token, lease.max_retries, lease.attempts) == (False, b"", 0, 1)
    assert (lease.started_at, lease.worker_id) == (clock(), "w1")


async def test_nothing_is_kept_of_a_transient_job(store: Store) -> None:
    # R2.15, R2.45
    job_id = await submit_one(store, a_job(persist=False))
    await register(store)
    assert await store.get([job_id]) == [None]
    assert await store.find(JobQuery()) == []
    [lease] = await claim(store)
    assert await store.leases(worker_id="w1") == []
    assert await end(store, lease, Raised(BOOM)) is ReportStatus.OK
    assert await store.get([job_id]) == [None]
    assert (await store.stats()).totals["transient_failed"] == 1  # R2.48: counted, and that is all.
    assert await store.cancel([job_id]) == [None]
    assert await claim(store) == []


async def test_a_transient_job_is_given_out_once_whatever_becomes_of_its_worker(
    store: Store, clock: ManualClock
) -> None:
    # R2.45: at most once.
    await submit_one(store, a_job(persist=False))
    await register(store)
    claim_id = a_claim_id()
    assert len(await claim(store, claim_id=claim_id)) == 1
    assert await claim(store, claim_id=claim_id) == []
    clock.advance(ms=CONFIRM_MS)
    await beat(store)
    clock.advance(ms=LEASE_MS)
    assert await reap(store) == []
    await register(store, "w2")
    assert await claim(store, "w2") == []


async def test_transient_jobs_come_in_the_order_of_submission(store: Store) -> None:
    job_ids = await submit(store, *(a_job(persist=False) for _ in range(5)))
    await register(store)
    assert await claimed_ids(store, free=2) == job_ids[:2]
    assert await claimed_ids(store, free=9) == job_ids[2:]


async def test_lanes_hold_for_both_kinds_together(store: Store) -> None:
    # R2.2, R2.75: one ranking, one bound.
    low, high, low_kept, high_kept = await submit(
        store,
        a_job(lane="low", persist=False),
        a_job(lane="high", persist=False),
        a_job(lane="low"),
        a_job(lane="high"),
    )
    await register(store)
    assert set(await claimed_ids(store, free=2)) == {high, high_kept}
    assert set(await claimed_ids(store, free=2)) == {low, low_kept}


async def test_a_flood_of_transient_jobs_does_not_hide_the_others(store: Store, clock: ManualClock) -> None:
    # R2.75
    kept = await submit_one(store)
    clock.advance(ms=1)
    await submit(store, *(a_job(persist=False) for _ in range(200)))
    await register(store)
    assert await claimed_ids(store, free=1) == [kept]


async def test_the_reserve_holds_for_transient_jobs(store: Store) -> None:
    # R1.11
    await submit(store, *(a_job(lane="low", persist=False) for _ in range(3)))
    await register(store, slots=3)
    assert len(await claim(store, free=3, free_below=2)) == 2


async def test_transient_jobs_are_counted(store: Store) -> None:
    await submit(store, a_job(persist=False), a_job(persist=False))
    await register(store)
    assert (await store.stats()).lanes["medium"].waiting == 2
    await claim(store, free=1)
    stats = await store.stats()
    assert stats.lanes["medium"].waiting == 1
    assert stats.totals == {"submitted": 2, "claimed": 1}


async def test_a_batch_of_both_kinds_is_kept_whole_or_not_at_all(store: Store) -> None:
    known = a_job()
    await submit(store, known)
    with pytest.raises(IdempotencyConflict):
        await store.submit([a_job(persist=False), a_job(known.job_id, payload=b"other")])
    await register(store)
    assert await claimed_ids(store) == [known.job_id]
