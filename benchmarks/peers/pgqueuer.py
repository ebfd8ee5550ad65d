"""PgQueuer on PostgreSQL."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, PgQueuer, Queries

from benchmarks import jobs

PACKAGES = ("pgqueuer", "asyncpg", "uvloop")
CONFIGURATION = "asyncpg, batch_size 400, max_concurrent_tasks 800 (naps: 50 and 100), LISTEN/NOTIFY, uvloop"
BATCHES = {"drain": (400, 800), "naps": (50, 100), "idle": (100, 200)}

queries: Queries


def command(test: str) -> list[str]:
    return ["-m", "benchmarks.peers.pgqueuer", test]


async def setup() -> None:
    global queries
    queries = Queries(AsyncpgDriver(await asyncpg.connect(os.environ["BENCH_STORE"])))
    await queries.install()


async def submit(task: str, *arguments: Any) -> None:
    await queries.enqueue(task, json.dumps(arguments).encode())


async def submit_many(batch: Sequence[tuple[int, str]]) -> None:
    payloads: list[bytes | None] = [json.dumps(arguments).encode() for arguments in batch]
    await queries.enqueue(["noop"] * len(batch), payloads, [0] * len(batch))


async def serve(test: str) -> None:
    connection = await asyncpg.connect(os.environ["BENCH_STORE"])
    queue = PgQueuer(AsyncpgDriver(connection))

    @queue.entrypoint("noop")
    async def noop(job: Any) -> None:
        await jobs.async_noop(*json.loads(job.payload))

    @queue.entrypoint("nap")
    async def nap(job: Any) -> None:
        await jobs.async_nap()

    @queue.entrypoint("stamp")
    async def stamp(job: Any) -> None:
        jobs.stamp(*json.loads(job.payload))

    batch, at_once = BATCHES[test]
    await queue.run(batch_size=batch, max_concurrent_tasks=at_once)


def work() -> None:
    import uvloop
    from pgqueuer.core.logconfig import LogLevel, setup_fancy_logger

    setup_fancy_logger(LogLevel.INFO)  # As its command line does.
    uvloop.run(serve(sys.argv[1]))


if __name__ == "__main__":
    work()
