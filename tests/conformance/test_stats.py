"""Statistics: waiting and running jobs, and totals since the beginning. Each equals a recount."""

from __future__ import annotations

import pytest

from headway.core.job import ClassKey, State
from headway.core.policy.retry import Ending, Raised, Released, Snoozed
from headway.core.snapshot import ClassView
from headway.stores.base import WAITING_COUNTED, LaneStats, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_job,
    claim,
    claim_one,
    end,
    ended_job,
    register,
    submit,
    submit_one,
)


async def lanes(store: Store) -> dict[str, LaneStats]:
    return {name: lane for name, lane in (await store.stats()).lanes.items() if any(lane)}


async def test_an_empty_store_has_nothing(store: Store, clock: ManualClock) -> None:
    stats = await store.stats()
    assert stats.now_at == clock()
    assert (stats.workers, stats.totals, stats.last_minute, stats.kept) == ((), {}, {}, {})
    assert await lanes(store) == {}


async def test_a_lane_counts_neither_delayed_nor_leased_jobs_as_waiting(store: Store, clock: ManualClock) -> None:
    # R5.107
    await submit(store, *(a_job() for _ in range(4)), a_job(delay_ms=1_000), a_job(lane="high"))
    await register(store)
    await claim(store, free=3)
    assert await lanes(store) == {
        "high": LaneStats(executing=1),
        "medium": LaneStats(waiting=2, delayed=1, executing=2, oldest_at=clock()),
    }


async def test_a_lane_is_as_old_as_what_has_waited_longest_in_it(store: Store, clock: ManualClock) -> None:
    await submit_one(store, a_job(needs=("gpu",)))
    oldest_at = clock()
    clock.advance(ms=400)
    await submit_one(store)
    assert (await lanes(store))["medium"].oldest_at == oldest_at


async def test_delayed_jobs_make_no_lane_old(store: Store) -> None:
    await submit_one(store, a_job(delay_ms=1))
    assert (await lanes(store))["medium"].oldest_at is None


@pytest.mark.one_store  # Each has order keys of its own.
async def test_a_snapshot_shows_each_class_with_its_length_and_age(store: Store, clock: ManualClock) -> None:
    await submit(store, a_job(), a_job(), a_job(needs=("gpu",)), a_job(rung="slow"), a_job(delay_ms=9, lane="low"))
    submitted_at = clock()
    clock.advance(ms=5)
    await submit(store, a_job(), a_job(persist=False))
    snapshot = await store.snapshot()
    assert snapshot.now_at == clock()
    assert {view for view in snapshot.classes if view.waiting} == {
        ClassView(ClassKey("medium"), 3, submitted_at, head_key=1),
        ClassView(ClassKey("medium", ("gpu",)), 1, submitted_at, head_key=3),
        ClassView(ClassKey("medium", rung="slow"), 1, submitted_at, head_key=4),
        ClassView(ClassKey("medium", persist=False), 1, clock(), head_key=7),
    }


async def test_a_snapshot_counts_exactly_up_to_its_bound(store: Store) -> None:
    await submit(store, *(a_job() for _ in range(WAITING_COUNTED + 5)))
    [view] = [view for view in (await store.snapshot()).classes if view.waiting]
    assert view.waiting == WAITING_COUNTED
    assert (await lanes(store))["medium"].waiting == WAITING_COUNTED + 5


async def test_totals_count_what_has_ever_happened(store: Store) -> None:
    for state in State:
        if state.ended:
            await ended_job(store, state)
    await submit_one(store)
    await end(store, await claim_one(store), Raised(BOOM))
    assert (await store.stats()).totals == {
        "submitted": 5, "claimed": 4, "completed": 1, "failed": 1, "cancelled": 1, "dead_letter": 1, "retried": 1,
    }  # fmt: skip


async def test_totals_tell_failed_attempts_from_snoozes_and_from_jobs_given_back(store: Store) -> None:
    endings: list[Ending] = [Raised(BOOM), Snoozed(60_000), Snoozed(60_000, "rate_limited"), Released("drained")]
    await register(store)
    for ending in endings:
        await submit_one(store)
        await end(store, await claim_one(store), ending)
    assert (await store.stats()).totals == {
        "submitted": 4, "claimed": 4, "retried": 1, "snoozed": 2, "released": 1,
    }  # fmt: skip


async def test_the_last_minute_is_the_last_full_one_and_the_one_under_way(store: Store, clock: ManualClock) -> None:
    clock.advance(ms=60_000 - clock() % 60_000)
    await submit_one(store)
    clock.advance(ms=119_999)
    assert (await store.stats()).last_minute == {"submitted": 1}
    clock.advance(ms=1)
    stats = await store.stats()
    assert (stats.last_minute, stats.totals) == ({}, {"submitted": 1})


async def test_jobs_that_ended_badly_are_counted_while_they_are_kept(store: Store) -> None:
    for state in State:
        if state.ended:
            await ended_job(store, state)
    cancelled = await ended_job(store, State.CANCELLED)
    assert (await store.stats()).kept == {"failed": 1, "cancelled": 2, "dead_letter": 1}
    await store.retry([cancelled])
    assert (await store.stats()).kept == {"failed": 1, "cancelled": 1, "dead_letter": 1}


async def test_a_worker_is_shown_with_the_leases_it_holds(store: Store) -> None:
    await submit(store, *(a_job() for _ in range(4)))
    await register(store, "w1")
    await register(store, "w2")
    leases = await claim(store, "w1", free=3)
    await end(store, leases[0])
    await end(store, leases[1], Released())
    assert {worker.worker_id: worker.running for worker in (await store.stats()).workers} == {"w1": 1, "w2": 0}
