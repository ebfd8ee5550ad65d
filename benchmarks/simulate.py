"""Speed of the simulator when it replays mixed lanes, tenants and bursts, on one core.

python -m benchmarks.simulate                  # 100,000 jobs, about five seconds
python -m benchmarks.simulate --jobs 1000000   # a large day
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

from benchmarks.machine import spin_ms
from benchmarks.run import Run
from headway.core.policy.document import BUILT_IN
from headway.simulate.capacity import same_workers
from headway.simulate.job import SimulatedJob
from headway.simulate.replay import replay

# By task: its lane, its part of all jobs, and its mean seconds.
MIX = {"api": ("high", 0.5, 0.3), "thumbnail": ("medium", 0.4, 1.0), "report": ("low", 0.1, 4.0)}
LOAD = 0.85  # Of all slots.
TENANTS = 20


def workload(count: int, slots: int, seed: int = 1) -> list[SimulatedJob]:
    """Return jobs that keep the slots busy for most of the time."""
    chance = random.Random(seed)
    mean = sum(part * seconds for _, part, seconds in MIX.values())
    span_ms = 1_000 * count * mean / (slots * LOAD)
    moments = sorted(chance.uniform(0, span_ms) for _ in range(count))
    tasks = chance.choices(list(MIX), [part for _, part, _ in MIX.values()], k=count)
    return [
        SimulatedJob(
            round(at_ms), 1 + round(1_000 * chance.expovariate(1 / MIX[task][2])), task, MIX[task][0],
            f"t{chance.randrange(TENANTS)}",
        )
        for at_ms, task in zip(moments, tasks, strict=True)
    ]  # fmt: skip


def measure(count: int, slots: int = 16, workers: int = 2) -> dict[str, Any]:
    """Return the jobs replayed per second of CPU."""
    jobs = workload(count, slots * workers)
    began = time.process_time()
    replay(jobs, BUILT_IN, same_workers(slots, workers))
    seconds = time.process_time() - began
    return {"jobs": count, "seconds": seconds, "jobs_per_second": count / seconds}


def measure_simulator(run: Run) -> None:
    run.others["simulate"] = measure(20_000 if run.quick else 100_000)


def lines(found: dict[str, Any]) -> list[str]:
    return [f"{found['jobs']:,} jobs in {found['seconds']:.1f} s of CPU: {found['jobs_per_second']:,.0f} jobs a second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=100_000)
    asked = parser.parse_args()
    print(*lines(measure(asked.jobs)), f"a loop of this machine takes {spin_ms():.1f} ms", sep="\n")


if __name__ == "__main__":
    main()
