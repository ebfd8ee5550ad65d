"""The live view of ``headway up``: log lines scroll, and below them stands how things are.

It runs in a thread of its own. A terminal that is stopped (Ctrl-S) blocks the thread that writes to it, and that must
never be the loop that renews leases.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from headway.cli import render, tables
from headway.core.job import JobRecord
from headway.observability.logs import MESSAGE, JsonFormatter
from headway.stores.base import Stats
from headway.stores.open import mask
from headway.version import __version__
from headway.worker.control import RunnerReady

REFRESH = 0.25  # Seconds between two screens.
LINES_MAX = 2_000  # Lines that wait for the next screen; older ones are counted and dropped.
PRINTED = 40  # Lines printed between two screens at most, since no operator reads faster.


class LiveView:
    """Takes over the terminal while it is entered: everything written to it becomes a line of the view."""

    def __init__(self, app_path: str, *, demo: bool, log_level: str) -> None:
        self.up: RunnerReady | None = None
        self.address: str | None = None  # Of the HTTP interface.
        self.dashboard: str | None = None  # Its address.
        self.draining = False
        self._app_path = app_path
        self._demo = demo
        self._log_level = log_level
        self._view: tuple[Stats, Sequence[JobRecord]] | None = None
        self._trouble: str | None = None
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._written = 0
        self._printed = 0
        self._stopping = threading.Event()
        self._terminal = Console()
        self._saved: dict[int, int] = {}
        self._threads: list[threading.Thread] = []

    def show(self, stats: Stats, running: Sequence[JobRecord]) -> None:
        """Set the state that the next screen shows."""
        self._view, self._trouble = (stats, running), None

    def trouble(self, problem: str) -> None:
        """Show that the store does not answer."""
        self._trouble = problem

    def write(self, line: str) -> None:
        self._written += 1
        self._lines.append(line)

    def __enter__(self) -> LiveView:
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        # Runners inherit these descriptors, so what they and their jobs print arrives here line by line.
        for descriptor in (1, 2) if os.isatty(2) else (1,):
            self._saved[descriptor] = os.dup(descriptor)
            os.dup2(writing, descriptor)
        os.close(writing)
        file = os.fdopen(os.dup(self._saved[1]), "w", encoding="utf-8", errors="backslashreplace")
        self._terminal = Console(file=file, force_terminal=True, markup=False, emoji=False, highlight=False)
        logger = logging.getLogger("headway")
        logger.handlers, logger.propagate = [_LogLines(self)], False
        logger.setLevel(self._log_level.upper())
        self._threads = [
            threading.Thread(target=self._read, args=(reading,), name="headway-lines", daemon=True),
            threading.Thread(target=self._draw, name="headway-display", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, saved in self._saved.items():
            os.dup2(saved, descriptor)
            os.close(saved)
        # With the last writer gone the reader ends by itself; a terminal that is stopped must not hold us up.
        self._threads[0].join(1.0)
        self._stopping.set()
        self._threads[1].join(2.0)
        if kind is None:
            lanes = self._view[0].lanes.values() if self._view else ()
            waiting = sum(lane.waiting + lane.delayed for lane in lanes)
            left = f"; {render.plural(waiting, 'job')} left in the queue" if waiting else ""
            print(f"Headway has stopped{left}.")

    def _read(self, descriptor: int) -> None:
        """Woken by a line; ends when no process holds the other end of the pipe."""
        with os.fdopen(descriptor, encoding="utf-8", errors="backslashreplace") as lines:
            for line in lines:
                self.write(line.rstrip("\n"))

    def _draw(self) -> None:
        """Draw a screen at every refresh. Ends when the command stops."""
        console = self._terminal
        with Live(console=console, get_renderable=self._render, auto_refresh=False, transient=True) as live:
            stopping = False
            while not stopping:
                stopping = self._stopping.wait(REFRESH)
                console.size = os.get_terminal_size(console.file.fileno())
                lines = self._take_lines()
                if lines:
                    console.print(Text("\n").join(lines), soft_wrap=True)
                live.refresh()

    def _take_lines(self) -> list[Text]:
        lines: list[str] = []
        while self._lines:
            lines.append(self._lines.popleft())
        self._printed += len(lines)
        dropped = self._written - self._printed - len(self._lines)
        self._printed += dropped
        hidden = dropped + max(0, len(lines) - PRINTED)
        drawn = [log_line(line) for line in lines[-PRINTED:]]
        if hidden > 0:
            drawn.insert(0, Text(f"          … {render.plural(hidden, 'line')} more …", "dim"))
        return drawn

    def _render(self) -> RenderableType:
        parts: list[RenderableType] = [render.facts(self._facts())]
        if self._view is not None:
            stats, running = self._view
            parts += [Text(), tables.lanes_table(stats)]
            if running:
                parts += [Text(), tables.running_table(running, stats.now_at)]
            parts += [Text(), render.facts({render.lately(stats): tables.counts_line(stats.last_minute),
                                          "ever": tables.counts_line(stats.totals)})]  # fmt: skip
        if self._trouble is not None:
            parts += [Text(), render.text(self._trouble, "red")]
        parts += [Text(), self._hint()]
        return Panel(Group(*parts), title=f"Headway {__version__}", title_align="left", border_style="blue")

    def _facts(self) -> dict[str, object]:
        app = f"{self._app_path}{' (built-in demo tasks)' if self._demo else ''}"
        if self.up is None:
            return {"app": app, "store": Text("starting…", "dim")}
        return {
            "app": app,
            "store": f"{mask(self.up.store)}, namespace {self.up.namespace}",
            **({} if self.address is None else {"http": f"{self.address}  (docs: {self.address}/docs)"}),
            **({} if self.dashboard is None else {"dashboard": self.dashboard}),
            "workers": self._workers(),
        }

    def _workers(self) -> Text:
        if self._view is None:
            return Text("starting…", "dim")
        alive = self._view[0].live_workers
        running, slots = sum(worker.running for worker in alive), sum(worker.slots for worker in alive)
        reserved = sum(worker.reserved for worker in alive)
        return Text(f"{len(alive)} alive, {running} of {slots} slots busy, {reserved} reserved for lane high")

    def _hint(self) -> Text:
        if self.draining:
            return Text("Draining: running jobs may finish. Ctrl-C again stops at once.", "yellow")
        hint = Text()
        if self._demo:
            command = f"{command_here()} submit demo.sleep seconds=2"
            hint = Text("Try in another terminal: ", "dim") + render.text(command, "bold") + Text("    ")
        return hint + Text("Ctrl-C drains and stops.", "dim")


class _LogLines(logging.Handler):
    """Hands the parent's own log to the display."""

    def __init__(self, display: LiveView) -> None:
        super().__init__()
        self._display = display
        self.setFormatter(JsonFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        self._display.write(self.format(record))


def command_here() -> str:
    """Return how `headway` is started in another terminal in this folder: by its name if the shell finds it, else by
    the path that started this process."""
    path = Path(sys.argv[0])
    if path.name != "headway":
        return f"{sys.executable} -m headway"
    found = shutil.which("headway")
    if found is not None and Path(found).resolve() == path.resolve():
        return "headway"
    return os.path.relpath(path) if path.resolve().is_relative_to(Path.cwd()) else str(path.resolve())


def log_line(line: str) -> Text:
    """Draw a line of the log: one of ours by its facts, any other as it is."""
    try:
        values = msgspec.json.decode(line, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError):
        return render.text(line)
    if "event" not in values:
        return render.text(line)
    event, level = str(values["event"]), str(values.get("level", "info"))
    drawn = Text(f"{_clock(values.get('at'))}  ", "dim")
    if event.startswith("job."):
        name = event.removeprefix("job.")
        drawn += render.text(f"{name:<12}", render.STYLES.get(name, "")) + render.text(
            f"{values.get('task', ''):<14}  "
        )
        drawn += render.text(f"{values.get('job', '')}  ", "dim") + render.text(_details(values))
    else:
        event = str(values.pop("message", "")) if event == MESSAGE else event
        style = {"warning": "yellow", "error": "red", "critical": "bold red"}.get(level, "")
        known = {"at", "level", "event", "logger", "traceback"}
        others = "".join(f"  {name}={value}" for name, value in values.items() if name not in known)
        drawn += render.text(event, style) + render.text(others, "dim")
    if values.get("traceback"):
        drawn += Text("\n") + render.text(values["traceback"], "dim", lines=True)
    return drawn


def _details(values: dict[str, Any]) -> str:
    parts: list[str] = []
    if isinstance(values.get("attempt"), int) and values["attempt"] > 1:
        parts.append(f"attempt {values['attempt']}")
    if isinstance(values.get("seconds"), (int, float)):
        parts.append(render.duration(values["seconds"] * 1_000))
    if why := values.get("error") or values.get("reason"):
        parts.append(str(why))
    return "  ".join(parts)


def _clock(at: object) -> str:
    try:
        return datetime.fromisoformat(str(at)).astimezone().strftime("%H:%M:%S")
    except ValueError:
        return time.strftime("%H:%M:%S")
