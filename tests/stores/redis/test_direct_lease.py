"""Direct leases: a lone job is leased to the open claim of a waiting worker, and sent with its wake-up."""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from headway.core.job import JobId, NewJob, State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, LimitRule
from headway.core.policy.retry import Returned
from headway.dispatch.job_source import FinishedRun, StoreJobSource
from headway.policy_store.current import CurrentPolicy
from headway.policy_store.rule_documents import change_paused, write_rules
from headway.stores.base import JobQuery, Subscription
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import CONFIRM_MS, a_job, beat, claim_one, end, register, submit
from tests.servers import Proxy, Valkey
from tests.stores.redis.conftest import OpenStore, recount, until


class WaitingWorker:
    """A worker without slots, with a job source and a subscription. It returns the leases of an exchange."""

    def __init__(self, store: RedisStore, worker_id: str = "w1") -> None:
        self.store = store
        self.feed = StoreJobSource(store, CurrentPolicy(), worker_id, (), confirm=CONFIRM_MS / 1_000)
        self.subscription: Subscription = store.subscribe(worker_id)

    async def wait(self, free: int = 5, free_below: int = 4) -> None:
        """Exchange until no more jobs can be claimed, so that the claim stays open."""
        while (fed := await self.feed.exchange([], [], free=free, free_below=free_below)).more or fed.leases:
            pass

    async def woken(self, free: int = 5, free_below: int = 4) -> list[JobId]:
        fed = await self.feed.exchange([], [], free=free, free_below=free_below, woken=True)
        return [lease.job_id for lease in fed.leases]


async def a_waiter(store: RedisStore, worker_id: str = "w1", *, slots: int = 5) -> WaitingWorker:
    """Return a worker that waits and knows the usual class."""
    await register(store, worker_id, slots=slots)
    if not (await store.snapshot()).classes:
        await submit(store, a_job())
        await end(store, await claim_one(store, worker_id))
    waiter = WaitingWorker(store, worker_id)
    await waiter.wait()
    return waiter


def calls(server: Valkey) -> int:
    found = re.search(rb"cmdstat_fcall:calls=(\d+)", server.ask("INFO", "commandstats"))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize(
    "job",
    [a_job(), a_job(unique_key="u", idempotency_key="k"), a_job(expires_ms=60_000, trace_id="t" * 32)],
    ids=["plain", "with keys", "that expires"],
)
async def test_a_job_that_comes_alone_is_there_with_the_ring(store: RedisStore, server: Valkey, job: NewJob) -> None:
    waiter = await a_waiter(store)
    await submit(store, job)
    assert await waiter.subscription.wait(5) is not None
    before = calls(server)
    fed = await waiter.feed.exchange([], [], free=5, free_below=4, woken=True)
    assert calls(server) == before  # No store was asked.
    [lease] = fed.leases
    [held] = await store.leases(worker_id="w1")
    assert held == lease
    assert (lease.job_id, lease.payload, lease.attempts) == (job.job_id, job.payload, 1)
    await end(store, lease)
    assert (await recount(store))[State.COMPLETED] == 2
    assert (await store.stats()).totals["claimed"] == 2


async def test_it_is_handed_over_once(store: RedisStore) -> None:
    waiter = await a_waiter(store)
    first = a_job()
    await submit(store, first)
    assert await waiter.woken() == [first.job_id]
    assert await waiter.woken() == []
    assert len(await store.leases(worker_id="w1")) == 1


async def test_one_that_waits_again_is_handed_the_next(store: RedisStore, server: Valkey) -> None:
    waiter = await a_waiter(store)
    for _ in range(3):
        job = a_job()
        await submit(store, job)
        before = calls(server)
        assert await waiter.woken() == [job.job_id]
        assert calls(server) == before
        for lease in await store.leases(worker_id="w1"):
            await end(store, lease)
        await waiter.wait()


async def test_what_comes_together_is_only_rung_for(store: RedisStore) -> None:
    waiter = await a_waiter(store)
    await submit(store, a_job(), a_job())
    assert await waiter.subscription.wait(5) is not None
    assert not await store.leases(worker_id="w1")
    assert len(await waiter.woken()) == 2


async def test_a_worker_that_executes_something_is_only_rung(store: RedisStore) -> None:
    """One of its jobs might block its event loop, and delay the job that was handed over."""
    waiter = await a_waiter(store)
    await submit(store, a_job())
    assert len(await waiter.woken()) == 1
    await waiter.wait(free=4, free_below=3)
    await submit(store, a_job())
    assert await waiter.subscription.wait(5) is not None
    assert len(await store.leases(worker_id="w1")) == 1
    assert len(await waiter.woken(free=4, free_below=3)) == 1


async def test_a_worker_that_is_gone_is_handed_nothing(store: RedisStore, server: Valkey, open_url: OpenStore) -> None:
    """The worker has not deregistered, so the server believes that it waits, but it does not listen."""
    gone = await open_url(server.url)
    await a_waiter(gone, "gone")
    await gone.close()
    await submit(store, a_job())
    assert not await store.leases(worker_id="gone")
    waiter = await a_waiter(store, "w2")
    assert (await store.leases(worker_id="w2")) or await waiter.woken()


async def test_the_first_that_waits_is_handed_the_first(store: RedisStore, server: Valkey, open_url: OpenStore) -> None:
    one, other = await a_waiter(store, "w1"), await a_waiter(await open_url(server.url), "w2")
    first, second = a_job(), a_job()
    await submit(store, first)
    await submit(store, second)
    assert (await one.woken(), await other.woken()) == ([first.job_id], [second.job_id])


async def test_a_message_that_was_lost_is_made_good_by_the_next_exchange(
    store: RedisStore, behind: RedisStore, proxy: Proxy
) -> None:
    waiter = await a_waiter(behind)
    proxy.swallow_replies()  # The connection is there, but nothing comes through.
    job = a_job()
    await submit(store, job)
    assert [lease.job_id for lease in await store.leases(worker_id="w1")] == [job.job_id]
    proxy.cut()
    assert await waiter.subscription.wait(10) is not None  # It is connected again, and told to look.
    assert await waiter.woken() == [job.job_id]
    assert (await recount(store))[State.EXECUTING] == 1
    assert [found.attempts for found in await store.get([job.job_id]) if found] == [1]


async def test_a_message_that_is_too_old_is_not_gone_by(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """By then another worker may have the job."""
    waiter = await a_waiter(store)
    job = a_job()
    await submit(store, job)
    assert await waiter.subscription.wait(5) is not None
    [lease] = await store.leases(worker_id="w1")
    await asyncio.sleep(0.05)
    await beat(store, confirm_ms=1)  # No heartbeat has named it.
    other = await claim_one(store, (await register(store, "w2")).worker_id)
    assert other.job_id == job.job_id
    later = time.monotonic() + 11
    monkeypatch.setattr("headway.stores.redis.direct_lease.time", SimpleNamespace(monotonic=lambda: later))
    assert await waiter.woken() == []
    assert other.token != lease.token


async def test_whoever_missed_it_claims_what_waits_all_the_same(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated claim returns its leases again. If they were returned meanwhile, the reply must not stay empty."""
    waiter = await a_waiter(store)
    job = a_job()
    await submit(store, job)
    await asyncio.sleep(0.05)
    await beat(store, confirm_ms=1)
    assert not await store.leases(worker_id="w1")
    later = time.monotonic() + 11
    monkeypatch.setattr("headway.stores.redis.direct_lease.time", SimpleNamespace(monotonic=lambda: later))
    assert await waiter.woken() == [job.job_id]


async def test_whoever_stops_claiming_is_handed_nothing_more(store: RedisStore) -> None:
    waiter = await a_waiter(store)
    await waiter.feed.exchange([], [], free=0, free_below=0)
    await submit(store, a_job())
    assert not await store.leases(worker_id="w1")


async def test_what_was_handed_over_before_that_is_not_forgotten(store: RedisStore) -> None:
    waiter = await a_waiter(store)
    job = a_job()
    await submit(store, job)
    fed = await waiter.feed.exchange([], [], free=0, free_below=0)
    assert [lease.job_id for lease in fed.leases] == [job.job_id]


async def test_a_worker_that_is_drained_is_handed_nothing(store: RedisStore) -> None:
    await a_waiter(store)
    await store.drain("w1")
    await submit(store, a_job())
    assert not await store.leases(worker_id="w1")


async def test_reserved_slots_are_not_for_others(store: RedisStore) -> None:
    # R1.4
    waiter = await a_waiter(store)
    await waiter.wait(free=1, free_below=0)
    await submit(store, a_job(lane="low"))
    assert not await store.leases(worker_id="w1")


async def test_jobs_that_wait_for_something_else_are_not_handed_over(store: RedisStore) -> None:
    waiter = await a_waiter(store)
    await submit(store, a_job(delay_ms=60_000))
    await submit(store, a_job(needs=("gpu",)))
    await submit(store, a_job(persist=False))
    assert not await store.leases(worker_id="w1")
    assert await waiter.woken() == []  # It comes to know the two new classes,
    assert len(await waiter.woken()) == 1  # and serves the one that it can.


async def test_a_lane_that_is_paused_hands_over_nothing(store: RedisStore) -> None:
    waiter = await a_waiter(store)
    await change_paused(store, lambda paused: replace(paused, lanes=("medium",)))
    await waiter.wait()
    await submit(store, a_job())
    assert not await store.leases(worker_id="w1")


async def test_a_limit_holds_for_what_is_handed_over(store: RedisStore, server: Valkey, open_url: OpenStore) -> None:
    await write_rules(store, replace(BUILT_IN, limits={"api": LimitRule(concurrency=1)}))
    one, other = await a_waiter(store, "w1"), await a_waiter(await open_url(server.url), "w2")
    first = a_job()
    await submit(store, first)
    await submit(store, a_job())
    [held] = await store.leases(worker_id="w1")
    assert (held.job_id, await one.woken()) == (first.job_id, [first.job_id])
    assert not await store.leases(worker_id="w2")
    assert await other.woken() == []
    assert (await recount(store))[State.QUEUED] == 1


async def test_nothing_is_lost_or_doubled_however_messages_and_exchanges_cross(
    store: RedisStore, server: Valkey, proxy: Proxy, open_url: OpenStore
) -> None:
    """Three workers come and go, two of them over connections that are cut repeatedly."""
    chance = random.Random(7)
    await submit(store, a_job())
    await register(store, "first")
    await end(store, await claim_one(store, "first"))
    started: Counter[JobId] = Counter()
    jobs: list[NewJob] = []
    over = asyncio.Event()

    async def work(worker_id: str, own: RedisStore, slots: int) -> None:
        await register(own, worker_id, slots=slots, reserved=0)
        waiter = WaitingWorker(own, worker_id)
        running: list[Lease] = []
        while not over.is_set() or running:
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            ended, running = running, []
            finished = [FinishedRun(lease, Returned(b"null"), 0.001) for lease in ended]
            woken = not finished and chance.random() < 0.8
            fed = await waiter.feed.exchange(finished, [], free=slots, free_below=slots, woken=woken)
            running = list(fed.leases)
            started.update(lease.job_id for lease in running)
            if not fed.more and not running and not over.is_set():
                await waiter.subscription.wait(0.05)
        await waiter.feed.exchange([], [], free=0, free_below=0)

    async def all_completed() -> bool:
        return (await store.stats()).totals.get("completed", 0) == 401

    async def cut() -> None:
        while not over.is_set():
            await asyncio.sleep(chance.uniform(0.02, 0.1))
            proxy.cut()

    behind = [await open_url(f"redis://127.0.0.1:{proxy.port}") for _ in range(2)]
    async with asyncio.TaskGroup() as group:
        for number, own in enumerate([store, *behind]):
            group.create_task(work(f"w{number}", own, slots=chance.choice((1, 3))))
        group.create_task(cut())
        submitter = await open_url(server.url)
        for _ in range(400):
            jobs.append(a_job())
            await submit(submitter, jobs[-1])
            if chance.random() < 0.5:
                await asyncio.sleep(chance.uniform(0, 0.01))
        await until(all_completed)
        over.set()
    assert started == {job.job_id: 1 for job in jobs}
    assert await recount(store) == {State.COMPLETED: 401}
    assert {job.attempts for job in await store.find(JobQuery(limit=1_000))} == {1}
