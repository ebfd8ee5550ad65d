"""Waking: whoever waits is told, at most one worker a job, and only one that can serve it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from headway.core.job import State
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Raised, Released, judge
from headway.core.snapshot import Plan
from headway.core.worker import ANY_TASK
from headway.dispatch.job_source import LocalFeed
from headway.policy_store.current import InForce
from headway.stores.base import KEEPER, POLICIES, WATCHER, Ear, Exchange, Progress, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    CONFIRM_MS,
    a_claim_id,
    a_job,
    ask,
    beat,
    claim_one,
    end,
    ended_job,
    pump,
    register,
    submit,
    submit_one,
)

GPU = ("gpu",)
SOON = 5  # Seconds; a wake-up takes milliseconds.
SILENCE = 0.03  # Seconds in which nothing may come.

Listen = Callable[[str], Ear]


@pytest.fixture
def listen(store: Store) -> Iterator[Listen]:
    ears: list[Ear] = []

    def open_ear(name: str) -> Ear:
        ears.append(store.listen(name))
        return ears[-1]

    yield open_ear
    for ear in ears:
        ear.close()


async def wait_for_jobs(store: Store, worker_id: str, offers: tuple[str, ...] = ()) -> None:
    await register(store, worker_id, offers=offers)
    answer = await ask(store, worker_id, offers=offers, wait=True)
    assert list(answer.leases) == []


async def test_a_worker_that_comes_to_classes_it_does_not_know_waits_for_them_too(store: Store, listen: Listen) -> None:
    await ended_job(store, State.COMPLETED)
    await register(store, "w2")
    ear, feed = listen("w2"), LocalFeed(store, InForce(), "w2", ())
    while (await feed.exchange([], [], free=5, free_below=4)).more:
        pass
    await submit_one(store)
    assert await ear.wait(SOON) is not None


async def rung(*ears: Ear, times: int = 0) -> list[bool]:
    """Tell which ears hear something: so many are waited for, and the others are given a moment."""
    heard = [False for _ in ears]
    async with asyncio.timeout(SOON):
        while heard.count(True) < times:
            heard = [before or await ear.wait(SILENCE) is not None for before, ear in zip(heard, ears, strict=True)]
    return [before or await ear.wait(SILENCE) is not None for before, ear in zip(heard, ears, strict=True)]


async def test_a_submit_wakes_a_worker_that_waits(store: Store, listen: Listen) -> None:
    ear = listen("w1")
    await wait_for_jobs(store, "w1")
    waiting = asyncio.create_task(_hear(ear))
    await submit_one(store)
    assert await waiting == ()


async def test_an_ear_that_nobody_waits_at_remembers(store: Store, listen: Listen) -> None:
    ear = listen("w1")
    await wait_for_jobs(store, "w1")
    await submit_one(store)
    assert await ear.wait(SOON) == ()
    assert await ear.wait(SILENCE) is None


async def test_a_worker_that_does_not_wait_is_not_woken(store: Store, listen: Listen) -> None:
    ear = listen("w1")
    await register(store)
    await ask(store, wait=False)
    await submit_one(store)
    assert await rung(ear) == [False]


async def test_a_worker_that_got_a_job_does_not_wait(store: Store, listen: Listen) -> None:
    ear = listen("w1")
    await register(store)
    await submit_one(store)
    assert len((await ask(store, wait=True)).leases) == 1
    await submit_one(store)
    assert await rung(ear) == [False]


async def test_one_job_wakes_one_worker(store: Store, listen: Listen) -> None:
    ears = [listen(worker_id) for worker_id in ("w1", "w2", "w3")]
    for worker_id in ("w1", "w2", "w3"):
        await wait_for_jobs(store, worker_id)
    await submit_one(store)
    assert (await rung(*ears, times=1)).count(True) == 1
    await submit_one(store)
    assert (await rung(*ears, times=1)).count(True) == 1
    await submit(store, a_job(), a_job(), a_job())
    assert (await rung(*ears, times=1)).count(True) == 1


async def test_a_batch_wakes_as_many_as_it_has_jobs(store: Store, listen: Listen) -> None:
    ears = [listen(worker_id) for worker_id in ("w1", "w2", "w3")]
    for worker_id in ("w1", "w2", "w3"):
        await wait_for_jobs(store, worker_id)
    await submit(store, a_job(), a_job())
    assert (await rung(*ears, times=2)).count(True) == 2


async def test_a_worker_that_lacks_the_needs_is_passed_over(store: Store, listen: Listen) -> None:
    plain, able = listen("plain"), listen("able")
    await wait_for_jobs(store, "plain")
    await wait_for_jobs(store, "able", GPU)
    await submit_one(store, a_job(needs=GPU))
    assert await rung(plain, able, times=1) == [False, True]
    await submit_one(store)
    assert await rung(plain, able, times=1) == [True, False]


async def test_a_worker_that_offers_any_task_is_woken_for_one_that_others_did_not_know(
    store: Store, listen: Listen
) -> None:
    # R5.14: what it lacks beside tasks still counts.
    ears = [listen(worker_id) for worker_id in ("w1", "w2", "w3", "w4")]
    for worker_id, offers in (
        ("w1", ()),
        ("w2", ("task:other",)),
        ("w3", (ANY_TASK,)),
        ("w4", (ANY_TASK, "gpu")),
    ):
        await wait_for_jobs(store, worker_id, offers)
    await submit_one(store, a_job(needs=("task:reports.export",)))
    assert await rung(*ears, times=1) == [False, False, True, False]
    await submit_one(store, a_job(needs=("gpu", "task:reports.export")))
    assert await rung(*ears, times=1) == [False, False, False, True]
    await submit_one(store, a_job(needs=("tasks",)))
    assert await rung(*ears) == [False, False, False, False]


async def test_a_worker_that_withdraws_is_passed_over(store: Store, listen: Listen) -> None:
    gone, waits = listen("w1"), listen("w2")
    await wait_for_jobs(store, "w1")
    await wait_for_jobs(store, "w2")
    await store.exchange(Exchange("w1", a_claim_id(), plan=Plan()))
    await submit_one(store)
    assert await rung(gone, waits, times=1) == [False, True]


async def test_a_draining_or_buried_worker_is_passed_over(store: Store, listen: Listen) -> None:
    ears = [listen(worker_id) for worker_id in ("drains", "buried", "live")]
    for worker_id in ("drains", "buried", "live"):
        await wait_for_jobs(store, worker_id)
    await store.drain("drains")
    await store.bury("buried")
    await submit(store, a_job(), a_job(), a_job())
    assert await rung(*ears, times=1) == [False, False, True]


async def test_a_delayed_job_wakes_when_an_exchange_finds_it_due(
    store: Store, clock: ManualClock, listen: Listen
) -> None:
    ear = listen("w1")
    await wait_for_jobs(store, "w1")
    await submit_one(store, a_job(delay_ms=1_000))
    assert await rung(ear) == [False]
    clock.advance(seconds=1)
    await pump(store)
    assert await rung(ear, times=1) == [True]


async def test_a_refused_or_repeated_submit_wakes_nobody(store: Store, listen: Listen) -> None:
    ear = listen("w1")
    job = a_job(lane="low", needs=GPU)
    await submit(store, job)
    await wait_for_jobs(store, "w1")
    await submit(store, job)
    assert await rung(ear) == [False]


async def test_a_job_that_goes_back_wakes_another_worker_and_not_the_one_that_hands_it_back(
    store: Store, listen: Listen
) -> None:
    one, two = listen("w1"), listen("w2")
    await submit_one(store)
    await register(store, "w1")
    lease = await claim_one(store, "w1")
    await wait_for_jobs(store, "w2")
    await store.exchange(Exchange("w1", finished=[judge(Released(), lease, BUILT_IN)]))
    assert await rung(one, two, times=1) == [False, True]


async def test_a_claim_that_never_started_wakes_a_worker(store: Store, clock: ManualClock, listen: Listen) -> None:
    ear = listen("w2")
    await submit_one(store)
    await register(store, "w1")
    await claim_one(store, "w1")
    await wait_for_jobs(store, "w2")
    clock.advance(ms=CONFIRM_MS)
    await beat(store, "w1")
    assert await rung(ear, times=1) == [True]


async def test_a_retry_wakes_a_worker(store: Store, listen: Listen) -> None:
    ear = listen("w2")
    job_id = await ended_job(store, State.FAILED)
    await wait_for_jobs(store, "w2")
    await store.retry([job_id])
    assert await rung(ear, times=1) == [True]


async def test_a_cancel_rings_who_keeps_the_lease(store: Store, listen: Listen) -> None:
    # R5.43: the request reaches the worker without waiting for its next heartbeat.
    keeper, other, runner = listen("w1" + KEEPER), listen("w2" + KEEPER), listen("w1")
    job_id = await submit_one(store)
    await register(store)
    await claim_one(store)
    await store.cancel([job_id])
    assert await rung(keeper, other, runner, times=1) == [True, False, False]


async def test_a_drain_rings_who_keeps_the_leases(store: Store, listen: Listen) -> None:
    keeper = listen("w1" + KEEPER)
    await register(store)
    await store.drain("w1")
    assert await rung(keeper, times=1) == [True]


async def test_a_policy_rings_whoever_keeps_leases(store: Store, listen: Listen) -> None:
    first, second, runner = listen("w1" + KEEPER), listen("w2" + KEEPER), listen("w1")
    await register(store, "w1")
    await register(store, "w2")
    await store.write("other", "name", b"1")
    assert await rung(first, second, runner) == [False, False, False]
    await store.write(POLICIES, "current", b"1", if_version=0)
    assert await rung(first, second, runner, times=2) == [True, True, False]
    assert await store.write(POLICIES, "current", b"2", if_version=7) is None
    assert await rung(first, second) == [False, False]


async def test_watchers_are_told_which_jobs_change(store: Store, listen: Listen) -> None:
    one, two = listen(WATCHER + "one"), listen(WATCHER + "two")

    async def heard() -> set[str]:
        first, second = await one.wait(SOON), await two.wait(SOON)
        assert first is not None
        assert set(first) == set(second or ())
        return set(first)

    job_id = await submit_one(store)
    assert await heard() == {job_id}
    await register(store)
    lease = await claim_one(store)
    assert await heard() == {job_id}
    await store.exchange(Exchange(None, progress=[Progress(job_id, lease.seq, lease.token, 0.5, None)]))
    assert await heard() == {job_id}
    await end(store, lease, Raised(BOOM))
    assert await heard() == {job_id}
    await store.cancel([job_id])
    assert await heard() == {job_id}
    await store.retry([job_id])
    assert await heard() == {job_id}
    assert await rung(one, two) == [False, False]


async def test_a_watcher_is_told_of_every_job_of_a_large_batch(store: Store, listen: Listen) -> None:
    ear = listen(WATCHER + "one")
    job_ids = set(await submit(store, *(a_job() for _ in range(1_000))))
    heard: set[str] = set()
    while heard != job_ids:
        more = await ear.wait(SOON)
        assert more is not None
        heard |= set(more)


async def test_an_ear_that_is_closed_hears_no_more_and_harms_nobody(store: Store, listen: Listen) -> None:
    gone, stays = store.listen(WATCHER + "gone"), listen(WATCHER + "stays")
    gone.close()
    job_id = await submit_one(store)
    assert await stays.wait(SOON) is not None
    again = listen(WATCHER + "gone")
    await store.cancel([job_id])
    assert set(await again.wait(SOON) or ()) == {job_id}


async def _hear(ear: Ear) -> object:
    return await ear.wait(SOON)


async def test_a_worker_that_waits_for_some_lanes_is_not_woken_for_others(store: Store, listen: Listen) -> None:
    # Only reserved slots are free: a submit it could not serve must not cost it an exchange.
    ear = listen("w1")
    await register(store, "w1")
    claim_id = a_claim_id()
    await store.exchange(Exchange("w1", claim_id, plan=Plan((), 1, 0), wait=True, wait_lanes=("high",)))
    await submit(store, a_job(lane="low"))
    assert await rung(ear) == [False]
    await submit(store, a_job(lane="high"))
    assert await rung(ear, times=1) == [True]


async def test_a_worker_that_looks_again_keeps_its_turn_among_those_who_wait(store: Store, listen: Listen) -> None:
    first, second = listen("w1"), listen("w2")
    await wait_for_jobs(store, "w1")
    await wait_for_jobs(store, "w2")
    await ask(store, "w1", wait=True)
    await submit(store, a_job())
    assert await rung(first, second, times=1) == [True, False]
