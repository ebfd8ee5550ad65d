"""Stored tracebacks of jobs show the task and not the worker."""

from __future__ import annotations

import asyncio

import pytest

from headway import Headway, Worker
from headway.core.errors import JobError
from headway.demo import app as demo
from headway.worker.outcomes import describe


def deep(number: int) -> None:
    if number == 0:
        raise ValueError("deep")
    deep(number - 1)


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_a_traceback_begins_with_the_task(kind: str) -> None:
    app = Headway("memory://")

    def fails() -> None:
        try:
            deep(2)
        except ValueError as problem:
            raise RuntimeError("outer") from problem

    async def fails_on_the_loop() -> None:
        fails()

    task = app.task(name="fails", max_retries=0)(fails if kind == "thread" else fails_on_the_loop)
    with app, Worker(app):
        job = task.enqueue()
        with pytest.raises(Exception, match="outer"):
            job.result(timeout=30)
        error = job.info().error
    assert isinstance(error, JobError)
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert "/headway/worker/" not in error.traceback
    assert "concurrent/futures" not in error.traceback
    assert error.traceback.count("in deep") == 3
    assert "ValueError: deep" in error.traceback
    assert "RuntimeError: outer" in error.traceback


def test_an_error_of_headway_itself_keeps_its_frames() -> None:
    with pytest.raises(LookupError) as caught:
        demo.find_task("nonsense")
    problem = caught.value
    told = describe(problem.with_traceback(problem.__traceback__ and problem.__traceback__.tb_next), retriable=False)
    assert "in find_task" in told.traceback


def test_a_demo_task_is_a_task_like_any_other() -> None:
    with pytest.raises(RuntimeError) as caught:
        asyncio.run(demo.find_task("demo.fail").fn())
    told = describe(caught.value, retriable=False)
    assert "demo.py" in told.traceback
