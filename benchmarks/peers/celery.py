"""Celery on Redis."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery
from celery import chord as celery_chord

from benchmarks import jobs
from benchmarks.jobs import TEXT

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
if os.environ.get("BENCH_VARIANT") == "workflows":  # A chord counts results.
    app.conf.update(task_ignore_result=False, result_backend=os.environ["BENCH_STORE"])
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


def plain(count: int) -> None:
    for number in range(count):
        TASKS["noop"].delay(number, TEXT)


def chord(count: int) -> None:
    """Send a group, and one job that runs when all of it has completed."""
    noop = TASKS["noop"]
    celery_chord(noop.si(number, TEXT) for number in range(count - 1))(noop.si(0, TEXT))
