"""Claiming: the order of jobs, the needs of jobs, and the bounds of a claim."""

from __future__ import annotations

import asyncio

import pytest

from headway.core.job import ClassKey, State
from headway.core.lease import Lease, Report
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Raised, Released, Returned, Snoozed, Unknown, judge
from headway.core.snapshot import Plan, Take
from headway.core.worker import ANY_TASK, WorkerState
from headway.stores.base import SKIPPED_MAX, Exchange, Heartbeat, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_claim_id,
    a_job,
    an_id,
    ask,
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

GPU = ("gpu",)


async def test_a_worker_that_offers_any_task_may_have_what_others_did_not_know(store: Store) -> None:
    # R5.14
    known = await submit_one(store, a_job(needs=("task:reports.export",)))
    await submit_one(store, a_job(needs=("gpu", "task:reports.export")))
    await register(store, offers=(ANY_TASK,))
    assert await claimed_ids(store, offers=(ANY_TASK,)) == [known]


async def test_a_claim_makes_the_job_executing_and_counts_the_attempt(store: Store, clock: ManualClock) -> None:
    # R5.22, R2.40
    job = a_job(task="mail.send", payload=b"7", lane="low", max_retries=4, timeout_ms=9, tenant="acme", trace_id="t")
    await submit(store, job)
    clock.advance(ms=250)
    await register(store)
    claim_id = a_claim_id()
    [lease] = await claim(store, claim_id=claim_id)
    assert (lease.job_id, lease.token, lease.task, lease.payload) == (job.job_id, claim_id, "mail.send", b"7")
    assert (lease.lane, lease.tenant, lease.trace_id, lease.max_retries) == ("low", "acme", "t", 4)
    assert (lease.timeout_ms, lease.asked_timeout_ms, lease.retry) == (9, 9, None)
    assert (lease.epoch, lease.attempts, lease.crashes, lease.cancel_requested) == (1, 1, 0, False)
    assert (lease.started_at, lease.worker_id, lease.persist) == (clock(), "w1", True)
    kept = await the_job(store, job.job_id)
    assert (kept.state, kept.worker_id, kept.started_at) == (State.EXECUTING, "w1", clock())
    assert (kept.attempts, kept.epoch, kept.eligible_at) == (1, 1, clock() - 250)


async def test_jobs_of_one_class_come_in_the_order_of_submission(store: Store, clock: ManualClock) -> None:
    # R1.37, R5.11
    job_ids = []
    for _ in range(5):
        job_ids.append(await submit_one(store))
        clock.advance(ms=10)
    await register(store)
    assert await claimed_ids(store) == job_ids


async def test_jobs_of_the_same_moment_come_by_sequence_and_not_by_the_text_of_their_ids(store: Store) -> None:
    # R5.110
    job_ids = [an_id(number) for number in (9_000_009, 9_000_001, 9_000_005, 9_000_010, 9_000_002)]
    await submit(store, *(a_job(job_id) for job_id in job_ids))
    await register(store)
    assert await claimed_ids(store) == job_ids


async def test_lanes_come_by_level(store: Store) -> None:
    # R5.49
    low, medium, high = await submit(store, a_job(lane="low"), a_job(lane="medium"), a_job(lane="high"))
    await register(store)
    assert await claimed_ids(store, free=2) == [high, medium]
    assert await claimed_ids(store, free=2) == [low]


async def test_classes_of_one_lane_come_by_the_longest_wait(store: Store, clock: ManualClock) -> None:
    first = await submit_one(store, a_job(needs=GPU))
    clock.advance(ms=1)
    second = await submit_one(store)
    await register(store, offers=GPU)
    assert await claimed_ids(store, free=1, offers=GPU) == [first]
    assert await claimed_ids(store, free=1, offers=GPU) == [second]


async def test_a_delayed_job_is_left_alone_until_it_is_due(store: Store, clock: ManualClock) -> None:
    # R2.39, R2.73, R5.108: by the store's clock, which here has nothing to do with the host's.
    job_id = await submit_one(store, a_job(delay_ms=500))
    await register(store)
    assert (await the_job(store, job_id)).due_at == clock() + 500
    clock.advance(ms=499)
    assert await claimed_ids(store) == []
    clock.advance(ms=1)
    assert await claimed_ids(store) == [job_id]
    assert (await the_job(store, job_id)).due_at is None


async def test_a_job_for_a_moment_is_left_alone_until_then(store: Store, clock: ManualClock) -> None:
    # R2.39
    past, future = await submit(store, a_job(due_at=clock() - 1), a_job(due_at=clock() + 1_000))
    await register(store)
    assert await claimed_ids(store) == [past]
    clock.advance(ms=999)
    assert await claimed_ids(store) == []
    clock.advance(ms=1)
    assert await claimed_ids(store) == [future]


async def test_due_jobs_come_in_the_order_in_which_they_fell_due(store: Store, clock: ManualClock) -> None:
    late, early, tie = await submit(store, a_job(delay_ms=300), a_job(delay_ms=100), a_job(delay_ms=300))
    clock.advance(ms=1_000)
    await register(store)
    assert await claimed_ids(store) == [early, late, tie]


async def test_a_job_that_falls_due_waits_behind_those_that_waited_before(store: Store, clock: ManualClock) -> None:
    delayed = await submit_one(store, a_job(delay_ms=100))
    waiting = await submit_one(store)
    clock.advance(ms=100)
    await register(store)
    assert await claimed_ids(store) == [waiting, delayed]
    assert (await the_job(store, delayed)).eligible_at == clock()


async def test_more_due_jobs_than_one_exchange_moves_are_all_moved_in_the_end(store: Store, clock: ManualClock) -> None:
    await submit(store, *(a_job(delay_ms=1) for _ in range(450)))
    clock.advance(ms=1)
    await register(store, slots=1_000)
    got = 0
    for _ in range(5):
        got += len(await claim(store, free=1_000))
    assert got == 450


async def test_the_snapshot_tells_when_the_next_delayed_job_falls_due(store: Store, clock: ManualClock) -> None:
    assert (await store.snapshot()).next_due_at is None
    await submit(store, a_job(delay_ms=700), a_job(delay_ms=300))
    assert (await store.snapshot()).next_due_at == clock() + 300


async def test_a_retry_is_ranked_by_when_it_became_eligible_again(store: Store, clock: ManualClock) -> None:
    # R2.59, R5.68
    old = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM, after_ms=1_000))
    young = await submit_one(store)
    clock.advance(ms=1_000)
    assert await claimed_ids(store) == [young, old]
    assert (await the_job(store, old)).eligible_at == clock()


async def test_a_retry_without_a_wait_goes_to_the_back(store: Store, clock: ManualClock) -> None:
    # R2.59, R5.68
    old, other = await submit(store, a_job(), a_job())
    await register(store)
    clock.advance(ms=5)
    await end(store, await claim_one(store), Raised(BOOM, after_ms=0))
    assert (await the_job(store, old)).eligible_at == clock()
    assert await claimed_ids(store) == [other, old]


async def test_a_retry_keeps_its_lane(store: Store) -> None:
    # R5.70
    job_id = await submit_one(store, a_job(lane="high"))
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM, after_ms=0))
    assert (await the_job(store, job_id)).lane == "high"
    assert (await claim_one(store)).lane == "high"


async def test_a_job_handed_back_unharmed_returns_to_the_front(store: Store, clock: ManualClock) -> None:
    first, second, third = await submit(store, a_job(), a_job(), a_job())
    eligible_at = clock()
    await register(store)
    leases = await claim(store, free=2)
    clock.advance(ms=1_000)
    for lease in reversed(leases):
        await end(store, lease, Released())
    assert (await the_job(store, first)).eligible_at == eligible_at
    assert await claimed_ids(store) == [first, second, third]


async def test_a_returned_job_shows_no_trace_of_its_claim(store: Store) -> None:
    # R5.53
    job_id = await submit_one(store)
    await register(store)
    await end(store, await claim_one(store), Released())
    job = await the_job(store, job_id)
    assert job.state is State.QUEUED
    assert (job.started_at, job.worker_id, job.progress, job.note) == (None, None, None, None)


async def test_an_epoch_grows_with_each_claim_and_never_falls(store: Store) -> None:
    job_id = await submit_one(store, a_job(max_retries=0))
    await register(store)
    epochs = []
    for ending in (Released(), Snoozed(0), Released()):
        lease = await claim_one(store)
        epochs.append((lease.epoch, lease.attempts))
        await end(store, lease, ending)
    await store.cancel([job_id])
    await store.retry([job_id])
    lease = await claim_one(store)
    assert [*epochs, (lease.epoch, lease.attempts)] == [(1, 1), (2, 1), (3, 1), (4, 1)]


async def test_a_claim_gives_no_more_than_the_plan_has_free(store: Store) -> None:
    # R5.50
    await submit(store, *(a_job(lane=lane) for lane in ("high", "medium", "low") for _ in range(3)))
    await register(store, slots=50)
    assert len(await claim(store, free=4)) == 4
    assert len(await claim(store, free=0)) == 0
    assert len(await claim(store, free=50)) == 5


async def test_a_worker_never_holds_more_leases_than_it_has_slots(store: Store) -> None:
    # R1.7, R5.50: whatever its plan asks for.
    await submit(store, *(a_job() for _ in range(9)))
    await register(store, slots=3)
    leases = await claim(store, free=9)
    assert len(leases) == 3
    assert await claim(store, free=9) == []
    answer = await ask(store, free=9, finished=[_done(leases[0]), _done(leases[1])])
    assert len(answer.leases) == 2
    assert (await store.stats()).workers[0].running == 3


async def test_many_workers_at_once_get_each_job_once(store: Store) -> None:
    # R1.22, R5.51, R2.50
    job_ids = await submit(store, *(a_job() for _ in range(60)))
    workers = [f"w{number}" for number in range(10)]
    for worker_id in workers:
        await register(store, worker_id, slots=20)
    rounds = [await asyncio.gather(*(claimed_ids(store, w, free=3) for w in workers)) for _ in range(3)]
    taken = [job_id for given in rounds for ids in given for job_id in ids]
    assert sorted(taken) == sorted(job_ids)


@pytest.mark.parametrize(
    "high, low, free, running_low, gets",
    [
        pytest.param(0, 3, 3, 0, {"low": 2}, id="R1.12 all low: a third waits"),
        pytest.param(3, 0, 3, 0, {"high": 3}, id="R1.13 all high"),
        pytest.param(1, 2, 3, 0, {"high": 1, "low": 2}, id="R1.14 mixed"),
        pytest.param(1, 1, 1, 2, {"high": 1}, id="R1.15 a third low is blocked, a high is not"),
        pytest.param(5, 0, 3, 0, {"high": 3}, id="R1.16 high bursts"),
        pytest.param(0, 1, 1, 2, {}, id="R1.15 the reserved slot stays free"),
    ],
)
async def test_lanes_below_the_reserve_leave_reserved_slots_free(
    store: Store, high: int, low: int, free: int, running_low: int, gets: dict[str, int]
) -> None:
    # R1.11, R1.17, R1.18: with 3 slots, 1 reserved. free_below is what is left of slots minus reserve.
    await register(store, slots=3, reserved=1)
    await submit(store, *(a_job(lane="low") for _ in range(running_low)))
    assert len(await claim(store, free=3, free_below=2)) == running_low
    await submit(store, *(a_job(lane="low") for _ in range(low)), *(a_job(lane="high") for _ in range(high)))
    leases = await claim(store, free=free, free_below=2 - running_low)
    lanes = [lease.lane for lease in leases]
    assert {lane: lanes.count(lane) for lane in set(lanes)} == gets


async def test_both_lanes_below_the_reserve_share_what_is_free_there(store: Store) -> None:
    # R1.11
    await submit(store, a_job(lane="medium"), a_job(lane="low"), a_job(lane="medium"), a_job(lane="low"))
    await register(store)
    assert [lease.lane for lease in await claim(store, free=4, free_below=3)] == ["medium", "medium", "low"]


async def test_a_store_holds_the_totals_of_a_plan_whatever_its_takes_say(store: Store) -> None:
    # R1.11
    await submit(store, *(a_job(lane="low") for _ in range(5)), *(a_job(lane="high") for _ in range(5)))
    await register(store, slots=50)
    greedy = Plan((Take(ClassKey("low"), 50, True), Take(ClassKey("high"), 50, False)), free=4, free_below=1)
    answer = await store.exchange(Exchange("w1", a_claim_id(), plan=greedy))
    assert [lease.lane for lease in answer.leases] == ["low", "high", "high", "high"]


async def test_a_take_is_an_upper_bound(store: Store) -> None:
    await submit(store, *(a_job() for _ in range(5)))
    await register(store)
    answer = await store.exchange(Exchange("w1", a_claim_id(), plan=Plan((Take(ClassKey("medium"), 2, True),), 5, 5)))
    assert len(answer.leases) == 2


async def test_a_plan_may_name_classes_that_hold_nothing(store: Store) -> None:
    await register(store)
    empty = Plan((Take(ClassKey("high", ("x",)), 2, False), Take(ClassKey("none", persist=False), 1, True)), 5, 5)
    answer = await store.exchange(Exchange("w1", a_claim_id(), plan=empty))
    assert (list(answer.leases), answer.more) == ([], False)


async def test_a_job_goes_only_to_a_worker_with_all_it_needs(store: Store) -> None:
    # R5.14, R5.52
    await submit(store, a_job(needs=("arm", "gpu")), a_job(needs=GPU))
    await register(store, "plain")
    await register(store, "half", offers=GPU)
    await register(store, "full", offers=("arm", "gpu", "more"))
    assert await claim(store, "plain") == []
    assert [lease.needs for lease in await claim(store, "half", offers=GPU)] == [GPU]
    assert [lease.needs for lease in await claim(store, "full", offers=("arm", "gpu", "more"))] == [("arm", "gpu")]


async def test_any_number_of_unservable_jobs_in_front_hides_no_servable_one(store: Store) -> None:
    # R5.54
    await submit(store, *(a_job(needs=GPU) for _ in range(300)))
    servable = await submit_one(store)
    await register(store)
    assert await claimed_ids(store, free=1) == [servable]


async def test_a_task_that_a_worker_does_not_know_goes_on_to_one_that_does(store: Store) -> None:
    # R2.69
    job_id = await submit_one(store, a_job(task="resize", needs=GPU))
    await register(store, offers=GPU)
    lease = await claim_one(store, offers=GPU)
    await end(store, lease, Unknown())
    job = await the_job(store, job_id)
    assert (job.state, job.attempts, job.needs) == (State.QUEUED, 0, ("gpu", "task:resize"))
    assert await claim(store, offers=GPU) == []
    await register(store, "w2", offers=("gpu", "task:resize"))
    assert await claimed_ids(store, "w2", offers=("gpu", "task:resize")) == [job_id]


async def test_a_repeated_claim_gives_the_same_leases(store: Store, clock: ManualClock) -> None:
    await submit(store, *(a_job() for _ in range(6)))
    await register(store, slots=9)
    claim_id = a_claim_id()
    first = await claim(store, free=3, claim_id=claim_id)
    clock.advance(ms=100)
    assert await claim(store, free=3, claim_id=claim_id) == first
    assert (await store.stats()).totals["claimed"] == 3
    assert (await the_job(store, first[0].job_id)).attempts == 1


async def test_a_repeated_claim_gives_only_what_is_still_held(store: Store) -> None:
    await submit(store, a_job(), a_job())
    await register(store)
    claim_id = a_claim_id()
    first, second = await claim(store, free=2, claim_id=claim_id)
    await end(store, first)
    assert await claim(store, free=2, claim_id=claim_id) == [second]


async def test_one_exchange_ends_leases_and_claims_the_slots_they_free(store: Store) -> None:
    await submit(store, a_job(), a_job())
    await register(store, slots=1)
    first = await claim_one(store)
    answer = await ask(store, free=1, finished=[_done(first)])
    assert len(answer.leases) == 1
    assert list(answer.refused) == []


async def test_a_job_that_goes_back_in_an_exchange_may_be_claimed_by_it(store: Store) -> None:
    job_id = await submit_one(store)
    await register(store)
    first = await claim_one(store)
    answer = await ask(store, finished=[judge(Raised(BOOM, after_ms=0), first, BUILT_IN)])
    [again] = answer.leases
    assert (again.job_id, again.epoch, again.attempts) == (job_id, 2, 2)
    assert again.token != first.token


async def test_an_unknown_worker_gets_nothing_and_is_told(store: Store) -> None:
    # R5.56
    await submit(store, a_job())
    answer = await ask(store, "stranger")
    assert (list(answer.leases), answer.worker_state) == ([], WorkerState.DEAD)


async def test_a_draining_worker_gets_nothing_and_is_told(store: Store) -> None:
    # R5.19, R5.56
    await submit(store, a_job(), a_job())
    await register(store)
    lease = await claim_one(store)
    assert await store.drain("w1")
    answer = await ask(store)
    assert (list(answer.leases), answer.worker_state) == ([], WorkerState.DRAINING)
    assert list((await ask(store, finished=[_done(lease)])).refused) == []


async def test_draining_an_unknown_or_dead_worker_says_no(store: Store) -> None:
    assert not await store.drain("stranger")
    await register(store)
    await store.mark_dead("w1")
    assert not await store.drain("w1")


async def test_an_answer_says_whether_there_is_more_behind_jobs_it_passed_over(
    store: Store, clock: ManualClock
) -> None:
    await submit(store, *(a_job(expires_ms=10) for _ in range(SKIPPED_MAX)), a_job())
    await register(store)
    clock.advance(ms=10)
    answer = await ask(store, free=2)
    assert (list(answer.leases), answer.more) == ([], True)
    answer = await ask(store, free=2)
    assert (len(answer.leases), answer.more) == (1, False)


async def test_a_snapshot_is_given_when_asked_for_and_is_that_after_the_claim(store: Store, clock: ManualClock) -> None:
    await submit(store, a_job(), a_job())
    await register(store)
    takes = Plan((Take(ClassKey("medium"), 1, True),), 1, 1)
    assert (await store.exchange(Exchange("w1", a_claim_id(), plan=takes))).snapshot is None
    answer = await store.exchange(Exchange("w1", a_claim_id(), plan=takes, want_snapshot=True))
    assert answer.snapshot is not None
    assert (answer.now_at, answer.snapshot.now_at) == (clock(), clock())
    assert all(view.waiting == 0 for view in answer.snapshot.classes)


def _done(lease: Lease) -> Report:
    return judge(Returned(b"1"), lease, BUILT_IN)


async def test_a_worker_past_its_deadline_gets_nothing_until_it_renews(store: Store, clock: ManualClock) -> None:
    # What it was given now could be reaped at once, and would count as a crash.
    worker = await register(store, lease_ms=1_000)
    await submit(store, a_job())
    clock.advance(ms=1_000)
    assert await claim(store) == []
    await store.renew(Heartbeat(worker, 1_000, 10_000))
    assert len(await claim(store)) == 1


async def test_a_take_leaves_alone_what_began_to_wait_after_its_moment(store: Store, clock: ManualClock) -> None:
    # R5.65: with absolute promotion only what has aged goes before a better lane.
    old = await submit_one(store, a_job(lane="low"))
    until_at = clock()
    clock.advance(ms=1)
    young = await submit_one(store, a_job(lane="low"))
    await register(store)
    aged = Plan((Take(ClassKey("low"), 5, below_reserve=True, until_at=until_at),), 5, 5)
    answer = await store.exchange(Exchange("w1", a_claim_id(), plan=aged))
    assert [lease.job_id for lease in answer.leases] == [old]
    assert await state_of(store, young) is State.QUEUED


async def test_a_lease_tells_how_long_its_job_has_waited(store: Store, clock: ManualClock) -> None:
    # R5.85: what queue ages are counted from, by the store's clock alone.
    await register(store)
    plain, delayed = await submit_one(store), await submit_one(store, a_job(delay_ms=300))
    submitted_at = clock()
    clock.advance(ms=500)
    leases = {lease.job_id: lease for lease in await claim(store, free=2)}
    assert (leases[plain].submitted_at, leases[plain].eligible_at) == (submitted_at, submitted_at)
    assert (leases[delayed].submitted_at, leases[delayed].eligible_at) == (submitted_at, clock())
    await end(store, leases[plain], Raised(BOOM))
    clock.advance(ms=2_000)
    again = await claim_one(store)
    assert (again.submitted_at, again.eligible_at) == (submitted_at, clock())
    assert [lease.eligible_at for lease in await store.leases(worker_id="w1")] == [clock(), submitted_at + 500]
