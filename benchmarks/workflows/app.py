"""Headway with the measured graphs, with the interface of ``benchmarks.ours``."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

from benchmarks import jobs
from benchmarks.jobs import TEXT
from headway import Headway, Results
from headway.client.task import Call

PACKAGES = ("headway-queue", "uvloop")
ENVIRONMENT = {"HEADWAY_SLOTS": "100"}
CONFIGURATION = "100 slots, no log lines of jobs, default settings"
CHAIN = 100  # Jobs of one chain.

app = Headway(os.environ["BENCH_STORE"])
noop = app.task(name="bench.noop")(jobs.async_noop)


@app.task(name="bench.total")
async def total(parts: Results[int]) -> int:
    return await jobs.async_noop(0, "")


def command(_: str) -> list[str]:
    return ["-m", "headway", "worker", "benchmarks.workflows.app:app"]


async def setup() -> None:
    await app.client.store()


async def submit(_: str, number: int, text: str) -> None:
    await noop.aenqueue(number, text)


async def submit_many(batch: Sequence[tuple[int, str]]) -> None:
    await app.aenqueue_many(noop.call(number, text) for number, text in batch)


async def plain(count: int) -> None:
    await submit_many([(number, TEXT) for number in range(count)])


async def fan_in(count: int) -> None:
    """Submit a batch, and one job that runs when all its members have completed."""
    async with app.batch("fan-in") as batch:
        await batch.aadd(noop.call(number, TEXT) for number in range(count - 1))
        await batch.athen(total)


async def fan_out(count: int) -> None:
    """Submit one job, and all others as its dependants."""
    source = await noop.aenqueue(0, TEXT)
    await app.aenqueue_many(noop.call(number, TEXT).after(source) for number in range(1, count))


async def chain(count: int) -> None:
    calls: list[Call[Any]] = []
    for number in range(count):
        call = noop.call(number, TEXT)
        calls.append(call.after(calls[-1]) if number % CHAIN else call)
    await app.aenqueue_many(calls)


async def dag(count: int) -> None:
    """Submit a random graph: each job waits for up to three of the hundred before it."""
    chance = random.Random(7)
    calls: list[Call[Any]] = []
    for number in range(count):
        call = noop.call(number, TEXT)
        sources = chance.sample(calls[-100:], min(number, chance.choice((0, 1, 2, 3))))
        calls.append(call.after(*sources) if sources else call)
    await app.aenqueue_many(calls)
