"""Durable and transient jobs in two stores: one ranking and one bound, and one store may fail without the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, cast

import pytest

from headway.core.errors import IdempotencyConflict, NotAStore, StoreUnavailable
from headway.core.job import JobId
from headway.core.policy.document import BUILT_IN, Keep
from headway.core.policy.enforced import EnforcedRules, PauseSet
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Returned, judge
from headway.core.snapshot import Plan, Take
from headway.core.worker import WorkerState
from headway.dispatch.job_source import StoreJobSource
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import (
    LEASE_CHANNEL,
    RULES,
    Exchange,
    ExchangeReply,
    Store,
)
from headway.stores.open import open_store
from headway.stores.rule_codec import rules_body
from headway.stores.split import optional
from headway.stores.split.store import SplitStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_claim_id, a_job, ask, beat, claim, claimed_ids, end, register, submit

KEEP = Keep(1, 1, 1, 1)


class UnreliableStore:
    """A store that a test can disconnect, empty, or make lose replies."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.inner = open_store("memory://", clock=clock)
        self.down = False
        self.hangs = False
        self.losing = 0
        self.meanwhile: Callable[[], Awaitable[object]] | None = None  # What happens during the next exchange.
        self.exchanges: list[Exchange] = []

    @property
    def store(self) -> Store:
        return cast(Store, self)

    async def close(self) -> None: ...

    def empty(self) -> None:
        self.inner = open_store("memory://", clock=self._clock)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._unreliable(found) if asyncio.iscoroutinefunction(found) else found

    def _unreliable(self, verb: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def call(*args: Any, **options: Any) -> Any:
            if verb.__name__ == "exchange":
                self.exchanges += args
            if verb.__name__ == "exchange" and (meanwhile := self.meanwhile) is not None:
                self.meanwhile = None
                await meanwhile()
            if self.hangs:
                await asyncio.sleep(3_600)
            if self.down:
                raise StoreUnavailable("cut off")
            answer = await verb(*args, **options)
            if self.losing and verb.__name__ == "exchange":
                self.losing -= 1
                raise StoreUnavailable("the reply was lost")
            return answer

        return call


@pytest.fixture
def durable(clock: ManualClock) -> UnreliableStore:
    return UnreliableStore(clock)


@pytest.fixture
def transient(clock: ManualClock) -> UnreliableStore:
    return UnreliableStore(clock)


@pytest.fixture
async def store(durable: UnreliableStore, transient: UnreliableStore) -> AsyncIterator[Store]:
    pair = SplitStore(durable.store, lambda: transient.store)
    await pair.open()
    yield pair
    await pair.close()


async def back(store: Store) -> None:
    """Wait until the split store has reached its transient store again."""
    async with asyncio.timeout(30):
        while "away" in (await store.describe())["transient jobs"]:  # noqa: ASYNC110  (a task of its own finds it)
            await asyncio.sleep(0.01)


def a_feed(store: Store) -> StoreJobSource:
    return StoreJobSource(store, CurrentPolicy(), "w1", ())


async def fed(feed: StoreJobSource, *, free: int, most: int = 100) -> list[str]:
    """Claim batches of free slots, as a worker does, until no more jobs are announced."""
    lanes: list[str] = []
    for _ in range(1_000):
        if len(lanes) >= most:
            break
        given = await feed.exchange((), (), free=free, free_below=free)
        lanes += [f"{lease.lane} {'durable' if lease.persist else 'transient'}" for lease in given.leases]
        if not given.leases and not given.more:
            break
    else:
        pytest.fail("always told that there is more")
    return lanes


# ---------------------------------------------------------------------- which job where


async def test_each_kind_waits_in_its_own_store(
    store: Store, durable: UnreliableStore, transient: UnreliableStore
) -> None:
    # R2.1, R2.5, R2.15: a transient job never touches the database.
    kept, passing = a_job(), a_job(persist=False)
    assert [answer.job_id for answer in await store.submit([passing, kept])] == [passing.job_id, kept.job_id]
    assert [view.key.persist for view in (await durable.inner.snapshot()).classes] == [True]
    assert [view.key.persist for view in (await transient.inner.snapshot()).classes] == [False]
    assert [job is None for job in await store.get([passing.job_id, kept.job_id])] == [True, False]
    stats = await store.stats()
    assert (stats.lanes["medium"].waiting, stats.totals["submitted"]) == (2, 2)


async def test_both_are_claimed_under_one_bound(store: Store) -> None:
    # R2.2, R2.9: never more than the free slots, nor than those below the reserve, over both.
    await submit(store, *(a_job() for _ in range(5)), *(a_job(persist=False) for _ in range(5)))
    await register(store, slots=10)
    assert len(await claim(store, free=4, free_below=3)) == 3
    assert len(await claim(store, free=2)) == 2


async def test_whatever_is_claimed_counts_where_slots_are_to_be_left_free(store: Store) -> None:
    await submit(store, a_job(lane="high", persist=False), a_job(lane="low"), a_job(lane="low"))
    await register(store)
    made = plan(await store.snapshot(), free=3, free_below=2, offers=frozenset(), policy=BUILT_IN)
    answer = await store.exchange(Exchange("w1", a_claim_id(), plan=made._replace(leave_free=True)))
    assert sorted(lease.lane for lease in answer.leases) == ["high", "low"]


async def test_lanes_are_served_in_order_over_both_stores(store: Store) -> None:
    # R2.75: one ranking.
    for lane in ("low", "high", "medium"):
        await submit(store, *(a_job(lane=lane) for _ in range(4)), *(a_job(lane=lane, persist=False) for _ in range(4)))
    await register(store, slots=30)
    for free in (1, 3, 5):
        feed = a_feed(store)
        lanes = [said.split()[0] for said in await fed(feed, free=free, most=8 if free < 5 else 100)]
        assert lanes == sorted(lanes, key=["high", "medium", "low"].index)
    assert (await store.stats()).totals["claimed"] == 24


@pytest.mark.parametrize("flood", ["transient", "durable"])
async def test_a_flood_of_one_kind_does_not_hold_up_the_other(store: Store, flood: str) -> None:
    # R2.75: neither way round, whichever came first.
    await submit(store, *(a_job(persist=flood == "durable") for _ in range(500)))
    await submit(store, *(a_job(persist=flood != "durable") for _ in range(5)))
    await register(store, slots=1_000)
    lanes = await fed(a_feed(store), free=1, most=20)
    assert sum(flood not in said for said in lanes) == 5


async def test_jobs_between_durable_ones_are_not_skipped(store: Store) -> None:
    # The durable store is asked once for each claim; the rest is for the next one, which is asked for at once.
    low, between, high = await submit(store, a_job(lane="low"), a_job(persist=False), a_job(lane="high"))
    await register(store)
    answer = await ask(store, free=5)
    assert ([lease.job_id for lease in answer.leases], answer.more) == ([high, between], True)
    answer = await ask(store, free=5)
    assert ([lease.job_id for lease in answer.leases], answer.more) == ([low], False)


async def test_paused_transient_jobs_hold_nobody_up(store: Store) -> None:
    # Pauses are rules; those of the durable store hold in the other one too.
    await store.write(RULES, "pauses", rules_body(EnforcedRules(paused=PauseSet(tasks=("ping",)))))
    await submit(store, a_job(lane="low"), a_job(task="ping", persist=False), a_job(lane="high"))
    await register(store)
    assert await fed(a_feed(store), free=1) == ["high durable", "low durable"]
    await store.write(RULES, "pauses", None)
    assert await fed(a_feed(store), free=1) == ["medium transient"]


async def test_a_plan_made_before_a_class_came_up_in_the_transient_store_is_outdated(store: Store) -> None:
    await submit(store, a_job(lane="low"))
    await register(store)
    feed = a_feed(store)
    assert await fed(feed, free=1) == ["low durable"]
    await submit(store, a_job(lane="low"), a_job(lane="high", persist=False))
    assert await fed(feed, free=1, most=1) == ["high transient"]


async def test_transient_jobs_left_in_the_durable_store_still_run(store: Store, durable: UnreliableStore) -> None:
    # They came before the setting did, or as part of a transaction.
    stray = a_job(persist=False)
    await durable.inner.submit([stray])
    [other] = await submit(store, a_job(persist=False))
    await register(store)
    assert (await store.snapshot()).classes[0].waiting == 2
    ids: list[JobId] = []
    for _ in range(2):
        ids += await claimed_ids(store, free=1)
    assert sorted(ids) == sorted([stray.job_id, other])


async def test_a_conflict_names_the_job_by_its_place_in_the_whole_batch(
    store: Store, transient: UnreliableStore
) -> None:
    known = a_job()
    await submit(store, known)
    with pytest.raises(IdempotencyConflict, match="was used before") as caught:
        await store.submit([a_job(persist=False), known._replace(payload=b"other")])
    assert caught.value.facts["index"] == 1
    assert (await transient.inner.snapshot()).classes == ()  # The durable ones come first, and failed.


# ---------------------------------------------------------------------- lost replies


async def test_a_claim_made_again_after_a_lost_reply_gives_the_same_jobs(
    store: Store, durable: UnreliableStore
) -> None:
    # R2.45: and what was already taken from the transient store is neither lost nor taken twice.
    ids = await submit(store, a_job(), a_job(lane="high", persist=False), a_job(), a_job(persist=False))
    await register(store, slots=2)
    feed = a_feed(store)
    await feed.exchange((), (), free=1, free_below=0)  # Learn of the classes.
    durable.losing = 2
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await feed.exchange((), (), free=2, free_below=2)
    got = (await feed.exchange((), (), free=2, free_below=2)).leases
    assert [lease.job_id for lease in got if not lease.persist] == [ids[1]]
    assert len(got) == 2
    assert len(await store.leases(worker_id="w1")) == 1
    assert (await store.stats()).totals["claimed"] == 2


async def test_the_end_of_a_transient_job_is_counted_once_though_the_durable_store_failed(
    store: Store, durable: UnreliableStore
) -> None:
    # R2.48
    await submit(store, a_job(persist=False))
    await register(store)
    [lease] = await claim(store)
    report = judge(Returned(b"1"), lease, BUILT_IN)
    request = Exchange("w1", a_claim_id(), [report], Plan(free=1, free_below=1))
    durable.down = True
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            await store.exchange(request)
    durable.down = False
    await store.exchange(request)
    assert (await store.stats()).totals["transient_completed"] == 1


async def test_what_is_kept_for_a_worker_is_given_as_it_has_room(store: Store, durable: UnreliableStore) -> None:
    ids = await submit(store, *(a_job(persist=False) for _ in range(3)))
    await register(store)
    takes = (Take(a_job(persist=False).class_key, 3, below_reserve=True),)
    durable.down = True
    for free in (3, 1):
        with pytest.raises(StoreUnavailable):
            await store.exchange(Exchange("w1", a_claim_id(), plan=Plan(takes, free, free)))
    durable.down = False
    given: list[JobId] = []
    for _ in range(3):
        answer = await store.exchange(Exchange("w1", a_claim_id(), plan=Plan(takes, 1, 1)))
        given += [lease.job_id for lease in answer.leases]
    assert given == ids


# ---------------------------------------------------------------------- an outage of the transient store


async def test_durable_jobs_go_on_without_the_transient_store(
    store: Store, transient: UnreliableStore, caplog: pytest.LogCaptureFixture
) -> None:
    await register(store)
    await submit(store, a_job(persist=False))
    transient.down = True
    [kept] = await submit(store, a_job())
    [lease] = await claim(store)
    assert lease.job_id == kept
    await end(store, lease)
    assert (await beat(store)).state is WorkerState.ACTIVE
    assert (await store.stats()).totals["completed"] == 1
    await store.prune(KEEP)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "transient_store.unavailable error=cut off"
    ]


async def test_transient_jobs_are_refused_with_a_clear_error_and_go_on_once_their_store_is_back(
    store: Store, transient: UnreliableStore
) -> None:
    await register(store)
    [waiting] = await submit(store, a_job(persist=False))
    transient.down = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="transient jobs cannot be submitted, their store is away: cut off"):
            await store.submit([a_job(persist=False)])
    assert await claim(store) == []
    transient.down = False
    await back(store)
    assert await claimed_ids(store) == [waiting]


async def test_a_store_that_hangs_is_waited_for_once(
    store: Store, transient: UnreliableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.stores.split.optional.TIMEOUT", 0.05)
    await register(store)
    await submit(store, *(a_job() for _ in range(3)))
    transient.hangs = True
    began = asyncio.get_running_loop().time()
    for _ in range(3):
        assert len(await claim(store, free=1)) == 1
    assert asyncio.get_running_loop().time() - began < 0.3


async def test_all_questions_of_one_exchange_share_one_time_limit(
    store: Store, durable: UnreliableStore, transient: UnreliableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A slow server, or one that freezes again and again, must not be waited for several times by one call.
    monkeypatch.setattr(optional, "TIMEOUT", 1_000.0)
    monkeypatch.setattr("headway.stores.split.store.IDLE_SECONDS", -1.0)  # Nothing that was seen before is good enough.
    passed = 0.0
    monkeypatch.setattr(optional, "monotonic", lambda: passed)
    await register(store)

    async def takes_long() -> None:
        nonlocal passed
        passed += 999.9

    async def freezes() -> None:
        transient.hangs = True

    transient.meanwhile, durable.meanwhile = takes_long, freezes
    async with asyncio.timeout(60):
        answer = await store.exchange(Exchange("w1", a_claim_id(), plan=Plan(free=1, free_below=1), wait=True))
    assert (list(answer.leases), len(transient.exchanges)) == ([], 2)
    assert cast(SplitStore, store)._transient.away is not None


async def test_a_store_that_answers_slowly_does_not_count_as_back(
    store: Store, transient: UnreliableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optional, "TIMEOUT", 0.2)
    await register(store)
    transient.hangs = True
    assert await claim(store) == []
    looked_for = cast(SplitStore, store)._transient
    assert looked_for.away is not None
    tried, told_all, slow = 0, looked_for._returned, 0.15  # Over half of the time that a call may take.

    async def answers_slowly(found: Store) -> None:
        nonlocal tried
        tried += 1
        await asyncio.sleep(slow)
        await told_all(found)

    monkeypatch.setattr(looked_for, "_returned", answers_slowly)
    transient.hangs = False
    async with asyncio.timeout(30):
        while tried < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert looked_for.returns == 0
    slow = 0.0
    await back(store)


async def test_a_store_that_came_back_empty_learns_of_workers_and_pauses_before_it_gives_anything(
    store: Store, transient: UnreliableStore
) -> None:
    await register(store)
    await store.write(RULES, "pauses", rules_body(EnforcedRules(paused=PauseSet(tasks=("ping",)))))
    feed = a_feed(store)
    transient.down = True
    assert await fed(feed, free=1) == []
    transient.empty()
    transient.down = False
    await back(store)
    paused, free = await submit(store, a_job(task="ping", persist=False), a_job(persist=False))
    assert await fed(feed, free=5) == ["medium transient"]
    assert (await store.stats()).lanes["medium"].waiting == 1
    assert paused != free


async def test_a_worker_whose_deadline_passed_there_while_it_was_away_is_known_again(
    store: Store, transient: UnreliableStore, clock: ManualClock
) -> None:
    await register(store, lease_ms=90_000)
    await submit(store, a_job(persist=False))
    transient.down = True
    for _ in range(3):
        clock.advance(ms=60_000)
        await beat(store)
    transient.down = False
    await back(store)
    assert await fed(a_feed(store), free=1) == ["medium transient"]


async def test_what_was_claimed_is_not_lost_if_a_worker_cannot_be_introduced(
    store: Store, durable: UnreliableStore, transient: UnreliableStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail() -> None:
        raise StoreUnavailable("cut off")

    await register(store)
    transient.down = True
    assert await claim(store) == []
    transient.down = False
    await back(store)
    await submit(store, a_job(), a_job(persist=False))
    with monkeypatch.context() as trouble:
        trouble.setattr(durable.inner, "diagnose", fail)
        assert len(await claim(store)) == 2
    await submit(store, a_job(persist=False))
    assert (await ask(store)).leases


async def test_a_pair_that_one_loop_opened_may_be_closed_on_another(
    durable: UnreliableStore, transient: UnreliableStore
) -> None:
    transient.down = True
    store = SplitStore(durable.store, lambda: transient.store)
    await asyncio.to_thread(asyncio.run, store.open())
    await store.close()


async def test_a_store_that_is_not_there_at_the_start_is_found_later(
    durable: UnreliableStore, clock: ManualClock
) -> None:
    made: list[UnreliableStore] = []

    def make() -> Store:
        made.append(UnreliableStore(clock))
        made[-1].down = len(made) < 4
        return made[-1].store

    store = SplitStore(durable.store, make)
    await store.open()
    subscription = store.subscribe("w1")
    await register(store)
    await submit(store, a_job())
    assert len(await claim(store)) == 1
    await back(store)
    await ask(store, wait=True)
    await ask(store, wait=True)
    hearing = asyncio.create_task(subscription.wait(5))
    await asyncio.sleep(0)
    await submit(store, a_job(persist=False))
    assert await hearing is not None
    assert len(await claim(store)) == 1
    subscription.close()
    await store.close()


async def test_an_address_that_leads_elsewhere_is_an_error_at_once(
    durable: UnreliableStore, clock: ManualClock
) -> None:
    class Wrong(UnreliableStore):
        async def open(self) -> None:
            raise NotAStore("another program's")

    store = SplitStore(durable.store, lambda: Wrong(clock).store)
    with pytest.raises(NotAStore):
        await store.open()


# ---------------------------------------------------------------------- being woken


@pytest.mark.parametrize("persist", [True, False])
async def test_a_waiting_worker_is_woken_for_either_kind(store: Store, persist: bool) -> None:
    await register(store)
    subscription = store.subscribe("w1")
    assert (await ask(store, wait=True)).leases == []
    assert await subscription.wait(0) is None
    await submit(store, a_job(persist=persist))
    assert await subscription.wait(5) is not None
    assert await subscription.wait(0) is None
    subscription.close()


@pytest.mark.parametrize("persist", [True, False])
async def test_a_worker_that_got_work_from_one_store_no_longer_waits_at_the_other(store: Store, persist: bool) -> None:
    # Or it would be woken in place of one that is idle.
    await register(store, "w1")
    await register(store, "w2")
    busy, idle = store.subscribe("w1"), store.subscribe("w2")
    await ask(store, "w1", wait=True)
    await submit(store, a_job(persist=persist))
    assert len((await ask(store, "w1", wait=True)).leases) == 1
    await ask(store, "w2", wait=True)
    await busy.wait(0.01)
    await submit(store, a_job(persist=not persist))
    assert await idle.wait(5) is not None
    assert await busy.wait(0.01) is None
    busy.close()
    idle.close()


async def test_a_job_that_comes_between_two_looks_is_found_and_its_worker_waits_nowhere(
    store: Store, durable: UnreliableStore
) -> None:
    await register(store, "w1")
    await register(store, "w2")
    busy, idle = store.subscribe("w1"), store.subscribe("w2")
    await submit(store, a_job(persist=False))
    await claim(store)
    durable.meanwhile = lambda: store.submit([a_job(persist=False)])
    assert len((await ask(store, "w1", wait=True)).leases) == 1
    await ask(store, "w2", wait=True)
    await submit(store, a_job())
    assert await idle.wait(5) is not None
    assert await busy.wait(0.01) is None
    busy.close()
    idle.close()


async def test_a_class_that_comes_up_between_two_looks_is_asked_for_at_once(
    store: Store, durable: UnreliableStore
) -> None:
    await register(store)
    feed = a_feed(store)
    durable.meanwhile = lambda: store.submit([a_job(persist=False)])
    assert (await feed.exchange((), (), free=1, free_below=1)).more
    assert len((await feed.exchange((), (), free=1, free_below=1)).leases) == 1


async def test_what_concerns_durable_jobs_alone_is_heard_at_the_durable_store(
    store: Store, durable: UnreliableStore
) -> None:
    subscription = store.subscribe("w1" + LEASE_CHANNEL)
    assert type(subscription) is type(durable.inner.subscribe("w1"))


async def test_nothing_is_handed_over_in_a_pair(
    store: Store, durable: UnreliableStore, transient: UnreliableStore
) -> None:
    """A transient job might get the slot while a durable one is on its way to it."""
    await register(store)
    feed = StoreJobSource(store, CurrentPolicy(), "w1", (), confirm=10.0)
    await feed.exchange((), (), free=5, free_below=5)
    asked = [*durable.exchanges, *transient.exchanges]
    assert asked
    assert not any(request.handover for request in asked)


# ---------------------------------------------------------------------- what it offers


@pytest.mark.parametrize(
    "address, offers",
    [
        ("memory://", set[str]()),
        ("sqlite:///none.db", {"short way"}),
        ("redis://localhost", {"archival", "short way"}),
        ("postgresql://localhost/none", {"within", "migrates"}),
    ],
)
def test_a_pair_offers_what_its_durable_store_does(address: str, offers: set[str]) -> None:
    for store in (open_store(address), open_store(address, transient="redis://elsewhere")):
        found = {
            "archival": store.abilities.archive_source is not None,
            "within": store.abilities.external_submit is not None,
            "migrates": store.abilities.migrate is not None,
            "short way": store.abilities.submit_blocking is not None,
        }
        assert {name for name, has in found.items() if has} == offers


def test_without_another_address_there_is_no_pair() -> None:
    # No caller pays for what it did not ask for.
    for transient in (None, "memory://"):
        assert not isinstance(open_store("memory://", transient=transient), SplitStore)


async def test_a_take_of_a_class_nobody_knows_is_harmless(store: Store) -> None:
    await register(store)
    takes: Sequence[Take] = [Take(a_job(persist=False).class_key, 5, below_reserve=False)]
    answer: ExchangeReply = await store.exchange(Exchange("w1", a_claim_id(), plan=Plan(tuple(takes), 5, 5)))
    assert answer.leases == []
