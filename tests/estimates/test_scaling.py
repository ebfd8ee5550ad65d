"""Slots that a lane wants: known queues on every store, and mistakes that would mislead an autoscaler."""

from __future__ import annotations

import pytest

from headway.core.errors import ConfigError
from headway.core.policy.document import BUILT_IN, Policy
from headway.core.policy.enforced import pausing
from headway.core.policy.reader import read_policy
from headway.core.workflow import Edge, Graph, GraphNode
from headway.estimates.forecaster import Forecaster
from headway.estimates.scaling import ScaleAdvice, advise_slots, read_within
from headway.policy_store.rule_documents import change_paused
from headway.stores.base import Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, register
from tests.estimates.lanes import learn_lanes

PLAIN = read_policy({"reserve": {"slots": 0}}, "the test")
OFFERS = ("task:*",)


async def advise(store: Store, within: float, lane: str = "medium", policy: Policy = PLAIN) -> ScaleAdvice:
    forecast = await Forecaster().build(store, policy)
    return advise_slots(forecast, await store.stats(), policy, lane, within)


async def fill(store: Store, jobs: int, *, slots: int, lane: str = "medium", seconds: float = 10.0) -> None:
    """Submit jobs behind a worker whose slots are all busy."""
    await learn_lanes(store, seconds=seconds)
    if slots:
        await register(store, slots=slots, reserved=0, offers=OFFERS)
    await store.submit([a_job(lane=lane) for _ in range(jobs + slots)])
    if slots:
        assert len(await claim(store, free=slots, offers=OFFERS)) == slots


@pytest.mark.parametrize("slots", [0, 5])
async def test_jobs_times_seconds_by_time_are_the_slots(store: Store, slots: int) -> None:
    await fill(store, 100, slots=slots)
    found = await advise(store, 50.0)
    assert found.slots_wanted == pytest.approx(20, abs=4)  # 100 jobs of 10 s in 50 s.
    assert found[1:4] == (slots, slots, 100)
    assert found.basis == "learned"
    if slots:
        assert found.wait_p90 == pytest.approx(100 * 10 / 5, rel=0.25)
    else:
        assert found.wait_p90 is None


async def test_more_time_never_wants_more_slots(store: Store) -> None:
    await fill(store, 300, slots=5)
    wanted = [(await advise(store, within)).slots_wanted for within in (0, 1, 5, 10, 20, 30, 45, 60, 120, 300, 900)]
    assert wanted == sorted(wanted, reverse=True)
    assert wanted[0] >= 300
    assert wanted[-1] == 5  # Never below what runs.


async def test_what_runs_is_the_least(store: Store) -> None:
    await fill(store, 0, slots=5)
    found = await advise(store, 3600.0)
    assert (found.slots_wanted, found.busy, found.waiting) == (5, 5, 0)
    assert (await advise(store, 3600.0, lane="low")).slots_wanted == 5  # Jobs of another lane run in these slots.


async def test_an_idle_store_wants_nothing(store: Store) -> None:
    await learn_lanes(store, seconds=10.0)
    assert (await advise(store, 30.0)).slots_wanted == 0
    await register(store, slots=8, reserved=0, offers=OFFERS)
    found = await advise(store, 30.0)
    assert found == ScaleAdvice(0, 8, 0, 0, 0.0, "learned")


async def test_a_job_that_is_due_soon_or_held_keeps_a_slot(store: Store, clock: ManualClock) -> None:
    await learn_lanes(store, seconds=10.0)
    await store.submit([a_job(delay_ms=3_600_000)])
    assert (await advise(store, 30.0)).slots_wanted == 0
    clock.advance(3_400_000)
    assert (await advise(store, 30.0)).slots_wanted == 1
    assert (await advise(store, 30.0, lane="high")).slots_wanted == 0
    upstream = a_job(lane="low", delay_ms=360_000_000)
    held = a_job(lane="high")
    await store.submit_graph(Graph((GraphNode(upstream), GraphNode(held, (Edge(upstream.job_id),)))))
    assert (await advise(store, 30.0, lane="high")).slots_wanted == 1


async def test_better_lanes_go_first(store: Store) -> None:
    await fill(store, 100, slots=5, lane="high")
    await store.submit([a_job(lane="low")])
    alone = (await advise(store, 50.0, lane="high")).slots_wanted
    behind = await advise(store, 50.0, lane="low")
    assert behind.waiting == 1
    assert behind.slots_wanted >= alone - 1


async def test_too_little_known_keeps_what_there_is(store: Store) -> None:
    await store.submit([a_job() for _ in range(50)])
    found = await advise(store, 10.0)
    assert (found.slots_wanted, found.basis, found.wait_p90) == (1, "unknown", None)
    await register(store, slots=6, reserved=0, offers=OFFERS)
    assert len(await claim(store, free=6, offers=OFFERS)) == 6
    assert (await advise(store, 10.0)).slots_wanted == 6


async def test_a_paused_lane_wants_no_more(store: Store) -> None:
    await fill(store, 100, slots=5)
    await change_paused(store, pausing("medium", None, None))
    found = await advise(store, 50.0)
    assert (found.slots_wanted, found.wait_p90) == (5, None)


async def test_workers_that_cannot_run_the_jobs_do_not_count(store: Store) -> None:
    await learn_lanes(store, seconds=10.0)
    await register(store, slots=50, reserved=0, offers=OFFERS)
    await store.submit([a_job(needs=("gpu",)) for _ in range(100)])
    found = await advise(store, 50.0)
    assert found[1:3] == (0, 0)
    assert found.slots_wanted == pytest.approx(20, abs=4)


async def test_the_reserve_of_added_workers_is_theirs(store: Store) -> None:
    await fill(store, 100, slots=5)
    wanted = (await advise(store, 50.0, policy=BUILT_IN)).slots_wanted  # One slot in five is kept for high.
    assert wanted == pytest.approx((await advise(store, 50.0)).slots_wanted * 5 / 4, abs=3)


async def test_a_lane_that_does_not_exist_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"no lane 'hihg'; did you mean 'high'\? \(lanes: high"):
        await advise(store, 30.0, lane="hihg")


@pytest.mark.parametrize("text, seconds", [("30", 30.0), ("30s", 30.0), ("5m", 300.0), ("250ms", 0.25), ("0", 0.0)])
def test_a_time_is_read(text: str, seconds: float) -> None:
    assert read_within(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "1e9", "nan", "30 parsecs", "٣", "9" * 20])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="within: expected"):
        read_within(text)
