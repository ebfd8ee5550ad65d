"""CPU time and memory of processes, and the current speed of this machine."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from datetime import UTC, datetime

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and of all its descendants, ended ones included.

    That of ended descendants is counted in ticks of the kernel. Ticks are too coarse for all else, because a store uses
    a few of them in a drain.
    """
    total = 0.0
    for process in tree(pid):
        with contextlib.suppress(OSError):
            with open(f"/proc/{process}/stat") as file:
                ended = file.read().rpartition(")")[2].split()[13:15]
            total += time.clock_gettime(_clock_of(process)) + sum(map(int, ended)) / TICKS
    return total


def _clock_of(pid: int) -> int:
    """Return the clock that counts the CPU time of a process in nanoseconds, as ``clock_getcpuclockid`` does."""
    return ~pid << 3 | 2


def exact_cpu_seconds(pid: int, *, alone: bool = False) -> float:
    """Return the CPU time to the nanosecond of a process and its descendants, without ended threads and processes.

    ``alone``: without the descendants.
    """
    total = 0
    for process in [pid] if alone else tree(pid):
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with open(f"/proc/{process}/task/{thread}/schedstat") as file:
                    total += int(file.read().split()[0])
    return total / 1e9


def pss_mib(pid: int) -> float:
    """Return the memory of a process and its children in MiB. Shared pages count once."""
    total = 0
    for process in tree(pid):
        with contextlib.suppress(OSError), open(f"/proc/{process}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total / 1024


def tree(pid: int) -> list[int]:
    """Return the process and all its running descendants."""
    found = [pid]
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                for child in file.read().split():
                    found += tree(int(child))
    return found


def busy_seconds() -> float:
    """Return the CPU time that all processes of this machine have used."""
    with open("/proc/stat") as file:
        user, nice, system, _, _, irq, soft, *_ = (int(field) for field in file.readline().split()[1:])
    return (user + nice + system + irq + soft) / TICKS


def spin_ms() -> float:
    """Return the time of a fixed piece of work, best of five. It shows whether the machine is slow just now."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        sum(range(500_000))
        best = min(best, time.perf_counter() - began)
    return best * 1e3


def describe() -> dict[str, object]:
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
        else:
            model = platform.machine()
    facts: dict[str, object] = {"processor": model, "cores": os.cpu_count(), "python": platform.python_version()}
    facts |= {"date": f"{datetime.now(UTC):%Y-%m-%d}", "arguments": " ".join(sys.argv[1:])}
    return facts | {"spin_ms": spin_ms(), "load": os.getloadavg()[0]}
