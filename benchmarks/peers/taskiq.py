"""taskiq on Redis: a list, which acknowledges nothing, or a stream, which does."""

from __future__ import annotations

import os
from typing import Any

from taskiq.serializers import ORJSONSerializer
from taskiq_redis import ListQueueBroker, RedisStreamBroker

from benchmarks import jobs

PACKAGES = ("taskiq", "taskiq-redis", "redis", "uvloop")
STORE, STREAM = os.environ["BENCH_STORE"], os.environ["BENCH_VARIANT"] == "stream"
CONFIGURATION = (
    f"{'RedisStreamBroker, 100 a read' if STREAM else 'ListQueueBroker, no acknowledgement'}; "
    "1 process, 100 tasks at once, prefetch 100, orjson, uvloop, no results"
)

# From the start of the stream: jobs wait before a worker first reads.
broker: Any = (
    RedisStreamBroker(STORE, queue_name="taskiq-stream", consumer_id="0", xread_count=100)
    if STREAM
    else ListQueueBroker(STORE, queue_name="taskiq-list")
)
broker = broker.with_serializer(ORJSONSerializer())
TASKS: dict[str, Any] = {
    "noop": broker.register_task(jobs.async_noop, "noop"),
    "nap": broker.register_task(jobs.async_nap, "nap"),
    "stamp": broker.register_task(jobs.async_stamp, "stamp"),
}


def command(test: str) -> list[str]:
    options = ["--workers", "1", "--max-async-tasks", "100", "--max-prefetch", "100", "--no-parse"]
    return ["-m", "taskiq", "worker", "benchmarks.peers.taskiq:broker", *options]


async def setup() -> None:
    await broker.startup()


async def submit(task: str, *arguments: Any) -> None:
    await TASKS[task].kiq(*arguments)
