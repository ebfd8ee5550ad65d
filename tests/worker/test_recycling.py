"""Conditions for replacing a process that runs jobs."""

from __future__ import annotations

import pytest

from headway.client.settings import load_settings
from headway.core.errors import ConfigError
from headway.worker.recycling import ChildBounds, RunnerUse, replaceable_after

MIB = 1 << 20


def a_use(jobs: int = 0, memory: int = 0, memory_after: float = 0.0) -> RunnerUse:
    """Return the use of a runner that started at 8 s and could claim at 10 s."""
    return RunnerUse(ChildBounds(jobs, memory), began=8.0, ready=10.0, memory_after=memory_after)


def test_a_runner_that_has_started_all_its_jobs_is_due() -> None:
    use = a_use(jobs=5)
    assert not use.jobs_due(10.0)
    use.jobs = 5
    assert use.jobs_due(1_000.0)


def test_a_runner_is_due_before_its_last_job_by_the_time_that_a_new_one_needs() -> None:
    use = a_use(jobs=100)
    use.jobs = 90  # In 30 s. The other 10 take 3.3 s, and a new runner 2 s.
    assert not use.jobs_due(40.0)
    use.jobs = 95  # In 30 s. The other 5 take 1.6 s.
    assert use.jobs_due(40.0)


def test_a_runner_without_a_bound_or_without_jobs_is_never_due() -> None:
    idle, unbound = a_use(jobs=1, memory=MIB), a_use()
    unbound.jobs = 1_000_000
    assert not idle.jobs_due(1_000.0)
    assert not unbound.jobs_due(1_000.0)
    assert not unbound.memory_exceeded(1 << 40)


def test_memory_counts_after_a_job_and_not_before_the_pause_is_over() -> None:
    use = a_use(memory=100 * MIB, memory_after=4.0)
    assert use.memory_exceeded(101 * MIB)
    assert not use.memory_exceeded(100 * MIB)
    assert not use.may_replace_for_memory(20.0)
    use.jobs = 1
    assert not use.may_replace_for_memory(13.9)
    assert use.may_replace_for_memory(14.0)


def test_the_pause_between_young_processes_grows_to_a_minute_and_an_old_one_ends_it() -> None:
    pauses = [0.0]
    for _ in range(9):
        pauses.append(replaceable_after(pauses[-1], lived=pauses[-1] + 0.1))
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]
    assert replaceable_after(60.0, lived=120.0) == 0.0
    assert replaceable_after(8.0, lived=60.0) == 0.0


def test_bounds_come_from_the_settings_and_are_never_below_zero() -> None:
    environment = {"HEADWAY_MAX_JOBS_PER_CHILD": "7", "HEADWAY_MAX_MEMORY_PER_CHILD": "3"}
    assert ChildBounds.of(load_settings(environment=environment)) == ChildBounds(7, 3 * MIB)
    assert not any(ChildBounds.of(load_settings(environment={})))
    with pytest.raises(ConfigError, match="max_jobs_per_child must be at least 0, not -1"):
        load_settings(environment={"HEADWAY_MAX_JOBS_PER_CHILD": "-1"})
