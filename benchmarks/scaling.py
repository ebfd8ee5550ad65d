"""Ten thousand workers on one Redis and one PostgreSQL: a simulation from measured costs.

    python -m benchmarks.scaling              # simulate with the costs below; the same on every machine
    python -m benchmarks.scaling --measure    # measure the costs on this machine first, about three minutes

Each worker has some slots that always have a next job. When a job ends, the worker reports it and claims another in one
exchange. Jobs that end during an exchange go with the next one. The server has one core (Redis) or several
(PostgreSQL) and serves exchanges in the order in which they come. docs/explain/scaling.md shows what this prints.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.contenders import Contender
from benchmarks.drain import timed
from benchmarks.machine import exact_cpu_seconds
from benchmarks.places import PostgresPlace, RedisPlace
from benchmarks.stand import Stand

ROUND_TRIP = 0.0005  # Seconds between a worker and its store in one data centre.
HEARTBEAT = 30.0  # Seconds, as workers have by default.
JOBS = 20_000
IDLE_WORKERS, IDLE_SECONDS = 4, 20.0


@dataclass(frozen=True)
class Costs:
    """CPU microseconds that the server uses for a call, for each job in it, and for an idle worker per second.

    ``connections``: the number for one worker process. ``cores``: the number that the server can use.
    """

    call_us: float
    job_us: float
    idle_us: float
    connections: float
    cores: int


# Measured by --measure on two shared virtual cores. PostgreSQL is given eight cores.
MEASURED = {
    "redis": Costs(call_us=181, job_us=10.8, idle_us=56, connections=2, cores=1),
    "postgres": Costs(call_us=790, job_us=14.7, idle_us=1_105, connections=7, cores=8),
}


@dataclass(frozen=True)
class Outcome:
    """Jobs per second, busy share of the server, milliseconds of an exchange (p99), and filled share of the slots."""

    per_second: float
    busy: float
    p99_ms: float
    filled: float


def simulate(
    costs: Costs, *, workers: int, job_seconds: float, slots: int = 5, until: float = 10.0, seed: int = 7
) -> Outcome:
    """Simulate all workers for some seconds. The first half fills the queues and does not count."""
    chance = random.Random(seed)
    cores = [0.0] * costs.cores
    ended, asking = [0] * workers, [False] * workers
    # Time, worker, and kind: 0 is the end of a job, -1 a heartbeat, and above 0 the number of jobs in a reply.
    events = [(chance.expovariate(1 / job_seconds), worker, 0) for worker in range(workers) for _ in range(slots)]
    events += [(chance.uniform(0, HEARTBEAT), worker, -1) for worker in range(workers)]
    heapq.heapify(events)
    counted, done, spent, took = until / 2, 0, 0.0, []

    def serve(at: float, microseconds: float) -> float:
        nonlocal spent
        begin = max(at, cores[0])
        end = begin + microseconds / 1e6
        heapq.heapreplace(cores, end)
        spent += max(0.0, min(end, until) - max(begin, counted))
        return end

    def ask(at: float, worker: int) -> None:
        jobs, ended[worker], asking[worker] = ended[worker], 0, True
        answered = serve(at + ROUND_TRIP / 2, costs.call_us + jobs * costs.job_us) + ROUND_TRIP / 2
        if at > counted:
            took.append(answered - at)
        heapq.heappush(events, (answered, worker, jobs))

    while events and events[0][0] < until:
        at, worker, what = heapq.heappop(events)
        if what < 0:
            serve(at, costs.call_us)
            heapq.heappush(events, (at + HEARTBEAT, worker, -1))
            continue
        if what == 0:
            ended[worker] += 1
            done += at > counted
        else:
            asking[worker] = False
            for _ in range(what):
                heapq.heappush(events, (at + chance.expovariate(1 / job_seconds), worker, 0))
        if ended[worker] and not asking[worker]:
            ask(at, worker)
    per_second = done / (until - counted)
    late = sorted(took)[len(took) * 99 // 100] * 1e3 if took else float("nan")
    busy = spent / (until - counted) / costs.cores
    return Outcome(per_second, busy, late, min(1.0, per_second * job_seconds / (workers * slots)))


def report(measured: dict[str, Costs]) -> Iterator[str]:
    for store, costs in measured.items():
        cores = f"{costs.cores} core{'s' if costs.cores > 1 else ''}"
        yield f"{store}, {cores}: {costs.call_us:.0f} µs a call, {costs.job_us:.1f} µs a job,"
        yield f"  {costs.idle_us:.0f} µs a second and {costs.connections:.1f} connections for an idle worker"
        yield f"  {'workers':>8} {'idle: busy':>10} {'connections':>12}   busy, by slots and the length of jobs"
        for workers in (100, 1_000, 10_000):
            idle = workers * costs.idle_us / 1e6 / costs.cores
            yield f"  {workers:>8,} {idle:>10.1%} {workers * costs.connections:>12,.0f}"
            for slots, length in ((5, 60.0), (5, 10.0), (5, 1.0), (100, 10.0)):
                found = simulate(costs, workers=workers, slots=slots, job_seconds=length)
                rate = f"{'':>35}{slots:>3} slots, {length:>2g} s: {found.per_second:>8,.0f} jobs/s"
                late = f"p99 {found.p99_ms:>7,.1f} ms, slots {found.filled:>4.0%} filled"
                yield f"{rate}, server {found.busy:>4.0%} busy, {late}"


# ---------------------------------------------------------------------- measuring


def measure(place: RedisPlace | PostgresPlace, folder: Path, cores: int) -> Costs:
    """Fit the cost of a call and a job to drains with few and with many slots, and measure idle workers."""
    drains = [_drain(place, folder / f"{place.name}-{slots}", slots) for slots in (1, 5, 20, 100)]
    # Least squares for: store_us = job_us + call_us * calls.
    mean_calls = sum(calls for calls, _ in drains) / len(drains)
    mean_us = sum(us for _, us in drains) / len(drains)
    spread = sum((calls - mean_calls) ** 2 for calls, _ in drains)
    call_us = sum((calls - mean_calls) * (us - mean_us) for calls, us in drains) / spread
    idle_us, connections = _idle(place, folder / f"{place.name}-idle")
    return Costs(call_us, max(1.0, mean_us - call_us * mean_calls), idle_us, connections, cores)


def _stand(place: RedisPlace | PostgresPlace, folder: Path) -> Stand:
    return Stand(Contender("scaling", "benchmarks.features.app", place.name, 0, variant="plain"), place, folder)


def _drain(place: RedisPlace | PostgresPlace, folder: Path, slots: int) -> tuple[float, float]:
    """Return the number of calls and the server's microseconds per job."""
    jobs = JOBS if slots > 1 else JOBS // 5
    with _stand(place, folder) as stand:
        stand.ask("fill", count=jobs)
        place.settle()
        before = place.requests()
        stand.start_worker("drain", HEADWAY_SLOTS=str(slots), HEADWAY_LOG_LEVEL="warning")
        stand.need(stand.all_at_work, "the worker runs jobs")
        found = timed(stand, upto=jobs, seconds=60)
        stand.stop_workers()
        time.sleep(0.2)  # A PostgreSQL session reports its statistics when it ends.
        return (place.requests() - before) / stand.done(), found["store_us"]


def _idle(place: RedisPlace | PostgresPlace, folder: Path) -> tuple[float, float]:
    """Return an idle worker's connections and the server's microseconds per second."""
    with _stand(place, folder) as stand:
        time.sleep(2)
        alone, before = place.connections(), exact_cpu_seconds(place.server.pid)
        time.sleep(IDLE_SECONDS)
        unused = exact_cpu_seconds(place.server.pid) - before  # The CPU that the server uses without workers.
        for _ in range(IDLE_WORKERS):
            stand.start_worker("idle", HEADWAY_LOG_LEVEL="warning")
        time.sleep(10)  # Workers send more requests just after they have started.
        before = exact_cpu_seconds(place.server.pid)
        time.sleep(IDLE_SECONDS)
        spent = exact_cpu_seconds(place.server.pid) - before - unused
        connections = (place.connections() - alone) / IDLE_WORKERS
    return max(0.0, spent) / IDLE_SECONDS / IDLE_WORKERS * 1e6, connections


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--measure", action="store_true", help="measure the costs on this machine first")
    costs = MEASURED
    if parser.parse_args().measure:
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as name, contextlib.ExitStack() as stack:
            folder = Path(name)
            redis, postgres = RedisPlace(folder, aof=False), PostgresPlace(folder)
            stack.callback(redis.stop)
            stack.callback(postgres.stop)
            costs = {place.name: measure(place, folder, MEASURED[place.name].cores) for place in (redis, postgres)}
    print(*report(costs), sep="\n")


if __name__ == "__main__":
    main()
