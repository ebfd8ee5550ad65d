"""Estimates of a new task while a real worker runs its jobs, compared with the real waits."""

from __future__ import annotations

import time
from asyncio import sleep, timeout
from pathlib import Path

from headway import Headway, Worker

JOBS = 120
SECONDS = 0.2
SLOTS = 4


async def test_two_seconds_after_the_first_run_of_a_task_its_last_job_has_an_estimate_that_holds(
    tmp_path: Path,
) -> None:
    app = Headway(f"sqlite:///{tmp_path}/headway.db?synchronous=normal", slots=SLOTS, reserved=0)

    @app.task
    async def nap() -> None:
        await sleep(SECONDS)

    async with app, Worker(app):
        jobs = await app.aenqueue_many(nap.call() for _ in range(JOBS))
        async with timeout(60):
            await jobs[JOBS // 3].aresult()  # After about two seconds, and forty runs.
            asked, found = time.time(), await jobs[-1].aestimate()
            await jobs[-1].aresult()
        started_at = (await jobs[-1].arecord()).started_at
    assert started_at is not None
    assert found is not None
    assert found.basis == "learned"
    assert found.p50 is not None
    waited = started_at / 1_000 - asked
    assert waited > (JOBS / 2 / SLOTS) * SECONDS  # No machine runs them faster.
    # Within a factor of three, because a busy machine may be slower or faster later on. The virtual clock is exact.
    assert waited / 3 < found.p50 < 3 * waited


def test_after_one_run_the_next_job_of_an_idle_worker_starts_soon_at_p90_too(tmp_path: Path) -> None:
    app = Headway(f"sqlite:///{tmp_path}/jobs.db")

    @app.task
    async def nap() -> None:
        await sleep(0.3)

    with Worker(app):
        nap.enqueue().result(timeout=30)
        deadline = time.monotonic() + 30
        found = None
        while found is None or found.basis != "learned":
            assert time.monotonic() < deadline, found
            job = nap.enqueue()
            found = job.estimate()  # None if the job has started already.
            job.result(timeout=30)
    assert found.p90 is not None
    assert found.p90 < 60
