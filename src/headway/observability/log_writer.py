"""Writes log lines from a separate thread, so that a blocked or closed standard error delays no other code."""

from __future__ import annotations

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TextIO

BYTES_MAX = 8 << 20  # Bytes of lines that wait to be written, some 25,000 lines of jobs: half a second at full load.
WRITE_BYTES = 1 << 17  # Bytes of one write, so that a slow reader soon makes room for new lines.
LINGER = 0.02  # Seconds for which lines gather, so that a busy process makes few system calls.
FLUSH_SECONDS = 2.0  # Seconds that a process waits at its end for a blocked output.
TASK = "headway.task"  # The logger of ``ctx.log``, whose lines come from tasks and not from Headway.


class _Lines(NamedTuple):
    content: bytes  # Each line ends with a newline.
    number: int


class LogWriter(logging.Handler):
    """A handler that queues lines for a thread, which writes them in order. Callers never wait for the output.

    It counts lines that do not fit the queue, and logs their number in the place where they are missing.
    ``job_facts`` returns the members that identify the job for which the calling code runs.
    """

    def __init__(self, stream: TextIO | None, job_facts: Callable[[], Mapping[str, Any]] = dict) -> None:
        super().__init__()
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._job_facts = job_facts
        self._begin()
        os.register_at_fork(before=self.flush, after_in_child=self._begin)

    def _begin(self) -> None:
        """Start with an empty queue. A forked process has no copy of the thread, which writes the parent's lines."""
        self._queue: deque[_Lines] = deque()
        self._accepted = 0  # Bytes of all lines that were queued so far,
        self._finished = 0  # and of those that were written, or refused by the output.
        self._missing = 0  # Lines that did not fit since the last one that did.
        self._dropped = 0  # Lines that were never written, since ``take_dropped``.
        self._write_began = 0.0  # Monotonic time at which the current write began; 0 between writes.
        # Guards the members above. A signal handler or finalizer may log while its own thread holds it.
        self._guard = threading.RLock()
        self._written = threading.Condition(self._guard)
        self._news = threading.Event()  # The queue has lines.
        self._hurry = threading.Event()  # A thread waits in ``flush``.
        self._thread: threading.Thread | None = None
        # Only the thread uses these:
        self._refused = 0  # Lines that the output refused since it last accepted one.
        self._cut = False  # The last write ended within a line.

    def emit(self, record: logging.LogRecord) -> None:
        if "headway" not in record.__dict__ and (record.exc_info or not is_own(record)):
            record.headway = self._job_facts()
        self.put(self.format(record))

    def put(self, lines: str, count: int = 1) -> None:
        """Queue lines that are separated by newlines. If they do not fit, only count them."""
        content = f"{lines}\n".encode("utf-8", "backslashreplace")
        with self._guard:
            if self._accepted - self._finished + len(content) > BYTES_MAX:
                self._missing += count
                self._dropped += count
                return
            if self._missing:
                self._report_missing()
            self._append(_Lines(content, count))
            if not self._news.is_set():
                self._wake()

    def _append(self, lines: _Lines) -> None:
        self._accepted += len(lines.content)
        self._queue.append(lines)

    def take_dropped(self) -> int:
        """Return how many lines were dropped since the last call."""
        with self._guard:
            dropped, self._dropped = self._dropped, 0
        return dropped

    def flush(self) -> None:
        """Wait until all lines so far are written, for a bounded time, and not at all if the output is long blocked."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        with self._guard:
            accepted, began = self._accepted, self._write_began
            blocked = time.monotonic() - began if began else 0.0
            if self._finished < accepted:
                self._hurry.set()
                self._written.wait_for(lambda: self._finished >= accepted, max(0.0, FLUSH_SECONDS - blocked))

    def _wake(self) -> None:
        self._news.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="headway-logs", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # No thread can be started; the next line tries again.
                self._thread = None
                self._news.clear()

    def _run(self) -> None:
        """Write queued lines until the process ends. The first line after a pause wakes this loop."""
        while True:
            self._news.wait()
            self._hurry.wait(LINGER)
            self._hurry.clear()
            self._news.clear()
            more = True
            while more:
                parts = self._take()
                size = sum(len(part.content) for part in parts)
                lost = self._write(parts)
                with self._guard:
                    self._dropped += lost
                    self._finished += size
                    self._write_began = 0.0
                    self._written.notify_all()
                    more = size >= WRITE_BYTES or self._missing > 0  # Lines that do not fit wake no thread.

    def _take(self) -> list[_Lines]:
        """Return the lines to write next."""
        parts: list[_Lines] = []
        size = 0
        with self._guard:
            while self._queue and size < WRITE_BYTES:
                parts.append(self._queue.popleft())
                size += len(parts[-1].content)
            if self._missing and not self._queue:
                self._report_missing()
                parts.append(self._queue.popleft())
            self._write_began = time.monotonic()
        return parts

    def _report_missing(self) -> None:
        """Queue a line with the number of lines that did not fit, in the place where they are missing."""
        count, self._missing = self._missing, 0
        self._append(_Lines(self._dropped_line(count), 1))

    def _dropped_line(self, count: int) -> bytes:
        record = logging.LogRecord("headway.logs", logging.WARNING, __file__, 0, "log.dropped", (), None)
        record.headway = {"lines": count}
        return f"{self.format(record)}\n".encode()

    def _write(self, parts: list[_Lines]) -> int:
        """Write lines, however long it takes. Return how many of them the output refused."""
        before = b"\n" if self._cut else b""
        if self._refused:
            before += self._dropped_line(self._refused)
        content = b"".join([before, *(part.content for part in parts)])
        left = memoryview(content)
        try:
            if self._descriptor is not None:
                while left:
                    left = left[_write_some(self._descriptor, left) :]
            elif self._stream is not None:
                self._stream.write(content.decode())
                self._stream.flush()
        except Exception:  # The reader is gone, or the disk is full. Nothing may end this thread.
            count = sum(part.number for part in parts)
            if len(left) < len(content):
                self._cut = content[-len(left) - 1] != ord("\n")
            unwritten = bytes(left).count(b"\n")
            lost = min(unwritten, count)
            self._refused = lost if unwritten <= count else self._refused + lost
            return lost
        self._refused, self._cut = 0, False
        return 0


def is_own(record: logging.LogRecord) -> bool:
    """Return whether Headway wrote a record, whose message then is an event code."""
    return record.name.startswith("headway.") and record.name != TASK and not record.args


def _descriptor(stream: TextIO | None) -> int | None:
    try:
        return None if stream is None else stream.fileno()
    except (OSError, ValueError):
        return None


def _write_some(descriptor: int, content: memoryview) -> int:
    try:
        return os.write(descriptor, content)
    except BlockingIOError:  # Another process has made the shared output non-blocking.
        select.select([], [descriptor], [], 1.0)
        return 0
