"""Programs that a job in its own process has started end with the job, and with the worker."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from tests.faults.conftest import Yard, alive, children, tree, wait_until


def programs(yard: Yard) -> list[int]:
    return [int(line.split()[1]) for line in yard.marks("program ")]


def test_a_job_in_a_process_knows_when_it_was_submitted_and_which_worker_runs_it(yard: Yard) -> None:
    yard.start()
    job = yard.submit("know_job")
    found: Any = job.result(timeout=60)
    record = job.record()
    assert found == (record.submitted_at, record.worker_id)


def test_programs_end_when_their_job_returns(yard: Yard) -> None:
    # W14
    yard.start()
    first = yard.submit("leave_programs", 0.0).result(timeout=60)
    assert len(programs(yard)) == 2
    wait_until(lambda: not any(alive(pid) for pid in programs(yard)))
    assert yard.submit("leave_programs", 0.0).result(timeout=60) != first  # That process runs nothing more.


def test_a_pool_of_processes_that_a_job_has_closed_costs_nothing(yard: Yard) -> None:
    yard.start()
    results: list[Any] = [yard.submit("use_pool", number).result(timeout=60) for number in range(3)]
    assert [number for _, number in results] == [0, 1, 2]
    assert len({pid for pid, _ in results}) == 1  # The process stays warm.


@pytest.mark.parametrize("who", ["parent", "runner", "job"])
def test_programs_end_with_whoever_is_killed(yard: Yard, who: str) -> None:
    # W14, W16
    job = yard.submit("leave_programs", 1000.0, max_retries=0)
    worker = yard.start()
    wait_until(lambda: yard.marks("programs started"))
    supervisor = next(pid for pid in children(worker.runner) if children(pid))
    victim = {"parent": worker.pid, "runner": worker.runner, "job": children(supervisor)[0]}[who]
    processes = tree(worker.pid)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not any(alive(pid) for pid in programs(yard)))
    if who == "parent":
        wait_until(lambda: not any(alive(pid) for pid in processes))
    else:
        record = yard.until(job, "dead_letter")
        assert record.error is not None
        assert "SIGKILL" in record.error.message


def test_programs_end_with_a_job_that_is_cancelled(yard: Yard) -> None:
    # W14
    job = yard.submit("leave_programs", 1000.0)
    yard.start()
    wait_until(lambda: yard.marks("programs started"))
    job.cancel()
    wait_until(lambda: not any(alive(pid) for pid in programs(yard)))
    yard.until(job, "cancelled")
