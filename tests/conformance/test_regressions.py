"""Histories that once failed, each reduced to the calls that matter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.errors import IdempotencyConflict
from headway.core.job import State, SubmitReply
from headway.core.lease import ReportStatus
from headway.core.policy.document import BUILT_IN, DAY, HOUR, Keep
from headway.core.policy.retry import Raised, Released, Returned, Snoozed, judge
from headway.stores.base import JOB_CHANNEL, Exchange, Heartbeat, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    CONFIRM_MS,
    LEASE_MS,
    a_claim_id,
    a_job,
    a_worker,
    ask,
    beat,
    claim,
    claim_one,
    claimed_ids,
    end,
    ended_job,
    pump,
    reap,
    register,
    report,
    state_of,
    submit,
    submit_one,
    the_job,
)


async def test_naming_a_job_twice_cancels_it_once(store: Store) -> None:
    job_id = await submit_one(store)
    assert await store.cancel([job_id, job_id]) == [State.CANCELLED, State.CANCELLED]
    assert (await store.stats()).totals["cancelled"] == 1


async def test_naming_a_job_twice_retries_it_once(store: Store) -> None:
    job_id = await ended_job(store, State.FAILED)
    assert await store.retry([job_id, job_id]) == [State.QUEUED, State.QUEUED]
    await register(store)
    assert await claimed_ids(store) == [job_id]


async def test_an_idempotency_key_outlives_its_job_and_makes_no_second_one(store: Store, clock: ManualClock) -> None:
    job = a_job(idempotency_key="order-9", idempotency_ms=DAY)
    await submit(store, job)
    await store.cancel([job.job_id])
    clock.advance(ms=HOUR)
    assert await store.prune(Keep(cancelled_ms=HOUR)) == 1
    [answer] = await store.submit([job])
    assert answer.deduplicated
    assert await store.get([job.job_id]) == [None]


async def test_a_cancel_that_the_worker_had_not_heard_of_still_counts_when_the_job_fails(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    await store.cancel([job_id])
    assert await end(store, lease, Raised(BOOM)) is ReportStatus.OK
    job = await the_job(store, job_id)
    assert (job.state, job.reason, job.error) == (State.CANCELLED, "cancelled while executing", BOOM)
    assert await end(store, lease, Raised(BOOM)) is ReportStatus.DUPLICATE


async def test_a_cancel_that_the_worker_had_not_heard_of_still_counts_when_it_drains(store: Store) -> None:
    job_id = await submit_one(store, a_job(unique_key="u"))
    await register(store)
    lease = await claim_one(store)
    await store.cancel([job_id])
    await end(store, lease, Released())
    assert await state_of(store, job_id) is State.CANCELLED
    assert await submit_one(store, a_job(unique_key="u")) != job_id


async def test_a_result_that_comes_after_the_reaper_is_lost_and_not_called_a_repeat(
    store: Store, clock: ManualClock
) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=LEASE_MS)
    assert await reap(store) == [job_id]
    assert await end(store, lease) is ReportStatus.STALE
    assert await state_of(store, job_id) is State.QUEUED


async def test_another_outcome_under_the_same_token_is_lost_and_the_first_stands(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    await end(store, lease, Returned(b"1"))
    assert await end(store, lease, Raised(replace(BOOM, retriable=False))) is ReportStatus.STALE
    assert (await the_job(store, job_id)).result == b"1"


async def test_a_repeated_report_is_the_same_even_if_the_job_was_cancelled_in_the_queue_since(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    given = judge(Snoozed(1_000), lease, BUILT_IN)
    assert await report(store, given) == [ReportStatus.OK]
    await store.cancel([job_id])
    assert await report(store, given) == [ReportStatus.DUPLICATE]


async def test_a_report_that_comes_twice_in_one_batch_is_taken_once(store: Store) -> None:
    await submit(store, a_job(), a_job())
    await register(store)
    [first, second] = await claim(store)
    back, done = judge(Snoozed(1_000), first, BUILT_IN), judge(Returned(b"1"), second, BUILT_IN)
    answer = await store.exchange(Exchange(None, finished=[back, done, back, done]))
    assert list(answer.refused) == [(first.job_id, ReportStatus.DUPLICATE), (second.job_id, ReportStatus.DUPLICATE)]


async def test_a_job_that_failed_before_it_expired_keeps_its_error(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store, a_job(expires_ms=5_000))
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM, after_ms=0))
    clock.advance(ms=5_000)
    assert await claim(store) == []
    job = await the_job(store, job_id)
    assert (job.state, job.reason, job.error) == (State.CANCELLED, "expired", BOOM)


async def test_a_job_that_expired_while_it_ran_is_pruned_once_it_is_back_in_the_queue(
    store: Store, clock: ManualClock
) -> None:
    job_id = await submit_one(store, a_job(expires_ms=5_000))
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=5_000)
    assert await store.prune(Keep()) == 0
    await end(store, lease, Released())
    assert await store.prune(Keep()) == 1
    assert await state_of(store, job_id) is State.CANCELLED


async def test_a_job_that_was_retried_no_longer_expires(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store, a_job(expires_ms=5_000))
    await store.cancel([job_id])
    await store.retry([job_id])
    clock.advance(ms=5_000)
    assert await store.prune(Keep()) == 0
    await register(store)
    assert await claimed_ids(store) == [job_id]


async def test_registering_again_does_not_make_a_repeated_claim_a_new_one(store: Store) -> None:
    await submit(store, a_job(), a_job())
    await register(store)
    claim_id = a_claim_id()
    leases = await claim(store, free=1, claim_id=claim_id)
    await store.renew(Heartbeat(a_worker(), LEASE_MS, CONFIRM_MS, register=True))
    assert await claim(store, free=1, claim_id=claim_id) == leases


async def test_a_claim_that_gave_nothing_does_not_make_the_store_forget_the_one_before(store: Store) -> None:
    await submit(store, a_job())
    await register(store)
    claim_id = a_claim_id()
    leases = await claim(store, claim_id=claim_id)
    assert await claim(store) == []
    assert await claim(store, claim_id=claim_id) == leases


async def test_a_claim_that_gave_nothing_may_be_repeated_and_then_gives_what_there_is(store: Store) -> None:
    await register(store)
    claim_id = a_claim_id()
    assert list((await ask(store, claim_id=claim_id, wait=True)).leases) == []
    job_id = await submit_one(store)
    assert [lease.job_id for lease in await claim(store, claim_id=claim_id)] == [job_id]


async def test_a_repeated_claim_gives_all_its_leases_though_the_worker_has_fewer_slots_now(store: Store) -> None:
    await submit(store, a_job(), a_job(), a_job())
    await register(store, slots=3)
    claim_id = a_claim_id()
    leases = await claim(store, free=3, claim_id=claim_id)
    await beat(store, a_worker(slots=1), held=leases)
    assert await claim(store, free=3, claim_id=claim_id) == leases


async def test_the_order_in_which_needs_are_written_does_not_matter(store: Store) -> None:
    one, other = await submit(store, a_job(needs=("gpu", "arm")), a_job(needs=("arm", "gpu")))
    assert [view.waiting for view in (await store.snapshot()).classes if view.waiting] == [2]
    await register(store, offers=("gpu", "arm"))
    leases = await claim(store, offers=("gpu", "arm"))
    assert [(lease.job_id, lease.needs) for lease in leases] == [(one, ("arm", "gpu")), (other, ("arm", "gpu"))]


async def test_completed_jobs_behind_many_that_are_kept_longer_are_pruned_too(store: Store, clock: ManualClock) -> None:
    # A store may look at a bounded stretch at a time, and then has to go on from there.
    kept = [a_job() for _ in range(6_000)]
    for start in range(0, len(kept), 1_000):
        await store.submit(kept[start : start + 1_000])
        await store.cancel([job.job_id for job in kept[start : start + 1_000]])
    gone = await ended_job(store, State.COMPLETED)
    clock.advance(ms=2 * HOUR)
    keep = Keep(completed_ms=HOUR, cancelled_ms=DAY)
    for _ in range(5):
        await store.prune(keep)
    assert await store.get([gone]) == [None]


async def test_a_worker_past_its_deadline_for_long_is_forgotten_by_one_pruning(
    store: Store, clock: ManualClock
) -> None:
    await register(store)
    clock.advance(ms=LEASE_MS + HOUR)
    await store.prune(Keep())
    assert (await store.stats()).workers == ()


async def test_a_worker_past_its_deadline_is_not_woken_in_place_of_a_live_one(store: Store, clock: ManualClock) -> None:
    await register(store, "late", lease_ms=1_000)
    await register(store, "live")
    for worker_id in ("late", "live"):
        await ask(store, worker_id, wait=True)
    clock.advance(ms=1_000)
    subscription = store.subscribe("live")
    try:
        await submit_one(store)
        assert await subscription.wait(5) == ()
    finally:
        subscription.close()


async def test_watchers_hear_of_jobs_that_expire_and_of_claims_that_never_started(
    store: Store, clock: ManualClock
) -> None:
    subscription = store.subscribe(JOB_CHANNEL + "test")
    try:
        unclaimed, unpruned = await submit(store, a_job(expires_ms=1_000), a_job(needs=("gpu",), expires_ms=1_000))
        await register(store)
        clock.advance(ms=1_000)
        await subscription.wait(5)
        await claim(store, free=1, free_below=1)
        assert set(await subscription.wait(5) or ()) == {unclaimed}
        await store.prune(Keep())
        assert set(await subscription.wait(5) or ()) == {unpruned}
        job_id = await submit_one(store)
        await claim_one(store)
        await subscription.wait(5)
        clock.advance(ms=CONFIRM_MS)
        await beat(store)
        assert set(await subscription.wait(5) or ()) == {job_id}
    finally:
        subscription.close()


async def test_a_lane_is_as_old_as_the_front_of_its_classes(store: Store, clock: ManualClock) -> None:
    delayed = await submit_one(store, a_job(delay_ms=2_000))
    clock.advance(ms=1_000)
    waiting = await submit_one(store)
    clock.advance(ms=1_000)
    await pump(store)
    due_at = clock()
    await register(store)
    [first, second] = await claim(store, free=2)
    assert [first.job_id, second.job_id] == [waiting, delayed]
    clock.advance(ms=1_000)
    await store.exchange(Exchange(None, finished=[judge(Released(), given, BUILT_IN) for given in (first, second)]))
    assert (await the_job(store, waiting)).eligible_at == due_at - 1_000
    assert (await store.stats()).lanes["medium"].oldest_at == due_at
    [view] = (await store.snapshot()).classes
    assert view.oldest_at == due_at


@pytest.mark.one_store  # The one store does not know the ids of the other.
async def test_a_transient_job_with_the_id_of_a_kept_one_is_recognised(store: Store) -> None:
    kept = a_job(payload=b"1")
    await store.submit([kept])
    assert await store.submit([kept._replace(persist=False)]) == [SubmitReply(kept.job_id)]
    with pytest.raises(IdempotencyConflict):
        await store.submit([kept._replace(persist=False, payload=b"2")])


async def test_a_class_that_came_with_a_repeated_submit_is_not_remembered(store: Store) -> None:
    kept = a_job(lane="low")
    await store.submit([kept])
    await store.submit([kept._replace(lane="high"), kept])
    assert [view.key.lane for view in (await store.snapshot()).classes] == ["low"]
    await store.submit([a_job(lane="high")])
    await register(store)
    assert [lease.lane for lease in await claim(store)] == ["high", "low"]
