"""The loop between a runner and its job source: the contents of each exchange, and the time of the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from headway.core.job import JobId
from headway.core.lease import Lease
from headway.core.policy.retry import Returned
from headway.core.worker import WorkerState
from headway.dispatch.job_source import ClaimResult, FinishedRun, StoreJobSource
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Progress
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from headway.worker.claimer import PARTS, Claimer, Start

SLOTS = 80


class SilentSubscription:
    """A subscription without messages."""

    call = None

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        await asyncio.sleep(timeout)
        return None

    def close(self) -> None: ...


class RecordingSource(StoreJobSource):
    """A job source that returns no leases, or once those it was made with, and records its requests."""

    def __init__(self, leases: Sequence[Lease] = ()) -> None:
        super().__init__(MemoryStore(clock=ManualClock()), CurrentPolicy(), "w1", ())
        self._leases = leases
        self.asked: list[tuple[int, int, int]] = []  # How many reports, slots free, and of them below the reserve.

    async def exchange(
        self,
        finished: Sequence[FinishedRun],
        progress: Sequence[Progress],
        *,
        free: int,
        free_below: int,
        woken: bool = False,
    ) -> ClaimResult:
        self.asked.append((len(finished), free, free_below))
        given, self._leases = self._leases, ()
        return ClaimResult(given, (), False, WorkerState.ACTIVE, None)


class GatewayStub:
    """A claimer, and the slots that it has freed."""

    def __init__(self, job_source: RecordingSource, start: Start = lambda leases, lanes: None) -> None:
        self.job_source = job_source
        self.freed: list[int] = []
        self.claimer = Claimer(
            job_source, SilentSubscription(), slots=SLOTS, start=start, handed_in=self.freed.extend, confirm=60.0
        )  # fmt: skip

    def fill(self, *, seconds: float) -> None:
        """Fill all slots with jobs that end at once, with this run time."""
        self.claimer._begin([a_lease(slot) for slot in range(SLOTS)])
        for slot in range(SLOTS):
            self.claimer.ended(FinishedRun(a_lease(slot), Returned(None), seconds), slot, below=True)


def a_lease(number: int) -> Lease:
    return Lease(JobId(str(number)), number, b"t", "t", b"", "low", None, None, 1, 1, 0, 0, 1, 1, None, 0)


@pytest.mark.parametrize("seconds, batches", [(0.0, [SLOTS]), (0.05, [SLOTS // PARTS] * PARTS)])
async def test_long_jobs_that_end_together_are_handed_in_by_parts(seconds: float, batches: list[int]) -> None:
    gateway = GatewayStub(RecordingSource())
    gateway.fill(seconds=seconds)
    gateway.claimer.stop()
    await gateway.claimer.run()
    assert [finished for finished, _, _ in gateway.job_source.asked] == batches
    assert sorted(gateway.freed) == list(range(SLOTS))


async def test_a_job_that_is_not_handed_in_fills_its_slot() -> None:
    gateway = GatewayStub(RecordingSource())
    gateway.fill(seconds=0.05)
    running = asyncio.create_task(gateway.claimer.run())
    while len(gateway.freed) < SLOTS:  # noqa: ASYNC110  (it depends on the claimer)
        await asyncio.sleep(0)
    part = SLOTS // PARTS
    assert [free for _, free, _ in gateway.job_source.asked] == [part * number for number in range(1, PARTS + 1)]
    running.cancel()


async def test_only_the_reserve_left_is_asked_for_a_moment_later_and_not_again_and_again() -> None:
    gateway = GatewayStub(RecordingSource([a_lease(number) for number in range(SLOTS - 1)]))
    gateway.claimer.reserve(1, frozenset({"high"}), leave_free=False)
    running = asyncio.create_task(gateway.claimer.run())
    await asyncio.sleep(0.3)
    assert gateway.job_source.asked == [(0, SLOTS, SLOTS - 1), (0, 1, 0)]
    running.cancel()


class RefillingSource(RecordingSource):
    """A job source that fills every free slot until it has returned this many jobs. Its replies are delayed."""

    def __init__(self, jobs: int) -> None:
        super().__init__()
        self._left = jobs
        self.asked_again = asyncio.Event()  # The second exchange is under way.

    async def exchange(self, *reports: Any, **about: Any) -> ClaimResult:
        given = min(self._left, about["free"])
        self._leases = [a_lease(number) for number in range(given)]
        self._left -= given
        if self.asked:
            self.asked_again.set()
        for _ in range(5):
            await asyncio.sleep(0)
        return await super().exchange(*reports, **about)


async def test_a_job_that_ends_beside_the_others_joins_them_again() -> None:
    job_source = RefillingSource(SLOTS * 10)
    running: set[asyncio.Task[None]] = set()

    async def run(number: int) -> None:
        if number == 0:  # The first job of the first batch ends during the exchange that reports the others.
            await job_source.asked_again.wait()
        gateway.claimer.ended(FinishedRun(a_lease(number), Returned(None), 0.0), number, below=True)

    def start(leases: Sequence[Lease], lanes: frozenset[str]) -> None:
        for lease in leases:
            task = asyncio.create_task(run(lease.seq))
            running.add(task)
            task.add_done_callback(running.discard)

    gateway = GatewayStub(job_source, start)
    claiming = asyncio.create_task(gateway.claimer.run())
    while len(gateway.freed) < SLOTS * 10:  # noqa: ASYNC110  (it depends on the claimer)
        await asyncio.sleep(0)
    claiming.cancel()
    reports = [finished for finished, _, _ in job_source.asked if finished]
    assert sum(reports) == SLOTS * 10
    assert len(reports) <= 12


mark: ContextVar[str] = ContextVar("mark", default="unset")


class ManualSubscription:
    """A subscription that a test can wake."""

    ring: Callable[[], None]

    def call(self, notified: Callable[[], None]) -> None:
        self.ring = notified

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        raise AssertionError("a claimer that can be called does not wait")

    def close(self) -> None: ...


class DirectLeaseSource(RecordingSource):
    """A job source whose wake-ups carry leases."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Lease] = []

    def handed(self) -> Sequence[Lease]:
        sent, self.sent = self.sent, []
        return sent


async def test_a_job_that_comes_with_the_wake_up_starts_at_once_and_only_in_a_free_slot() -> None:
    started: list[tuple[JobId, str]] = []

    def start(leases: Sequence[Lease], lanes: frozenset[str]) -> None:
        started.extend((lease.job_id, mark.get()) for lease in leases)

    feed, subscription = DirectLeaseSource(), ManualSubscription()
    claimer = Claimer(feed, subscription, slots=1, start=start, handed_in=lambda slots: None, confirm=60.0)
    mark.set("of the worker")
    running = asyncio.create_task(claimer.run())
    mark.set("of the connection")
    while not feed.asked:  # noqa: ASYNC110  (it depends on the claimer)
        await asyncio.sleep(0)
    feed.sent = [a_lease(1)]
    subscription.ring()
    assert (started, len(feed.asked)) == ([("1", "of the worker")], 1)
    while len(feed.asked) < 2:  # noqa: ASYNC110
        await asyncio.sleep(0)
    feed.sent = [a_lease(2)]
    subscription.ring()
    assert (len(started), feed.sent) == (1, [a_lease(2)])  # The next exchange with a free slot returns it.
    running.cancel()
