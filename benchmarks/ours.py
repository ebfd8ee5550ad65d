"""Headway, with the same interface as the peers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from benchmarks import jobs
from headway import Headway

PACKAGES = ("headway-queue", "uvloop")
# With more than 100 slots a worker runs half of its jobs while the server deals with the other half. A call of
# PostgreSQL costs about a millisecond beside what it does for each job, and a commit of SQLite a sync: larger batches
# share that.
SLOTS = {"redis": 200, "postgresql": 800, "sqlite": 800}
ENVIRONMENT = {"HEADWAY_SLOTS": str(SLOTS.get(os.environ["BENCH_STORE"].partition(":")[0], 100))}
CONFIGURATION = (
    "100 slots (drains: 200 on Redis, 800 on PostgreSQL and SQLite), the default policy, results kept; "
    "naps without reserved slots"
)

app = Headway(os.environ["BENCH_STORE"])
noop = app.task(name="bench.noop")(jobs.async_noop)
TASKS: dict[str, Any] = {
    "noop": noop,
    "nap": app.task(name="bench.nap")(jobs.async_nap),
    "stamp": app.task(name="bench.stamp")(jobs.async_stamp),
}


def command(test: str) -> list[str]:
    options = [] if test == "drain" else ["--slots", "100"]
    if test == "naps":  # The reserve would leave 99 of the 100 slots to them.
        options += ["--reserved", "0"]
    return ["-m", "headway", "worker", "benchmarks.ours:app", *options]


async def setup() -> None:
    await app.client.store()


async def submit_async(task: str, *arguments: Any) -> None:
    await TASKS[task].aenqueue(*arguments)


def _submit_blocking(task: str, *arguments: Any) -> None:
    TASKS[task].enqueue(*arguments)


# On Redis a thread has a connection of its own, as it has with most peers.
submit = _submit_blocking if os.environ["BENCH_STORE"].startswith("redis") else submit_async


async def submit_many(batch: Sequence[tuple[int, str]]) -> None:
    await app.aenqueue_many(noop.call(*arguments) for arguments in batch)
