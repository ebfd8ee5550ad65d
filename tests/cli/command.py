"""Real ``headway`` commands in their own processes, as a shell starts them."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from unittest import mock

from headway.cli.main import main

T = TypeVar("T")


class CommandResult(NamedTuple):
    """The exit code and the output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Cli:
    """The command line in a folder of its own, without the settings of the developer who runs the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, *words: str, code: int | None = 0, **variables: str) -> CommandResult:
        """Run a command to its end. ``code`` is the expected exit code; None accepts any."""
        done = subprocess.run(
            [sys.executable, "-m", "headway", *words],
            cwd=self.folder,
            env=self.environment(variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=30,
            check=False,
        )
        ran = CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert code is None or ran.code == code, ran
        assert "Traceback" not in ran.err or code == 3, ran
        return ran

    def call(self, *words: str, code: int = 0, **variables: str) -> CommandResult:
        """Run the command in this process, which is quicker than to start one."""
        before = Path.cwd()
        out, err = io.StringIO(), io.StringIO()
        os.chdir(self.folder)
        try:
            with (
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                warnings.catch_warnings(),
                mock.patch.dict(os.environ, variables),
            ):
                ran = CommandResult(main(words), out.getvalue(), err.getvalue())
        finally:
            os.chdir(before)
        assert ran.code == code, ran
        return ran

    def start(self, *words: str, **variables: str) -> RunningCommand:
        """Start a command that runs until it is stopped."""
        return RunningCommand(words, self.folder, self.environment(variables))

    def submit(self, *words: str) -> str:
        """Submit a job. Return its id."""
        return self.run("submit", *words).out.strip()

    def environment(self, variables: dict[str, str]) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        return kept | {"COLUMNS": "200", "HEADWAY_PORT": "0"} | variables


class RunningCommand:
    """A running command. Its output goes to files, so that it never waits for a reader."""

    def __init__(self, words: tuple[str, ...], folder: Path, environment: dict[str, str]) -> None:
        self._log = folder / f"{words[0]}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "headway", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def events(self) -> list[dict[str, Any]]:
        """Return the log lines written so far."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]

    def wait_for(self, event: str) -> dict[str, Any]:
        """Wait until an event is logged."""

        def look() -> dict[str, Any] | None:
            assert self._process.poll() is None, self._log.read_text()
            return next((line for line in self.events() if line["event"] == event), None)

        return until(look)

    def terminate(self) -> int:
        """Send SIGTERM. Return the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        return self._process.wait(30)

    def end(self) -> None:
        """Kill the command if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # It is ignored in whatever a shell runs in the background.


class Terminal:
    """A command on a terminal of its own, and the keys that its user presses."""

    def __init__(self, cli: Cli, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        termios.tcsetwinsize(theirs, (40, 120))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "headway", *words],
            cwd=cli.folder,
            env=cli.environment({"TERM": "xterm-256color"}),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(theirs)
        self.seen = ""

    def read_until(self, text: str) -> None:
        """Read the terminal until it shows a text."""
        deadline = time.monotonic() + 20
        while text not in self.seen:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, self.seen
            self.seen += os.read(self._ours, 1 << 16).decode(errors="replace")

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait(self) -> int:
        return self._process.wait(30)

    def end(self) -> None:
        """Kill the command if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._ours)


def until(look: Callable[[], T | None], seconds: float = 60.0) -> T:
    """Call a function until its result is true, and return the result."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.02)
    raise AssertionError(f"nothing came within {seconds} s")
