"""RQ on Redis."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from redis import Redis
from rq import Queue

from benchmarks import jobs
from benchmarks.jobs import TEXT

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


def plain(count: int) -> None:
    submit_many([(number, TEXT) for number in range(count)])


def depends_on(count: int) -> None:
    """Submit jobs, and one that runs when all have completed. RQ reads their records for that, so they are kept."""
    members = [Queue.prepare_data(jobs.noop, (number, TEXT), result_ttl=500) for number in range(count - 1)]
    queue.enqueue(jobs.noop, 0, TEXT, result_ttl=500, depends_on=queue.enqueue_many(members))
