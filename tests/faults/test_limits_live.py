"""Limits with real worker processes, recounted from the marks that the jobs write."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

import pytest

from tests.faults.conftest import WorkerProcess, Yard, wait_until

pytestmark = pytest.mark.slow

JOBS = 40
ACCOUNTS = 3


class Run(NamedTuple):
    """One attempt of a job, timed by the monotonic clock that all processes of a machine share."""

    number: int
    account: int
    pid: int
    began: int
    ended: int | None


def runs_of(yard: Yard, *, dead_pid: int | None = None, died: int | None = None) -> list[Run]:
    """Read the runs from the marks. The unfinished runs of a killed process ended when it was gone."""
    began: dict[tuple[int, int], int] = {}
    runs: list[Run] = []
    for line in yard.marks("capped "):
        _, what, *values = line.split()
        number, account, pid, moment = map(int, values)
        if what == "start":
            began[number, pid] = moment
        else:
            runs.append(Run(number, account, pid, began.pop((number, pid)), moment))
    for line in yard.marks("capped start "):
        number, account, pid, moment = map(int, line.split()[2:])
        if began.get((number, pid)) == moment:
            runs.append(Run(number, account, pid, moment, died if pid == dead_pid else None))
    return runs


def most_at_once(runs: Iterable[Run]) -> int:
    """Return the largest number of runs at any moment."""
    changes = sorted(
        change for run in runs for change in ((run.began, 1), (run.ended or time.monotonic_ns(), -1))
    )  # An end comes before a start of the same moment.
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most


def start_two(yard: Yard) -> tuple[WorkerProcess, WorkerProcess]:
    """Start two workers that both get jobs, because the first has too few slots for all that the limit allows."""
    first = yard.start("--slots", "1")
    second = yard.start()
    wait_until(lambda: {first.runner, second.runner} <= {run.pid for run in runs_of(yard)})
    return first, second


def kill_in_mid_job(yard: Yard, worker: WorkerProcess) -> tuple[int, int]:
    """Kill a worker with all its processes just after a job has begun. Return its runner and the time of its end."""
    pid = worker.runner

    def is_busy() -> bool:
        young = time.monotonic_ns() - 100_000_000
        return any(run.pid == pid and run.ended is None and run.began > young for run in runs_of(yard))

    wait_until(is_busy)
    worker.send(signal.SIGKILL, whole_tree=True)
    worker.wait()
    return pid, time.monotonic_ns()


def test_limits_hold_over_two_workers_of_which_one_is_killed(yard: Yard) -> None:
    # R4.46, R4.36, R3.65: two at once, one of each account, and a dead worker's jobs count until they are recovered.
    jobs = [yard.submit("capped", number, number % ACCOUNTS, 0.3) for number in range(JOBS)]
    first, second = start_two(yard)
    dead_pid, died = kill_in_mid_job(yard, first)
    for job in jobs:
        yard.until(job, "completed", within=90)
    runs = runs_of(yard, dead_pid=dead_pid, died=died)

    interrupted = [run for run in runs if run.pid == dead_pid and run.ended == died]
    assert interrupted, "nobody was hurt, so nothing was shown"
    assert all(run.ended is not None for run in runs)
    assert most_at_once(runs) == 2
    for account in range(ACCOUNTS):
        assert most_at_once(run for run in runs if run.account == account) == 1

    ended = Counter(run.number for run in runs if run not in interrupted)
    assert set(ended) == set(range(JOBS))
    again = {run.number for run in interrupted}
    assert all(count == 1 for number, count in ended.items() if number not in again)
    assert {number for number, job in enumerate(jobs) if job.record().crashes} <= again
    survivors = {run.pid for run in runs if run.began > died}
    assert survivors == {second.runner}


def test_the_limit_is_used_again_in_full_once_the_dead_workers_jobs_are_recovered(yard: Yard) -> None:
    # L9, R3.80
    jobs = [yard.submit("capped", number, number, 0.2) for number in range(30)]
    first, second = start_two(yard)
    _, died = kill_in_mid_job(yard, first)
    for job in jobs:
        yard.until(job, "completed", within=90)
    # However long that took, by now they are: the killed one's own job was among them.
    for job in [yard.submit("capped", number, number, 0.2) for number in range(30, 36)]:
        yard.until(job, "completed", within=90)
    late = [run for run in runs_of(yard) if run.began > died and run.pid == second.runner]
    assert most_at_once(late) == 2


def test_a_rate_holds_over_two_workers(yard: Yard) -> None:
    yard.start()
    yard.start()
    jobs = [yard.submit("rated", number) for number in range(30)]
    started = sorted(yard.until(job, "completed", within=60).started_at or 0 for job in jobs)
    assert min(later - earlier for earlier, later in pairwise(started)) >= 50
    assert len({line.split()[2] for line in yard.marks("rated ")}) == 2, "one worker did it all, so nothing was shown"
