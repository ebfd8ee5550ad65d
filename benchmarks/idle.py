"""Cost of an idle worker, and its latency when a job arrives."""

from __future__ import annotations

import statistics
import time

from benchmarks.contenders import Contender
from benchmarks.machine import cpu_seconds, pss_mib
from benchmarks.run import Run
from benchmarks.stand import Stand

PART = "latency"
GAP = 0.02


def measure_idle(run: Run) -> None:
    """Measure each contender of a store three times, in turn, with one worker running at a time."""
    rounds = 1 if run.quick else 3
    for store in run.places:
        for number in range(rounds):
            for contender in run.on(store):
                if run.out_of_the_running(contender, "p50_ms", less=True):
                    continue
                with run.trying(contender, PART), run.stand(contender) as stand:
                    run.note(stand)
                    stand.start_worker("idle")
                    _warm(stand)
                    if number == 0 and (contender.ours or not run.quick):
                        _idle(run, contender, stand, seconds=4 if run.quick else 8)
                    _latency(run, contender, stand, count=100 if run.quick else 200)


def _warm(stand: Stand) -> None:
    stand.ask("stamps", count=1, gap=0)
    stand.need(lambda: stand.done() >= 1, "the worker runs a job")
    stand.ask("stamps", count=10, gap=GAP)
    stand.need(lambda: stand.done() >= 11, "the worker runs jobs")
    stand.stamps()


def _idle(run: Run, contender: Contender, stand: Stand, seconds: float) -> None:
    time.sleep(20)  # The workers still report the last jobs, and PostgreSQL counts up to ten seconds late.
    [pid] = stand.pids
    cpu, operations, requests = cpu_seconds(pid), stand.place.operations(), stand.place.requests()
    time.sleep(seconds)
    run.keep(contender, "idle_cpu", (cpu_seconds(pid) - cpu) / seconds)
    run.keep(contender, "idle_ops", (stand.place.operations() - operations) / seconds)
    run.keep(contender, "idle_requests", (stand.place.requests() - requests) / seconds)
    run.keep(contender, "idle_mib", pss_mib(pid))


def _latency(run: Run, contender: Contender, stand: Stand, count: int) -> None:
    before = stand.done()
    stand.ask("stamps", count=count, gap=GAP)
    stand.wait(lambda: stand.done() >= before + count, 5)
    late = sorted(stand.stamps())
    if len(late) < count // 2:
        raise RuntimeError(f"{len(late)} of {count} jobs started within 5 s")
    run.keep(contender, "p50_ms", statistics.median(late), min)
    run.keep(contender, "p99_ms", late[int(len(late) * 0.99) - 1], min)
