"""The lease renewer: it renews, forwards news, and gives up before the leases end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence

import pytest

from headway.core.errors import StoreUnavailable
from headway.core.job import JobId
from headway.core.policy.ladder import RunBudget
from headway.core.worker import WorkerState
from headway.stores.base import POLICIES, Heartbeat, HeartbeatReply
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from headway.worker.lease_renewer import LeaseRenewer, cut_off_after, runner_ends_after
from tests.conformance.builders import a_job, a_worker, claim, register


class RecordingListener:
    """A listener that records the calls of the lease renewer."""

    def __init__(self) -> None:
        self.cancelled: list[JobId] = []
        self.gone: list[JobId] = []
        self.granted: list[RunBudget] = []
        self.left: list[WorkerState] = []
        self.cut = 0
        self.news = asyncio.Semaphore(0)

    def cancel(self, job_ids: Sequence[JobId]) -> None:
        self.cancelled += job_ids

    def lost(self, job_ids: Sequence[JobId]) -> None:
        self.gone += job_ids

    def grant(self, grants: Sequence[RunBudget]) -> None:
        self.granted += grants

    def leave(self, state: WorkerState) -> None:
        self.left.append(state)

    def policy_may_have_changed(self) -> None:
        self.news.release()

    def cut_off(self) -> None:
        self.cut += 1


class UnreachableStore(MemoryStore):
    """A store that refuses renewals for a while."""

    refusals = 0

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        if self.refusals and not beat.register:
            self.refusals -= 1
            raise StoreUnavailable("no route")
        return await super().renew(beat)


def a_keeper(
    store: MemoryStore,
    listener: RecordingListener,
    held: Sequence[tuple[JobId, bytes]] = (),
    *,
    dead_after: float = 3.0,
) -> LeaseRenewer:
    return LeaseRenewer(
        store, lambda: a_worker("w1"), lambda: held, listener, heartbeat=0.05, dead_after=dead_after, confirm=10
    )


async def test_it_is_passed_on_that_a_policy_was_written(clock: ManualClock) -> None:
    store, listener = MemoryStore(clock=clock), RecordingListener()
    await register(store)
    renewer = LeaseRenewer(store, lambda: a_worker("w1"), list, listener, heartbeat=30, dead_after=90, confirm=10)
    keeping = asyncio.create_task(renewer.run())
    async with asyncio.timeout(30):
        await listener.news.acquire()  # The first look.
        await store.write(POLICIES, "current", b"1")
        await listener.news.acquire()
    keeping.cancel()


async def test_a_cancelled_job_is_passed_on(clock: ManualClock) -> None:
    store, listener = MemoryStore(clock=clock), RecordingListener()
    await register(store)
    await store.submit([a_job()])
    (lease,) = await claim(store)
    await store.cancel([lease.job_id])
    assert await a_keeper(store, listener, [(lease.job_id, lease.token)]).renew()
    assert (listener.cancelled, listener.gone) == ([lease.job_id], [])


async def test_a_lost_lease_is_passed_on(clock: ManualClock) -> None:
    store, listener = MemoryStore(clock=clock), RecordingListener()
    await register(store)
    assert await a_keeper(store, listener, [(JobId("nobody's"), b"x" * 16)]).renew()
    assert listener.gone == ["nobody's"]


async def test_a_worker_taken_for_dead_is_told_to_leave(clock: ManualClock) -> None:
    # R5.58
    store, listener = MemoryStore(clock=clock), RecordingListener()
    await register(store)
    await store.mark_dead("w1")
    assert not await a_keeper(store, listener).renew()
    assert listener.left == [WorkerState.DEAD]


async def test_a_draining_worker_goes_on_being_renewed(clock: ManualClock) -> None:
    # R5.19
    store, listener = MemoryStore(clock=clock), RecordingListener()
    await register(store)
    await store.drain("w1")
    assert await a_keeper(store, listener).renew()
    assert listener.left == [WorkerState.DRAINING]


async def test_a_renewal_that_fails_is_tried_again(clock: ManualClock) -> None:
    # R1.41
    store, listener = UnreachableStore(clock=clock), RecordingListener()
    await register(store)
    store.refusals = 2
    assert await a_keeper(store, listener).renew()
    assert listener.cut == 0


async def test_work_is_cut_off_before_the_leases_end(clock: ManualClock) -> None:
    # W20
    store, listener = UnreachableStore(clock=clock), RecordingListener()
    await register(store)
    store.refusals = 1_000
    renewer = a_keeper(store, listener, dead_after=0.3)
    assert not await renewer.renew()
    assert listener.cut == 1
    assert 0 < store.refusals < 1_000  # It tried again, and not for ever.


class SilentStore(MemoryStore):
    """A store that does not reply to renewals, and whose calls ignore cancellation."""

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        if beat.register:
            return await super().renew(beat)
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
            if self.over:
                raise StoreUnavailable("at last")

    over = False


async def test_a_renewal_that_hangs_is_given_up_before_the_leases_end(clock: ManualClock) -> None:
    # W20: the heartbeat is much longer than what is left of the lease.
    store, listener = SilentStore(clock=clock), RecordingListener()
    await register(store)
    sent: list[float] = []
    renewer = LeaseRenewer(
        store,
        lambda: a_worker("w1"),
        list,
        listener,
        heartbeat=30,
        dead_after=60,
        confirm=10,
        since=time.monotonic() - 60 * 0.85 + 0.2,
        on_renewed=sent.append,
    )
    async with asyncio.timeout(5):  # Not after the heartbeat.
        assert not await renewer.renew()
    assert listener.cut == 1
    assert sent == [renewer.renewed]
    store.over = True


async def test_a_worker_that_stood_still_past_its_leases_is_told_to_begin_anew(clock: ManualClock) -> None:
    store, listener = MemoryStore(clock=clock), RecordingListener()
    await register(store)
    renewer = a_keeper(store, listener)
    renewer.renewed -= 3.0
    assert not await renewer.renew()
    assert (listener.left, listener.cut) == ([WorkerState.DEAD], 0)


@pytest.mark.parametrize("dead_after", [0.3, 1.0, 3.0, 30.0, 90.0, 600.0])
def test_a_parent_acts_first_then_the_runner_and_both_before_the_lease_ends(dead_after: float) -> None:
    assert dead_after / 2 < cut_off_after(dead_after) < runner_ends_after(dead_after) <= 0.9 * dead_after


async def test_an_error_that_no_store_should_raise_does_not_end_the_keeper(clock: ManualClock) -> None:
    store, listener = InvalidReplyStore(clock=clock), RecordingListener()
    await register(store)
    store.times = 2
    assert await a_keeper(store, listener).renew()
    assert (store.times, listener.cut) == (0, 0)


class InvalidReplyStore(MemoryStore):
    """A store whose replies are invalid for a while."""

    times = 0

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        if self.times and not beat.register:
            self.times -= 1
            raise ValueError("not JSON")
        return await super().renew(beat)


async def test_news_make_it_renew_at_once(clock: ManualClock) -> None:
    store, listener = MemoryStore(clock=clock), RecordingListener()
    await register(store)
    await store.submit([a_job()])
    (lease,) = await claim(store)
    held = [(lease.job_id, lease.token)]
    renewer = LeaseRenewer(
        store, lambda: a_worker("w1"), lambda: held, listener, heartbeat=60, dead_after=180, confirm=10
    )
    running = asyncio.create_task(renewer.run())
    await asyncio.sleep(0)
    await store.cancel([lease.job_id])
    async with asyncio.timeout(30):
        while not listener.cancelled:  # noqa: ASYNC110  (it is written down by another task)
            await asyncio.sleep(0.001)
    running.cancel()


async def test_a_worker_that_has_changed_is_told_to_the_store_long_before_its_heartbeat(clock: ManualClock) -> None:
    store = MemoryStore(clock=clock)
    worker = [a_worker("w1", reserved=0)]
    await register(store)
    renewer = LeaseRenewer(
        store, lambda: worker[0], list, RecordingListener(), heartbeat=60, dead_after=180, confirm=10
    )
    running = asyncio.create_task(renewer.run())
    await asyncio.sleep(0)
    worker[0] = a_worker("w1", reserved=2)
    async with asyncio.timeout(30):
        while (await store.stats()).workers[0].reserved != 2:  # noqa: ASYNC110  (it is written by another task)
            await asyncio.sleep(0.01)
    running.cancel()
