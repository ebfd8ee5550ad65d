"""Huey on Redis, and on SQLite."""

from __future__ import annotations

import os
from typing import Any

from huey import RedisHuey, SqliteHuey

from benchmarks import jobs

PACKAGES = ("huey", "redis")
STORE = os.environ["BENCH_STORE"]
ON_SQLITE = STORE.startswith("sqlite:")
SYNCED = os.environ["BENCH_VARIANT"] == "fsync"
CONFIGURATION = (
    f"WAL, {'fsync (synchronous FULL)' if SYNCED else 'no fsync'}, 1 thread (naps: 100), polls each 10 ms, results off"
    if ON_SQLITE
    else "blocking pop, 1 thread (naps: 100), results off"
)

huey: Any = (
    SqliteHuey(filename=STORE.removeprefix("sqlite:///"), fsync=SYNCED, results=False)
    if ON_SQLITE
    else RedisHuey(url=STORE, results=False)
)
TASKS: dict[str, Any] = {
    "noop": huey.task()(jobs.noop),
    "nap": huey.task()(jobs.nap),
    "stamp": huey.task()(jobs.stamp),
}


def command(test: str) -> list[str]:
    options = ["-w", "100" if test == "naps" else "1", "-n", "-g", "TERM", "-t", "2"]
    if ON_SQLITE:
        options += ["-d", "0.01", "-m", "0.01"]
    return ["-m", "huey.bin.huey_consumer", "benchmarks.peers.huey.huey", *options]


def submit(task: str, *arguments: Any) -> None:
    TASKS[task](*arguments)
