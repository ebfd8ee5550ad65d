"""A job's position among all others, and its past reasons to wait once it has started."""

from __future__ import annotations

import pytest

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, LimitView, RunningJob
from headway.core.job import ClassKey, JobId, State
from headway.core.policy.document import BUILT_IN, Keep, LimitRule, Policy
from headway.core.policy.enforced import PAUSE, PauseSet, pausing
from headway.core.policy.lanes import ShareClocks, plan
from headway.core.policy.retry import Raised, Released
from headway.core.policy.wait_reasons import GAP_MS
from headway.core.snapshot import Plan, Take
from headway.core.worker import WorkerState
from headway.policy_store.rule_documents import change_costs, change_paused, write_rules
from headway.stores.base import WAIT_SAMPLE_INTERVAL_MS, Exchange, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    LEASE_MS,
    a_claim_id,
    a_job,
    an_id,
    beat,
    claim,
    claim_one,
    claimed_ids,
    end,
    register,
    submit,
    submit_one,
)

MEDIUM = ClassKey("medium")
LOW = ClassKey("low")
HOURS_MS = 3_600_000


async def diagnosis(store: Store, job_id: JobId) -> JobDiagnostics:
    found = await store.diagnose_job(job_id)
    assert found is not None
    return found


async def ahead(store: Store, job_id: JobId) -> tuple[int, int]:
    found = await diagnosis(store, job_id)
    return found.ahead, found.ahead_own


# ---------------------------------------------------------------------- the survey


async def test_a_survey_pictures_what_waits_what_runs_and_who_could_run_it(store: Store, clock: ManualClock) -> None:
    await write_rules(store, Policy(limits={"account": LimitRule(concurrency=5, by="account")}))
    await register(store, "w2", slots=3, offers=("gpu",))
    await register(store, "w1", slots=4)
    await submit(store, a_job(task="mail.send", lane="high", limits=("account=7",)), a_job(lane="low"), a_job())
    clock.advance(seconds=2)
    await claim(store, "w2", free=1)
    await claim(store, "w1", free=1)
    seen = await store.diagnose()
    assert seen.now_at == clock()
    assert seen.snapshot == await store.snapshot()
    assert [(worker.worker_id, worker.slots, worker.running) for worker in seen.workers] == [("w1", 4, 1), ("w2", 3, 1)]
    assert seen.executing == (
        RunningJob("mail.send", "high", "w2", clock(), ("account=7",)),
        RunningJob("reports.export", "medium", "w1", clock(), ()),
    )
    assert seen.rules.limits == {"account": LimitRule(concurrency=5, by="account")}


async def test_a_survey_tells_which_workers_are_gone(store: Store, clock: ManualClock) -> None:
    await register(store, "drains")
    await register(store, "silent", lease_ms=1_000)
    await register(store, "buried")
    await register(store, "works")
    await store.drain("drains")
    await store.mark_dead("buried")
    clock.advance(seconds=1)
    states = {worker.worker_id: worker.state for worker in (await store.diagnose()).workers}
    assert states == {
        "drains": WorkerState.DRAINING,
        "silent": WorkerState.DEAD,
        "buried": WorkerState.DEAD,
        "works": WorkerState.ACTIVE,
    }


async def test_a_survey_has_all_rules_joined(store: Store) -> None:
    await write_rules(store, Policy(limits={"all": LimitRule(concurrency=3)}))
    await change_paused(store, pausing("low", None, None))
    await change_costs(store, lambda _: {"mail.send": 2_000_000})
    rules = (await store.diagnose()).rules
    assert (rules.limits, rules.paused) == ({"all": LimitRule(concurrency=3)}, PauseSet(lanes=("low",)))
    assert rules.costs_us == {"mail.send": 2_000_000}


async def test_a_store_in_which_nothing_happened_has_an_empty_survey(store: Store, clock: ManualClock) -> None:
    seen = await store.diagnose()
    assert (seen.now_at, seen.workers, seen.executing, seen.snapshot.classes) == (clock(), (), (), ())


# ---------------------------------------------------------------------- one job


async def test_a_job_that_does_not_exist_stands_nowhere(store: Store) -> None:
    await submit_one(store)
    assert await store.diagnose_job(an_id()) is None


async def test_a_job_stands_behind_those_of_its_class_that_go_first(store: Store) -> None:
    first, second, third = await submit(store, a_job(), a_job(), a_job())
    await submit(store, a_job(lane="high"), a_job(needs=("gpu",)), a_job(rung="slow"))
    assert [await ahead(store, job_id) for job_id in (first, second, third)] == [(0, 0), (1, 0), (2, 0)]
    await store.cancel([first])
    assert await ahead(store, third) == (1, 0)
    assert not (await diagnosis(store, third)).fair


async def test_among_tenants_those_of_its_own_are_told_apart(store: Store) -> None:
    acme = await submit(store, *(a_job(tenant="acme") for _ in range(4)))
    [zeta] = await submit(store, a_job(tenant="zeta"))
    none = await submit(store, a_job(), a_job())
    assert [await ahead(store, job_id) for job_id in acme] == [(0, 0), (3, 1), (5, 2), (6, 3)]
    assert await ahead(store, zeta) == (1, 0)
    assert [await ahead(store, job_id) for job_id in none] == [(2, 0), (4, 1)]
    assert (await diagnosis(store, zeta)).fair


async def test_what_runs_is_not_ahead(store: Store) -> None:
    _, second = await submit(store, a_job(), a_job())
    await register(store)
    await claim_one(store)
    assert await ahead(store, second) == (0, 0)


async def test_those_ahead_are_counted_to_a_bound(store: Store) -> None:
    for _ in range(AHEAD_COUNTED // 1_000):
        await submit(store, *(a_job(tenant="acme") for _ in range(1_000)))
    *_, last = await submit(store, *(a_job(tenant="acme") for _ in range(6)))
    assert await ahead(store, last) == (AHEAD_COUNTED, AHEAD_COUNTED)


async def test_a_blocked_job_stands_behind_older_ones_of_its_limit(store: Store) -> None:
    await write_rules(store, Policy(limits={"account": LimitRule(concurrency=1, by="account")}))
    await register(store, slots=10)
    seven = ("account=7",)
    first, second, third = await submit(store, *(a_job(limits=seven) for _ in range(3)))
    await submit(store, *(a_job(limits=("account=8",)) for _ in range(3)))
    assert len(await claim(store)) == 2
    others = await submit(store, *(a_job() for _ in range(4)))
    assert [await ahead(store, job_id) for job_id in (second, third)] == [(0, 0), (1, 0)]
    assert await ahead(store, others[-1]) == (3, 0)
    assert (await diagnosis(store, first)).job.state is State.EXECUTING


async def test_a_delayed_job_stands_in_no_line(store: Store) -> None:
    await submit(store, a_job(), a_job())
    delayed = await submit_one(store, a_job(delay_ms=1_000))
    found = await diagnosis(store, delayed)
    assert (found.ahead, found.limits, found.waited_ms) == (0, (), {})
    assert found.job.due_at is not None


async def test_the_limits_of_a_job_are_told_with_what_is_in_use(store: Store, clock: ManualClock) -> None:
    account = LimitRule(concurrency=2, by="account")
    each = LimitRule(concurrency=3, by="tenant")
    calls = LimitRule(count=6, period_ms=60_000)
    mail = LimitRule(concurrency=1, tasks=("mail.*",))
    await write_rules(store, Policy(limits={"account": account, "each": each, "calls": calls, "mail": mail}))
    await register(store)
    bound = [a_job(tenant="acme", limits=("account=7",)) for _ in range(2)]
    _, second = await submit(store, *bound)
    began_at = clock()
    await claim_one(store)
    clock.advance(seconds=4)
    views = (await diagnosis(store, second)).limits
    assert views == (
        LimitView("account=7", account, 1, None),
        LimitView("each=acme", each, 1, None),
        LimitView("calls", calls, 0, began_at + 10_000),
    )
    clock.advance(seconds=16)
    [conforms_at] = [view.conforms_at for view in (await diagnosis(store, second)).limits if view.key == "calls"]
    assert conforms_at is not None
    assert conforms_at <= clock()


async def test_what_a_pause_holds_back_is_told_as_a_limit_of_nothing(store: Store) -> None:
    await change_paused(store, pausing(None, "reports.export", None))
    job_id = await submit_one(store)
    [view] = (await diagnosis(store, job_id)).limits
    assert (view.key, view.rule.concurrency, view.used) == (f"{PAUSE}task:reports.export", 0, 0)


# ---------------------------------------------------------------------- what it had waited for


async def sample_waits(store: Store, clock: ManualClock, reason: str, *, seconds: int, key: ClassKey = MEDIUM) -> None:
    """Advance the clock while a class waits for one reason. Record a sample each second, the last at the end."""
    for _ in range(seconds):
        clock.advance(seconds=1)
        await store.record_wait_reasons({key: reason})


async def started(store: Store, job_id: JobId) -> dict[str, int]:
    """Start a job. Return how long it waited for each reason."""
    await register(store)
    assert (await claim_one(store)).job_id == job_id
    return dict((await diagnosis(store, job_id)).waited_ms)


async def test_a_job_that_has_started_tells_what_it_had_waited_for(store: Store, clock: ManualClock) -> None:
    await store.record_wait_reasons({MEDIUM: "slots_full"})
    job_id = await submit_one(store)
    assert (await diagnosis(store, job_id)).waited_ms == {}
    await sample_waits(store, clock, "slots_full", seconds=5)
    assert (await diagnosis(store, job_id)).waited_ms == {}  # It still waits: that is what ``why`` is for.
    clock.advance(ms=400)
    assert await started(store, job_id) == {"slots_full": 5_400}


async def test_each_reason_has_its_part_and_they_add_up(store: Store, clock: ManualClock) -> None:
    await store.record_wait_reasons({MEDIUM: "lane"})
    job_id = await submit_one(store)
    await sample_waits(store, clock, "lane", seconds=4)
    await sample_waits(store, clock, "slots_full", seconds=3)
    await sample_waits(store, clock, "lane", seconds=2)
    waited = await started(store, job_id)
    assert waited == {"lane": 6_000, "slots_full": 3_000}


async def test_what_was_seen_before_the_job_came_is_not_its_own(store: Store, clock: ManualClock) -> None:
    await sample_waits(store, clock, "reserved", seconds=60)
    job_id = await submit_one(store)
    await sample_waits(store, clock, "slots_full", seconds=2)
    assert await started(store, job_id) == {"slots_full": 2_000}


async def test_what_was_seen_last_holds_for_a_moment(store: Store, clock: ManualClock) -> None:
    await store.record_wait_reasons({MEDIUM: "slots_full"})
    job_id = await submit_one(store)
    clock.advance(ms=GAP_MS - 1)
    assert await started(store, job_id) == {"slots_full": GAP_MS - 1}


async def test_a_gap_between_samples_is_time_without_a_worker(store: Store, clock: ManualClock) -> None:
    # Workers take the samples: where there are none, no worker was there to run the job either.
    job_id = await submit_one(store)
    await sample_waits(store, clock, "slots_full", seconds=2)
    clock.advance(seconds=60)
    await store.record_wait_reasons({MEDIUM: "lane"})
    await sample_waits(store, clock, "lane", seconds=2)
    assert await started(store, job_id) == {"slots_full": 2_000, "no_worker": 60_000, "lane": 2_000}


async def test_a_job_that_nobody_ever_saw_had_no_worker(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store)
    clock.advance(seconds=600)
    assert await started(store, job_id) == {"no_worker": 600_000}


@pytest.mark.parametrize("waited, told", [(900, {}), (2_500, {"unsampled": 2_500})], ids=["too short", "told"])
async def test_a_wait_between_two_samples_is_told_only_if_it_is_worth_a_word(
    store: Store, clock: ManualClock, waited: int, told: dict[str, int]
) -> None:
    job_id = await submit_one(store)
    clock.advance(ms=waited)
    assert await started(store, job_id) == told


async def test_samples_of_other_classes_say_nothing(store: Store, clock: ManualClock) -> None:
    job_id = await submit_one(store)
    await sample_waits(store, clock, "lane", seconds=10, key=LOW)
    assert await started(store, job_id) == {"no_worker": 10_000}


async def test_one_of_those_who_sample_at_once_is_heard(store: Store, clock: ManualClock) -> None:
    # R5.67: no leader; each worker offers a sample, and the first of a moment counts.
    await store.record_wait_reasons({MEDIUM: "slots_full"})
    job_id = await submit_one(store)
    for _ in range(5):
        clock.advance(ms=WAIT_SAMPLE_INTERVAL_MS)
        await store.record_wait_reasons({MEDIUM: "slots_full"})
        clock.advance(ms=WAIT_SAMPLE_INTERVAL_MS // 2)
        await store.record_wait_reasons({MEDIUM: "lane"})
        clock.advance(ms=WAIT_SAMPLE_INTERVAL_MS - WAIT_SAMPLE_INTERVAL_MS // 2)
    waited = await started(store, job_id)
    assert waited == {"slots_full": 2 * 5 * WAIT_SAMPLE_INTERVAL_MS}


async def test_time_in_a_park_is_told_apart_and_not_counted_twice(store: Store, clock: ManualClock) -> None:
    await write_rules(store, Policy(limits={"account": LimitRule(concurrency=1, by="account")}))
    await register(store)
    await submit(store, a_job(limits=("account=7",)))
    lease = await claim_one(store)
    await store.record_wait_reasons({MEDIUM: "slots_full"})
    job_id = await submit_one(store, a_job(limits=("account=7",)))
    await sample_waits(store, clock, "slots_full", seconds=3)
    assert await claimed_ids(store) == []  # Now it is put aside.
    await sample_waits(store, clock, "lane", seconds=20)
    await end(store, lease)
    assert await started(store, job_id) == {"slots_full": 3_000, "limit": 20_000}


async def test_what_it_had_waited_for_is_told_after_the_end_too(store: Store, clock: ManualClock) -> None:
    await store.record_wait_reasons({MEDIUM: "slots_full"})
    job_id = await submit_one(store)
    await sample_waits(store, clock, "slots_full", seconds=3)
    await register(store)
    lease = await claim_one(store)
    clock.advance(seconds=30)
    await end(store, lease)
    await store.prune(Keep())
    assert (await diagnosis(store, job_id)).waited_ms == {"slots_full": 3_000}


async def test_a_retried_job_tells_of_its_last_wait_alone(store: Store, clock: ManualClock) -> None:
    # R5.68
    await store.record_wait_reasons({MEDIUM: "slots_full"})
    job_id = await submit_one(store)
    await sample_waits(store, clock, "slots_full", seconds=3)
    await register(store)
    await end(store, await claim_one(store), Raised(BOOM))
    assert (await diagnosis(store, job_id)).waited_ms == {}
    clock.advance(seconds=60)
    await beat(store)
    await store.exchange(Exchange(None))
    await store.record_wait_reasons({MEDIUM: "lane"})
    await sample_waits(store, clock, "lane", seconds=2)
    assert await started(store, job_id) == {"lane": 2_000}


async def test_a_job_that_was_handed_back_tells_of_its_whole_wait(store: Store, clock: ManualClock) -> None:
    await store.record_wait_reasons({MEDIUM: "slots_full"})
    job_id = await submit_one(store)
    await sample_waits(store, clock, "slots_full", seconds=3)
    await register(store)
    await end(store, await claim_one(store), Released())
    await sample_waits(store, clock, "slots_full", seconds=2)
    assert await started(store, job_id) == {"slots_full": 5_000}


async def test_samples_are_kept_for_a_day(store: Store, clock: ManualClock) -> None:
    keep = Keep(completed_ms=99 * 24 * HOURS_MS)
    await store.record_wait_reasons({MEDIUM: "slots_full"})
    job_id = await submit_one(store)
    await sample_waits(store, clock, "slots_full", seconds=3)
    await register(store)
    await end(store, await claim_one(store))
    clock.advance(ms=23 * HOURS_MS)
    await store.prune(keep)
    assert (await diagnosis(store, job_id)).waited_ms == {"slots_full": 3_000}
    clock.advance(ms=HOURS_MS)
    await store.prune(keep)
    assert (await diagnosis(store, job_id)).waited_ms == {"unsampled": 3_000}


# ---------------------------------------------------------------------- promotions


async def claim_shared(store: Store, clocks: ShareClocks, *, free: int, free_below: int | None = None) -> list[str]:
    """Claim as a worker with its own share clocks. Return the lanes in order."""
    below = free if free_below is None else free_below
    picture = await store.snapshot()
    chosen = plan(picture, free=free, free_below=below, offers=frozenset(), policy=BUILT_IN, clocks=clocks)
    answer = await store.exchange(Exchange("w1", a_claim_id(), plan=chosen))
    for lease in answer.leases:
        clocks.charge(BUILT_IN, lease.class_key, 1.0)
    return [lease.lane for lease in answer.leases]


async def promoted(store: Store) -> dict[str, int]:
    totals = (await store.stats()).totals
    return {what: count for what, count in totals.items() if what.startswith("promoted.")}


async def test_a_promotion_is_counted_when_it_decides_a_claim(store: Store, clock: ManualClock) -> None:
    # R5.5, R5.6, R5.7, R5.63: low is medium after 600 s and high after 1200 s, and joins what is served there.
    await submit(store, *(a_job(lane="low") for _ in range(3)))
    clock.advance(seconds=1_200)
    await submit(store, *(a_job(lane="high") for _ in range(20)))
    await register(store, slots=50)
    lanes = await claim_shared(store, ShareClocks(), free=14)
    assert lanes.count("low") == 2  # R5.65: its share of 1 in 7, and not all of it.
    assert await promoted(store) == {"promoted.low.high": 2}


@pytest.mark.parametrize(
    "waited, native, counted",
    [
        pytest.param(599, "medium", {}, id="not overdue"),
        pytest.param(600, "medium", {"promoted.low.medium": 1}, id="a level up"),
        pytest.param(1_199, "high", {}, id="not yet two"),
        pytest.param(1_200, "high", {"promoted.low.high": 1}, id="two levels up"),
    ],
)
async def test_each_threshold_lifts_a_lane_by_a_level(
    store: Store, clock: ManualClock, waited: int, native: str, counted: dict[str, int]
) -> None:
    # R5.6, R5.7, R5.63, R5.64
    await submit(store, a_job(lane="low"))
    clock.advance(seconds=waited)
    await submit(store, *(a_job(lane=native) for _ in range(20)))
    await register(store, slots=50)
    assert len(await claim_shared(store, ShareClocks(), free=8)) == 8
    assert await promoted(store) == counted


async def test_what_would_have_come_anyway_is_no_promotion(store: Store, clock: ManualClock) -> None:
    await submit(store, *(a_job(lane="low") for _ in range(3)))
    clock.advance(seconds=1_200)
    await register(store)
    assert await claim_shared(store, ShareClocks(), free=2) == ["low", "low"]
    assert await promoted(store) == {}


async def test_a_promotion_that_brings_nothing_is_not_counted(store: Store, clock: ManualClock) -> None:
    await submit(store, a_job(lane="low"))
    clock.advance(seconds=1_200)
    await submit(store, *(a_job(lane="high") for _ in range(20)))
    await register(store, slots=50)
    take = Take(LOW, 1, below_reserve=True, over="high")
    # Only reserved slots are free; then another worker was faster.
    await store.exchange(Exchange("w1", a_claim_id(), plan=Plan((take,), 1, 0)))
    assert await promoted(store) == {}
    await store.exchange(Exchange("w1", a_claim_id(), plan=Plan((take,), 1, 1)))
    assert await promoted(store) == {"promoted.low.high": 1}
    await store.exchange(Exchange("w1", a_claim_id(), plan=Plan((take,), 1, 1)))
    assert await promoted(store) == {"promoted.low.high": 1}


async def test_a_repeated_claim_counts_its_promotions_once(store: Store, clock: ManualClock) -> None:
    # R5.61
    await submit(store, a_job(lane="low"))
    clock.advance(seconds=1_200)
    await register(store)
    request = Exchange("w1", a_claim_id(), plan=Plan((Take(LOW, 1, below_reserve=True, over="high"),), 1, 1))
    for _ in range(2):
        assert len((await store.exchange(request)).leases) == 1
    assert await promoted(store) == {"promoted.low.high": 1}


async def test_a_retried_job_keeps_its_lane_and_not_its_promotion(store: Store, clock: ManualClock) -> None:
    # R5.68
    await submit(store, a_job(lane="low"))
    clock.advance(seconds=1_200)
    await register(store, slots=50, lease_ms=10 * LEASE_MS)
    lease = await claim_one(store)
    await end(store, lease, Raised(BOOM))
    clock.advance(seconds=60)
    await submit(store, *(a_job(lane="high") for _ in range(10)))
    await store.exchange(Exchange(None))
    assert set(await claim_shared(store, ShareClocks(), free=10)) == {"high"}
    assert await promoted(store) == {}
