"""Recovery: leases of workers past their deadline are found, and ended once, unless the worker has renewed."""

from __future__ import annotations

import asyncio

from headway.core.job import State
from headway.core.lease import ReportStatus
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Crashed, Released, judge
from headway.core.worker import WorkerState
from headway.maintenance.recovery import end_worker, overdue
from headway.stores.base import LEASE_CHANNEL, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    LEASE_MS,
    a_job,
    beat,
    claim,
    claim_one,
    claimed_ids,
    end,
    reap,
    register,
    report,
    state_of,
    submit,
    submit_one,
    the_job,
)
from tests.conftest import OpenStore

HOUR_MS = 3_600_000


async def test_the_leases_of_a_worker_are_found(store: Store) -> None:
    # R5.77
    await submit(store, *(a_job() for _ in range(3)))
    await register(store, "w1")
    await register(store, "w2")
    mine = await claim(store, "w1", free=2)
    [other] = await claim(store, "w2")
    assert await store.leases(worker_id="w1") == mine
    assert await store.leases(worker_id="w2") == [other]
    assert await store.leases(worker_id="w3") == []
    assert await store.leases(worker_id="w1", limit=1) == mine[:1]


async def test_leases_are_read_without_their_payloads(store: Store) -> None:
    body = b"1" + b"x" * 100_000
    await submit(store, a_job(payload=body, tenant="a", trace_id="t" * 32), a_job(payload=b""))
    await register(store)
    leases = await claim(store)
    assert [lease.payload for lease in leases] == [body, b""]
    bare = [lease._replace(payload=b"") for lease in leases]
    assert await store.leases(worker_id="w1", payloads=False) == bare
    assert await store.leases(worker_id="w1") == leases
    await store.mark_dead("w1")
    assert await store.leases(payloads=False) == await overdue(store) == bare
    assert await store.leases() == leases


async def test_leases_are_expired_exactly_at_the_deadline(store: Store, clock: ManualClock) -> None:
    # R5.74
    await submit(store, a_job())
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=LEASE_MS - 1)
    assert await store.leases() == []
    clock.advance(ms=1)
    assert await store.leases() == [lease]


async def test_the_leases_of_a_buried_worker_are_expired_at_once(store: Store) -> None:
    await submit(store, a_job(), a_job())
    await register(store)
    leases = await claim(store)
    await store.mark_dead("w1")
    assert await store.leases() == leases
    assert await store.leases(limit=1) == leases[:1]


async def test_a_lost_lease_puts_its_job_back_and_counts_a_crash(store: Store, clock: ManualClock) -> None:
    # R1.40, R2.44, R5.75
    job_id = await submit_one(store)
    await register(store)
    await claim_one(store)
    clock.advance(ms=LEASE_MS)
    assert await reap(store) == [job_id]
    job = await the_job(store, job_id)
    assert (job.state, job.attempts, job.crashes, job.reason) == (State.QUEUED, 1, 1, "crash")
    assert [(attempt.reason, attempt.worker_id) for attempt in job.history] == [("crash", "w1")]
    await register(store, "w2")
    clock.advance(seconds=1)
    lease = await claim_one(store, "w2")
    assert (lease.attempts, lease.crashes, lease.epoch) == (2, 1, 2)


async def test_two_reapers_move_a_job_once(store: Store, clock: ManualClock) -> None:
    # R5.76
    job_id = await submit_one(store)
    await register(store)
    await claim_one(store)
    clock.advance(ms=LEASE_MS)
    moved = await asyncio.gather(*(reap(store) for _ in range(5)))
    assert [job for jobs in moved for job in jobs] == [job_id]
    job = await the_job(store, job_id)
    assert (job.attempts, job.crashes, len(job.history)) == (1, 1, 1)


async def test_a_reaper_is_refused_if_the_worker_has_renewed_meanwhile(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=LEASE_MS)
    [seen] = await store.leases()
    await beat(store, held=[lease])
    given = judge(Crashed("lease expired"), seen, BUILT_IN)._replace(expired_only=True)
    assert await report(store, given) == [ReportStatus.STALE]
    assert await state_of(store, job_id) is State.EXECUTING
    assert await end(store, lease) is ReportStatus.OK


async def test_a_reaper_is_refused_if_the_job_has_been_claimed_again_meanwhile(
    store: Store, clock: ManualClock
) -> None:
    job_id = await submit_one(store)
    await register(store)
    await claim_one(store)
    clock.advance(ms=LEASE_MS)
    [seen] = await store.leases()
    assert await reap(store) == [job_id]
    clock.advance(seconds=1)
    await register(store, "w2")
    await claim_one(store, "w2")
    clock.advance(ms=LEASE_MS)
    given = judge(Crashed("lease expired"), seen, BUILT_IN)._replace(expired_only=True)
    assert await report(store, given) == [ReportStatus.STALE]
    assert await state_of(store, job_id) is State.EXECUTING


async def test_a_reaped_worker_is_dead_until_it_registers_anew(store: Store, clock: ManualClock) -> None:
    # R5.58
    await submit(store, a_job(), a_job())
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=LEASE_MS)
    await reap(store)
    answer = await beat(store, held=[lease])
    assert (answer.state, list(answer.lost)) == (WorkerState.DEAD, [lease.job_id])
    assert await claim(store) == []


async def test_a_worker_that_registers_anew_within_its_lease_keeps_what_it_names(
    store: Store, clock: ManualClock
) -> None:
    await submit(store, a_job())
    await register(store)
    lease = await claim_one(store)
    await register(store)
    assert await store.leases(worker_id="w1") == [lease]
    assert await end(store, lease) is ReportStatus.OK


async def test_other_workers_leases_are_left_alone(store: Store, clock: ManualClock) -> None:
    first, second = await submit(store, a_job(), a_job())
    await register(store, "w1")
    await register(store, "w2")
    await claim_one(store, "w1")
    lease = await claim_one(store, "w2")
    clock.advance(ms=LEASE_MS - 1)
    await beat(store, "w2", held=[lease])
    clock.advance(ms=1)
    assert await reap(store) == [first]
    assert await state_of(store, second) is State.EXECUTING


async def test_a_worker_that_has_left_is_forgotten_and_one_that_died_is_not(store: Store) -> None:
    for worker_id in ("left", "died", "stays"):
        await register(store, worker_id)
    await end_worker(store, "left", BUILT_IN, lambda _: Released("drained"), left=True)
    await end_worker(store, "died", BUILT_IN, lambda _: Crashed("signal 9"))
    workers = {worker.worker_id: worker.state for worker in (await store.stats()).workers}
    assert workers == {"died": WorkerState.DEAD, "stays": WorkerState.ACTIVE}
    assert (await beat(store, "left")).state is WorkerState.DEAD  # It must register anew.
    await submit(store, a_job())
    assert await claimed_ids(store, "left") == []
    await register(store, "left")
    assert len(await claimed_ids(store, "left")) == 1


async def test_the_jobs_of_a_worker_that_has_left_are_back_before_it_is_forgotten(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    await claim_one(store)
    await store.mark_dead("w1", left=True)
    assert [worker.state for worker in (await store.stats()).workers] == [WorkerState.DEAD]  # It holds a lease.
    assert await end_worker(store, "w1", BUILT_IN, lambda _: Released("drained"), left=True) == 1
    assert (await store.stats()).workers == ()
    assert await state_of(store, job_id) is State.QUEUED


async def test_burying_an_unknown_worker_does_nothing(store: Store) -> None:
    await store.mark_dead("stranger")
    assert (await store.stats()).workers == ()


async def test_a_job_that_comes_back_competes_with_those_that_wait(store: Store, clock: ManualClock) -> None:
    # R2.58: it does not wait for an empty queue.
    lost = await submit_one(store, a_job(lane="high"))
    await register(store)
    await claim_one(store)
    clock.advance(ms=LEASE_MS)
    await reap(store)
    waiting = await submit_one(store, a_job(lane="medium"))
    clock.advance(seconds=1)
    await register(store, "w2")
    assert await claimed_ids(store, "w2") == [lost, waiting]


async def test_a_job_whose_store_clock_went_back_is_not_reaped_early_nor_given_out_early(
    store: Store, clock: ManualClock
) -> None:
    # T2: time never goes back inside a store.
    await submit(store, a_job(delay_ms=1_000))
    clock.advance(seconds=1)
    await register(store)
    now_at = (await store.snapshot()).now_at
    clock.now_at -= HOUR_MS
    assert now_at <= (await store.snapshot()).now_at <= now_at + 1_000
    assert len(await claim(store)) == 1
    assert await store.leases() == []


async def test_delays_and_recovery_go_on_after_the_clock_was_set_back(store: Store, clock: ManualClock) -> None:
    # T2, L8: store time goes on at the clock's pace, however far it was set back.
    delayed = await submit_one(store, a_job(delay_ms=10_000))
    await register(store, "gone")
    running = await submit_one(store, a_job())
    await claim_one(store, "gone")
    clock.now_at -= HOUR_MS
    await store.snapshot()
    clock.advance(ms=10_000)
    await register(store, "w2")
    assert [lease.job_id for lease in await claim(store, "w2")] == [delayed]
    for _ in range(10):  # Workers that live ask all the time.
        clock.advance(ms=LEASE_MS // 9)
        await store.snapshot()
    assert running in await reap(store)


async def test_a_clock_that_is_set_back_twice_never_goes_back_and_comes_home(store: Store, clock: ManualClock) -> None:
    seen = [(await store.snapshot()).now_at]
    for step_ms in (500, -HOUR_MS, 500, 20_000, -HOUR_MS, 20_000, -400, 20_000, 2 * HOUR_MS, 500):
        clock.now_at += step_ms
        seen.append((await store.snapshot()).now_at)
    assert seen == sorted(seen)
    # The last step forward only put right what went before: no job's time has passed by it.
    assert seen[-1] - seen[0] < 120_000
    assert abs(seen[-1] - clock.now_at) <= 1_000


async def test_what_a_store_remembers_of_its_clock_is_shared(open_namespace: OpenStore, clock: ManualClock) -> None:
    # A process that comes after the clock was set back goes by the same time as those that saw it.
    first = await open_namespace("default")
    if not first.abilities.shared:
        return
    await register(first, "one")  # Anything that writes.
    now_at = (await first.snapshot()).now_at
    clock.now_at -= HOUR_MS
    second = await open_namespace("default")
    assert now_at <= (await second.snapshot()).now_at <= now_at + 1_000


async def test_a_worker_whose_clock_has_jumped_is_told_to_renew(store: Store, clock: ManualClock) -> None:
    # It is past its deadline, so it gets nothing; it must not wait for the next heartbeat.
    await register(store, "w1")
    await submit(store, a_job())
    subscription = store.subscribe("w1" + LEASE_CHANNEL)
    try:
        await store.snapshot()  # From now on it is heard of.
        clock.now_at += HOUR_MS
        assert await claim(store, "w1") == []
        assert await subscription.wait(10) is not None
        await beat(store, "w1")
        assert len(await claim(store, "w1")) == 1
    finally:
        subscription.close()
