"""CPU time of processes, and workers to measure."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of everything it started that still runs."""
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            with open(f"/proc/{process}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def pss_mib(pid: int) -> float:
    """Memory of a process and its children, shared pages counted once."""
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError), open(f"/proc/{process}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


def tree(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{pid}/children") as file:
        for child in file.read().split():
            found += tree(int(child))
    return found


class Counter:
    """Reads how many jobs have completed, at next to no cost to the worker that is measured."""

    def __init__(self, path: Path) -> None:
        self._connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)

    def completed(self) -> int:
        statement = "SELECT ifnull(sum(count), 0) FROM tally WHERE what = 'completed'"
        return int(self._connection.execute(statement).get or 0)


@contextlib.contextmanager
def worker(environment: dict[str, str], *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a real ``headway worker``."""
    process = subprocess.Popen(
        [sys.executable, "-m", "headway", "worker", "benchmarks.tasks:app", "--log-level", "warning", *options],
        env=environment,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
