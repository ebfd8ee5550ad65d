"""Waking: each job wakes at most one waiting worker, and only one that can run it."""

from __future__ import annotations

import asyncio

from headway.core.job import State
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Raised, Released, judge
from headway.core.snapshot import Plan
from headway.core.worker import ANY_TASK
from headway.dispatch.job_source import StoreJobSource
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import JOB_CHANNEL, LEASE_CHANNEL, POLICIES, Exchange, Progress, Store, Subscription
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
from tests.conformance.conftest import Listen

GPU = ("gpu",)
SOON = 5  # Seconds; a wake-up takes milliseconds.
SILENCE = 0.03  # Seconds in which nothing may come.


async def wait_for_jobs(store: Store, worker_id: str, offers: tuple[str, ...] = ()) -> None:
    await register(store, worker_id, offers=offers)
    answer = await ask(store, worker_id, offers=offers, wait=True)
    assert list(answer.leases) == []


async def test_a_worker_that_comes_to_classes_it_does_not_know_waits_for_them_too(store: Store, listen: Listen) -> None:
    await ended_job(store, State.COMPLETED)
    await register(store, "w2")
    subscription, feed = listen("w2"), StoreJobSource(store, CurrentPolicy(), "w2", ())
    while (await feed.exchange([], [], free=5, free_below=4)).more:
        pass
    await submit_one(store)
    assert await subscription.wait(SOON) is not None


async def woken(*subscriptions: Subscription, times: int = 0) -> list[bool]:
    """Return which subscriptions are woken. Waits for this many, and then a short time for each of the others."""
    heard = [False for _ in subscriptions]
    async with asyncio.timeout(SOON):
        while heard.count(True) < times:
            heard = [
                before or await subscription.wait(SILENCE) is not None
                for before, subscription in zip(heard, subscriptions, strict=True)
            ]
    return [
        before or await subscription.wait(SILENCE) is not None
        for before, subscription in zip(heard, subscriptions, strict=True)
    ]


async def test_a_submit_wakes_a_worker_that_waits(store: Store, listen: Listen) -> None:
    subscription = listen("w1")
    await wait_for_jobs(store, "w1")
    waiting = asyncio.create_task(_hear(subscription))
    await submit_one(store)
    assert await waiting == ()


async def test_a_subscription_without_a_waiter_keeps_messages(store: Store, listen: Listen) -> None:
    subscription = listen("w1")
    await wait_for_jobs(store, "w1")
    await submit_one(store)
    assert await subscription.wait(SOON) == ()
    assert await subscription.wait(SILENCE) is None


async def test_a_worker_that_does_not_wait_is_not_woken(store: Store, listen: Listen) -> None:
    subscription = listen("w1")
    await register(store)
    await ask(store, wait=False)
    await submit_one(store)
    assert await woken(subscription) == [False]


async def test_a_worker_that_got_a_job_does_not_wait(store: Store, listen: Listen) -> None:
    subscription = listen("w1")
    await register(store)
    await submit_one(store)
    assert len((await ask(store, wait=True)).leases) == 1
    await submit_one(store)
    assert await woken(subscription) == [False]


async def test_one_job_wakes_one_worker(store: Store, listen: Listen) -> None:
    subscriptions = [listen(worker_id) for worker_id in ("w1", "w2", "w3")]
    for worker_id in ("w1", "w2", "w3"):
        await wait_for_jobs(store, worker_id)
    await submit_one(store)
    assert (await woken(*subscriptions, times=1)).count(True) == 1
    await submit_one(store)
    assert (await woken(*subscriptions, times=1)).count(True) == 1
    await submit(store, a_job(), a_job(), a_job())
    assert (await woken(*subscriptions, times=1)).count(True) == 1


async def test_a_batch_wakes_as_many_as_it_has_jobs(store: Store, listen: Listen) -> None:
    subscriptions = [listen(worker_id) for worker_id in ("w1", "w2", "w3")]
    for worker_id in ("w1", "w2", "w3"):
        await wait_for_jobs(store, worker_id)
    await submit(store, a_job(), a_job())
    assert (await woken(*subscriptions, times=2)).count(True) == 2


async def test_a_worker_that_lacks_the_needs_is_passed_over(store: Store, listen: Listen) -> None:
    plain, able = listen("plain"), listen("able")
    await wait_for_jobs(store, "plain")
    await wait_for_jobs(store, "able", GPU)
    await submit_one(store, a_job(needs=GPU))
    assert await woken(plain, able, times=1) == [False, True]
    await submit_one(store)
    assert await woken(plain, able, times=1) == [True, False]


async def test_a_worker_that_offers_any_task_is_woken_for_one_that_others_did_not_know(
    store: Store, listen: Listen
) -> None:
    # R5.14: what it lacks beside tasks still counts.
    subscriptions = [listen(worker_id) for worker_id in ("w1", "w2", "w3", "w4")]
    for worker_id, offers in (
        ("w1", ()),
        ("w2", ("task:other",)),
        ("w3", (ANY_TASK,)),
        ("w4", (ANY_TASK, "gpu")),
    ):
        await wait_for_jobs(store, worker_id, offers)
    await submit_one(store, a_job(needs=("task:reports.export",)))
    assert await woken(*subscriptions, times=1) == [False, False, True, False]
    await submit_one(store, a_job(needs=("gpu", "task:reports.export")))
    assert await woken(*subscriptions, times=1) == [False, False, False, True]
    await submit_one(store, a_job(needs=("tasks",)))
    assert await woken(*subscriptions) == [False, False, False, False]


async def test_a_worker_that_withdraws_is_passed_over(store: Store, listen: Listen) -> None:
    gone, waits = listen("w1"), listen("w2")
    await wait_for_jobs(store, "w1")
    await wait_for_jobs(store, "w2")
    await store.exchange(Exchange("w1", a_claim_id(), plan=Plan()))
    await submit_one(store)
    assert await woken(gone, waits, times=1) == [False, True]


async def test_a_draining_or_buried_worker_is_passed_over(store: Store, listen: Listen) -> None:
    subscriptions = [listen(worker_id) for worker_id in ("drains", "buried", "live")]
    for worker_id in ("drains", "buried", "live"):
        await wait_for_jobs(store, worker_id)
    await store.drain("drains")
    await store.mark_dead("buried")
    await submit(store, a_job(), a_job(), a_job())
    assert await woken(*subscriptions, times=1) == [False, False, True]


async def test_a_delayed_job_wakes_when_an_exchange_finds_it_due(
    store: Store, clock: ManualClock, listen: Listen
) -> None:
    subscription = listen("w1")
    await wait_for_jobs(store, "w1")
    await submit_one(store, a_job(delay_ms=1_000))
    assert await woken(subscription) == [False]
    clock.advance(seconds=1)
    await pump(store)
    assert await woken(subscription, times=1) == [True]


async def test_a_refused_or_repeated_submit_wakes_nobody(store: Store, listen: Listen) -> None:
    subscription = listen("w1")
    job = a_job(lane="low", needs=GPU)
    await submit(store, job)
    await wait_for_jobs(store, "w1")
    await submit(store, job)
    assert await woken(subscription) == [False]


async def test_a_job_that_goes_back_wakes_another_worker_and_not_the_one_that_hands_it_back(
    store: Store, listen: Listen
) -> None:
    one, two = listen("w1"), listen("w2")
    await submit_one(store)
    await register(store, "w1")
    lease = await claim_one(store, "w1")
    await wait_for_jobs(store, "w2")
    await store.exchange(Exchange("w1", finished=[judge(Released(), lease, BUILT_IN)]))
    assert await woken(one, two, times=1) == [False, True]


async def test_a_claim_that_never_started_wakes_a_worker(store: Store, clock: ManualClock, listen: Listen) -> None:
    subscription = listen("w2")
    await submit_one(store)
    await register(store, "w1")
    await claim_one(store, "w1")
    await wait_for_jobs(store, "w2")
    clock.advance(ms=CONFIRM_MS)
    await beat(store, "w1")
    assert await woken(subscription, times=1) == [True]


async def test_a_retry_wakes_a_worker(store: Store, listen: Listen) -> None:
    subscription = listen("w2")
    job_id = await ended_job(store, State.FAILED)
    await wait_for_jobs(store, "w2")
    await store.retry([job_id])
    assert await woken(subscription, times=1) == [True]


async def test_a_cancel_rings_who_keeps_the_lease(store: Store, listen: Listen) -> None:
    # R5.43: the request reaches the worker without waiting for its next heartbeat.
    keeper, other, runner = listen("w1" + LEASE_CHANNEL), listen("w2" + LEASE_CHANNEL), listen("w1")
    job_id = await submit_one(store)
    await register(store)
    await claim_one(store)
    await store.cancel([job_id])
    assert await woken(keeper, other, runner, times=1) == [True, False, False]


async def test_a_drain_rings_who_keeps_the_leases(store: Store, listen: Listen) -> None:
    keeper = listen("w1" + LEASE_CHANNEL)
    await register(store)
    await store.drain("w1")
    assert await woken(keeper, times=1) == [True]


async def test_a_policy_rings_whoever_keeps_leases(store: Store, listen: Listen) -> None:
    first, second, runner = listen("w1" + LEASE_CHANNEL), listen("w2" + LEASE_CHANNEL), listen("w1")
    await register(store, "w1")
    await register(store, "w2")
    await store.write("other", "name", b"1")
    assert await woken(first, second, runner) == [False, False, False]
    await store.write(POLICIES, "current", b"1", if_version=0)
    assert await woken(first, second, runner, times=2) == [True, True, False]
    assert await store.write(POLICIES, "current", b"2", if_version=7) is None
    assert await woken(first, second) == [False, False]


async def test_watchers_are_told_which_jobs_change(store: Store, listen: Listen) -> None:
    one, two = listen(JOB_CHANNEL + "one"), listen(JOB_CHANNEL + "two")

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
    assert await woken(one, two) == [False, False]


async def test_a_watcher_is_told_of_every_job_of_a_large_batch(store: Store, listen: Listen) -> None:
    subscription = listen(JOB_CHANNEL + "one")
    job_ids = set(await submit(store, *(a_job() for _ in range(1_000))))
    heard: set[str] = set()
    while heard != job_ids:
        more = await subscription.wait(SOON)
        assert more is not None
        heard |= set(more)


async def test_a_closed_subscription_gets_no_messages_and_breaks_nothing(store: Store, listen: Listen) -> None:
    gone, stays = store.subscribe(JOB_CHANNEL + "gone"), listen(JOB_CHANNEL + "stays")
    gone.close()
    job_id = await submit_one(store)
    assert await stays.wait(SOON) is not None
    again = listen(JOB_CHANNEL + "gone")
    await store.cancel([job_id])
    assert set(await again.wait(SOON) or ()) == {job_id}


async def _hear(subscription: Subscription) -> object:
    return await subscription.wait(SOON)


async def test_a_worker_that_waits_for_some_lanes_is_not_woken_for_others(store: Store, listen: Listen) -> None:
    # Only reserved slots are free: a submit it could not serve must not cost it an exchange.
    subscription = listen("w1")
    await register(store, "w1")
    claim_id = a_claim_id()
    await store.exchange(Exchange("w1", claim_id, plan=Plan((), 1, 0), wait=True, wait_lanes=("high",)))
    await submit(store, a_job(lane="low"))
    assert await woken(subscription) == [False]
    await submit(store, a_job(lane="high"))
    assert await woken(subscription, times=1) == [True]


async def test_a_worker_that_looks_again_keeps_its_turn_among_those_who_wait(store: Store, listen: Listen) -> None:
    first, second = listen("w1"), listen("w2")
    await wait_for_jobs(store, "w1")
    await wait_for_jobs(store, "w2")
    await ask(store, "w1", wait=True)
    await submit(store, a_job())
    assert await woken(first, second, times=1) == [True, False]
