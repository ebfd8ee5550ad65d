"""Celery on Redis."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

from benchmarks import jobs

PACKAGES = ("celery", "kombu", "redis")
CONFIGURATION = "-P solo (naps: -P threads -c 100), prefetch 64, no results, no gossip, mingle or heartbeat"

app = Celery(broker=os.environ["BENCH_STORE"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=64,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    task_acks_late=False,
    broker_connection_retry_on_startup=True,
)
TASKS: dict[str, Any] = {
    "noop": app.task(name="noop")(jobs.noop),
    "nap": app.task(name="nap")(jobs.nap),
    "stamp": app.task(name="stamp")(jobs.stamp),
}


def command(test: str) -> list[str]:
    pool = ["-P", "threads", "-c", "100", "--prefetch-multiplier", "2"] if test == "naps" else ["-P", "solo"]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-n", f"{test}-%i@%h"]
    return ["-m", "celery", "-A", "benchmarks.peers.celery:app", "worker", *pool, *quiet]


def submit(task: str, *arguments: Any) -> None:
    TASKS[task].delay(*arguments)
