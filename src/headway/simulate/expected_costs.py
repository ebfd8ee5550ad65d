"""Expected run times, as workers would have learned them from the jobs of a simulation."""

from __future__ import annotations

from collections.abc import Sequence

from headway.estimates.costs import TENANT_JOBS, CostSums, learn
from headway.simulate.job import SimulatedJob


def expected_costs(jobs: Sequence[SimulatedJob]) -> dict[str, int]:
    """Return the expected microseconds of each task, and of tenants whose jobs are far from that.

    Workers learn these as jobs finish. A replay begins in the middle, when they are known already.
    """
    tasks: CostSums = {}
    tenants: dict[tuple[str, str], tuple[int, float]] = {}
    for job in jobs:
        seconds = job.run_ms / 1_000
        count, total = tasks.get(job.task, (0, 0.0))
        tasks[job.task] = count + 1, total + seconds
        if job.tenant is not None:
            count, total = tenants.get((job.task, job.tenant), (0, 0.0))
            tenants[job.task, job.tenant] = count + 1, total + seconds
    return learn({}, tasks, {key: noted for key, noted in tenants.items() if noted[0] >= TENANT_JOBS})
