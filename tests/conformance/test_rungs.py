"""The ladder at the claim: nested limits, percentages of live slots, and the rungs of elastic jobs."""

from __future__ import annotations

import pytest

from headway.core.job import ClassKey, NewJob, State
from headway.core.lease import Lease
from headway.core.policy.document import ELASTIC, Ladder, LimitRule, Policy, Rung
from headway.core.policy.ladder import ElasticJob, RunningJobs
from headway.core.policy.retry import Raised, Released
from headway.core.snapshot import Plan, Take
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import Exchange, Store
from headway.stores.paging import passed_over
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    LEASE_MS,
    a_claim_id,
    a_job,
    ask,
    beat,
    claim,
    claim_one,
    claimed_ids,
    end,
    reap,
    register,
    submit,
    submit_one,
    the_job,
)

FAST, MEDIUM, SLOW = "fast", "medium", "slow"
# R3.2: the durations of seed 002.
PERCENT = (Rung(FAST, 3_000), Rung(MEDIUM, 10_000, percent=60), Rung(SLOW, 30_000, percent=30))
LIMITS = (Rung(FAST, 3_000, limit=4), Rung(MEDIUM, 10_000, limit=3), Rung(SLOW, 30_000, limit=2))


async def enforce_ladder(store: Store, rungs: tuple[Rung, ...] = LIMITS, **limits: LimitRule) -> None:
    """Apply a policy with this ladder."""
    await write_rules(store, Policy(ladder=Ladder(rungs), limits=limits))


def jobs_of(rung: str | None, count: int) -> list[NewJob]:
    return [a_job(rung=rung) for _ in range(count)]


async def claim_each(store: Store, *rungs: str, worker_id: str = "w1") -> list[Lease]:
    """Claim one job of each of these rungs, in order. A job that may not start yields no lease."""
    leases: list[Lease] = []
    for rung in rungs:
        take = Take(ClassKey("medium", (), rung), 1, below_reserve=True)
        answer = await store.exchange(Exchange(worker_id, a_claim_id(), plan=Plan((take,), 1, 1)))
        leases += answer.leases
    return leases


async def running(store: Store) -> tuple[int, ...]:
    """Return how many jobs run on each rung, the shortest first."""
    running_jobs = (await store.snapshot()).running_jobs
    assert running_jobs is not None
    return running_jobs.counts


async def blocked(store: Store, rung: str | None) -> str | None:
    return next(view.blocked for view in (await store.snapshot()).classes if view.key.rung == rung)


# ---------------------------------------------------------------------- nested limits


@pytest.mark.parametrize(
    "wanted, counts",
    [
        pytest.param([SLOW] * 5, (0, 0, 2), id="slow: its own limit"),
        pytest.param([MEDIUM] * 5, (0, 3, 0), id="medium: its own limit"),
        pytest.param([FAST] * 5, (4, 0, 0), id="fast: its own limit"),
        pytest.param([SLOW] * 2 + [MEDIUM] * 3, (0, 1, 2), id="medium counts slow ones too"),
        pytest.param([SLOW] * 2 + [FAST] * 4, (2, 0, 2), id="fast counts all"),
        pytest.param([MEDIUM] * 3 + [SLOW], (0, 3, 0), id="slow needs room on medium"),
        pytest.param([FAST] * 4 + [SLOW, MEDIUM], (4, 0, 0), id="all need room on fast"),
        pytest.param([FAST] * 3 + [SLOW] * 2, (3, 0, 1), id="the tightest binds"),
        pytest.param([SLOW] * 2 + [MEDIUM] * 2 + [FAST] * 2, (1, 1, 2), id="full from the top down"),
    ],
)
async def test_a_job_counts_on_its_rung_and_every_shorter_one(
    store: Store, wanted: list[str], counts: tuple[int, int, int]
) -> None:
    # R3.1, R3.13, R3.14, R3.15
    await enforce_ladder(store)
    await register(store, slots=20)
    await submit(store, *(job for rung in (FAST, MEDIUM, SLOW) for job in jobs_of(rung, 10)))
    await claim_each(store, *wanted)
    assert await running(store) == counts


async def test_one_claim_takes_no_more_than_fits(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=20)
    await submit(store, *(job for rung in (SLOW, MEDIUM, FAST) for job in jobs_of(rung, 10)))
    assert len(await claim(store, free=20)) == 4
    fast, medium, slow = await running(store)
    assert (slow <= 2, medium + slow <= 3, fast + medium + slow) == (True, True, 4)


async def test_the_limits_hold_over_all_workers(store: Store) -> None:
    # R3.79: decided in the step that claims, so no other claim can be faster.
    await enforce_ladder(store)
    await submit(store, *jobs_of(SLOW, 10))
    for worker_id in ("w1", "w2", "w3"):
        await register(store, worker_id)
    assert [len(await claim(store, worker_id, free=1)) for worker_id in ("w1", "w2", "w3")] == [1, 1, 0]


async def test_any_number_of_rungs_may_be_set(store: Store) -> None:
    # R3.1
    rungs = tuple(Rung(f"r{number}", number * 1_000, limit=6 - number) for number in range(1, 6))
    await enforce_ladder(store, rungs)
    await register(store, slots=20)
    await submit(store, *(job for rung in rungs for job in jobs_of(rung.name, 3)))
    await claim_each(store, "r5", "r5", "r4", "r4", "r3", "r3", "r2", "r2", "r1", "r1")
    assert await running(store) == (1, 1, 1, 1, 1)


@pytest.mark.parametrize("way", ["completed", "failed", "released", "reaped"])
async def test_a_place_is_free_once_its_job_has_ended(store: Store, clock: ManualClock, way: str) -> None:
    # R3.70, R3.71, R3.80, R3.65: what runs is counted from the leases, so nothing can be given back twice.
    await enforce_ladder(store)
    await register(store, "w1", slots=20)
    await submit(store, *jobs_of(SLOW, 4))
    first, _ = await claim(store, "w1", free=2)
    assert await claimed_ids(store, "w1") == []
    match way:
        case "completed":
            await end(store, first)
        case "failed":
            await end(store, first, Raised(BOOM))
        case "released":
            await end(store, first, Released())
        case _:
            clock.advance(ms=LEASE_MS)
            await register(store, "w2")
            assert len(await reap(store)) == 2
    count = 2 if way == "reaped" else 1
    assert len(await claim(store, "w2" if way == "reaped" else "w1")) == count
    assert await running(store) == (0, 0, 2)


async def test_a_job_without_a_duration_counts_nowhere_and_waits_for_no_rung(store: Store) -> None:
    # R3.3
    await enforce_ladder(store, (Rung(FAST, 3_000, limit=1),))
    await register(store, slots=20)
    await submit(store, *jobs_of(None, 5), *jobs_of(FAST, 2))
    leases = await claim(store, free=20)
    assert len(leases) == 6
    assert {(lease.assigned, lease.budget_ms) for lease in leases if lease.rung is None} == {(None, None)}


async def test_a_duration_that_the_ladder_does_not_have_binds_nobody(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=20)
    await submit(store, *jobs_of("glacial", 5))
    leases = await claim(store)
    assert {(lease.rung, lease.assigned, lease.budget_ms) for lease in leases} == {("glacial", None, None)}
    assert len(leases) == 5


async def test_without_a_ladder_durations_are_kept_and_bind_nobody(store: Store) -> None:
    await register(store, slots=20)
    await submit(store, *jobs_of(SLOW, 5))
    leases = await claim(store)
    assert {(lease.rung, lease.assigned, lease.budget_ms) for lease in leases} == {(SLOW, None, None)}
    assert (await store.snapshot()).running_jobs is None


# ---------------------------------------------------------------------- percentages


async def slow_places(store: Store, *worker_ids: str) -> int:
    """Return how many slow jobs run after all these workers have claimed as many as possible."""
    for worker_id in worker_ids:
        await claim(store, worker_id, free=10)
    return (await running(store))[2]


async def test_percentages_follow_the_workers_that_join(store: Store) -> None:
    # R3.14, R3.15, R3.72, R3.73: 30 % of 10 slots, rounded down; of 20; of 25.
    await enforce_ladder(store, PERCENT)
    await submit(store, *jobs_of(SLOW, 30))
    seen = []
    for number, slots in enumerate((10, 10, 5)):
        await register(store, f"w{number}", slots=slots)
        seen.append(await slow_places(store, *(f"w{known}" for known in range(number + 1))))
    assert seen == [3, 6, 7]


async def test_a_percentage_never_falls_to_nothing(store: Store) -> None:
    # R3.13, R3.73
    await enforce_ladder(store, PERCENT)
    await submit(store, *jobs_of(SLOW, 5))
    await register(store, slots=1)
    assert await slow_places(store, "w1") == 1


@pytest.mark.parametrize("way", ["drains", "dies", "is buried"])
async def test_percentages_follow_the_workers_that_leave(store: Store, clock: ManualClock, way: str) -> None:
    # R3.73, R3.78: what runs beyond the limit goes on, and nothing new starts until enough has ended.
    await enforce_ladder(store, PERCENT)
    await submit(store, *jobs_of(SLOW, 30))
    stays = await register(store, "stays", slots=10)
    await register(store, "leaves", slots=10)
    held = await claim(store, "stays", free=10)
    assert len(held) == 6
    match way:
        case "drains":
            assert await store.drain("leaves")
        case "is buried":
            await store.mark_dead("leaves")
        case _:
            clock.advance(ms=LEASE_MS - 1)
            await beat(store, stays, held=held)
            clock.advance(ms=1)
    assert await claimed_ids(store, "stays") == []
    assert await blocked(store, SLOW) == "ladder"
    for lease in held[:3]:
        await end(store, lease)
        assert await claimed_ids(store, "stays") == []
    await end(store, held[3])
    assert len(await claim(store, "stays", free=10)) == 1


async def test_the_floor_tells_what_runs_and_whom_room_could_be_taken_from(store: Store, clock: ManualClock) -> None:
    # R3.16
    await enforce_ladder(store)
    await register(store, "w1", slots=6)
    await register(store, "w2", slots=4)
    await submit(store, *jobs_of(SLOW, 1), *jobs_of(FAST, 1), *jobs_of(None, 1))
    await claim(store)
    clock.advance(seconds=1)
    elastic = await submit_one(store, a_job(rung=ELASTIC))
    await claim_one(store)
    assert (await store.snapshot()).running_jobs == RunningJobs(10, 6, (1, 0, 2), (ElasticJob(elastic, 2, clock()),))
    await store.drain("w2")
    running_jobs = (await store.snapshot()).running_jobs
    assert running_jobs is not None
    assert (running_jobs.slots, running_jobs.free) == (6, 2)


# ---------------------------------------------------------------------- elastic jobs


async def test_an_elastic_job_is_assigned_the_longest_rung_that_fits(store: Store) -> None:
    # R3.8, R3.9, R3.27
    await enforce_ladder(store)
    await register(store, slots=20)
    await submit(store, *jobs_of(ELASTIC, 6))
    leases = await claim(store, free=20)
    assert [lease.assigned for lease in leases] == [SLOW, SLOW, MEDIUM, FAST]
    assert [lease.budget_ms for lease in leases] == [30_000, 30_000, 10_000, 3_000]
    assert {lease.rung for lease in leases} == {ELASTIC}
    assert await running(store) == (1, 1, 2)


@pytest.mark.parametrize(
    "before, assigned",
    [
        pytest.param([], SLOW, id="no queue"),
        pytest.param([SLOW, SLOW], MEDIUM, id="slow is full"),
        pytest.param([SLOW, MEDIUM, MEDIUM], FAST, id="medium is full"),
        pytest.param([FAST, FAST, FAST], SLOW, id="only fast ones"),
    ],
)
async def test_what_runs_decides_what_an_elastic_job_gets(store: Store, before: list[str], assigned: str) -> None:
    # R3.9, R3.27, R3.7: at least the shortest.
    await enforce_ladder(store)
    await register(store, slots=20)
    await submit(store, *(job for rung in before for job in jobs_of(rung, 1)))
    assert len(await claim_each(store, *before)) == len(before)
    await submit(store, *jobs_of(ELASTIC, 1))
    assert (await claim_one(store)).assigned == assigned


async def test_a_lease_says_how_long_its_rung_lasts(store: Store) -> None:
    # R3.5
    await enforce_ladder(store)
    await register(store, slots=20)
    job_id, hasty = await submit(store, a_job(rung=MEDIUM, timeout_ms=60_000), a_job(rung=MEDIUM, timeout_ms=2_000))
    patient, short = await claim(store)
    assert (patient.budget_ms, patient.timeout_ms, patient.limit_ms) == (10_000, 60_000, 10_000)
    assert (short.job_id, short.limit_ms) == (hasty, 2_000)
    job = await the_job(store, job_id)
    assert (job.rung, job.assigned) == (MEDIUM, MEDIUM)
    assert {lease.budget_ms for lease in await store.leases(worker_id="w1")} == {10_000}
    await end(store, patient)
    job = await the_job(store, job_id)
    assert (job.state, job.rung, job.assigned) == (State.COMPLETED, MEDIUM, None)


async def test_a_repeated_claim_gives_the_same_rungs(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=20)
    await submit(store, *jobs_of(ELASTIC, 3))
    claim_id = a_claim_id()
    first = await ask(store, claim_id=claim_id)
    assert list((await ask(store, claim_id=claim_id)).leases) == list(first.leases)
    assert [lease.assigned for lease in first.leases] == [SLOW, SLOW, MEDIUM]


async def test_an_elastic_job_that_goes_back_is_assigned_anew(store: Store, clock: ManualClock) -> None:
    await enforce_ladder(store)
    await register(store, slots=20)
    elastic = await submit_one(store, a_job(rung=ELASTIC))
    lease = await claim_one(store)
    assert lease.assigned == SLOW
    await end(store, lease, Raised(BOOM))
    assert (await the_job(store, elastic)).assigned is None
    await submit(store, *jobs_of(SLOW, 2))
    await claim_each(store, SLOW, SLOW)
    clock.advance(seconds=60)
    [again] = await claim(store)
    assert (again.job_id, again.assigned) == (elastic, MEDIUM)


# ---------------------------------------------------------------------- who is held up


async def test_a_slow_job_that_does_not_fit_holds_up_no_faster_one(store: Store) -> None:
    # R3.92, R3.6, R3.20, R3.22
    await enforce_ladder(store)
    await register(store, slots=20)
    slow = await submit(store, *jobs_of(SLOW, 5))
    fast = await submit(store, *jobs_of(FAST, 2))
    first = await claim_each(store, SLOW, SLOW)
    assert await blocked(store, SLOW) == "ladder"
    assert await blocked(store, FAST) is None
    assert await claimed_ids(store) == fast
    # It starts as soon as there is a place, before others of its kind.
    await end(store, first[0])
    assert await blocked(store, SLOW) is None
    assert await claimed_ids(store) == slow[2:3]


async def test_how_often_a_job_was_passed_over_is_counted(store: Store) -> None:
    # R3.92
    await enforce_ladder(store)
    await register(store, slots=20)
    slow = await submit(store, *jobs_of(SLOW, 4))
    later = await submit(store, *jobs_of(FAST, 3))
    await submit(store, *(job._replace(lane="low") for job in jobs_of(FAST, 1)))
    await claim_each(store, SLOW, SLOW)
    third, fourth = [job for job in await store.get(slow[2:]) if job is not None]
    assert (await passed_over(store.find, third), await passed_over(store.find, fourth)) == (0, 0)
    leases = await claim(store)
    await end(store, leases[0])  # Running or done, it has started.
    passing = [lease for lease in leases if lease.job_id in later]
    assert len(passing) == 2
    assert (await passed_over(store.find, third), await passed_over(store.find, fourth)) == (2, 2)
    [runs] = await store.get(slow[:1])
    assert runs is not None
    assert await passed_over(store.find, runs) == 0  # It does not wait.


async def test_a_worker_that_waits_is_woken_when_a_place_is_free(store: Store) -> None:
    # R3.92, R3.74: as soon as, and not at its next look.
    await enforce_ladder(store)
    await register(store, "w1")
    await register(store, "w2")
    await submit(store, *jobs_of(SLOW, 3))
    first, _ = await claim(store, "w1")
    assert not (await ask(store, "w2", wait=True)).leases
    subscription = store.subscribe("w2")
    try:
        await end(store, first)
        assert await subscription.wait(1) is not None
    finally:
        subscription.close()


async def test_a_class_is_blocked_as_long_as_one_of_its_limits_is_reached(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=20)
    await submit(store, *(job for rung in (FAST, MEDIUM, SLOW, ELASTIC, None) for job in jobs_of(rung, 9)))
    seen = []
    for rung in (SLOW, SLOW, MEDIUM, FAST):
        await claim_each(store, rung)
        seen.append({name for name in (FAST, MEDIUM, SLOW, ELASTIC, None) if await blocked(store, name)})
    assert seen == [set(), {SLOW}, {MEDIUM, SLOW}, {FAST, MEDIUM, SLOW, ELASTIC}]


async def test_a_limit_that_holds_a_job_back_takes_no_place_on_the_ladder(store: Store) -> None:
    await enforce_ladder(store, account=LimitRule(concurrency=1, by="account"))
    await register(store, slots=20)
    bound = [a_job(rung=SLOW, limits=("account=7",)) for _ in range(3)]
    first, *_ = await submit(store, *bound)
    [free] = await submit(store, *jobs_of(SLOW, 1))
    assert await claimed_ids(store) == [first, free]
    assert await running(store) == (0, 0, 2)


async def test_a_ladder_that_is_put_in_force_binds_what_starts_from_then_on(store: Store) -> None:
    await register(store, slots=20)
    await submit(store, *jobs_of(SLOW, 10))
    early = await claim(store, free=3)
    await enforce_ladder(store)
    assert await running(store) == (0, 0, 0)  # They were assigned nothing, and have no budget.
    late = await claim(store, free=10)
    assert [lease.assigned for lease in late] == [SLOW, SLOW]
    await enforce_ladder(store, ())
    assert len(await claim(store, free=10)) == 5
    for lease in (*early, *late):
        await end(store, lease)


async def test_raising_a_limit_makes_room_at_once(store: Store) -> None:
    await enforce_ladder(store)
    await register(store, slots=20)
    await submit(store, *jobs_of(SLOW, 5))
    assert len(await claim(store)) == 2
    await enforce_ladder(store, (Rung(FAST, 3_000), Rung(MEDIUM, 10_000), Rung(SLOW, 30_000, limit=3)))
    assert len(await claim(store)) == 1
