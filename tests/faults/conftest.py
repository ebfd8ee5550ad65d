"""Real worker processes on a real store, which tests kill, freeze and starve."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import IO

import apsw
import pytest

from headway import Headway, Job
from headway.core.job import JobRecord as Record
from tests.faults import jobs

PATIENCE = 30.0


def wait_until(what: Callable[[], object], *, within: float = PATIENCE) -> float:
    """Wait until a function returns a true value. Return the seconds that it took."""
    began = time.monotonic()
    while not what():
        assert time.monotonic() - began < within, f"not within {within} s"
        time.sleep(0.01)
    return time.monotonic() - began


def children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def tree(pid: int) -> list[int]:
    return [pid, *(process for child in children(pid) for process in tree(child))]


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZ"
    return True


class WorkerProcess:
    """A ``headway worker`` process that a test can send signals to."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.pid = process.pid

    @property
    def runner(self) -> int:
        return children(self.pid)[0]

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def send(self, number: int, *, whole_tree: bool = False) -> None:
        for pid in reversed(tree(self.pid)) if whole_tree else [self.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def wait(self, within: float = PATIENCE) -> int:
        return self._process.wait(within)


class Yard:
    """A folder with the tasks, a store (by default a file in the folder), and the workers that a test starts."""

    def __init__(self, folder: Path, store: str | None = None, transient: str | None = None) -> None:
        self.folder = folder
        self._workers: list[WorkerProcess] = []
        shutil.copy(Path(__file__).with_name("jobs.py"), folder / "jobs.py")
        self.store_path = folder / "headway.db"
        self.store = store or f"sqlite:///{self.store_path}"
        self.environment = {"HEADWAY_STORE": self.store}
        if transient is not None:
            self.environment["HEADWAY_TRANSIENT_STORE"] = transient
        self.app = Headway(self.store, transient_store=transient)
        for name, task in jobs.app.tasks.items():
            options = {field.name: getattr(task.options, field.name) for field in fields(task.options)}
            self.app.task(name=name, **options)(task.fn)

    def submit(self, task: str, *args: object, **options: object) -> Job[object]:
        return self.app.tasks[task].using(**options).enqueue(*args)  # type: ignore[arg-type]

    def start(
        self,
        *options: str,
        app: str = "jobs:app",
        environment: dict[str, str] | None = None,
        stderr: IO[bytes] | None = None,
        log_level: str = "warning",
    ) -> WorkerProcess:
        """Start a worker and wait until it is registered in the store."""
        known = {worker.worker_id for worker in self.app.stats().workers}
        process = subprocess.Popen(
            [sys.executable, "-m", "headway", "worker", app, "--log-level", log_level, *options],
            cwd=self.folder,
            env={**os.environ, **self.environment, **(environment or {})},
            stderr=stderr,
        )
        worker = WorkerProcess(process)
        self._workers.append(worker)
        if environment is None:
            wait_until(lambda: {w.worker_id for w in self.app.stats().workers} - known)
        return worker

    def freeze(self, worker: WorkerProcess, *, whole_tree: bool = True) -> None:
        """Stop a worker's processes, or only its parent, at a moment when none of them holds the lock of the file."""
        while True:
            worker.send(signal.SIGSTOP, whole_tree=whole_tree)
            pids = tree(worker.pid) if whole_tree else [worker.pid]
            wait_until(lambda pids=pids: all(stopped(pid) for pid in pids))  # type: ignore[misc]  # It may take a while.
            if not self.store.startswith("sqlite"):
                return
            probe = apsw.Connection(str(self.store_path))
            try:
                probe.set_busy_timeout(300)
                probe.execute("BEGIN IMMEDIATE; ROLLBACK")
            except apsw.BusyError:
                worker.send(signal.SIGCONT, whole_tree=whole_tree)
                time.sleep(0.02)
            else:
                return
            finally:
                probe.close()

    def marks(self, starting: str = "") -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return [line for line in (self.folder / "marks").read_text().splitlines() if line.startswith(starting)]
        return []

    def until(self, job: Job[object], *states: str, within: float = PATIENCE) -> Record:
        wait_until(lambda: job.status() in states, within=within)
        return job.record()

    def close(self) -> None:
        for worker in self._workers:
            worker.send(signal.SIGCONT, whole_tree=True)
            worker.send(signal.SIGKILL, whole_tree=True)
            worker.wait()
        self.app.close()


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    found = Yard(tmp_path)
    yield found
    found.close()
