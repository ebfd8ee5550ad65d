"""Task costs: they are learned from ended jobs and published to all workers."""

from __future__ import annotations

import pytest

from headway.core.policy.enforced import limit_key
from headway.estimates.costs import (
    LEAST_CHANGE,
    PENDING_TENANTS_MAX,
    TENANT_JOBS,
    TENANT_PARTS,
    TENANTS_MAX,
    WEIGHT_JOBS,
    TaskCosts,
    is_worth_writing,
    learn,
)
from headway.policy_store.rule_documents import change_costs, read_costs
from headway.stores.base import RULES
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock

SECOND = 1_000_000  # Microseconds.


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def learned(known: dict[str, int], *, count: int = 1, seconds: float = 1.0, task: str = "t") -> dict[str, int]:
    """Return the costs after this many more jobs of this length."""
    return learn(known, {task: (count, count * seconds)}, {})


# ---------------------------------------------------------------------- a task


def test_the_first_jobs_say_what_a_task_takes() -> None:
    assert learn({}, {"t": (4, 10.0), "u": (1, 0.25)}, {}) == {"t": 2_500_000, "u": 250_000}


def test_what_was_known_counts_for_so_many_jobs() -> None:
    assert learned({"t": SECOND}, count=WEIGHT_JOBS, seconds=3.0) == {"t": 2 * SECOND}
    assert learned({"t": SECOND}, count=WEIGHT_JOBS // 5, seconds=13.0) == {"t": 3 * SECOND}


def test_it_falls_as_it_rises() -> None:
    assert learned({"t": 10 * SECOND}, count=WEIGHT_JOBS, seconds=2.0) == {"t": 6 * SECOND}


def test_other_tasks_stay_as_they_are() -> None:
    assert learned({"t": SECOND, "u": 7}, count=1_000, seconds=9.0)["u"] == 7


def test_a_cost_is_never_nothing() -> None:
    assert learned({}, seconds=0.0) == {"t": 1}


@pytest.mark.parametrize(
    "old_us, count, seconds, worth",
    [
        pytest.param(None, 1, 1.0, True, id="the first"),
        pytest.param(SECOND, WEIGHT_JOBS, 1 + 1.8 * LEAST_CHANGE, False, id="hardly more"),
        pytest.param(SECOND, WEIGHT_JOBS, 1 + 2.2 * LEAST_CHANGE, True, id="more"),
        pytest.param(SECOND, WEIGHT_JOBS, 1 - 2.2 * LEAST_CHANGE, True, id="less"),
        pytest.param(SECOND, 1, 5.0, False, id="one that took long"),
    ],
)
def test_what_has_hardly_moved_is_not_worth_telling(
    old_us: int | None, count: int, seconds: float, worth: bool
) -> None:
    assert is_worth_writing(old_us, (count, count * seconds)) is worth


async def test_what_is_not_worth_telling_is_not_written(store: MemoryStore) -> None:
    await change_costs(store, lambda _: {"t": SECOND})
    durations = TaskCosts()
    for _ in range(50):
        durations.note([("t", None, 1.0)])
        await durations.publish(store)
    [document] = await store.read(RULES, "costs")
    assert document.version == 1


@pytest.mark.parametrize("count", [1, 3, 50, 500])
def test_a_task_that_has_become_slower_is_known_to_be_however_seldom_it_runs(count: int) -> None:
    known = {"t": SECOND}
    for _ in range(2_000 // count):
        known = learned(known, count=count, seconds=5.0)
    assert known["t"] == pytest.approx(5 * SECOND, rel=0.2)


async def test_what_a_worker_notes_a_job_at_a_time_adds_up(store: MemoryStore) -> None:
    await change_costs(store, lambda _: {"t": SECOND})
    durations = TaskCosts()
    for _ in range(500):
        durations.note([("t", None, 5.0)])
        await durations.publish(store)
    assert durations.expected("t") == pytest.approx(5.0, rel=0.2)


# ---------------------------------------------------------------------- a tenant


def test_a_tenant_whose_jobs_are_far_from_the_others_gets_a_cost_of_its_own() -> None:
    tenants = {("t", "dear"): (TENANT_JOBS, TENANT_JOBS * 8.0), ("t", "like"): (20, 20.0)}
    tenants[("t", "cheap")] = (TENANT_JOBS, TENANT_JOBS * 0.01)
    costs = learn({}, {"t": (50, 75.0)}, tenants)
    assert costs == {"t": 1_500_000, "t=dear": 8 * SECOND, "t=cheap": 10_000}


@pytest.mark.parametrize("parts, own", [(TENANT_PARTS * 0.95, False), (TENANT_PARTS * 1.05, True)])
def test_how_far_is_far(parts: float, own: bool) -> None:
    for seconds in (parts, 1 / parts):
        costs = learn({}, {"t": (100, 100.0)}, {("t", "acme"): (TENANT_JOBS, TENANT_JOBS * seconds)})
        assert ("t=acme" in costs) == own


async def test_a_few_jobs_of_a_tenant_say_nothing(store: MemoryStore) -> None:
    durations = TaskCosts()
    for _ in range(500):
        durations.note([("t", "like", 1.0)])
    for _ in range(TENANT_JOBS - 1):
        durations.note([("t", "dear", 30.0)])
    await durations.publish(store)
    assert list(await read_costs(store)) == ["t"]


def test_a_tenant_that_is_like_the_others_again_loses_its_own_cost() -> None:
    known = {"t": SECOND, "t=acme": 3 * SECOND}
    assert learn(known, {"t": (200, 200.0)}, {("t", "acme"): (200, 200.0)}) == {"t": SECOND}


def test_tenants_are_kept_up_to_a_bound_and_those_longest_known_go_first() -> None:
    known = {"t": SECOND} | {limit_key("t", f"tenant {number}"): 9 * SECOND for number in range(TENANTS_MAX)}
    costs = learn(known, {"t": (100, 100.0)}, {("t", "new"): (TENANT_JOBS, TENANT_JOBS * 9.0)})
    assert len(costs) == TENANTS_MAX + 1
    assert "t=new" in costs
    assert "t=tenant 0" not in costs
    assert costs["t"] == SECOND


async def test_a_tenants_jobs_are_gathered_over_several_publications(store: MemoryStore) -> None:
    durations = TaskCosts()
    for _ in range(TENANT_JOBS):
        for _ in range(10):
            durations.note([("t", "like", 1.0)])
        durations.note([("t", "dear", 20.0)])
        await durations.publish(store)
    assert (await read_costs(store))["t=dear"] == 20 * SECOND


async def test_many_tenants_that_come_once_do_not_keep_others_from_being_known(store: MemoryStore) -> None:
    durations = TaskCosts()
    for number in range(PENDING_TENANTS_MAX):
        durations.note([("t", f"once {number}", 1.0)])
    await durations.publish(store)
    for _ in range(3):
        for _ in range(TENANT_JOBS):
            durations.note([("t", "dear", 20.0)])
        await durations.publish(store)
    assert (await read_costs(store)).get("t=dear") == 20 * SECOND


# ---------------------------------------------------------------------- known to all


async def test_nothing_is_expected_to_take_a_second_until_something_is_known(store: MemoryStore) -> None:
    durations = TaskCosts()
    assert durations.expected("t") == 1.0
    durations.note([("t", None, 4.0)])
    assert durations.expected("t") == 1.0  # Not told yet, so that all expect the same.
    await durations.publish(store)
    assert durations.expected("t") == 4.0


async def test_what_one_worker_learned_the_others_know_after_their_next_look(store: MemoryStore) -> None:
    mine, theirs = TaskCosts(), TaskCosts()
    mine.note([("t", None, 4.0)])
    await mine.publish(store)
    assert theirs.expected("t") == 1.0
    await theirs.publish(store)
    assert theirs.expected("t") == 4.0


async def test_what_was_told_is_not_told_again(store: MemoryStore) -> None:
    durations = TaskCosts()
    durations.note([("t", None, 4.0)])
    for _ in range(3):
        await durations.publish(store)
    [document] = await store.read(RULES, "costs")
    assert document.version == 1


async def test_two_that_publish_at_once_are_both_heard(clock: ManualClock) -> None:
    class RacingStore(MemoryStore):
        """A store in which another process writes once, just before a write of the test."""

        meddled = False

        async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
            if not self.meddled:
                self.meddled = True
                await change_costs(self, lambda known: {**known, "other": 7})
            return await super().write(kind, name, body, if_version=if_version)

    store = RacingStore(clock=clock)
    durations = TaskCosts()
    durations.note([("t", None, 4.0)])
    await durations.publish(store)
    assert await read_costs(store) == {"other": 7, "t": 4 * SECOND}
