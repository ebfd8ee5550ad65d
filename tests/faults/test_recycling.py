"""Replacement of processes after a number of jobs or for their memory, while jobs run and processes are killed."""

from __future__ import annotations

import math
import os
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from headway import Job
from tests.faults.conftest import Yard, alive, children, wait_until

BOUND = ("--max-jobs-per-child", "4")


def pids(yard: Yard, starting: str = "where") -> list[int]:
    return [int(line.split()[-1]) for line in yard.marks(starting)]


def ended_once(jobs: list[Job[object]]) -> bool:
    """Return whether all jobs completed in their first attempt."""
    return {(job.record().state, job.record().attempts) for job in jobs} == {("completed", 1)}


def completed(jobs: list[Job[object]]) -> bool:
    return all(job.status() == "completed" for job in jobs)


@pytest.mark.parametrize("task", ["where_async", "where_process"])
def test_no_process_runs_more_jobs_than_its_bound(yard: Yard, task: str) -> None:
    jobs = [yard.submit(task, number) for number in range(13)]
    yard.start(*BOUND, "--slots", "3")
    wait_until(lambda: completed(jobs), within=60)
    assert ended_once(jobs)
    runs = Counter(pids(yard))
    assert sum(runs.values()) == 13
    assert max(runs.values()) <= 4
    assert len(runs) >= 4


def test_a_long_job_ends_in_its_runner_while_others_replace_it(yard: Yard) -> None:
    worker = yard.start(*BOUND, "--slots", "2", "--reserved", "0")
    long = yard.submit("until_told", "enough")
    yard.until(long, "executing")
    jobs = [yard.submit("where_async", number) for number in range(9)]
    wait_until(lambda: completed(jobs), within=60)
    (old,) = pids(yard, "until_told")
    assert alive(old)
    assert old in children(worker.pid)
    assert set(pids(yard)) - {old}
    (yard.folder / "enough").touch()
    record = yard.until(long, "completed")
    assert (record.attempts, record.crashes) == (1, 0)
    assert ended_once(jobs)
    wait_until(lambda: not alive(old))


def test_replaced_runners_and_new_ones_together_never_run_more_jobs_than_there_are_slots(yard: Yard) -> None:
    yard.start("--max-jobs-per-child", "2", "--slots", "2", "--reserved", "0")
    names = [f"file{number}" for number in range(6)]
    jobs = [yard.submit("until_told", name) for name in names]
    for ended in range(6):
        wait_until(lambda ended=ended: len(yard.marks("until_told")) >= min(ended + 2, 6), within=60)  # type: ignore[misc]
        assert len(yard.marks("until_told")) == min(ended + 2, 6)
        assert sum(job.status() == "executing" for job in jobs) <= 2
        started = yard.marks("until_told")[ended].split()[1]
        (yard.folder / started).touch()
        wait_until(lambda ended=ended: sum(job.status() == "completed" for job in jobs) == ended + 1)  # type: ignore[misc]
    assert ended_once(jobs)
    assert max(Counter(pids(yard, "until_told")).values()) <= 2


def test_sigterm_during_recycling_returns_the_long_job(yard: Yard) -> None:
    worker = yard.start(*BOUND, "--slots", "2", "--reserved", "0", "--grace", "0.5")
    long = yard.submit("until_told", "enough")
    yard.until(long, "executing")
    jobs = [yard.submit("where_async", number) for number in range(9)]
    wait_until(lambda: len(set(pids(yard))) > 1, within=60)  # Another runner has taken over.
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0
    (yard.folder / "enough").touch()
    yard.start()
    wait_until(lambda: completed([long, *jobs]), within=60)
    assert long.record().crashes == 0
    assert len(pids(yard)) == 9


@pytest.mark.proof
@pytest.mark.parametrize("victim", ["old", "new"])
def test_a_killed_runner_loses_nothing_during_recycling(yard: Yard, victim: str) -> None:
    worker = yard.start(*BOUND, "--slots", "2", "--reserved", "0")
    long = yard.submit("until_told", "enough")
    yard.until(long, "executing")
    (old,) = pids(yard, "until_told")
    jobs = [yard.submit("where_async", number) for number in range(12)]
    wait_until(lambda: set(children(worker.pid)) - {old}, within=60)
    new = next(iter(set(children(worker.pid)) - {old}))
    os.kill(old if victim == "old" else new, signal.SIGKILL)
    (yard.folder / "enough").touch()
    wait_until(lambda: completed([long, *jobs]), within=60)
    assert long.record().crashes <= (victim == "old")
    assert {int(line.split()[1]) for line in yard.marks("where")} == set(range(12))
    assert max(Counter(pids(yard)).values()) <= 4


@pytest.mark.parametrize("kind", ["thread", pytest.param("process", marks=pytest.mark.proof)])
def test_a_process_that_leaks_memory_is_replaced(yard: Yard, kind: str) -> None:
    yard.start("--max-memory-per-child", "250", "--slots", "1", "--reserved", "0")
    jobs = [yard.submit(f"where_{kind}", 0)]
    yard.until(jobs[0], "completed")
    jobs.append(yard.submit(f"leak_{kind}", 250))
    yard.until(jobs[-1], "completed")
    assert pids(yard, "leak") == pids(yard)  # One process has run both.

    def elsewhere() -> bool:
        jobs.append(yard.submit(f"where_{kind}", len(jobs)))
        yard.until(jobs[-1], "completed")
        return pids(yard)[-1] != pids(yard, "leak")[0]

    wait_until(elsewhere, within=60)
    assert ended_once(jobs)


@pytest.mark.proof
def test_a_memory_bound_below_what_the_app_needs_makes_no_storm(yard: Yard, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        began = time.monotonic()
        worker = yard.start("--max-memory-per-child", "1", "--slots", "1", "--reserved", "0", stderr=file)
        seen: set[int] = set()
        jobs = []
        for number in range(12):
            for task in ("where_thread", "where_process"):
                jobs.append(yard.submit(task, number))
                yard.until(jobs[-1], "completed")
            seen |= set(children(worker.pid))
        elapsed = time.monotonic() - began
    assert ended_once(jobs)
    most = 3 + math.log2(1 + elapsed)  # Replacements may follow after 0, 1, 2, 4 … seconds.
    assert len(seen) <= most
    assert len(set(pids(yard)) - seen) <= most * (1 + len(seen))  # Each runner has processes of its own.
    assert "worker.memory_bound_low" in log.read_text()
    assert "raise max_memory_per_child" in log.read_text()


@pytest.mark.proof
def test_a_replacement_that_cannot_load_the_app_does_not_end_the_jobs_of_the_old_runner(yard: Yard) -> None:
    worker = yard.start(*BOUND, "--slots", "2", "--reserved", "0")
    long = yard.submit("until_told", "enough")
    yard.until(long, "executing")
    source = (yard.folder / "jobs.py").read_text()
    (yard.folder / "jobs.py").write_text("raise ImportError('a broken deploy')\n")
    jobs = [yard.submit("where_async", number) for number in range(6)]
    (old,) = pids(yard, "until_told")
    wait_until(lambda: set(children(worker.pid)) - {old}, within=60)
    (yard.folder / "enough").touch()
    assert yard.until(long, "completed").attempts == 1
    (yard.folder / "jobs.py").write_text(source)
    wait_until(lambda: completed(jobs), within=60)
    assert ended_once(jobs)
