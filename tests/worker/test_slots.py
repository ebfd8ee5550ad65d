"""Slots, reserve and lanes with real workers: the jobs that run together, and the next job for a free slot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headway import Context, Headway, Job, Worker
from tests.worker.resting import at_rest


class GatedApp:
    """An app whose jobs wait until a test releases them, and the names of running jobs."""

    def __init__(self, app: Headway) -> None:
        self.app = app
        self.running: list[str] = []
        self.most = self.most_low = 0
        self._gates: dict[str, asyncio.Event] = {}

        @app.task(name="hold")
        async def hold(name: str) -> None:
            self.running.append(name)
            self.most = max(self.most, len(self.running))
            self.most_low = max(self.most_low, sum(name.startswith("low") for name in self.running))
            try:
                await self._gates.setdefault(name, asyncio.Event()).wait()
            finally:
                self.running.remove(name)

        self._hold = hold

    async def submit(self, lane: str, *names: str) -> list[Job[None]]:
        return [await self._hold.using(priority=lane).aenqueue(name) for name in names]

    def let_go(self, *names: str) -> None:
        for name in names:
            self._gates.setdefault(name, asyncio.Event()).set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30):
            while not condition():  # noqa: ASYNC110  (it depends on other tasks)
                await asyncio.sleep(0.002)

    async def settle(self) -> None:
        """Wait until no more jobs can start."""
        await at_rest(self.app)

    def close(self, *jobs: Job[None]) -> None:
        for gate in self._gates.values():
            gate.set()


@pytest.fixture
def gated() -> GatedApp:
    return GatedApp(Headway("memory://", slots=3, reserved=1, grace=0))


async def test_low_work_fills_all_slots_but_the_reserve_and_high_starts_beside_it(gated: GatedApp) -> None:
    # R1.8, R1.10, R1.17, R1.18, R1.12, R1.15
    async with Worker(gated.app):
        await gated.submit("low", "a", "b", "c")
        await gated.until(lambda: len(gated.running) == 2)
        await gated.settle()
        assert sorted(gated.running) == ["a", "b"]
        await gated.submit("high", "H")
        await gated.until(lambda: "H" in gated.running)
        await gated.settle()
        assert sorted(gated.running) == ["H", "a", "b"]
        gated.let_go("H")
        await gated.until(lambda: "H" not in gated.running)
        await gated.settle()
        assert sorted(gated.running) == ["a", "b"]  # The third low job still waits for its own cap.
        gated.close()
    assert gated.most == 3


async def test_high_work_may_use_every_slot(gated: GatedApp) -> None:
    # R1.9, R1.13, R1.16, R1.19: nothing idle holds a slot.
    async with Worker(gated.app):
        await gated.settle()
        await gated.submit("high", "1", "2", "3", "4")
        await gated.until(lambda: len(gated.running) == 3)
        await gated.settle()
        assert len(gated.running) == 3
        gated.close()


async def test_a_freed_slot_goes_by_level_not_by_turn(gated: GatedApp) -> None:
    # R1.43
    async with Worker(gated.app):
        await gated.submit("high", "1", "2", "3")
        await gated.until(lambda: len(gated.running) == 3)
        await gated.submit("low", "low")
        await gated.submit("high", "late")
        gated.let_go("1")
        await gated.until(lambda: "late" in gated.running)
        assert "low" not in gated.running
        gated.close()


async def test_a_job_leaves_the_queue_only_for_a_free_slot(tmp_path: Path) -> None:
    # R1.20, R1.21, R2.54: one instance is full, so the job waits in the store, and another instance takes it.
    url = f"sqlite:///{tmp_path}/jobs.db"
    full, free = (GatedApp(Headway(url, slots=1, reserved=0, grace=0)) for _ in range(2))
    async with Worker(full.app):
        await full.submit("low", "first")
        await full.until(lambda: full.running == ["first"])
        (waiting,) = await full.submit("low", "second")
        record = await waiting.arecord()
        assert (record.state, record.started_at, record.worker_id) == ("queued", None, None)
        async with Worker(free.app):
            await free.until(lambda: free.running == ["second"])
            assert (await waiting.arecord()).epoch == 1  # No other instance ever had it.
            full.close()
            free.close()
        await free.app.aclose()
    await full.app.aclose()


async def test_instances_hold_their_limits_independently(tmp_path: Path) -> None:
    # R1.2, R1.4, R1.23, R1.24: three instances of three slots run six low jobs, and nine high ones.
    url = f"sqlite:///{tmp_path}/jobs.db"
    floors = [GatedApp(Headway(url, slots=3, reserved=1, grace=0)) for _ in range(3)]

    def running() -> int:
        return sum(len(gated.running) for gated in floors)

    async with AsyncExitStack() as stack:
        for gated in floors:
            await stack.enter_async_context(Worker(gated.app))
        await floors[0].submit("low", *(f"low {number}" for number in range(12)))
        await floors[0].until(lambda: running() == 6)
        assert [gated.most for gated in floors] == [2, 2, 2]
        await floors[0].submit("high", *(f"high {number}" for number in range(9)))
        await floors[0].until(lambda: running() == 9)
        for gated in floors:
            gated.let_go(*(f"low {number}" for number in range(12)))
        await floors[0].until(lambda: all(len([n for n in f.running if n.startswith("high")]) == 3 for f in floors))
        assert max(gated.most for gated in floors) == 3  # R1.7
        assert max(gated.most_low for gated in floors) == 2
        for gated in floors:
            gated.close()
    for gated in floors:
        await gated.app.aclose()


async def test_a_blocking_task_does_not_stall_the_loop(gated: GatedApp) -> None:
    # R1.49
    release = threading.Event()

    @gated.app.task(name="block")
    def block() -> str:
        return "released" if release.wait(20) else "gave up"

    async with Worker(gated.app):
        blocked = await block.aenqueue()
        await gated.submit("high", "other")
        await gated.until(lambda: gated.running == ["other"])
        release.set()
        assert await blocked.aresult(10) == "released"
        gated.close()


async def test_submission_returns_before_the_job_has_run_and_the_wait_is_told(gated: GatedApp) -> None:
    # R1.1, R1.36, R5.1: workers pull; the latency is the true start minus the submission.
    (job,) = await gated.submit("low", "a")
    assert await job.astatus() == "queued"
    async with Worker(gated.app):
        await gated.until(lambda: gated.running == ["a"])
        record = await job.arecord()
        assert record.started_at is not None
        assert record.started_at >= record.submitted_at
        gated.close()


async def test_renewals_and_results_go_on_while_every_user_thread_is_taken() -> None:
    # R2.66: longer than the lease, with all threads blocked.
    app = Headway("memory://", slots=3, reserved=0, heartbeat=0.25, dead_after=1.5, confirm=0.5)

    @app.task
    def nap(seconds: float) -> str:
        threading.Event().wait(seconds)
        return "rested"

    async with Worker(app):
        jobs = [await nap.aenqueue(2.5) for _ in range(3)]
        assert [await job.aresult(20) for job in jobs] == ["rested"] * 3
        assert {(await job.arecord()).epoch for job in jobs} == {1}


async def test_progress_from_threads_reaches_the_loop_safely() -> None:
    # R2.60: in debug mode the loop refuses to be touched from another thread.
    asyncio.get_running_loop().set_debug(True)
    app = Headway("memory://")

    @app.task(context=True)
    def work(ctx: Context) -> str:
        for step in range(50):
            ctx.progress(step / 50, f"step {step}")
        return "done"

    async with Worker(app):
        job = await work.aenqueue()
        assert await job.aresult(20) == "done"


async def test_each_job_has_its_own_timeout(gated: GatedApp) -> None:
    # R5.71, R5.17
    @gated.app.task(name="sleep", max_retries=0)
    async def sleep(seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    async with Worker(gated.app):
        short = await sleep.using(timeout=0.1).aenqueue(0.5)
        long = await sleep.using(timeout=30).aenqueue(0.5)
        assert await long.aresult(10) == "slept"
        record = await short.arecord()
        assert record.state == "dead_letter"
        assert record.error is not None
        assert record.error.message == "time limit (0.1 s)"


async def test_how_transient_jobs_end_is_counted() -> None:
    # R2.48, R2.45, R2.65
    app = Headway("memory://")

    @app.task(persist=False)
    async def fine() -> None: ...

    @app.task(persist=False)
    async def broken() -> None:
        raise ValueError("no")

    async def ended() -> int:
        totals = (await app.astats()).totals
        return totals.get("transient_completed", 0) + totals.get("transient_failed", 0)

    async with Worker(app):
        await app.aenqueue_many([fine.call(), fine.call(), broken.call()])
        async with asyncio.timeout(30):
            while await ended() < 3:  # noqa: ASYNC110  (it depends on the worker)
                await asyncio.sleep(0.005)
    totals = (await app.astats()).totals
    assert (totals["transient_completed"], totals["transient_failed"], totals["claimed"]) == (2, 1, 3)


async def test_listeners_hear_of_transient_jobs_too() -> None:
    # R2.48
    app = Headway("memory://")
    told: list[tuple[str, str, object]] = []
    for signal in ("start", "finish", "fail"):

        @app.on(signal)
        def listen(context: Context, value: object = None, *, signal: str = signal) -> None:
            told.append((signal, context.task, value if isinstance(value, int) else type(value)))

    @app.task(name="fine", persist=False)
    async def fine() -> int:
        return 7

    @app.task(name="broken", persist=False)
    def broken() -> None:
        raise LookupError("no")

    async with Worker(app, slots=1, reserved=0):
        await app.aenqueue_many([fine.call(), broken.call()])
        async with asyncio.timeout(30):
            while len(told) < 4:  # noqa: ASYNC110  (it depends on the worker)
                await asyncio.sleep(0.005)
    assert sorted(told, key=str) == sorted(
        [
            ("start", "fine", type(None)),
            ("finish", "fine", 7),
            ("start", "broken", type(None)),
            ("fail", "broken", LookupError),
        ],
        key=str,
    )


async def test_plain_functions_run_at_once_as_many_as_there_are_slots() -> None:
    # R2.25: each waits until all of them have begun.
    app = Headway("memory://")
    meeting = threading.Barrier(4, timeout=30)

    @app.task
    def meet() -> int:
        meeting.wait()
        return threading.get_ident()

    async with Worker(app, slots=4, reserved=0):
        jobs = await app.aenqueue_many([meet.call() for _ in range(4)])
        threads = {await job.aresult(40) for job in jobs}
    assert len(threads) == 4
