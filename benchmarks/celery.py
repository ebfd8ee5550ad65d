"""Cost of load-based queues in Celery: Headway's queues beside plain Celery, in one run on one server.

Run it with ``python -m benchmarks.celery [--quick]``. Rounds alternate, so that other load on the machine affects both
alike. The report shows the median of the rounds' ratios.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from celery import Celery  # type: ignore[import-untyped]
from kombu.entity import Queue

from benchmarks.machine import cpu_seconds
from headway.integrations.celery import install
from tests.servers import Valkey, wait_for

ROOT = Path(__file__).parents[1]
KINDS = ("plain", "plain, 20 queues", "ours")
QUEUES = [f"queue_{number}" for number in range(20)]


class Cost(NamedTuple):
    """Seconds that one task takes, and the CPU seconds that the measured processes use for it."""

    clock: float
    cpu: float


def make(kind: str, broker: str) -> Celery:
    """Return an app whose one task does nothing and keeps no result, so that only the queue costs time."""
    app = Celery("benchmark", broker=broker, set_as_current=False)
    app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
    if kind == "ours":
        install(app)
    elif kind != "plain":
        app.conf.task_queues = [Queue(name, routing_key=name) for name in QUEUES]  # type: ignore[no-untyped-call]

    def nothing(number: int) -> int:
        return number

    app.task(name="benchmark.nothing")(nothing)
    return app


def sender(kind: str, app: Celery) -> Callable[[int], Any]:
    """Return a function that sends one task. Plain Celery with 20 queues uses the queues in turn."""
    task = app.tasks["benchmark.nothing"]
    if kind == "plain, 20 queues":
        return lambda number: task.apply_async((number,), queue=QUEUES[number % len(QUEUES)])
    return lambda number: task.apply_async((number,))


def measure_sending(server: Valkey, rounds: int, each: int = 50) -> dict[str, list[Cost]]:
    """Send a few tasks of each kind in turn, for this many rounds, and measure each batch."""
    senders = {kind: sender(kind, make(kind, f"{server.url}/{place}")) for place, kind in enumerate(KINDS)}
    for send in senders.values():
        send(0)
    found: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, send in senders.items():
            began, cpu = time.perf_counter(), time.process_time()
            for number in range(each):
                send(number)
            found[kind].append(Cost((time.perf_counter() - began) / each, (time.process_time() - cpu) / each))
    server.ask("FLUSHALL")
    return found


def measure_running(server: Valkey, rounds: int, pool: str, each: int = 300) -> dict[str, list[Cost]]:
    """Measure the workers of one kind after the other: freeze them, send tasks, and let them run."""
    found: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    with contextlib.ExitStack() as stack:
        workers = [
            stack.enter_context(_worker(kind, f"{server.url}/{place}", pool)) for place, kind in enumerate(KINDS)
        ]
        senders = [sender(kind, make(kind, f"{server.url}/{place}")) for place, kind in enumerate(KINDS)]
        for number in range(rounds + 1):
            for place, kind in enumerate(KINDS):
                group = workers[place].pid
                os.killpg(group, signal.SIGSTOP)
                for task in range(each):
                    senders[place](task)
                cpu = cpu_seconds(group) + cpu_seconds(server.pid)
                began = time.perf_counter()
                os.killpg(group, signal.SIGCONT)
                wait_for(lambda place=place: _left(server, place) == 0, "the tasks are done")  # type: ignore[misc]
                if number:  # The first round warms up.
                    spent = time.perf_counter() - began
                    found[kind].append(Cost(spent / each, (cpu_seconds(group) + cpu_seconds(server.pid) - cpu) / each))
    return found


def _left(server: Valkey, database: int) -> int:
    """Return how many tasks the broker still has, unacknowledged tasks included."""
    lists = [f"redis.call('LLEN', '{name}')" for name in ("celery", *QUEUES)] + ["redis.call('HLEN', 'unacked')"]
    script = f"redis.call('SELECT', {database}) return {' + '.join(lists)}"
    return int(server.ask("EVAL", script, "0")[1:])


@contextlib.contextmanager
def _worker(kind: str, broker: str, pool: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "BENCHMARK_KIND": kind, "BENCHMARK_BROKER": broker, "C_FORCE_ROOT": "1"}
    name = kind.replace(" ", "").replace(",", "-")
    words = [
        sys.executable, "-W", "ignore", "-m", "celery", "-A", "benchmarks.celery_app", "worker", "-P", pool, "-c", "2",
        "-l", "ERROR", "-n", f"{name}@bench", "--without-gossip", "--without-mingle", "--without-heartbeat",
    ]  # fmt: skip
    process = subprocess.Popen(
        words, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGCONT)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def report(title: str, found: dict[str, list[Cost]]) -> str:
    """Return the report: the median of each kind's rounds, and of their ratios to plain Celery."""
    lines = [f"{title}", f"{'':>18}  {'clock':>9}  {'CPU':>9}  {'clock':>7}  {'CPU':>7}"]
    for kind, costs in found.items():
        clock = statistics.median(cost.clock for cost in costs) * 1e6
        cpu = statistics.median(cost.cpu for cost in costs) * 1e6
        ratios = [
            statistics.median(
                getattr(ours, name) / getattr(plain, name) for ours, plain in zip(costs, found["plain"], strict=True)
            )
            for name in ("clock", "cpu")
        ]
        lines.append(f"{kind:>18}  {clock:6.0f} µs  {cpu:6.0f} µs  {ratios[0]:6.2f}×  {ratios[1]:6.2f}×")
    return "\n".join(lines)


def main() -> None:
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder) / "server", 'save ""')
        server.start()
        try:
            print(report("Sending a task", measure_sending(server, 10 if quick else 60)))
            for pool in ("prefork", "threads"):
                print(report(f"Running a task ({pool}, 2)", measure_running(server, 3 if quick else 15, pool)))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
