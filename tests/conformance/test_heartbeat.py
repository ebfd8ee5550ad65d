"""Heartbeats: they extend one deadline, report lost leases and stop requests, and return jobs that never started."""

from __future__ import annotations

from headway.core.job import State
from headway.core.lease import ReportStatus
from headway.core.policy.retry import Raised
from headway.core.worker import WorkerState
from headway.stores.base import Heartbeat, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    CONFIRM_MS,
    LEASE_MS,
    a_job,
    a_worker,
    an_id,
    ask,
    beat,
    claim,
    claim_one,
    claimed_ids,
    end,
    reap,
    register,
    state_of,
    submit,
    submit_one,
    the_job,
)


async def test_a_registered_worker_is_active_at_once_and_shown_with_all_it_said(
    store: Store, clock: ManualClock
) -> None:
    # R5.23
    worker = a_worker("w1", slots=7, reserved=2, offers=("gpu", "task:a"), version="3.1")
    answer = await store.renew(Heartbeat(worker, LEASE_MS, CONFIRM_MS, register=True))
    assert (answer.now_at, answer.state, list(answer.lost), list(answer.cancel)) == (
        clock(), WorkerState.ACTIVE, [], [],
    )  # fmt: skip
    [shown] = (await store.stats()).workers
    assert (shown.worker_id, shown.host, shown.pid, shown.version) == ("w1", "host", 1, "3.1")
    assert (shown.slots, shown.reserved, shown.offers, shown.running) == (7, 2, ("gpu", "task:a"), 0)
    assert (shown.state, shown.started_at, shown.heartbeat_at) == (WorkerState.ACTIVE, clock(), clock())
    assert shown.lease_ends_at == clock() + LEASE_MS


async def test_a_heartbeat_moves_the_deadline_of_all_leases(store: Store, clock: ManualClock) -> None:
    # R2.55: a job may run for longer than a lease lasts.
    await submit(store, a_job(), a_job())
    await register(store)
    leases = await claim(store)
    started_at = clock()
    for _ in range(10):
        clock.advance(ms=LEASE_MS - 1)
        assert await reap(store) == []
        answer = await beat(store, held=leases)
        assert (answer.state, list(answer.lost)) == (WorkerState.ACTIVE, [])
    [shown] = (await store.stats()).workers
    assert (shown.started_at, shown.heartbeat_at, shown.lease_ends_at) == (started_at, clock(), clock() + LEASE_MS)
    assert [await end(store, lease) for lease in leases] == [ReportStatus.OK, ReportStatus.OK]


async def test_a_heartbeat_may_change_slots_and_offers(store: Store) -> None:
    await register(store)
    await beat(store, a_worker(slots=9, reserved=3, offers=("gpu",)))
    [shown] = (await store.stats()).workers
    assert (shown.slots, shown.reserved, shown.offers) == (9, 3, ("gpu",))


async def test_an_unknown_worker_is_refused_and_stays_unknown(store: Store) -> None:
    # R5.58
    job_id = an_id()
    answer = await store.renew(Heartbeat(a_worker("stranger"), LEASE_MS, CONFIRM_MS, [(job_id, b"token")]))
    assert (answer.state, list(answer.lost)) == (WorkerState.DEAD, [job_id])
    assert (await store.stats()).workers == ()


async def test_a_dead_worker_must_register_anew(store: Store) -> None:
    # R5.58
    await submit(store, a_job(), a_job())
    await register(store)
    lease = await claim_one(store)
    await store.mark_dead("w1")
    answer = await beat(store, held=[lease])
    assert (answer.state, list(answer.lost)) == (WorkerState.DEAD, [lease.job_id])
    assert await claim(store) == []
    assert [shown.state for shown in (await store.stats()).workers] == [WorkerState.DEAD]
    await register(store)
    assert len(await claim(store)) == 1


async def test_a_worker_that_registers_anew_is_new(store: Store, clock: ManualClock) -> None:
    await register(store)
    await store.drain("w1")
    clock.advance(ms=5)
    await register(store)
    [shown] = (await store.stats()).workers
    assert (shown.state, shown.started_at) == (WorkerState.ACTIVE, clock())


async def test_a_draining_worker_stays_so_through_its_heartbeats(store: Store) -> None:
    # R5.15, R5.19
    await register(store)
    await store.drain("w1")
    assert (await beat(store)).state is WorkerState.DRAINING
    assert (await ask(store)).worker_state is WorkerState.DRAINING


async def test_leases_that_are_gone_are_named(store: Store, clock: ManualClock) -> None:
    await submit(store, *(a_job() for _ in range(4)))
    await register(store)
    ended, kept, stale, _ = leases = await claim(store)
    await end(store, ended)
    await end(store, stale, Raised(BOOM, after_ms=0))
    await register(store, "w2")
    assert await claimed_ids(store, "w2") == [stale.job_id]
    unknown = kept._replace(job_id=an_id())
    answer = await beat(store, held=[*leases, unknown])
    assert list(answer.lost) == [ended.job_id, stale.job_id, unknown.job_id]


async def test_a_lease_named_with_a_foreign_token_is_lost_to_who_names_it(store: Store) -> None:
    await submit(store, a_job())
    await register(store)
    lease = await claim_one(store)
    answer = await beat(store, held=[lease._replace(token=b"other")])
    assert list(answer.lost) == [lease.job_id]
    assert await state_of(store, lease.job_id) is State.EXECUTING


async def test_a_lease_that_is_not_named_is_kept_until_it_should_have_started(store: Store, clock: ManualClock) -> None:
    # R5.104
    job_id = await submit_one(store)
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=CONFIRM_MS - 1)
    await beat(store)
    assert await state_of(store, job_id) is State.EXECUTING
    clock.advance(ms=1)
    await beat(store)
    job = await the_job(store, job_id)
    assert (job.state, job.attempts, job.crashes, job.reason) == (State.QUEUED, 0, 0, "claim never started")
    assert await end(store, lease) is ReportStatus.STALE


async def test_only_the_leases_that_are_not_named_go_back_and_to_the_front(store: Store, clock: ManualClock) -> None:
    # R5.104
    first, second, third = await submit(store, a_job(), a_job(), a_job())
    await register(store)
    leases = await claim(store, free=2)
    clock.advance(ms=CONFIRM_MS)
    await beat(store, held=[leases[1]])
    assert await state_of(store, second) is State.EXECUTING
    assert await claimed_ids(store) == [first, third]


async def test_a_job_asked_to_stop_that_never_started_is_cancelled(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store)
    await register(store)
    await claim_one(store)
    await store.cancel([job_id])
    clock.advance(ms=CONFIRM_MS)
    await beat(store)
    assert await state_of(store, job_id) is State.CANCELLED


async def test_a_heartbeat_names_the_jobs_that_somebody_wants_stopped(store: Store) -> None:
    # R5.43, R2.74
    one, two = await submit(store, a_job(), a_job())
    await register(store)
    leases = await claim(store)
    assert list((await beat(store, held=leases)).cancel) == []
    await store.cancel([two])
    for _ in range(2):
        answer = await beat(store, held=leases)
        assert (list(answer.cancel), list(answer.lost)) == ([two], [])
    assert await state_of(store, one) is State.EXECUTING


async def test_a_worker_that_is_late_but_not_yet_taken_for_dead_may_go_on(store: Store, clock: ManualClock) -> None:
    await submit(store, a_job())
    await register(store)
    lease = await claim_one(store)
    clock.advance(ms=2 * LEASE_MS)
    answer = await beat(store, held=[lease])
    assert (answer.state, list(answer.lost)) == (WorkerState.ACTIVE, [])
    assert await reap(store) == []


async def test_a_worker_past_its_deadline_is_shown_as_dead(store: Store, clock: ManualClock) -> None:
    await register(store)
    clock.advance(ms=LEASE_MS - 1)
    assert [worker.state for worker in (await store.stats()).workers] == [WorkerState.ACTIVE]
    clock.advance(ms=1)
    assert [worker.state for worker in (await store.stats()).workers] == [WorkerState.DEAD]
