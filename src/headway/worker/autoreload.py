"""Restarts a worker when its source changes: for development."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType

from headway.core.log_event import LogEvent
from headway.runtime.os_support import die_with_parent

log = logging.getLogger("headway.worker")

CHECK_EVERY = 0.5  # Seconds between checks of the files; short compared with the start of a worker.
SUFFIXES = (".py", ".toml")
SKIPPED = {"__pycache__", "node_modules", "site-packages", "venv"}  # And every folder whose name begins with a dot.

Seen = Mapping[str, float]


def run_reloading(command: Sequence[str], folder: Path) -> int:
    """Run a worker's command, and again each time a source file below a folder has changed. Return its exit code.

    A change drains the worker as SIGTERM does. The next change also restarts a worker that ended by
    itself, say because of a syntax error. SIGINT and SIGTERM drain the worker. It has ended when this function returns.
    """
    supervisor = _Supervisor(command)
    before = {number: signal.signal(number, supervisor.received) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return supervisor.run(lambda: source_times(folder))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def source_times(folder: Path) -> dict[str, float]:
    """Return when each source file below a folder was last changed."""
    return dict(_walk(str(folder)))


def changed_file(before: Seen, after: Seen) -> str | None:
    """Return the path of a file that is new, gone or changed, or None."""
    for path in before.keys() | after.keys():
        if before.get(path) != after.get(path):
            return path
    return None


def _walk(folder: str) -> Iterator[tuple[str, float]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:  # The folder is gone or not readable.
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in SKIPPED:
                    yield from _walk(entry.path)
            elif entry.name.endswith(SUFFIXES):
                yield entry.path, entry.stat().st_mtime
        except OSError:
            continue


class _Supervisor:
    """Runs the command, and restarts it after each change until a signal arrives."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._stop_requested = threading.Event()

    def received(self, number: int, _: FrameType | None) -> None:
        """Pass a signal on. The first one drains the worker, the second one stops it at once."""
        self._stop_requested.set()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def run(self, scan: Callable[[], Seen]) -> int:
        seen = scan()
        self._start()
        while not self._stop_requested.wait(CHECK_EVERY):
            now = scan()
            changed = changed_file(seen, now)
            if changed is None:
                continue
            seen = now
            log.info(LogEvent("worker.reloading", changed=changed))
            self._end()
            if not self._stop_requested.is_set():
                self._start()
        return 0 if self._process is None else self._process.wait()

    def _start(self) -> None:
        self._process = subprocess.Popen(  # noqa: S603  (the command of this very process)
            self._command,
            start_new_session=True,  # A Ctrl-C on the terminal is for this process alone, which passes it on once.
            preexec_fn=die_with_parent,
        )

    def _end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()
