"""What the operating system offers and Python does not."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import socket
import sys
import uuid

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies; elsewhere a closed pipe has to do."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # It died before we asked.
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of every process that comes from this one, once its own parent has ended. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def hide_from_programs() -> None:
    """Keep other processes of this user from reading this one's environment and memory: they may hold secrets.

    Root still can. Debuggers and profilers that attach (gdb, py-spy) cannot, and the kernel writes no core dump.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def tune_gc() -> None:
    """Let the garbage collector pass over what start-up made, and come less often.

    A job makes some dozens of objects and no cycles; with Python's defaults, looking for cycles took
    two fifths of a runner's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def new_worker_id() -> str:
    """Name a worker: host and process for people, and something random, since in containers every pid is 1."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
