"""Run times that end or are shortened, with real workers on every store."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headway import Context, Headway, Job, JobFailed, Worker
from headway.core.event import Event
from tests.conftest import ADDRESSES
from tests.worker import busy_jobs

POLICY = """
[ladder]
rungs = [
  {name = "fast", seconds = 1},
  {name = "medium", seconds = 4, limit = 2},
  {name = "slow", seconds = 30, limit = 1},
]
"""


def an_app(url: str, folder: Path, **settings: Any) -> Headway:
    policy = folder / "policy.toml"
    policy.write_text(POLICY)
    settings = {"slots": 4, "reserved": 0, "grace": 0.2, "hard_grace": 1} | settings
    app = Headway(url, policy=str(policy), **settings)

    @app.task(name="stay", duration="default", context=True, max_retries=0)
    async def stay(ctx: Context, seconds: float) -> str:
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            await asyncio.sleep(0.01)
            if ctx.budget.shrunk:
                ctx.progress(0.5, f"{ctx.budget.remaining:.1f}")
        return "stayed"

    @app.task(name="slow", duration="slow", max_retries=0)
    async def slow(seconds: float = 0.0) -> str:
        await asyncio.sleep(seconds)
        return "done"

    return app


@pytest.fixture
def app(store_name: str, tmp_path: Path) -> Headway:
    return an_app(ADDRESSES[store_name](tmp_path), tmp_path)


async def started(job: Job[Any]) -> None:
    async with asyncio.timeout(20):
        while await job.astatus() != "executing":  # noqa: ASYNC110  (another task moves it)
            await asyncio.sleep(0.005)


async def assigned(job: Job[Any]) -> str | None:
    return (await job.arecord()).assigned


async def test_an_elastic_job_makes_room_for_one_that_needs_its_rung(app: Headway) -> None:
    # R3.9, R3.16, R3.18, R3.27, R3.90: it starts on the longest rung, and is lowered just below the full one.
    async with app, Worker(app):
        stay = await app.tasks["stay"].aenqueue(3.0)
        await started(stay)
        assert await assigned(stay) == "slow"
        began = time.monotonic()
        needy = await app.tasks["slow"].aenqueue()
        assert await needy.aresult(timeout=10) == "done"
        assert time.monotonic() - began < 2.0
        assert await assigned(stay) == "medium"
        assert await stay.aresult(timeout=10) == "stayed"


async def test_the_lowered_budget_is_in_force_within_a_second(app: Headway) -> None:
    # R3.5, R3.10: two need the rungs above fast, so it ends there, at its second.
    async with app, Worker(app):
        stay = await app.tasks["stay"].aenqueue(20.0)
        await started(stay)
        began = time.monotonic()
        for _ in range(2):
            await app.tasks["slow"].aenqueue(2.0)
        fixed = await app.tasks["slow"].using(duration="medium").aenqueue(2.0)
        with pytest.raises(JobFailed, match=r"time limit \(1 s\)"):
            await stay.aresult(timeout=10)
        assert time.monotonic() - began < 3.5
        job = await stay.arecord()
        assert (job.state, job.reason) == ("failed", "time_limit")
        assert await fixed.aresult(timeout=10) == "done"


async def test_a_job_that_has_run_longer_already_is_stopped_at_once(app: Headway) -> None:  # R3.11
    async with app, Worker(app):
        stay = await app.tasks["stay"].aenqueue(20.0)
        await started(stay)
        await asyncio.sleep(1.2)
        began = time.monotonic()
        for duration in ("slow", "medium", "medium"):
            await app.tasks["slow"].using(duration=duration).aenqueue(1.0)
        with pytest.raises(JobFailed, match="time limit"):
            await stay.aresult(timeout=10)
        assert time.monotonic() - began < 2.0


async def test_no_free_slot_is_reason_enough(app: Headway) -> None:  # R3.23, R3.24
    app.configure(slots=1)
    async with app, Worker(app):
        stay = await app.tasks["stay"].aenqueue(20.0)
        await started(stay)
        quick = await app.tasks["slow"].using(duration="fast").aenqueue()
        with pytest.raises(JobFailed, match=r"time limit \(1 s\)"):
            await stay.aresult(timeout=10)
        assert await quick.aresult(timeout=10) == "done"


async def test_everybody_is_told(store_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app = an_app(ADDRESSES[store_name](tmp_path), tmp_path)
    told: list[Event] = []
    with caplog.at_level("INFO", logger="headway"):
        async with app, Worker(app):
            stay = await app.tasks["stay"].aenqueue(1.5)
            await started(stay)

            async def watch() -> None:
                async for event in stay.aevents():
                    told.append(event)

            watching = asyncio.create_task(watch())
            await asyncio.sleep(0.2)
            await app.tasks["slow"].aenqueue()
            assert await stay.aresult(timeout=10) == "stayed"
            async with asyncio.timeout(30):
                await watching
            assert (await app.client.stats()).totals["lowered.medium"] == 1
    assert [event.data for event in told if event.kind == "downgraded"] == [{"duration": "medium", "from": "slow"}]
    assert any(event.kind == "progress" and float(event.data["note"]) < 4 for event in told)  # ctx.budget.shrunk
    lines = [vars(record)["headway"] for record in caplog.records if record.message == "job.downgraded"]
    assert [(line["job"], line["duration"], line["budget"]) for line in lines] == [(stay.id, "medium", 4.0)]


# ---------------------------------------------------------------------- what a stopped job becomes


@asynccontextmanager
async def an_embedded(folder: Path) -> AsyncIterator[Headway]:
    app = an_app("memory://", folder)

    @app.task(name="count", duration="fast", context=True, on_stop="partial", max_retries=0)
    async def count(ctx: Context) -> list[int]:
        found: list[int] = []
        while True:
            found.append(len(found))
            ctx.partial(found)
            await asyncio.sleep(0.1)

    @app.task(name="tidy", duration="fast", on_stop="partial", max_retries=0)
    async def tidy() -> str:
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "what there was"
        return "all"

    @app.task(name="grow", duration="fast", on_stop="retry_longer", context=True, max_retries=0)
    async def grow(ctx: Context) -> float:
        length = ctx.budget.remaining
        await asyncio.sleep(2)
        return length

    async with app, Worker(app):
        yield app


async def test_partial_keeps_what_the_task_handed_in_last(tmp_path: Path) -> None:  # R3.35
    async with an_embedded(tmp_path) as app:
        job = await app.tasks["count"].aenqueue()
        found = await job.aresult(timeout=10)
        assert found[:3] == [0, 1, 2]
        assert (await job.arecord()).reason == "partial"


async def test_partial_takes_what_the_task_returns_when_it_is_told_to_stop(tmp_path: Path) -> None:  # R3.35
    async with an_embedded(tmp_path) as app:
        assert await (await app.tasks["tidy"].aenqueue()).aresult(timeout=10) == "what there was"


async def test_the_submitter_chooses(tmp_path: Path) -> None:  # R3.35
    async with an_embedded(tmp_path) as app:
        with pytest.raises(JobFailed, match="time limit"):
            await (await app.tasks["count"].using(on_stop="fail").aenqueue()).aresult(timeout=10)


async def test_retry_longer_tries_the_next_rung(tmp_path: Path) -> None:  # R3.35
    async with an_embedded(tmp_path) as app:
        job = await app.tasks["grow"].aenqueue()
        assert 3 < await job.aresult(timeout=10) <= 4
        assert [attempt.reason for attempt in (await job.arecord()).history] == ["time_limit"]


async def test_a_worker_says_which_budgets_nothing_can_make_hold(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    app = an_app("memory://", tmp_path)

    @app.task(name="in_thread", duration="fast")
    def in_thread() -> None: ...

    async with app, Worker(app):
        pass
    [told] = [record.getMessage() for record in caplog.records if "task.thread_has_duration" in record.getMessage()]
    assert "in_thread" in told
    assert "executor='process'" in told
    assert "stay" not in told


# ---------------------------------------------------------------------- every executor


@pytest.mark.slow
class TestExecutors:
    """A ``headway worker`` with tasks that do not stop."""

    @pytest.fixture
    def yard(self, tmp_path: Path) -> Iterator[Headway]:
        (tmp_path / "policy.toml").write_text(POLICY)
        shutil.copy(busy_jobs.__file__, tmp_path / "busy_jobs.py")
        url = ADDRESSES["sqlite"](tmp_path)
        process = subprocess.Popen(
            [sys.executable, "-m", "headway", "worker", "busy_jobs:app", "--log-level", "warning"],
            cwd=tmp_path,
            env={**os.environ, "HEADWAY_STORE": url, "HEADWAY_POLICY": "policy.toml"},
        )
        app = Headway(url, policy=str(tmp_path / "policy.toml"))
        for name, task in busy_jobs.app.tasks.items():
            options = {field.name: getattr(task.options, field.name) for field in fields(task.options)}
            app.task(name=name, **options)(task.fn)
        try:
            yield app
        finally:
            process.terminate()
            process.wait(30)
            app.close()

    def test_a_process_that_spins_is_killed_at_its_seconds(self, yard: Headway) -> None:  # R3.5
        job = yard.tasks["spin"].enqueue()
        with pytest.raises(JobFailed, match=r"time limit \(1 s\)"):
            job.result(timeout=30)
        ran = job.record()
        assert ran.finished_at is not None
        assert ran.started_at is not None
        assert ran.finished_at - ran.started_at < 5_000

    def test_a_process_that_swallows_everything_is_killed_when_it_is_lowered(
        self, yard: Headway
    ) -> None:  # R3.11, R3.34
        job = yard.tasks["deaf"].enqueue()
        self.started(job)
        time.sleep(1.0)
        for duration in ("slow", "medium", "medium"):
            yard.tasks["fill"].using(duration=duration).enqueue()
        with pytest.raises(JobFailed, match="time limit"):
            job.result(timeout=30)

    def test_a_process_sees_its_budget_shrink(self, yard: Headway) -> None:
        job = yard.tasks["aware"].enqueue()
        self.started(job)
        yard.tasks["fill"].enqueue()
        assert job.result(timeout=30) in ("4 s left", "3 s left")
        assert job.record().reason == "partial"

    def test_a_thread_that_looks_ends_by_itself(self, yard: Headway) -> None:
        job = yard.tasks["thread"].enqueue()
        self.started(job)
        yard.tasks["fill"].enqueue()
        assert job.result(timeout=30) == "as far as it came"

    def test_a_thread_that_does_not_costs_its_runner(self, yard: Headway) -> None:  # R3.34
        job = yard.tasks["deaf_thread"].enqueue()
        with pytest.raises(JobFailed, match=r"time limit \(1 s\); it would not stop and was killed"):
            job.result(timeout=30)

    def started(self, job: Job[Any]) -> None:
        deadline = time.monotonic() + 30
        while job.status() != "executing":
            assert time.monotonic() < deadline
            time.sleep(0.01)
