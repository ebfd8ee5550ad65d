"""The state of the original duration queue and each move on it, by the roles that they play in any store."""

from __future__ import annotations

import asyncio

from headway.core.job import State
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.document import ELASTIC, Keep, Ladder, Policy, Rung
from headway.core.policy.ladder import RunningJobs
from headway.core.worker import WorkerState
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    CONFIRM_MS,
    LEASE_MS,
    a_job,
    ask,
    beat,
    claim,
    claim_one,
    end,
    reap,
    register,
    submit,
    submit_one,
    the_job,
)

FAST, MEDIUM, SLOW = "fast", "medium", "slow"
# R3.68: the shortest has no limit of its own, so it equals the slots of the live workers.
LADDER = Ladder((Rung(FAST, 3_000), Rung(MEDIUM, 10_000, percent=60), Rung(SLOW, 30_000, percent=30)))


async def enforce_ladder(store: Store) -> None:
    await write_rules(store, Policy(ladder=LADDER))


async def floor_of(store: Store) -> RunningJobs:
    running_jobs = (await store.snapshot()).running_jobs
    assert running_jobs is not None
    return running_jobs


async def test_ids_and_numbers_are_given_once_however_many_submit(store: Store) -> None:
    # R3.41, R3.62, R3.66: one counter of the store's own, moved in the step that keeps the job.
    await asyncio.gather(*(submit(store, *(a_job() for _ in range(5))) for _ in range(20)))
    await register(store, slots=200)
    leases = await claim(store, free=200)
    numbers = [lease.seq for lease in leases]
    assert len(set(numbers)) == len({lease.job_id for lease in leases}) == 100
    assert numbers == sorted(numbers)


async def test_arrival_is_a_number_and_never_the_text_of_an_id(store: Store) -> None:
    # R3.46, R3.47, R3.54, R3.66: 997 comes before 1002.
    first, second = await submit(store, a_job(str(997)), a_job(str(1002)))
    await register(store)
    assert [lease.job_id for lease in await claim(store)] == [first, second]


async def test_a_submitted_job_keeps_its_options_and_inputs_until_it_runs(store: Store, clock: ManualClock) -> None:
    # R3.42, R3.43, R3.53, R3.57, R3.58, R3.67: they are one record, which nothing but the job's end removes.
    await enforce_ladder(store)
    job_id = await submit_one(store, a_job(payload=b'["drawing.asy"]', rung=SLOW, tenant="acme"))
    clock.advance(24 * 3_600)
    await store.prune(Keep())
    job = await the_job(store, job_id)
    assert (job.payload, job.rung, job.tenant) == (b'["drawing.asy"]', SLOW, "acme")
    await register(store)
    lease = await claim_one(store)
    assert (lease.payload, lease.assigned) == (b'["drawing.asy"]', SLOW)


async def test_one_that_may_expire_is_gone_when_its_time_is_up(store: Store, clock: ManualClock) -> None:
    # R3.53: 600 s, where the submitter wants that.
    job_id = await submit_one(store, a_job(expires_ms=600_000))
    clock.advance(600)
    await store.prune(Keep())
    assert (await the_job(store, job_id)).state is State.CANCELLED


async def test_a_claim_names_the_worker_and_the_duration_in_one_step(store: Store) -> None:
    # R3.44, R3.48, R3.49, R3.51, R3.75, R3.83: taken from the queue, executing, counted, its worker known: all or none.
    await enforce_ladder(store)
    await register(store, "w1", slots=10)
    job_id = await submit_one(store, a_job(rung=ELASTIC))
    lease = await claim_one(store, "w1")
    job = await the_job(store, job_id)
    assert (job.state, job.worker_id, job.assigned) == (State.EXECUTING, "w1", lease.assigned) == (
        State.EXECUTING, "w1", SLOW,
    )  # fmt: skip
    assert await claim(store, "w1") == []
    assert (await floor_of(store)).counts == (0, 0, 1)


async def test_counts_begin_at_nothing_and_end_there(store: Store) -> None:
    # R3.50, R3.69, R3.70: a counter is the leases counted, so what has ended is in none.
    await enforce_ladder(store)
    await register(store, slots=10)
    assert await floor_of(store) == RunningJobs(10, 10, (0, 0, 0))
    await submit(store, a_job(rung=SLOW), a_job(rung=FAST))
    leases = await claim(store)
    assert (await floor_of(store)).counts == (1, 0, 1)
    assert [await end(store, lease) for lease in leases] == [ReportStatus.OK, ReportStatus.OK]
    assert await floor_of(store) == RunningJobs(10, 10, (0, 0, 0))
    assert [await end(store, lease) for lease in leases] == [ReportStatus.DUPLICATE, ReportStatus.DUPLICATE]
    assert await floor_of(store) == RunningJobs(10, 10, (0, 0, 0))


async def test_an_abort_before_the_claim_leaves_nothing_in_the_queue(store: Store) -> None:
    # R3.59, R3.63
    await enforce_ladder(store)
    await register(store, slots=10)
    gone, stays = await submit(store, a_job(rung=SLOW), a_job(rung=SLOW))
    await store.cancel([gone])
    assert sum(view.waiting for view in (await store.snapshot()).classes) == 1
    assert [lease.job_id for lease in await claim(store)] == [stays]
    assert (await floor_of(store)).counts == (0, 0, 1)


async def test_an_abort_after_the_claim_frees_the_place_when_the_job_has_stopped(
    store: Store,
) -> None:
    # R3.60, R3.63
    await enforce_ladder(store)
    await register(store, slots=10)
    job_id = await submit_one(store, a_job(rung=SLOW))
    lease = await claim_one(store)
    await store.cancel([job_id])
    assert (await beat(store, held=[lease])).cancel == [job_id]
    assert (await floor_of(store)).counts == (0, 0, 1)
    await end(store, lease)
    assert (await floor_of(store)).counts == (0, 0, 0)


async def test_what_was_claimed_and_never_begun_goes_to_another(store: Store, clock: ManualClock) -> None:
    # R3.76: not aborted, but taken back for another backend.
    await enforce_ladder(store)
    await register(store, "w1", slots=10)
    await register(store, "w2", slots=10)
    job_id = await submit_one(store, a_job(rung=SLOW))
    await claim_one(store, "w1")
    clock.advance(ms=CONFIRM_MS)
    await beat(store, "w1", held=())
    assert (await floor_of(store)).counts == (0, 0, 0)
    lease = await claim_one(store, "w2")
    assert (lease.job_id, lease.attempts) == (job_id, 1)


async def test_a_worker_comes_lives_and_leaves_and_the_limits_follow(store: Store, clock: ManualClock) -> None:
    # R3.52, R3.72, R3.78, R3.81, R3.82
    await enforce_ladder(store)
    await register(store, "w1", slots=10)
    await register(store, "w2", slots=10)
    assert (await floor_of(store)).slots == 20
    clock.advance(ms=LEASE_MS - 1)
    await beat(store, "w1")
    clock.advance(ms=1)
    assert (await floor_of(store)).slots == 5  # A heartbeat also says how many slots there are now.
    states = {worker.worker_id: worker.state for worker in (await store.stats()).workers}
    assert states == {"w1": WorkerState.ACTIVE, "w2": WorkerState.DEAD}


async def test_what_a_vanished_worker_held_is_counted_until_it_is_taken_back_and_then_no_more(
    store: Store, clock: ManualClock
) -> None:
    # R3.77, R3.80, R3.82
    await enforce_ladder(store)
    await register(store, "w1", slots=10)
    job_id = await submit_one(store, a_job(rung=SLOW))
    await claim_one(store, "w1")
    clock.advance(ms=LEASE_MS)
    await register(store, "w2", slots=10)
    assert (await floor_of(store)).counts == (0, 0, 1)
    assert await reap(store) == [job_id]
    assert (await floor_of(store)).counts == (0, 0, 0)


async def test_what_has_gone_from_the_queue_is_passed_over(store: Store) -> None:
    # R3.84: there is no id without its job, so nothing is dropped; a job cancelled meanwhile is simply not there.
    await enforce_ladder(store)
    await register(store, slots=10)
    picture = await store.snapshot()
    gone = await submit_one(store, a_job(rung=SLOW))
    await store.cancel([gone])
    await store.purge([State.CANCELLED], [gone])
    stays = await submit_one(store, a_job(rung=SLOW))
    assert picture.classes == ()
    assert [lease.job_id for lease in await claim(store)] == [stays]
    assert (await floor_of(store)).counts == (0, 0, 1)


async def test_a_result_is_kept_for_whoever_comes_back(store: Store) -> None:
    # R3.85, R3.87
    await register(store)
    job_id = await submit_one(store)
    lease: Lease = await claim_one(store)
    await end(store, lease)
    for _ in range(2):
        assert (await the_job(store, job_id)).result == b"null"


async def test_one_slot_runs_one_job_at_a_time(store: Store) -> None:
    # R3.85
    await register(store, slots=1, reserved=0)
    await submit(store, a_job(), a_job())
    [lease] = await claim(store, free=5)
    assert await claim(store, free=5) == []
    await end(store, lease)
    assert len((await ask(store, free=5)).leases) == 1


def test_an_id_cannot_be_guessed() -> None:
    # R3.86: 62 bits at least are random; and beyond loopback a token is asked for.
    from headway.runtime.job_ids import new_job_id

    ids = [int(new_job_id().replace("-", ""), 16) & (1 << 62) - 1 for _ in range(1_000)]
    assert len(set(ids)) == 1_000
    assert all(400 < sum(number >> bit & 1 for number in ids) < 600 for bit in range(62))
