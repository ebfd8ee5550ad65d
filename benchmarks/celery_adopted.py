"""Cost of sending and running one task, on Celery and adopted by Headway, on one server.

Run it with ``python -m benchmarks.celery_adopted [--quick]``. Rounds alternate, so that other load on the machine
affects both alike. The report shows the median of the rounds and of their ratios.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from celery import Celery  # type: ignore[import-untyped]

from benchmarks.celery import ROOT, Cost, report
from benchmarks.machine import cpu_seconds, tree
from headway.integrations.celery import adopt, adoption_of
from tests.servers import Valkey, wait_for

KINDS = ("plain", "adopted")
PROJECT = "benchmarks.celery_adopted_app"


def make(kind: str, url: str, executor: str = "process") -> Celery:
    """Return an app whose one task does nothing. Celery keeps its results on the same server, as Headway does."""
    app = Celery("benchmark", broker=f"{url}/0", backend=f"{url}/1", set_as_current=False)
    app.conf.update(worker_hijack_root_logger=False, worker_prefetch_multiplier=4)
    if kind == "adopted":
        adopt(app, store=f"{url}/2", executor=executor)

    def nothing(number: int) -> int:
        return number

    app.task(name="benchmark.nothing", shared=False)(nothing)
    return app


def measure_sending(server: Valkey, rounds: int, each: int = 50) -> dict[str, list[Cost]]:
    apps = {kind: make(kind, server.url) for kind in KINDS}
    found: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    for number in range(rounds + 1):
        for kind, app in apps.items():
            task = app.tasks["benchmark.nothing"]
            began, cpu = time.perf_counter(), time.process_time()
            for place in range(each):
                task.delay(place)
            if number:  # The first round connects.
                found[kind].append(Cost((time.perf_counter() - began) / each, (time.process_time() - cpu) / each))
    adoption_of(apps["adopted"]).headway.close()
    return found


def measure_running(server: Valkey, rounds: int, executor: str, each: int = 200) -> dict[str, list[Cost]]:
    """Measure how long two slots take to run tasks that were sent before, until the last result is there."""
    apps = {kind: make(kind, server.url, executor) for kind in KINDS}
    found: dict[str, list[Cost]] = {kind: [] for kind in KINDS}
    with contextlib.ExitStack() as stack:
        workers = {kind: stack.enter_context(_worker(kind, server.url, executor)) for kind in KINDS}
        for number in range(rounds + 1):
            for kind, app in apps.items():
                group = workers[kind].pid
                if number:
                    _signal_all(group, signal.SIGSTOP)
                results = [app.tasks["benchmark.nothing"].delay(place) for place in range(each)]
                cpu = cpu_seconds(group) + cpu_seconds(server.pid)
                began = time.perf_counter()
                if number:
                    _signal_all(group, signal.SIGCONT)
                wait_for(lambda results=results: all(r.ready() for r in results[-3:]), "the tasks end")  # type: ignore[misc]
                if number:  # The first round warms up.
                    spent = cpu_seconds(group) + cpu_seconds(server.pid) - cpu
                    found[kind].append(Cost((time.perf_counter() - began) / each, spent / each))
    adoption_of(apps["adopted"]).headway.close()
    return found


def _signal_all(pid: int, number: signal.Signals) -> None:
    """Send a signal to a worker and to all its processes, which have process groups of their own."""
    for process in tree(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)


@contextlib.contextmanager
def _worker(kind: str, url: str, executor: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "BENCHMARK_KIND": kind, "BENCHMARK_URL": url, "BENCHMARK_EXECUTOR": executor}
    pool = "prefork" if executor == "process" else "threads"
    celery = ["celery", "-A", PROJECT, "worker", "-P", pool, "-c", "2", "-l", "ERROR", "--without-gossip",
              "--without-mingle", "--without-heartbeat"]  # fmt: skip
    headway = ["headway", "worker", "--celery", PROJECT, "--slots", "2", "--reserved", "0", "--log-level", "error"]
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-m", *(celery if kind == "plain" else headway)],
        cwd=ROOT,
        env={**environment, "C_FORCE_ROOT": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    quick = "--quick" in sys.argv
    with tempfile.TemporaryDirectory() as folder:
        server = Valkey(Path(folder) / "server", 'save ""')
        server.start()
        try:
            print(report("Sending a task", measure_sending(server, 10 if quick else 40)))
            for executor in ("process", "thread"):
                server.ask("FLUSHALL")
                rounds = 3 if quick else 10
                print(report(f"Running a task ({executor}, 2)", measure_running(server, rounds, executor)))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
