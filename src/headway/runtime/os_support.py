"""System calls that Python does not offer, garbage collector settings, and worker ids."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import uuid
from pathlib import Path

SUPERVISOR = Path(__file__).with_name("supervisor.py")  # A script, which runs without Headway.
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies. On other systems a closed pipe has to do."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # The parent died before the call.
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of each descendant whose own parent has ended. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_from_programs() -> None:
    """Keep other processes of this user from reading this process's environment and memory, which may hold secrets.

    Root still can. Debuggers and profilers that attach (gdb, py-spy) cannot, and the kernel writes no core dump.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def resident_memory() -> int:
    """Return the bytes of memory that this process occupies. Outside Linux, return the most that it has occupied."""
    if sys.platform != "linux":
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1_024
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def tune_gc() -> None:
    """Exempt the objects of the start-up from garbage collection, and collect less often.

    A job makes some dozens of objects and no cycles. With Python's defaults, the search for cycles took two fifths of a
    runner's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def new_worker_id() -> str:
    """Build a worker id from host, pid and random digits, because in containers every pid is 1."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
