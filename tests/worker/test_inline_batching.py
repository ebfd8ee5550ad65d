"""Jobs that share an asyncio task do not affect each other."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from headway import Context, Headway, Worker
from headway.client.context import current

JOBS = 8

mark: ContextVar[str] = ContextVar("mark", default="clean")


@pytest.fixture
def app() -> Headway:
    return Headway("memory://", slots=JOBS, reserved=0)


async def test_jobs_that_never_wait_share_a_task_and_each_has_its_context(app: Headway) -> None:
    tasks = set()

    @app.task(context=True)
    async def quick(ctx: Context, number: int) -> bool:
        tasks.add(asyncio.current_task())
        return current.get() is ctx

    jobs = await app.aenqueue_many([quick.call(number) for number in range(JOBS)])
    async with Worker(app):
        assert [await job.aresult(10) for job in jobs] == [True] * JOBS
    assert len(tasks) == 1


async def test_a_job_that_waits_keeps_its_task_for_itself(app: Headway) -> None:
    tasks = []

    @app.task
    async def patient(number: int) -> int:
        tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        return number

    jobs = await app.aenqueue_many([patient.call(number) for number in range(JOBS)])
    async with Worker(app):
        assert [await job.aresult(10) for job in jobs] == list(range(JOBS))
    assert len(set(tasks)) == JOBS


async def test_no_job_finds_the_context_variables_of_another(app: Headway) -> None:
    @app.task
    async def leave(text: str) -> str:
        found = mark.get()
        mark.set(text)
        return found

    jobs = await app.aenqueue_many([leave.call(f"by {number}") for number in range(JOBS)])
    async with Worker(app):
        assert [await job.aresult(10) for job in jobs] == ["clean"] * JOBS


async def test_a_job_that_cancels_its_task_harms_no_other(app: Headway) -> None:
    @app.task
    async def cancel_oneself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "done all the same"

    @app.task
    async def wait_a_moment() -> str:
        await asyncio.sleep(0.001)
        return "undisturbed"

    calls = [call for _ in range(JOBS // 2) for call in (cancel_oneself.call(), wait_a_moment.call())]
    jobs = await app.aenqueue_many(calls)
    async with Worker(app):
        assert [await job.aresult(10) for job in jobs] == ["done all the same", "undisturbed"] * (JOBS // 2)


async def test_what_a_job_says_when_it_is_over_goes_nowhere(app: Headway) -> None:
    said = []

    @app.task(context=True)
    async def speak(ctx: Context) -> None:
        said.append(ctx)

    async with Worker(app):
        job = await speak.aenqueue()
        await job.aresult(10)
        said[0].progress(0.5, "too late")
        await asyncio.sleep(0.3)
        assert (await job.arecord()).progress is None
