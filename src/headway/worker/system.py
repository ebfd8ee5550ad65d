"""What the operating system offers and Python does not."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import uuid

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux to kill this process when the one that started it dies; elsewhere a closed pipe has to do."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # It died before we asked.
        os._exit(1)


def new_worker_id() -> str:
    """Name a worker: host and process for people, and something random, since in containers every pid is 1."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
