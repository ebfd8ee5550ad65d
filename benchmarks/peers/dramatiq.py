"""Dramatiq on Redis."""

from __future__ import annotations

import os
from typing import Any

from dramatiq import actor, set_broker
from dramatiq import group as dramatiq_group
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import GroupCallbacks
from dramatiq.rate_limits.backends import RedisBackend

from benchmarks import jobs
from benchmarks.jobs import TEXT

PACKAGES = ("dramatiq", "redis")
CONFIGURATION = "1 process, 1 thread (naps: 100, idle: 8), queue prefetch 500, default middleware"
ENVIRONMENT = {"dramatiq_queue_prefetch": "500"}
THREADS = {"drain": "1", "naps": "100", "idle": "8"}

broker = RedisBroker(url=os.environ["BENCH_STORE"])
if os.environ.get("BENCH_VARIANT") == "workflows":  # A group counts down in a backend of its own.
    broker.add_middleware(GroupCallbacks(RedisBackend(url=os.environ["BENCH_STORE"])))
set_broker(broker)
TASKS: dict[str, Any] = {
    "noop": actor(jobs.noop),
    "nap": actor(jobs.nap),
    "stamp": actor(jobs.stamp),
}


def command(test: str) -> list[str]:
    options = ["--processes", "1", "--threads", THREADS[test], "--worker-shutdown-timeout", "2000"]
    return ["-m", "dramatiq", "benchmarks.peers.dramatiq:broker", *options]


def submit(task: str, *arguments: Any) -> None:
    TASKS[task].send(*arguments)


def plain(count: int) -> None:
    for number in range(count):
        TASKS["noop"].send(number, TEXT)


def group(count: int) -> None:
    """Send a group, and one job that runs when all of it has completed."""
    noop = TASKS["noop"]
    members = dramatiq_group(noop.message(number, TEXT) for number in range(count - 1))
    members.add_completion_callback(noop.message(0, TEXT))
    members.run()
