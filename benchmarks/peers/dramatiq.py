"""Dramatiq on Redis."""

from __future__ import annotations

import os
from typing import Any

from dramatiq import actor, set_broker
from dramatiq.brokers.redis import RedisBroker

from benchmarks import jobs

PACKAGES = ("dramatiq", "redis")
CONFIGURATION = "1 process, 1 thread (naps: 100, idle: 8), queue prefetch 500, default middleware"
ENVIRONMENT = {"dramatiq_queue_prefetch": "500"}
THREADS = {"drain": "1", "naps": "100", "idle": "8"}

broker = RedisBroker(url=os.environ["BENCH_STORE"])
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
