"""What load-based queues cost Celery: ours beside plain Celery, one after the other in one run on one server.

Run it with ``python -m benchmarks.celery [--quick]``. Rounds alternate, so that whatever else the machine does meets
both; the middle of the rounds' ratios is shown.
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

from celery import Celery
from kombu.entity import Queue

from benchmarks.machine import cpu_seconds
from headway.integrations.celery import install
from tests.servers import Valkey, wait_for

ROOT = Path(__file__).parents[1]
KINDS = ("plain", "plain, 20 queues", "ours")
QUEUES = [f"queue_{number}" for number in range(20)]


class Cost(NamedTuple):
    """Of one task: seconds on the clock, and seconds of CPU of the processes that are measured."""

    clock: float
    cpu: float


def make(kind: str, broker: str) -> Celery:
    """Make an app whose one task does nothing and keeps no result: what is left is what the queue costs."""
    app = Celery("benchmark", broker=broker, set_as_current=False)
    app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)
    if kind == "ours":
        install(app)
    elif kind != "plain":
        app.conf.task_queues = [Queue(name, routing_key=name) for name in QUEUES]

    def nothing(number: int) -> int:
        return number

    app.task(name="benchmark.nothing")(nothing)
    return app


def sender(kind: str, app: Celery) -> Callable[[int], Any]:
    """Return what sends one task. Plain Celery with 20 queues takes them in turn."""
    task = app.tasks["benchmark.nothing"]
    if kind == "plain, 20 queues":
        return lambda number: task.apply_async((number,), queue=QUEUES[number % len(QUEUES)])
    return lambda number: task.apply_async((number,))


def measure_sending(server: Valkey, rounds: int, each: int = 50) -> dict[str, list[Cost]]:
    """Send a few tasks of each kind in turn, again and again."""
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
    """Let workers of each kind stand still while tasks are sent, then run; one at a time, again and again."""
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
    """Count what a broker still has."""
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
    """Write the middle of each kind's rounds, and of the rounds' ratios to plain Celery."""
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
