"""The job source: it plans from its last snapshot, repeats lost calls, and reads again only if needed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headway.core.errors import StoreUnavailable
from headway.core.job import ClassKey
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Returned
from headway.core.snapshot import Plan, Take
from headway.core.worker import WorkerState
from headway.dispatch.job_source import FinishedRun, StoreJobSource
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import JOB_CHANNEL, Exchange, ExchangeReply, Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, register


def a_feed(store: Store, worker_id: str = "w1", offers: tuple[str, ...] = ()) -> StoreJobSource:
    return StoreJobSource(store, CurrentPolicy(), worker_id, offers)


async def test_the_first_exchange_learns_the_classes_and_asks_again(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    await register(store)
    await store.submit([a_job()])
    job_source = a_feed(store)
    first = await job_source.exchange([], [], free=5, free_below=4)
    assert (list(first.leases), first.more) == ([], True)
    second = await job_source.exchange([], [], free=5, free_below=4)
    assert (len(second.leases), second.more) == (1, False)


async def test_a_reserved_slot_left_free_does_not_make_it_ask_for_ever(clock: ManualClock) -> None:
    # R1.47: low work waits beside an idle reserved slot, by rule; that is no reason to ask again at once.
    store = MemoryStore(clock=clock)
    await register(store)
    await store.submit([a_job(lane="low")])
    job_source = a_feed(store)
    answers = [await job_source.exchange([], [], free=1, free_below=0) for _ in range(4)]
    assert [len(fed.leases) for fed in answers] == [0, 0, 0, 0]
    assert False in [fed.more for fed in answers]


async def test_a_wake_up_right_after_a_look_at_an_empty_store_finds_a_class_that_is_new(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    await register(store)
    job_source = a_feed(store)
    await job_source.exchange([], [], free=5, free_below=4)
    await store.submit([a_job()])
    fed = await job_source.exchange([], [], free=5, free_below=4)
    for _ in range(3):
        if fed.leases or not fed.more:
            break
        fed = await job_source.exchange([], [], free=5, free_below=4)
    assert len(fed.leases) == 1


async def test_a_worker_that_does_not_look_says_nothing_of_what_waits(clock: ManualClock) -> None:
    # One whose slots are full, or all but the reserved ones, is not woken by what comes: others must look.
    store = MemoryStore(clock=clock)
    await register(store)
    job_source = a_feed(store)
    await job_source.exchange([], [], free=5, free_below=4)
    assert job_source.idle_since > 0.0
    await store.submit([a_job()])
    fed = await job_source.exchange([], [], free=1, free_below=1, woken=True)
    while not fed.leases:
        fed = await job_source.exchange([], [], free=1, free_below=1)
    assert job_source.idle_since == 0.0
    await job_source.exchange([], [], free=1, free_below=0)
    assert job_source.idle_since == 0.0
    while (await job_source.exchange([], [], free=4, free_below=3)).more:
        pass
    assert job_source.idle_since > 0.0


async def test_a_worker_with_only_reserved_slots_free_is_woken_for_those_lanes_alone(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    await register(store)
    job_source = a_feed(store)
    await job_source.exchange([], [], free=1, free_below=0)
    subscription = store.subscribe("w1")
    await store.submit([a_job(lane="low")])
    assert await subscription.wait(0.01) is None
    await store.submit([a_job(lane="high")])
    assert await subscription.wait(1) is not None


async def test_a_class_it_cannot_serve_is_no_reason_to_ask_again(clock: ManualClock) -> None:
    # R5.54
    store = MemoryStore(clock=clock)
    await register(store)
    await store.submit([a_job(needs=("gpu",))])
    job_source = a_feed(store)
    answers = [await job_source.exchange([], [], free=5, free_below=4) for _ in range(3)]
    assert [fed.more for fed in answers] == [True, False, False]  # The first asked with a plan that did not know it.
    assert (await a_feed(store, offers=("gpu",)).exchange([], [], free=5, free_below=4)).more


class LossyStore(MemoryStore):
    """A store whose replies can be lost after their effect."""

    lose = 0

    async def exchange(self, request: Exchange) -> ExchangeReply:
        answer = await super().exchange(request)
        if self.lose:
            self.lose -= 1
            raise StoreUnavailable("the reply was lost")
        return answer


async def test_a_lost_reply_is_asked_for_again_and_gives_the_same_leases(clock: ManualClock) -> None:
    # W10, N4
    store = LossyStore(clock=clock)
    await register(store)
    ids = [answer.job_id for answer in await store.submit([a_job(), a_job()])]
    job_source = a_feed(store)
    await job_source.exchange([], [], free=5, free_below=4)
    store.lose = 1
    with pytest.raises(StoreUnavailable):
        await job_source.exchange([], [], free=5, free_below=4)
    fed = await job_source.exchange([], [], free=5, free_below=4)
    assert [lease.job_id for lease in fed.leases] == ids
    assert {lease.attempts for lease in fed.leases} == {1}


async def test_a_report_whose_reply_was_lost_counts_once(clock: ManualClock) -> None:
    store = LossyStore(clock=clock)
    await register(store)
    await store.submit([a_job()])
    job_source = a_feed(store)
    await job_source.exchange([], [], free=5, free_below=4)
    (lease,) = (await job_source.exchange([], [], free=5, free_below=4)).leases
    run = FinishedRun(lease, Returned(b"1"), 0.1)
    store.lose = 1
    with pytest.raises(StoreUnavailable):
        await job_source.exchange([run], [], free=5, free_below=4)
    fed = await job_source.exchange([run], [], free=5, free_below=4)
    assert list(fed.refused) == [(lease.job_id, "same")]
    assert (await store.stats()).totals["completed"] == 1


async def test_a_claim_may_be_given_and_repeated_by_who_gives_it(clock: ManualClock) -> None:
    store = LossyStore(clock=clock)
    await register(store)
    ids = [answer.job_id for answer in await store.submit([a_job(), a_job()])]
    job_source = a_feed(store)
    await job_source.exchange([], [], free=5, free_below=4)
    store.lose = 1
    with pytest.raises(StoreUnavailable):
        await job_source.exchange_reports([], [], free=5, free_below=4, claim_id=b"1" * 16)
    fed = await job_source.exchange_reports([], [], free=5, free_below=4, claim_id=b"1" * 16)
    assert [(lease.job_id, lease.token) for lease in fed.leases] == [(job_id, b"1" * 16) for job_id in ids]
    await store.submit([a_job()])
    again = await a_feed(store).exchange_reports([], [], free=5, free_below=4, claim_id=b"2" * 16)
    assert (again.more, list(again.leases)) == (True, [])  # What the other feed had failed at is not done by this one.


async def test_who_does_not_wait_or_withdraws_is_not_woken(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    await register(store)
    job_source, subscription = a_feed(store), store.subscribe("w1")
    await job_source.exchange_reports([], [], free=5, free_below=4, wait=False)
    await store.submit([a_job(needs=("gpu",)), a_job(delay_ms=1)])
    assert await subscription.wait(0.01) is None
    await job_source.exchange([], [], free=5, free_below=4)
    await job_source.exchange([], [], free=5, free_below=4)
    await job_source.withdraw()
    await store.submit([a_job()])
    assert await subscription.wait(0.01) is None


async def test_it_tells_when_the_next_delayed_job_is_due(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    await register(store)
    await store.submit([a_job(delay_ms=2_500)])
    fed = await a_feed(store).exchange([], [], free=5, free_below=4)
    assert fed.next_due == 2.5


async def test_a_worker_the_store_does_not_know_is_told_so(clock: ManualClock) -> None:
    # R5.56
    store = MemoryStore(clock=clock)
    await store.submit([a_job()])
    fed = await a_feed(store, "stranger").exchange([], [], free=5, free_below=4)
    assert (list(fed.leases), fed.more, fed.state) == ([], False, WorkerState.DEAD)


async def test_a_watcher_hears_of_what_an_exchange_changed(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    await register(store)
    (answer,) = await store.submit([a_job()])
    subscription = store.subscribe(f"{JOB_CHANNEL}me")
    job_source = a_feed(store)
    await job_source.exchange([], [], free=5, free_below=4)
    await job_source.exchange([], [], free=5, free_below=4)
    assert list(await subscription.wait(1) or ()) == [answer.job_id]


async def test_a_worker_serves_a_task_that_another_did_not_know_once_it_can_learn_it(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    await register(store)
    await store.submit([a_job(needs=("task:shop.bill",)), a_job(needs=("task:shop.lost",))])
    asked: list[str] = []

    def learn(name: str) -> bool:
        asked.append(name)
        return name == "shop.bill"

    job_source = a_feed(store)
    job_source.offer_learned(learn)
    leases = [lease for _ in range(4) for lease in (await job_source.exchange([], [], free=5, free_below=4)).leases]
    assert [lease.class_key.needs for lease in leases] == [("task:shop.bill",)]
    assert sorted(asked) == ["shop.bill", "shop.lost"]  # Each once, however often jobs are seen to wait.


class PlanRecordingStore(MemoryStore):
    """A store that records the plans of its claims."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.plans: list[Plan | None] = []

    async def exchange(self, request: Exchange) -> ExchangeReply:
        self.plans.append(request.plan)
        return await super().exchange(request)


async def test_the_next_plan_follows_the_free_slots_and_the_policy(clock: ManualClock) -> None:
    store, in_force = PlanRecordingStore(clock), CurrentPolicy()
    await register(store)
    await store.submit([a_job(lane="low") for _ in range(10)])
    job_source = StoreJobSource(store, in_force, "w1", ())
    for _ in range(3):
        await job_source.exchange([], [], free=1, free_below=1)
    await job_source.exchange([], [], free=2, free_below=1)
    in_force.policy = replace(BUILT_IN, reserve=replace(BUILT_IN.reserve, lanes=frozenset({"low"})))
    await job_source.exchange([], [], free=2, free_below=1)
    low = ClassKey("low")
    assert [plan.takes if plan else None for plan in store.plans] == [
        (),
        (Take(low, 1, below_reserve=True),),
        (Take(low, 1, below_reserve=True),),
        (Take(low, 1, below_reserve=True),),
        (Take(low, 2, below_reserve=False),),
    ]
