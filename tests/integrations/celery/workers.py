"""Real Celery workers in their own processes, and readers of their marks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PATIENCE = 45.0
FAST = {"lease": 3.0, "reconcile": 2.0}  # Deaths are noticed soon.


def eventually(what: Callable[[], bool], title: str, shown: Callable[[], object] = str) -> None:
    """Wait until a condition is true."""
    until = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < until, f"{title}: not within {PATIENCE:.0f} s; {shown()}"
        time.sleep(0.02)


class CeleryWorker:
    """A ``celery worker`` process of the test project."""

    def __init__(
        self, broker: str, folder: Path, *, pool: str = "prefork", name: str = "w", concurrency: int = 2,
        options: dict[str, Any] | None = None, conf: dict[str, Any] | None = None, more: tuple[str, ...] = (),
        level: str = "INFO",
    ) -> None:  # fmt: skip
        self.log_path = folder / f"{name}.log"
        environment = {
            **os.environ,
            "PROJECT_BROKER": broker,
            "PROJECT_OPTIONS": json.dumps(FAST | (options or {})),
            "PROJECT_CONF": json.dumps(conf or {}),
            "C_FORCE_ROOT": "1",
        }
        words = [
            sys.executable, "-W", "ignore", "-m", "celery", "-A", "tests.integrations.celery.project", "worker",
            "-P", pool, "-c", str(concurrency), "-l", level, "-n", f"{name}@test", "--without-gossip",
            "--without-mingle", *more,
        ]  # fmt: skip
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                words,
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def ready(self) -> CeleryWorker:
        """Wait until the worker accepts tasks."""
        eventually(lambda: " ready." in self.log or self.process.poll() is not None, "a worker", lambda: self.log)
        assert self.process.poll() is None, self.log
        return self

    def stop(self) -> None:
        """Stop the worker after its running tasks."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.kill()

    def kill(self) -> None:
        """Kill the worker and its children, as a power failure would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


StartWorker = Callable[..., CeleryWorker]


def lines(path: Path) -> list[str]:
    """Return the lines that tasks have written, without the times."""
    return [line.split(" ", 1)[1] for line in path.read_text().splitlines()] if path.exists() else []


def times(path: Path) -> list[tuple[float, str]]:
    """Return the lines that tasks have written, with the times."""
    if not path.exists():
        return []
    found = [line.split(" ", 1) for line in path.read_text().splitlines()]
    return [(float(at), text) for at, text in found]
