"""RQ on Redis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from redis import Redis
from rq import Queue

from benchmarks import jobs

PACKAGES = ("rq", "redis")
CONFIGURATION = "SimpleWorker, which does not fork for a job; results off; one job at a time"

queue = Queue(connection=Redis.from_url(os.environ["BENCH_STORE"]))
TASKS: dict[str, Any] = {"noop": jobs.noop, "nap": jobs.nap, "stamp": jobs.stamp}


def command(test: str) -> list[str]:
    return ["-m", "rq.cli", "worker", "-u", os.environ["BENCH_STORE"], "-w", "rq.SimpleWorker"]


def submit(task: str, *arguments: Any) -> None:
    queue.enqueue(TASKS[task], *arguments, result_ttl=0)


def submit_many(batch: Sequence[tuple[int, str]]) -> None:
    queue.enqueue_many([Queue.prepare_data(jobs.noop, arguments, result_ttl=0) for arguments in batch])
