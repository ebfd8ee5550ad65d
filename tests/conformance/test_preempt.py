"""Preemption: shorter times for running elastic jobs, halted sessions, and the orders that their workers get."""

from __future__ import annotations

import pytest

from headway.core.errors import JobError
from headway.core.job import JobId, JobRecord, NewJob, RetryRule, State
from headway.core.lease import Lease
from headway.core.policy.document import ELASTIC, HALTED, INTERACTIVE, Ladder, Policy, Rung
from headway.core.policy.ladder import Preemption, RunBudget, RunningSession
from headway.core.policy.retry import TimedOut
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import JOB_CHANNEL, LEASE_CHANNEL, Store
from tests.conformance.builders import a_job, ask, beat, claim, claim_one, end, register, submit_one, the_job

FAST, MEDIUM, SLOW = "fast", "medium", "slow"
LADDER = Ladder((Rung(FAST, 3_000, limit=4), Rung(MEDIUM, 10_000, limit=3), Rung(SLOW, 30_000, limit=2)))


async def enforce_ladder(store: Store) -> None:
    await write_rules(store, Policy(ladder=LADDER))


async def start(store: Store, rung: str = ELASTIC, job: NewJob | None = None) -> Lease:
    await submit_one(store, job or a_job(rung=rung))
    return await claim_one(store)


async def counts(store: Store) -> tuple[int, ...]:
    running_jobs = (await store.snapshot()).running_jobs
    assert running_jobs is not None
    return running_jobs.counts


async def grants_of(store: Store, *leases: Lease) -> list[RunBudget]:
    return list((await beat(store, held=leases)).grants)


async def test_a_lowered_job_frees_its_rung_at_once(store: Store) -> None:  # R3.16, R3.90
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store)
    assert (lease.assigned, lease.budget_ms) == (SLOW, 30_000)
    assert await store.preempt([Preemption(lease.job_id, FAST)]) == [True]
    assert await counts(store) == (1, 0, 0)
    assert (await the_job(store, lease.job_id)).assigned == FAST


async def test_its_worker_is_told_what_it_is_given_now(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store)
    fixed = await start(store, SLOW)
    assert await grants_of(store, lease, fixed) == [RunBudget(lease.job_id, SLOW, 30_000)]
    await store.preempt([Preemption(lease.job_id, MEDIUM)])
    assert await grants_of(store, lease, fixed) == [RunBudget(lease.job_id, MEDIUM, 10_000)]
    assert [held.budget_ms for held in await store.leases(worker_id="w1")] == [10_000, 30_000]


async def test_a_lease_that_a_heartbeat_gives_back_is_given_no_time(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=5)
    kept, lost = await start(store), await start(store)
    answer = await beat(store, held=[kept], confirm_ms=0)
    assert [grant.job_id for grant in answer.grants] == [kept.job_id]
    assert (await the_job(store, lost.job_id)).state is State.QUEUED


async def test_whoever_keeps_its_lease_and_whoever_watches_it_is_rung(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store)
    keeper, watcher = store.subscribe("w1" + LEASE_CHANNEL), store.subscribe(JOB_CHANNEL + "me")
    try:
        await store.get([lease.job_id])  # Both are heard of by now.
        await watcher.wait(0.05)
        await store.preempt([Preemption(lease.job_id, MEDIUM)])
        assert await keeper.wait(5.0) is not None
        assert await watcher.wait(5.0) is not None
    finally:
        keeper.close()
        watcher.close()


async def test_a_job_is_only_ever_lowered(store: Store) -> None:  # R3.88
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store)
    lower, same, higher = (Preemption(lease.job_id, rung) for rung in (MEDIUM, MEDIUM, SLOW))
    assert await store.preempt([lower, same, higher]) == [True, False, False]
    assert await counts(store) == (0, 1, 0)


async def test_lowered_twice_in_one_call_it_counts_at_the_last(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store)
    assert await store.preempt([Preemption(lease.job_id, MEDIUM), Preemption(lease.job_id, FAST)]) == [True, True]
    assert await counts(store) == (1, 0, 0)
    assert await grants_of(store, lease) == [RunBudget(lease.job_id, FAST, 3_000)]


async def test_what_is_not_elastic_or_does_not_run_stays_as_it_is(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=5)
    fixed = await start(store, SLOW)
    waiting = await submit_one(store, a_job(rung=ELASTIC))
    wanted = [Preemption(fixed.job_id, FAST), Preemption(waiting, FAST), Preemption(JobId("nobody"), FAST)]
    assert await store.preempt(wanted) == [False, False, False]
    assert await store.preempt([Preemption(fixed.job_id, None), Preemption(waiting, None)]) == [False, False]
    assert await counts(store) == (0, 0, 1)
    assert await store.preempt([]) == []


async def test_a_rung_that_is_not_on_the_ladder_is_nothing(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store)
    assert await store.preempt([Preemption(lease.job_id, "glacial")]) == [False]
    assert await counts(store) == (0, 0, 1)


async def test_the_room_it_gives_is_taken_by_the_next(store: Store) -> None:  # R3.18
    await enforce_ladder(store)
    await register(store, slots=5)
    first, _ = await start(store), await start(store)
    await submit_one(store, a_job(rung=SLOW))
    assert await claim(store) == []
    await store.preempt([Preemption(first.job_id, MEDIUM)])
    [lease] = await claim(store)
    assert lease.assigned == SLOW
    assert await counts(store) == (0, 1, 2)


async def test_a_worker_that_waits_is_woken_by_the_room(store: Store) -> None:  # R3.28
    await enforce_ladder(store)
    await register(store, "w1", slots=5)
    await register(store, "w2", slots=5)
    first, _ = await start(store), await start(store)
    await submit_one(store, a_job(rung=SLOW))
    subscription = store.subscribe("w2")
    try:
        assert not (await ask(store, "w2", wait=True)).leases
        await subscription.wait(0.05)
        await store.preempt([Preemption(first.job_id, MEDIUM)])
        assert await subscription.wait(5.0) is not None
    finally:
        subscription.close()


async def test_its_lease_still_ends_as_any_other(store: Store) -> None:  # R3.71
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store, job=a_job(rung=ELASTIC, tenant="acme", unique_key="u"))
    await store.preempt([Preemption(lease.job_id, MEDIUM)])
    await end(store, lease)
    assert (await the_job(store, lease.job_id)).state is State.COMPLETED
    assert await counts(store) == (0, 0, 0)
    assert await store.preempt([Preemption(lease.job_id, FAST)]) == [False]


async def test_downgrades_are_counted(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store)
    await store.preempt([Preemption(lease.job_id, MEDIUM), Preemption(lease.job_id, FAST)])
    totals = (await store.stats()).totals
    assert (totals[f"lowered.{MEDIUM}"], totals[f"lowered.{FAST}"]) == (1, 1)


# ---------------------------------------------------------------------- sessions


async def test_a_session_counts_at_the_shortest_rung(store: Store) -> None:  # R3.15
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store, INTERACTIVE)
    assert (lease.assigned, lease.budget_ms) == (None, None)
    running_jobs = (await store.snapshot()).running_jobs
    assert running_jobs is not None
    assert (running_jobs.counts, running_jobs.free, running_jobs.sessions) == (
        (1, 0, 0),
        4,
        (RunningSession(lease.job_id, lease.started_at),),
    )
    assert await grants_of(store, lease) == []


async def test_a_session_is_halted_once_and_holds_its_place_until_it_ends(store: Store) -> None:  # R3.25, R3.34
    await enforce_ladder(store)
    await register(store, slots=5)
    lease = await start(store, INTERACTIVE)
    assert await store.preempt([Preemption(lease.job_id, None)]) == [True]
    assert await store.preempt([Preemption(lease.job_id, None)]) == [False]
    assert await grants_of(store, lease) == [RunBudget(lease.job_id, HALTED, 0)]  # R3.89: no time at all.
    running_jobs = (await store.snapshot()).running_jobs
    assert running_jobs is not None
    assert (running_jobs.counts, running_jobs.sessions) == (
        (1, 0, 0),
        (RunningSession(lease.job_id, lease.started_at, stopping=True),),
    )
    await end(store, lease)
    assert await counts(store) == (0, 0, 0)
    assert (await store.stats()).totals[f"lowered.{HALTED}"] == 1


async def test_the_shortest_limit_holds_sessions_back_too(store: Store) -> None:  # R3.15
    await write_rules(store, Policy(ladder=Ladder((Rung(FAST, 3_000, limit=1),))))
    await register(store, slots=5)
    await start(store, INTERACTIVE)
    await submit_one(store, a_job(rung=INTERACTIVE))
    await submit_one(store, a_job(rung=FAST))
    assert await claim(store) == []


async def test_several_sessions_of_one_claim_are_counted_one_by_one(store: Store) -> None:
    await write_rules(store, Policy(ladder=Ladder((Rung(FAST, 3_000, limit=2),))))
    await register(store, slots=5)
    for _ in range(3):
        await submit_one(store, a_job(rung=INTERACTIVE))
    assert len(await claim(store, free=5)) == 2


async def test_without_a_ladder_sessions_are_seen_and_halted_as_well(store: Store) -> None:
    await register(store, slots=3)
    lease = await start(store, INTERACTIVE)
    running_jobs = (await store.snapshot()).running_jobs
    assert running_jobs is not None
    assert (running_jobs.slots, running_jobs.free, running_jobs.counts, len(running_jobs.sessions)) == (3, 2, (), 1)
    assert await store.preempt([Preemption(lease.job_id, None)]) == [True]
    assert await grants_of(store, lease) == [RunBudget(lease.job_id, HALTED, 0)]


# ---------------------------------------------------------------------- what a stopped job becomes


STOPPED = JobError("TimeoutError", "time limit (3 s)")


async def stop(
    store: Store, rung: str, on_stop: str, partial: bytes | None = None, *, ladder: Ladder = LADDER
) -> JobRecord:
    """Run a job of a rung until it is out of time. ``ladder``: the one of the policy by then."""
    await enforce_ladder(store)
    await register(store, slots=5)
    job_id = await submit_one(store, a_job(rung=rung, retry=RetryRule("policy", on_stop=on_stop)))
    lease = await claim_one(store)
    if rung == ELASTIC:
        await store.preempt([Preemption(job_id, FAST)])
        [lease] = await store.leases(worker_id="w1")
    await end(store, lease, TimedOut(STOPPED, partial), policy=Policy(ladder=ladder))
    return await the_job(store, job_id)


@pytest.mark.parametrize("rung", [FAST, ELASTIC])
async def test_a_stopped_job_may_try_again_on_a_longer_rung(store: Store, rung: str) -> None:  # R3.35
    job = await stop(store, rung, "retry_longer")
    assert (job.state, job.rung, job.attempts, job.reason, job.assigned) == (
        State.QUEUED,
        MEDIUM,
        0,
        "time_limit",
        None,
    )
    assert [attempt.error for attempt in job.history] == [STOPPED]
    lease = await claim_one(store)
    assert (lease.rung, lease.assigned, lease.budget_ms) == (MEDIUM, MEDIUM, 10_000)
    assert await counts(store) == (0, 1, 0)


@pytest.mark.parametrize("rung", [FAST, ELASTIC])
async def test_a_job_stopped_by_a_rung_that_the_policy_has_no_more_is_retried(store: Store, rung: str) -> None:
    job = await stop(store, rung, "retry_longer", ladder=Ladder())
    assert (job.state, job.rung, job.attempts, job.reason) == (State.QUEUED, rung, 1, "time_limit")


@pytest.mark.parametrize("on_stop", ["fail", "retry_longer", "partial"])
async def test_where_there_is_no_longer_rung_and_nothing_to_keep_it_has_failed(store: Store, on_stop: str) -> None:
    job = await stop(store, SLOW, on_stop)
    assert (job.state, job.reason, job.error) == (State.FAILED, "time_limit", STOPPED)


async def test_a_stopped_job_may_complete_with_what_there_was(store: Store) -> None:  # R3.35
    job = await stop(store, ELASTIC, "partial", b"[1,2]")
    assert (job.state, job.reason, job.result, job.error) == (State.COMPLETED, "partial", b"[1,2]", None)
