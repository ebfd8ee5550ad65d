"""The replay: the real policy on a virtual clock, with all that holds jobs back."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.policy.document import BUILT_IN
from headway.core.policy.enforced import PauseSet
from headway.simulate.capacity import Capacity, SlotStep, TimedPause, WorkerPlan, same_workers, stepped_workers
from headway.simulate.groups import quantile
from headway.simulate.job import SimulatedJob
from headway.simulate.outcome import NEVER
from headway.simulate.replay import replay
from tests.simulate.jobs import job, played, policy, waits

FLAT = policy(lanes={"one": {"level": 0}}, reserve={"slots": 0})


def test_jobs_of_one_lane_start_in_the_order_of_arrival() -> None:
    assert waits(played(job(0, 10), job(1, 10), job(2, 10), under=FLAT)) == [0, 9, 18]


def test_the_best_lane_goes_first() -> None:
    outcome = played(job(0, 10), job(1, 10, lane="low"), job(2, 10, lane="high"))
    assert waits(outcome) == [0, 19, 8]


def test_an_overdue_lane_gets_its_share() -> None:
    flood = [job(number / 10, 1, lane="high") for number in range(20_000)]
    old = played(*flood, job(2_000, 1, lane="low"), under=policy(lanes=LANES))
    new = played(*flood, job(2_000, 1, lane="low"), under=policy(lanes=LANES | {"low": LOW | {"promote_after": [60]}}))
    assert waits(old)[-1] > 10_000
    assert 60 <= waits(new)[-1] < 70


LOW = {"level": 1, "weight": 1}
LANES = {"high": {"level": 0, "weight": 1}, "low": LOW}


def test_the_reserve_stays_free_for_its_lanes() -> None:
    outcome = played(job(0, 10), job(0, 10), job(1, 10, lane="high"), slots=2)
    assert waits(outcome) == [0, 10, 0]
    assert outcome.reserve_idle_ms == 1_000


def test_tenants_share_a_lane() -> None:
    flood = [job(0, 1, tenant="big") for _ in range(50)]
    outcome = played(*flood, job(0.5, 1, tenant="small"), under=FLAT)
    assert waits(outcome)[-1] < 3


def test_a_failed_attempt_is_repeated_after_its_backoff() -> None:
    outcome = played(job(0, 3, failed_ms=(2_000,)), job(0.5, 1, lane="low"), under=BUILT_IN)
    assert outcome.totals["retried"] == 1
    assert outcome.totals["completed"] == 2
    assert outcome.busy[0] == 5_000
    assert waits(outcome)[1] == 1.5  # It runs while the other job waits for its second attempt.


def test_the_policy_bounds_the_attempts() -> None:
    bounded = policy(tasks={"task": {"max_retries": 1}})
    outcome = played(job(0, 1, failed_ms=(1_000, 1_000, 1_000)), under=bounded)
    assert (outcome.totals["dead_letter"], outcome.busy[0]) == (1, 2_000)


def test_a_timeout_of_the_policy_stops_a_job() -> None:
    outcome = played(job(0, 100), under=policy(tasks={"task": {"timeout": 10, "max_retries": 0}}))
    assert (outcome.totals["timeouts"], outcome.totals["dead_letter"], outcome.busy[0]) == (1, 1, 10_000)


def test_a_delayed_job_waits_from_its_due_moment_on() -> None:
    outcome = played(job(0, 1, delay_ms=60_000), job(50, 20))
    assert waits(outcome) == [10, 0]
    assert waits(played(job(0, 1, delay_ms=60_000))) == [0]


def test_an_expired_job_never_starts() -> None:
    outcome = played(job(0, 10), job(1, 10, expires_ms=5_000), job(2, 1))
    assert (outcome.waits[1], outcome.totals["expired"], outcome.totals["never_started"]) == (NEVER, 1, 0)
    assert waits(outcome)[2] == 8


def test_a_limit_by_argument_lets_other_jobs_pass() -> None:
    limited = policy(limits={"api": {"concurrency": 1, "by": "account"}}, reserve={"slots": 0})
    same = [job(0, 10, limits=("api=7",)) for _ in range(2)]
    outcome = played(*same, job(0, 10, limits=("api=8",)), slots=2, under=limited)
    assert waits(outcome) == [0, 10, 0]


def test_a_rate_spaces_starts() -> None:
    limited = policy(limits={"slow": {"rate": "6/min"}}, reserve={"slots": 0})
    assert waits(played(*(job(0, 1) for _ in range(3)), slots=5, under=limited)) == [0, 10, 20]


def test_the_ladder_limits_long_jobs_and_lowers_elastic_ones() -> None:
    rungs = [{"name": "fast", "seconds": 3}, {"name": "slow", "seconds": 30, "limit": 1}]
    ladder = policy(ladder={"rungs": rungs}, reserve={"slots": 0})
    outcome = played(job(0, 20, duration="slow"), job(0, 20, duration="slow"), slots=2, under=ladder)
    assert waits(outcome) == [0, 20]
    outcome = played(job(0, 20, duration="default"), job(5, 10, duration="slow"), slots=2, under=ladder)
    assert outcome.totals["lowered"] == 1
    assert waits(outcome)[1] < 1


def test_a_pause_holds_a_lane_until_it_ends() -> None:
    pause = TimedPause(PauseSet(lanes=("low",)), 0, 30_000)
    capacity = Capacity(same_workers(1, 1).workers, (pause,))
    assert waits(played(job(1, 1, lane="low"), job(2, 1), capacity=capacity)) == [29, 0]
    forever = Capacity(same_workers(1, 1).workers, (TimedPause(PauseSet(tenants=("acme",))),))
    outcome = played(job(1, 1, tenant="acme"), capacity=forever)
    assert (outcome.waits[0], outcome.totals["never_started"]) == (NEVER, 1)


def test_capacity_changes_over_time() -> None:
    capacity = stepped_workers([SlotStep(0, 1), SlotStep(15_000, 3)], 1)
    outcome = played(*(job(0, 10) for _ in range(5)), under=FLAT, capacity=capacity)
    assert waits(outcome) == [0, 10, 15, 15, 20]
    assert outcome.slot_ms == 15_000 + 3 * (outcome.span_ms - 15_000)


def test_a_worker_that_leaves_finishes_its_job_and_takes_no_other() -> None:
    early = WorkerPlan("early", (SlotStep(0, 1),), until_ms=5_000)
    late = WorkerPlan("late", (SlotStep(30_000, 1),))
    assert waits(played(job(0, 10), job(1, 10), under=FLAT, capacity=Capacity((early, late)))) == [0, 29]


def test_only_a_worker_with_the_capability_runs_a_job() -> None:
    plain = WorkerPlan("plain", (SlotStep(0, 1),))
    gpu = WorkerPlan("gpu", (SlotStep(20_000, 1),), ("gpu", "task:*"))
    outcome = played(job(0, 1, needs=("gpu",)), job(0, 1), under=FLAT, capacity=Capacity((plain, gpu)))
    assert waits(outcome) == [20, 0]


def test_a_job_waits_for_the_jobs_and_batches_before_it() -> None:
    first = job(0, 10, name="a", batch="rows")
    outcome = played(first, job(0, 5, batch="rows"), job(0, 1, after=("a",)), job(0, 1, after=("rows",)), slots=5)
    assert waits(outcome) == [0, 0, 0, 0]  # From the moment at which they are released.
    assert outcome.span_ms == 11_000
    failed = job(0, 10, name="a", outcome="failed")
    outcome = played(failed, job(0, 1, after=("a",)), job(0, 1, after=("a",), on_failure="run"), slots=5)
    assert (outcome.waits[1], outcome.waits[2]) == (NEVER, 0)


def test_a_job_of_a_tenant_waits_for_a_batch_of_its_tenant() -> None:
    row = job(0, 10, tenant="acme", batch="rows")
    outcome = played(row, row, job(0, 1, tenant="acme", after=("rows",)), slots=5)
    assert (waits(outcome), outcome.span_ms) == ([0, 0, 0], 11_000)


def test_a_policy_may_move_a_task_to_another_lane() -> None:
    moved = policy(tasks={"bulk": {"priority": "low"}})
    outcome = played(job(0, 10), job(1, 10, task="bulk", lane="high"), job(2, 10, lane="medium"), under=moved)
    assert outcome.lanes == ["medium", "low", "medium"]
    assert waits(outcome) == [0, 19, 8]


def test_busy_slots_over_time_add_up() -> None:
    outcome = played(*(job(number, 7) for number in range(100)), slots=3)
    assert sum(map(sum, outcome.busy_over_time.values())) == outcome.busy_ms == 700_000
    assert outcome.busy_ms <= outcome.slot_ms


def test_a_promise_that_holds_is_not_reported_and_others_are() -> None:
    jobs = [job(number / 4, 1, lane=("high", "medium", "low")[number % 3]) for number in range(2_000)]
    assert [promise.jobs for promise in played(*jobs, slots=2).promises] == [0, 0, 0]


JOBS = st.lists(
    st.tuples(
        st.integers(0, 60_000),
        st.integers(1, 20_000),
        st.sampled_from(["high", "medium", "low"]),
        st.sampled_from([None, "a", "b"]),
        st.sampled_from([(), (500,)]),
    ),
    min_size=1,
    max_size=40,
).map(
    lambda rows: [
        SimulatedJob(arrives_ms, run_ms, lane=lane, tenant=tenant, failed_ms=failed_ms)
        for arrives_ms, run_ms, lane, tenant, failed_ms in sorted(rows, key=lambda row: row[0])
    ]
)


@settings(max_examples=40, deadline=None)
@given(JOBS, st.integers(0, 5), st.integers(1, 3))
def test_the_same_seed_gives_the_same_outcome_and_every_job_starts(
    jobs: list[SimulatedJob], seed: int, workers: int
) -> None:
    capacity = same_workers(2, workers)
    first, again = (replay(jobs, BUILT_IN, capacity, seed=seed) for _ in range(2))
    assert first == again
    assert NEVER not in first.waits
    assert first.busy_ms == sum(one.run_ms + sum(one.failed_ms) for one in jobs)


@settings(max_examples=40, deadline=None)
@given(JOBS, st.integers(1, 4))
def test_more_slots_never_make_p50_worse_in_one_lane(jobs: list[SimulatedJob], slots: int) -> None:
    plain = [one._replace(lane=None, tenant=None, failed_ms=()) for one in jobs]
    fewer, more = (sorted(played(*plain, slots=count, under=FLAT).waits) for count in (slots, slots + 1))
    assert all(quantile(more, part) <= quantile(fewer, part) for part in (0.5, 0.9, 1.0))


def test_a_replay_reports_its_progress() -> None:
    seen: list[int] = []
    replay([job(number, 0.1) for number in range(5_000)], FLAT, same_workers(1, 1), progress=seen.append)
    assert seen == [2_000, 4_000]


@pytest.mark.parametrize("workers", [1, 3])
def test_all_slots_are_used(workers: int) -> None:
    outcome = played(*(job(0, 10) for _ in range(6)), under=FLAT, capacity=same_workers(6 // workers, workers))
    assert waits(outcome) == [0] * 6
