"""Raises ``SoftTimeLimitExceeded`` inside a task that has reached its soft time limit."""

from __future__ import annotations

import ctypes
import signal
import threading
from types import FrameType, TracebackType
from typing import Any

from celery.exceptions import SoftTimeLimitExceeded  # type: ignore[import-untyped]


class SoftLimit:
    """Interrupts the block that it surrounds after some seconds.

    In a main thread a signal interrupts even a blocking call. In another thread the exception is raised when the
    thread next runs Python code, so a task that waits in C code gets it late.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._in_main = threading.current_thread() is threading.main_thread()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._over = False
        self._fired = False
        self._timer: threading.Timer | None = None
        self._before: Any = None

    def __enter__(self) -> SoftLimit:
        if self._in_main:
            self._before = signal.signal(signal.SIGALRM, self._interrupt)
            signal.setitimer(signal.ITIMER_REAL, self._seconds)
        else:
            self._timer = threading.Timer(self._seconds, self._raise_in_thread)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._in_main:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)
            return
        with self._lock:
            self._over = True
            if self._fired:  # It may not have been raised yet.
                _set_async(self._thread, None)
        if self._timer is not None:
            self._timer.cancel()

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        raise SoftTimeLimitExceeded(self._seconds)

    def _raise_in_thread(self) -> None:
        with self._lock:
            if not self._over:
                self._fired = True
                _set_async(self._thread, SoftTimeLimitExceeded)


def _set_async(thread: int, error: type[BaseException] | None) -> None:
    raised = ctypes.py_object() if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
