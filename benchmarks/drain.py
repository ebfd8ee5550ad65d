"""Speed of workers on jobs that do nothing, and the CPU that such a job costs the worker and the store."""

from __future__ import annotations

import os
import time

from benchmarks.contenders import Contender
from benchmarks.machine import busy_seconds, cpu_seconds
from benchmarks.run import Figures, Run
from benchmarks.stand import Stand

PART = "drain"


def measure_drain(run: Run) -> None:
    for number in range(1 if run.quick else 2):
        for store in run.places:
            for contender in run.on(store):
                if run.out_of_the_running(contender, "drain"):
                    continue
                with run.trying(contender, PART):
                    _keep(run, contender, drain(run, contender, workers=1), "drain")
                if PART in run.rows[contender.name]["failed"]:
                    continue
                if not contender.ours and (run.quick or number):
                    continue
                with run.trying(contender, "two workers"):
                    _keep(run, contender, drain(run, contender, workers=2), "two")
                if contender.ours:
                    with run.trying(contender, "default worker"):
                        _keep(run, contender, drain(run, contender, workers=1, slots=5), "default")


def _keep(run: Run, contender: Contender, found: Figures, name: str) -> None:
    row = run.rows[contender.name]
    if found["per_second"] > row.get(name, 0.0):
        row[name] = found["per_second"]
        row |= {f"{name}_{key}": value for key, value in found.items() if key != "per_second"}


def drain(run: Run, contender: Contender, *, workers: int, slots: int | None = None) -> Figures:
    """Fill a queue, start workers, and measure from the moment that all of them run jobs, for a limited time."""
    jobs = contender.jobs * workers // (4 if run.quick else 1)
    with run.stand(contender) as stand:
        run.note(stand)
        stand.ask("fill", count=jobs, patience=120)
        operations = stand.place.operations()
        for _ in range(workers):
            stand.start_worker("drain", **({} if slots is None else {"HEADWAY_SLOTS": str(slots)}))
        stand.need(stand.all_at_work, "the workers run jobs")
        found = timed(stand, upto=jobs, seconds=3 if run.quick else 5)
        stand.stop_workers()
        # A PostgreSQL session reports its statistics when it ends.
        time.sleep(0.2)
        found["store_ops"] = (stand.place.operations() - operations) / stand.done()
    return found


class Meter:
    """Counts of jobs and CPU since the object was created."""

    def __init__(self, stand: Stand) -> None:
        self._stand = stand
        self.first, self.began = stand.done(), time.perf_counter()
        self._cpu = sum(map(cpu_seconds, stand.pids))
        self._store_cpu, self._busy = stand.place.cpu(), busy_seconds()

    def read(self) -> Figures:
        stand = self._stand
        done, lasted = stand.done() - self.first, time.perf_counter() - self.began
        if not done:
            raise RuntimeError(f"no job was done within {lasted:.0f} s")
        store_cpu = stand.place.cpu() - self._store_cpu
        return {
            "per_second": done / lasted,
            "jobs": done,
            "worker_us": (sum(map(cpu_seconds, stand.pids)) - self._cpu) / done * 1e6,
            "store_us": store_cpu / done * 1e6,
            # The share of one core that the store used, and the share of all cores that all processes used.
            "store_share": store_cpu / lasted,
            "machine_share": (busy_seconds() - self._busy) / lasted / (os.cpu_count() or 1),
        }


def timed(stand: Stand, *, upto: int, seconds: float) -> Figures:
    """Measure until this many jobs are done in total, or for this many seconds."""
    meter = Meter(stand)
    if meter.first >= upto:
        raise RuntimeError("all jobs had run before the measurement began")
    stand.wait(lambda: stand.done() >= upto, seconds)
    return meter.read()
