"""SAQ on Redis."""

from __future__ import annotations

import os
from typing import Any

from saq import Queue

from benchmarks import jobs

PACKAGES = ("saq", "redis", "uvloop")
CONFIGURATION = "concurrency 100, ttl -1 (no result), uvloop"

queue = Queue.from_url(os.environ["BENCH_STORE"])


async def noop(_: Any, *, number: int, text: str) -> int:
    return await jobs.async_noop(number, text)


async def nap(_: Any) -> None:
    await jobs.async_nap()


async def stamp(_: Any, *, sent_ns: int) -> None:
    jobs.stamp(sent_ns)


NAMES: dict[str, tuple[str, ...]] = {"noop": ("number", "text"), "nap": (), "stamp": ("sent_ns",)}


def command(test: str) -> list[str]:
    return ["-m", "benchmarks.peers.saq"]


async def setup() -> None:
    await queue.connect()


async def submit(task: str, *arguments: Any) -> None:
    await queue.enqueue(task, ttl=-1, **dict(zip(NAMES[task], arguments, strict=True)))


def work() -> None:
    import uvloop
    from saq import Worker

    async def serve() -> None:
        await queue.connect()
        await Worker(queue, functions=[noop, nap, stamp], concurrency=100).start()

    uvloop.run(serve())


if __name__ == "__main__":
    work()
