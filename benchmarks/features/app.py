"""Headway with the tasks of one configuration, with the interface of ``benchmarks.ours``."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import jobs
from benchmarks.features.table import DEEP, FEATURES, feature_of
from headway import Headway

PACKAGES = ("headway-queue", "uvloop")
ENVIRONMENT = {"HEADWAY_SLOTS": "100"}
CONFIGURATION = "100 slots, no log lines of jobs, default settings"

chosen = os.environ["BENCH_VARIANT"]
feature = feature_of(chosen)
ladder = str(Path(__file__).with_name("ladder.toml")) if feature.ladder else None
app = Headway(os.environ["BENCH_STORE"], policy=ladder)


async def noop(number: int, text: str, key: str) -> int:
    return await jobs.async_noop(number, text)


def _declare(name: str) -> list[Any]:
    tasks = enumerate(feature_of(name).tasks)
    return [app.task(name=f"bench.{name}.{number}", **options)(noop) for number, options in tasks]


tasks = _declare(chosen)
if feature.among:
    for other in FEATURES:
        if other != chosen:
            _declare(other)

# Each key occurs equally often, in a random order that is the same in every run.
_keys = [f"key-{number % feature.keys}" for number in range(DEEP)]
random.Random(7).shuffle(_keys)
keys = itertools.cycle(_keys)
turns = itertools.cycle(tasks)


def command(_: str) -> list[str]:
    return ["-m", "headway", "worker", "benchmarks.features.app:app"]


async def setup() -> None:
    await app.client.store()


async def submit(_: str, number: int, text: str) -> None:
    await next(turns).aenqueue(number, text, next(keys))


async def submit_many(batch: Sequence[tuple[int, str]]) -> None:
    await app.aenqueue_many(next(turns).call(number, text, next(keys)) for number, text in batch)


async def pause() -> None:
    await app.apause()


async def release(workers: int) -> None:
    """Start the jobs as soon as this many workers are registered."""
    while len((await app.astats()).workers) < workers:  # noqa: ASYNC110 - workers are other processes
        await asyncio.sleep(0.1)
    await app.aresume()
