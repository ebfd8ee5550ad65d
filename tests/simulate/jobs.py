"""Short ways to write the jobs of a simulation."""

from __future__ import annotations

from typing import Any

from headway.core.policy.document import BUILT_IN, Policy
from headway.core.policy.reader import read_policy
from headway.simulate.capacity import Capacity, same_workers
from headway.simulate.job import SimulatedJob
from headway.simulate.outcome import Outcome
from headway.simulate.replay import replay


def job(arrives: float, seconds: float, **more: Any) -> SimulatedJob:
    """Make a job that arrives and runs for this many seconds."""
    return SimulatedJob(round(1_000 * arrives), round(1_000 * seconds), **more)


def policy(**data: Any) -> Policy:
    """Make a policy from what a policy file would say."""
    return read_policy(data, "the test")


def played(*jobs: SimulatedJob, slots: int = 1, under: Policy = BUILT_IN, capacity: Capacity | None = None) -> Outcome:
    """Replay jobs on one worker, or on others."""
    return replay(jobs, under, capacity or same_workers(slots, 1))


def waits(outcome: Outcome) -> list[float]:
    """Return the seconds that each job waited."""
    return [wait / 1_000 for wait in outcome.waits]
