"""Writes log lines from a separate thread, so that a blocked or closed standard error delays no other code."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, TextIO

LINES_MAX = 10_000  # Lines that wait to be written; at some 350 bytes each about 4 MB.
TEXT_MAX = 8 << 20  # Characters of waiting lines from tasks and libraries, which may have any length.
BATCH = 500  # Maximum lines in one write.
LINGER = 0.005  # Seconds for which lines gather, so that a busy process makes few system calls.
FLUSH_SECONDS = 2.0  # Seconds that a process waits at its end for a blocked output.
TASK = "headway.task"  # The logger of ``ctx.log``, whose lines come from tasks and not from Headway.


class LogWriter(logging.Handler):
    """A handler that queues lines for a thread, which writes them in order. Callers never wait for the output.

    It counts lines that do not fit the queue, and logs their number once the output flows again.
    ``job_facts`` returns the members that identify the job for which the calling code runs.
    """

    def __init__(self, stream: TextIO | None, job_facts: Callable[[], Mapping[str, Any]] = dict) -> None:
        super().__init__()
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._job_facts = job_facts
        self._begin()
        os.register_at_fork(after_in_child=self._begin)  # A forked process has no copy of the thread.

    def _begin(self) -> None:
        self._lines: deque[logging.LogRecord | str] = deque()
        self._text = 0  # Characters in the queue. The handler's lock guards it, and the counter below.
        self._dropped = 0
        self._write_began = 0.0  # Monotonic time at which the current write began; 0 between writes.
        self._queued = threading.Event()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line. Headway's own records are formatted by the thread, since their facts never change."""
        line: logging.LogRecord | str = record
        size = 0
        if not is_own(record) or record.exc_info:
            if "headway" not in record.__dict__:
                record.headway = self._job_facts()
            line = self.format(record)
            size = len(line)
        if len(self._lines) >= LINES_MAX or self._text + size > TEXT_MAX:
            self._dropped += 1
            return
        self._text += size
        self._lines.append(line)
        if not self._queued.is_set():
            self._queued.set()
            if self._thread is None:
                self._start()

    def flush(self) -> None:
        """Wait until every line is written, for a bounded time, and not at all if the output has long been blocked."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        deadline = time.monotonic() + FLUSH_SECONDS
        while self._lines or self._write_began:
            now, began = time.monotonic(), self._write_began
            if now >= deadline or (began and now - began >= FLUSH_SECONDS):
                return
            time.sleep(0.001)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="headway-logs", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # No thread can be started; the next line tries again.
            self._thread = None
            self._queued.clear()

    def _run(self) -> None:
        """Write queued lines until the process ends. Each new line wakes this loop."""
        while True:
            self._queued.wait()
            time.sleep(LINGER)
            self._queued.clear()
            while self._lines:
                with contextlib.suppress(Exception):
                    self._write_batch()

    def _write_batch(self) -> None:
        self._write_began = time.monotonic()  # Before lines leave the queue, so that ``flush`` waits for them.
        try:
            batch = [self._lines.popleft() for _ in range(min(BATCH, len(self._lines)))]
            texts = [line if isinstance(line, str) else self.format(line) for line in batch]
            size = sum(len(line) for line in batch if isinstance(line, str))
            written = self._write("".join(f"{text}\n" for text in texts))
            self.acquire()
            self._text -= size
            dropped, self._dropped = (self._dropped, 0) if written else (0, self._dropped + len(batch))
            self.release()
            if dropped:
                self._write(f"{self.format(_dropped_line(dropped))}\n")
        finally:
            self._write_began = 0.0

    def _write(self, text: str) -> bool:
        """Write all of a text, however long it takes. Return whether that was possible."""
        try:
            if self._descriptor is not None:
                _write_all(self._descriptor, text.encode("utf-8", "backslashreplace"))
            elif self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except (OSError, ValueError):  # The reader is gone, or the disk is full.
            return False
        return True


def is_own(record: logging.LogRecord) -> bool:
    """Return whether Headway wrote a record, whose message then is an event code."""
    return record.name.startswith("headway.") and record.name != TASK and not record.args


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except BlockingIOError:  # Another process has made the shared output non-blocking.
            select.select([], [descriptor], [], 1.0)


def _dropped_line(count: int) -> logging.LogRecord:
    record = logging.LogRecord("headway.logs", logging.WARNING, __file__, 0, "log.dropped", (), None)
    record.headway = {"lines": count}
    return record
