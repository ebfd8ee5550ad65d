"""The public interface on a file, with a worker in this process: behaviour that only a running job shows."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headway import Context, Headway, JobCancelled, Worker


@pytest.fixture
def app(tmp_path: Path) -> Headway:
    return Headway(f"sqlite:///{tmp_path}/headway.db?synchronous=normal", heartbeat=1, dead_after=5)


async def test_progress_reaches_who_watches(app: Headway) -> None:
    seen = asyncio.Event()

    @app.task(context=True)
    async def work(context: Context) -> str:
        context.progress(0.25, "a quarter")
        await seen.wait()
        return "done"

    async with app, Worker(app):
        job = await work.aenqueue()
        kinds: list[Any] = []
        async with asyncio.timeout(20):
            async for event in job.aevents():
                if event.kind != "estimate":
                    kinds.append((event.kind, event.data.get("fraction"), event.data.get("note")))
                if event.kind == "progress":
                    assert (await job.arecord()).progress == 0.25
                    seen.set()
        assert await job.aresult() == "done"
    told = [kind for kind, _, _ in kinds]
    assert told == ["queued", "started", "progress", "finished"]
    assert kinds[2] == ("progress", 0.25, "a quarter")


async def test_progress_is_told_from_a_thread_and_kept_within_bounds(app: Headway) -> None:
    seen = threading.Event()

    @app.task(context=True)
    def work(context: Context) -> None:
        context.progress(7, "n" * 1_000)
        seen.wait(20)

    async with app, Worker(app):
        job = await work.aenqueue()
        async with asyncio.timeout(20):
            async for event in job.aevents():
                if event.kind == "progress":
                    assert event.data == {"fraction": 1.0, "note": "n" * 500}
                    seen.set()
        assert await job.astatus() == "completed"


# R2.74
async def test_a_running_job_is_stopped_when_somebody_cancels_it(app: Headway) -> None:
    started, said = asyncio.Event(), []

    @app.task
    async def work() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            said.append("cleaned up")

    async with app, Worker(app):
        job = await work.aenqueue()
        await asyncio.wait_for(started.wait(), 20)
        assert await job.acancel() == "executing"
        with pytest.raises(JobCancelled, match="cancelled while executing"):
            await job.aresult(timeout=20)
        assert said == ["cleaned up"]
        assert await job.astatus() == "cancelled"


async def test_a_running_thread_sees_that_it_should_stop(app: Headway) -> None:
    started = threading.Event()

    @app.task(context=True)
    def work(context: Context) -> str:
        started.set()
        turn = threading.Event()
        while not context.cancelled:
            turn.wait(0.005)
        return "stopped by itself"

    async with app, Worker(app):
        job = await work.aenqueue()
        await asyncio.to_thread(started.wait, 20)
        await job.acancel()
        assert await job.aresult(timeout=20) == "stopped by itself"  # It ended well after all.


def test_plain_code_runs_a_worker_in_a_block(app: Headway) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    with app, Worker(app, slots=2) as worker:
        jobs = app.enqueue_many([double.call(number) for number in range(1_100)])
        assert [job.result(timeout=30) for job in jobs[::100]] == [2 * number for number in range(0, 1_100, 100)]
        assert worker.worker_id in {found.worker_id for found in app.stats().workers}
        assert jobs[-1].result(timeout=30) == 2 * 1_099


def test_jobs_that_are_not_running_stay_for_the_next_worker(app: Headway) -> None:
    @app.task
    def work() -> int:
        return 1

    with app:
        later = work.using(delay=3_600).enqueue()
        with Worker(app):
            assert work.enqueue().result(timeout=20) == 1
        assert later.status() == "queued"
        job = work.enqueue()
        with Worker(app):
            assert job.result(timeout=20) == 1


async def test_the_app_has_a_lifespan_around_its_worker(tmp_path: Path) -> None:
    said: list[str] = []

    @asynccontextmanager
    async def lifespan(app: Headway) -> AsyncIterator[dict[str, Any]]:
        said.append("up")
        yield {"word": "hello"}
        said.append("down")

    app = Headway(f"sqlite:///{tmp_path}/headway.db", lifespan=lifespan)

    @app.task(context=True)
    async def work(context: Context) -> str:
        return str(context.state["word"])

    async with app, Worker(app):
        assert await (await work.aenqueue()).aresult(timeout=20) == "hello"
        assert said == ["up"]
    assert said == ["up", "down"]


async def test_a_transient_job_runs_on_a_file_too(app: Headway) -> None:
    ran = asyncio.Event()

    @app.task(persist=False)
    async def notify(number: int) -> None:
        ran.set()

    async with app, Worker(app):
        await notify.aenqueue(1)
        await asyncio.wait_for(ran.wait(), 20)
        assert await app.ajobs() == []


async def test_whatever_a_task_raises_the_worker_goes_on(app: Headway) -> None:
    @app.task(max_retries=0)
    async def leave(error: str) -> None:
        raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "cancel": asyncio.CancelledError}[error]

    @app.task(max_retries=0)
    def leave_thread(error: str) -> None:
        raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "stop": StopIteration}[error]

    @app.task
    async def work() -> str:
        return "alive"

    async with app, Worker(app):
        calls = [leave.call(error) for error in ("exit", "interrupt", "cancel")]
        calls += [leave_thread.call(error) for error in ("exit", "interrupt", "stop")]
        jobs = await app.aenqueue_many(calls)
        assert await (await work.aenqueue()).aresult(timeout=20) == "alive"
        for job in jobs:
            with pytest.raises(Exception, match="dead_letter after 1 attempt"):
                await job.aresult(timeout=20)


async def test_a_worker_taken_for_dead_begins_anew_under_another_name() -> None:
    # R5.58: a laptop that slept past its lease goes on working when it wakes.
    app = Headway("memory://", heartbeat=0.05, dead_after=0.5)

    @app.task
    async def echo(value: int) -> int:
        return value

    async with Worker(app) as worker:
        before = worker.worker_id
        await (await app.client.store()).mark_dead(before)
        async with asyncio.timeout(30):
            while worker.worker_id == before:  # noqa: ASYNC110  (the keeper's thread must notice)
                await asyncio.sleep(0.01)
        assert await (await echo.aenqueue(7)).aresult(10) == 7
