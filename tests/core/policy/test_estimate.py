"""When a job will start: the forward run on scenes of which the answer is known, and what cannot be answered."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.diagnostics import AHEAD_COUNTED, LimitView
from headway.core.distributions import Arrivals, Model, ModelData, bucket, merge
from headway.core.job import ClassKey, State
from headway.core.policy.document import BUILT_IN, Ladder, Lane, LimitRule, Policy, Reserve, Rung
from headway.core.policy.enforced import PauseSet
from headway.core.policy.estimate import (
    Estimate,
    EstimateRequest,
    Forecast,
    estimate,
    estimate_request,
    materially_differs,
)
from headway.core.policy.ladder import RunningJobs
from headway.core.snapshot import Snapshot
from tests.core.policy.test_why import EXPORT, NOW_AT, Scene, a_run, a_view, a_worker

SECONDS = 4.0
STEADY = {bucket(SECONDS): 100.0}  # Jobs that take four seconds, or a little more.
LANES = ("high", "medium", "low")


def known(arrivals: Mapping[str, Mapping[str, Arrivals]] | None = None, *, lanes: tuple[str, ...] = LANES) -> Model:
    return Model(ModelData({lane: {EXPORT: STEADY} for lane in lanes}, arrivals or {}))


def busy(slots: int, **changes: object) -> Scene:
    """All slots are filled, with jobs that have just begun."""
    scene = Scene(
        workers=(a_worker(slots=slots, running=slots),),
        executing=tuple(a_run(lane="low") for _ in range(slots)),
        policy=UNRESERVED,
    )
    return replace(scene, **changes)  # type: ignore[arg-type]


UNRESERVED = replace(BUILT_IN, reserve=Reserve(slots=0))


def ask(scene: Scene, what: Model | None = None) -> Estimate:
    found = estimate(scene.diagnose_job(), scene.policy, what or known())
    assert found is not None
    return found


def p50(scene: Scene, what: Model | None = None) -> float:
    found = ask(scene, what).p50
    assert found is not None
    return found


# ---------------------------------------------------------------------- scenes with a known answer


def test_a_job_that_finds_a_free_slot_starts_now() -> None:
    scene = Scene(workers=(a_worker(),), classes=(a_view("medium"),), policy=UNRESERVED)
    assert ask(scene) == Estimate(0.0, 0.0, 0, "learned")


@pytest.mark.parametrize("ahead, slots", [(0, 1), (5, 1), (50, 1), (20, 4), (200, 4), (2_000, 50)])
def test_jobs_of_equal_length_start_one_after_the_other(ahead: int, slots: int) -> None:
    # R3.37, R3.39
    scene = busy(slots, classes=(a_view("medium", ahead + 1),), ahead=ahead)
    expected = 1.1 * SECONDS * (1 + ahead / slots)
    assert p50(scene) == pytest.approx(expected, rel=0.2, abs=0.3 * SECONDS)


def test_what_runs_already_ends_the_sooner() -> None:
    fresh, old = busy(1), busy(1, executing=(a_run(lane="low", ran_s=3),))
    assert p50(old) < p50(fresh) - 2


def test_better_lanes_go_first_and_go_on_coming() -> None:
    # R3.38
    alone = busy(4, lane="low", classes=(a_view("low", 21),), ahead=20)
    behind = replace(alone, classes=(a_view("low", 21), a_view("high", 40)))
    assert p50(behind) == pytest.approx(p50(alone) + 40 * 1.1 * SECONDS / 4, rel=0.25)
    # Half of the slots are taken by what comes to a better lane meanwhile.
    load = {"high": {"": Arrivals(1, 2 / (1.1 * SECONDS))}}
    assert p50(alone, known(load)) == pytest.approx(2 * p50(alone), rel=0.25)
    assert p50(replace(alone, lane="high", classes=(a_view("high", 21),)), known(load)) == pytest.approx(
        p50(alone), rel=0.1
    )  # fmt: skip


def test_in_a_line_that_tenants_share_others_overtake_ones_later_jobs() -> None:
    # R3.38
    scene = busy(4, tenant="bulk", classes=(a_view("medium", 101)._replace(fair=True),), fair=True, ahead=100)
    load = known({"medium": {"acme": Arrivals(1, 2 / (1.1 * SECONDS)), "bulk": Arrivals(100, 1.0)}})
    first, last = replace(scene, ahead_own=0), replace(scene, ahead_own=100)
    assert p50(first, load) == pytest.approx(p50(first), rel=0.05)
    assert p50(last, load) == pytest.approx(2 * p50(last), rel=0.25)


def test_what_is_ahead_already_does_not_overtake_again() -> None:
    # As many jobs of the other tenant are ahead as of one's own: the other's further jobs come later.
    scene = busy(4, tenant="n0", classes=(a_view("medium", 41)._replace(fair=True),), fair=True, ahead=40)
    load = known({"medium": {"n0": Arrivals(1, 0.2), "n1": Arrivals(1, 0.2)}})
    even, alone = replace(scene, ahead_own=20), replace(scene, ahead_own=40)
    assert p50(even, load) == pytest.approx(p50(even), rel=0.02)
    assert p50(alone, load) > 1.2 * p50(alone)


def test_a_lane_of_long_jobs_that_has_risen_gets_its_share_of_time_and_not_of_slots() -> None:
    # A burst of short jobs runs beside a lane that is overdue. That lane starts a long job for each 120 s of the burst.
    short, long = {bucket(1.0): 500.0}, {bucket(20.0): 500.0}
    what = Model(ModelData({"high": {EXPORT: short}, "low": {"report": long}}))
    waiting = (a_view("high", 80), a_view("low", 500, waited_s=5_000))
    alone = busy(8, lane="high", ahead=79, classes=waiting[:1], executing=tuple(a_run(lane="high") for _ in range(8)))
    beside = replace(alone, classes=waiting)
    assert p50(alone, what) < p50(beside, what) < 1.3 * p50(alone, what)


def test_a_lane_that_grows_old_while_it_waits_gets_its_share_then() -> None:
    lanes = dict(BUILT_IN.lanes) | {"low": Lane(2, 3, 0, 1_000, promote_after_ms=(60_000, 120_000))}
    policy = replace(UNRESERVED, lanes=lanes)
    load = known({"medium": {"": Arrivals(1, 10.0)}})  # More than there is room for.
    scene = busy(4, lane="low", classes=(a_view("low", 1), a_view("medium", 100)))
    never, aged = p50(scene, load), p50(replace(scene, policy=policy), load)
    assert aged < 100 < 500 < never


def test_a_job_that_finds_a_reserved_slot_free_starts_now_however_long_it_runs() -> None:
    mixed = {bucket(0.5): 420.0, bucket(22.0): 80.0}
    what = Model(ModelData({"high": {EXPORT: mixed}, "low": {EXPORT: mixed}}, {"high": {"": Arrivals(1, 0.1)}}))
    worker = a_worker(slots=2, reserved=1, running=1)
    running = (a_run(lane="low"),)
    scene = Scene(workers=(worker,), executing=running, policy=BUILT_IN, lane="high", classes=(a_view("high"),))
    assert ask(scene, what) == Estimate(0.0, 0.0, 0, "learned")


def test_a_worse_lane_starts_jobs_while_a_better_one_is_empty() -> None:
    # Slots become free after 1.4, 2.9 and 4.4 s. By then 0.8, 1.7 and 2.6 jobs of the better lane come on average. They
    # leave the first slot with a chance of 43 %, and the first or the second with one of 58 %.
    load = known({"medium": {"": Arrivals(1, 0.6)}})
    running = tuple(a_run(lane="low", ran_s=at) for at in (0.0, 1.5, 3.0))
    scene = busy(3, lane="low", executing=running, classes=(a_view("low", 200),))
    assert 1.2 < p50(scene, load) < 3.2


def test_a_lane_that_has_risen_further_up_does_not_wait_for_its_turn_there() -> None:
    # Nothing of the better lane waits, so the age of the lane changes nothing for its next job.
    scene = busy(4, classes=(a_view("medium", 50),))
    risen = replace(scene, classes=(a_view("medium", 50, waited_s=1_500),))
    load = known({"high": {"": Arrivals(1, 0.1)}})
    assert p50(risen, load) == pytest.approx(p50(scene, load), rel=0.1)


def test_what_is_reserved_is_filled_by_its_lanes_alone() -> None:
    policy = replace(BUILT_IN, reserve=Reserve(slots=1))
    worker = a_worker(slots=2, reserved=1, running=1)
    scene = Scene(workers=(worker,), executing=(a_run(),), policy=policy, classes=(a_view("medium"),))
    assert p50(scene) == pytest.approx(SECONDS, rel=0.3)
    assert p50(replace(scene, lane="high", classes=(a_view("high"),))) == 0


def test_workers_that_cannot_run_it_do_not_count() -> None:
    other = a_worker("w2", slots=100, offers=("task:other",))
    scene = busy(1, classes=(a_view("medium", 11),), ahead=10)
    assert p50(replace(scene, workers=(*scene.workers, other))) == pytest.approx(p50(scene), rel=0.1)


def test_a_delayed_job_waits_until_it_is_due_and_then_for_those_before_it() -> None:
    scene = busy(1, due_at=NOW_AT + 100_000)
    assert p50(scene) == pytest.approx(100, abs=6)
    crowded = replace(scene, classes=(a_view("medium", 50),))  # They take until 220 s.
    assert p50(crowded) == pytest.approx(220, rel=0.15)
    assert p50(replace(crowded, due_at=NOW_AT + 1_000_000)) == pytest.approx(1_000, rel=0.02)


# ---------------------------------------------------------------------- limits and the ladder


def limited(view: LimitView, **changes: object) -> Scene:
    scene = Scene(workers=(a_worker(slots=10),), policy=UNRESERVED, limits=(view,))
    return replace(scene, **changes)  # type: ignore[arg-type]


def test_a_full_limit_is_waited_for() -> None:
    view = LimitView("api", LimitRule(concurrency=1), 1, None)
    assert p50(limited(view, executing=(a_run(held=("api",)),))) == pytest.approx(SECONDS, rel=0.3)
    assert p50(limited(view._replace(used=0))) == 0


def test_a_rate_says_to_the_moment_when_it_lets_a_job_start() -> None:
    view = LimitView("api", LimitRule(count=1, period_ms=10_000), 0, NOW_AT + 7_000)
    assert ask(limited(view)) == Estimate(7.0, 7.0, 0, "learned")


def test_a_full_rung_is_waited_for() -> None:
    rungs = (Rung("fast", 3_000), Rung("slow", 30_000, limit=2))
    policy = replace(UNRESERVED, ladder=Ladder(rungs))
    scene = Scene(
        workers=(a_worker(slots=10),), policy=policy, rung="slow", running_jobs=RunningJobs(10, 8, (0, 2)),
        classes=(a_view("medium", 1, rung="slow", blocked="ladder"),),
    )  # fmt: skip
    assert 1 < p50(scene) < 30


# ---------------------------------------------------------------------- what it rests on


def test_without_runs_the_ladder_says_how_long_jobs_may_take() -> None:
    policy = replace(UNRESERVED, ladder=Ladder((Rung("slow", 30_000),)))
    scene = busy(2, policy=policy, rung="slow", ahead=9, classes=(a_view("medium", 10, rung="slow"),))
    scene = replace(scene, executing=(a_run(), a_run()))
    found = ask(scene, Model())
    assert found.basis == "declared"
    assert found.p50 == pytest.approx(15 * 9 / 2, rel=0.3)


@pytest.mark.parametrize("rung", ["default", "interactive"])
def test_without_runs_it_also_says_so_of_jobs_beside_elastic_ones_and_sessions(rung: str) -> None:
    # R3.37
    policy = replace(UNRESERVED, ladder=Ladder((Rung("fast", 3_000), Rung("slow", 30_000))))
    beside = (a_view("medium", 10, rung="slow"), a_view("medium", 1, rung=rung))
    scene = busy(2, policy=policy, rung="slow", ahead=9, classes=beside)
    found = ask(replace(scene, executing=(a_run(), a_run())), Model())
    assert found.basis == "declared"
    assert found.p50 == pytest.approx(15 * 9 / 2, rel=0.3)


UNKNOWN = [
    pytest.param(busy(1), Model(), id="nothing was learned"),
    pytest.param(Scene(), known(), id="no worker"),
    pytest.param(Scene(workers=(a_worker(offers=("task:other",)),)), known(), id="no worker knows the task"),
    pytest.param(Scene(workers=(a_worker(),), needs=("gpu",)), known(), id="no worker offers what it needs"),
    pytest.param(busy(1, paused=PauseSet(everything=True)), known(), id="everything is paused"),
    pytest.param(busy(1, paused=PauseSet(lanes=("medium",))), known(), id="its lane is paused"),
    pytest.param(busy(1, paused=PauseSet(tasks=(EXPORT,))), known(), id="its task is paused"),
    pytest.param(busy(1, tenant="acme", paused=PauseSet(tenants=("acme",))), known(), id="its tenant is paused"),
]


@pytest.mark.parametrize("scene, what", UNKNOWN)
def test_what_is_not_known_is_not_said(scene: Scene, what: Model) -> None:
    found = ask(scene, what)
    assert (found.p50, found.p90, found.basis) == (None, None, "unknown")
    assert found.position == 0


def test_a_free_slot_needs_no_learning() -> None:
    assert ask(Scene(workers=(a_worker(),), policy=UNRESERVED, classes=(a_view("medium"),)), Model()).p50 == 0


@pytest.mark.parametrize("state", [state for state in State if state is not State.QUEUED])
def test_what_has_begun_has_no_estimate(state: State) -> None:
    assert estimate(Scene(state=state, workers=(a_worker(),)).diagnose_job(), BUILT_IN, known()) is None


def test_beyond_what_is_counted_a_job_is_placed_by_when_it_came() -> None:
    view = a_view("medium", 100_000, waited_s=20)
    diagnosis = busy(4, classes=(view,), ahead=AHEAD_COUNTED).diagnose_job()
    assert estimate_request(diagnosis).ahead == pytest.approx(75_000, abs=1)  # It came 5 s ago, the oldest 20 s ago.


# ---------------------------------------------------------------------- what always holds


@settings(deadline=None)
@given(
    ahead=st.integers(0, 3_000), slots=st.integers(1, 40), lane=st.sampled_from(LANES), better=st.integers(0, 500),
    rate=st.floats(0, 5), seconds=st.floats(0.001, 500), reserved=st.integers(0, 3),
    policy=st.sampled_from([BUILT_IN, UNRESERVED]),
)  # fmt: skip
def test_an_estimate_is_a_range_and_grows_with_the_line(
    ahead: int, slots: int, lane: str, better: int, rate: float, seconds: float, reserved: int, policy: Policy
) -> None:
    what = Model(
        ModelData(
            {name: {EXPORT: {bucket(seconds): 50.0, bucket(seconds * 10): 5.0}} for name in LANES},
            {"high": {"": Arrivals(1, rate)}, "medium": {"bulk": Arrivals(50, rate / 500, steady=False)}},
        )
    )
    worker = a_worker(slots=slots, reserved=min(reserved, slots - 1))
    scene = Scene(
        lane=lane, workers=(worker,), executing=tuple(a_run() for _ in range(slots)), ahead=ahead,
        classes=(a_view(lane, ahead + 1), *([] if lane == "high" else [a_view("high", better)])), policy=policy,
    )  # fmt: skip
    found = ask(scene, what)
    assert found.p50 is not None
    assert found.p90 is not None
    assert 0 <= found.p50 <= found.p90
    longer = ask(replace(scene, ahead=ahead + 50, classes=(a_view(lane, ahead + 51), *scene.classes[1:])), what)
    assert longer.p50 is not None
    assert longer.p50 >= found.p50 * 0.999


@pytest.mark.parametrize(
    "old, new, differs",
    [
        pytest.param(None, Estimate(), True, id="the first"),
        pytest.param(Estimate(10, 20, 3, "learned"), Estimate(11, 21, 3, "learned"), False, id="hardly longer"),
        pytest.param(Estimate(10, 20, 3, "learned"), Estimate(13, 21, 3, "learned"), True, id="longer"),
        pytest.param(Estimate(10, 20, 3, "learned"), Estimate(10, 26, 3, "learned"), True, id="less certain"),
        pytest.param(Estimate(10, 20, 3, "learned"), Estimate(10, 20, 2, "learned"), True, id="another place"),
        pytest.param(Estimate(0.1, 0.2, 3, "learned"), Estimate(0.3, 0.4, 3, "learned"), False, id="now, as before"),
        pytest.param(Estimate(10, 20, 3, "learned"), Estimate(None, None, 3, "unknown"), True, id="no longer known"),
    ],
)
def test_only_what_has_changed_materially_is_told_again(old: Estimate | None, new: Estimate, differs: bool) -> None:
    # R3.40
    assert materially_differs(old, new) is differs


# ---------------------------------------------------------------------- what it costs


def test_the_cost_hangs_on_lanes_and_not_on_jobs() -> None:
    source = random.Random(1)
    mixed = merge({bucket(source.expovariate(1)): 1.0} for _ in range(500))
    what = Model(ModelData({lane: {EXPORT: mixed} for lane in LANES}, {"high": {"": Arrivals(1, 0.5)}}))

    def steps(waiting: int) -> int:
        scene = busy(8, classes=(a_view("medium", waiting), a_view("high", 5)), ahead=waiting - 1)
        forecast = Forecast(scene.diagnose(), BUILT_IN, what)
        forecast.of(EstimateRequest(ClassKey("medium"), EXPORT, None, waiting - 1))
        (run,) = forecast._runs.values()
        return len(run.times)

    assert steps(10_000) < 100
    assert steps(10_000) < steps(1_000) + 30
    scene = busy(8, classes=(a_view("medium", 10_000), a_view("high", 5)))
    forecast = Forecast(scene.diagnose(), BUILT_IN, what)
    began = time.process_time()
    for ahead in range(0, 10_000, 20):
        forecast.near(EstimateRequest(ClassKey("medium"), EXPORT, None, ahead))
    assert (time.process_time() - began) / 500 < 0.001  # Generous: a slow machine, and one run for all.


# ---------------------------------------------------------------------- few jobs, and jobs that run longer than learned


def test_an_estimate_from_few_short_runs_heeds_what_runs_now() -> None:
    # Some short jobs and two of the task were seen. Its next jobs take two seconds each; four have run for one.
    seen = Model(ModelData({"medium": {"noop": {bucket(0.01): 10.0}, EXPORT: {bucket(0.1): 1.0, bucket(1.0): 1.0}}}))
    running = tuple(a_run(lane="medium", ran_s=1) for _ in range(4))
    scene = busy(4, executing=running, classes=(a_view("medium", 11),), ahead=10)
    found = ask(scene, seen)
    assert found.basis == "learned"
    assert found.p50 is not None
    assert found.p90 is not None
    assert 1.5 < found.p50 < 8.0  # In truth about six.
    assert found.p90 > 4.0


def test_p90_is_wider_the_fewer_jobs_were_seen() -> None:
    def width(jobs: float) -> float:
        scene = busy(4, classes=(a_view("medium", 101),), ahead=100)
        found = ask(scene, Model(ModelData({lane: {EXPORT: {bucket(SECONDS): jobs}} for lane in LANES})))
        assert found.p50 is not None
        assert found.p90 is not None
        return found.p90 / found.p50

    assert width(12) > width(50) > width(400)
    assert width(12) > 1.25


def test_a_forecast_covers_a_queue_that_few_jobs_have_joined() -> None:
    forecast, short = (
        Forecast(busy(4, classes=(a_view("low", waiting),)).diagnose(), BUILT_IN, known()) for waiting in (100, 2)
    )
    for joined, covered in ((-60, True), (0, True), (10, True), (11, False)):
        assert forecast.covers(Snapshot(NOW_AT, (a_view("low", 100 + joined),))) is covered
    assert not forecast.covers(Snapshot(NOW_AT, (a_view("low", 100), a_view("high", 11))))
    assert not short.covers(Snapshot(NOW_AT, (a_view("low", 3),)))
