"""``worker``, ``serve`` and ``up`` as services of systemd: each reports that it is ready, alive and stopping."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.cli.command import Cli


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.bind(str(tmp_path / "notify"))
        out.settimeout(50)
        yield out


def until(heard: socket.socket, state: str) -> list[str]:
    """Return all messages up to the one with this state."""
    states = []
    deadline = time.monotonic() + 50
    while time.monotonic() < deadline:
        states.append(heard.recv(1_000).decode())
        if states[-1] == state:
            return states
    raise AssertionError(f"no {state} within 50 s, but {states[-5:]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("worker", "headway.demo:app", "--processes", "2"),
        ("serve",),
        ("serve", "--workers", "2"),
        ("up",),
    ],
    ids=" ".join,
)
def test_a_service_reports_its_state(cli: Cli, heard: socket.socket, words: tuple[str, ...]) -> None:
    cli.call("migrate")
    started = cli.start(*words, NOTIFY_SOCKET=heard.getsockname(), WATCHDOG_USEC="1000000")
    try:
        before = until(heard, "READY=1")
        assert set(before) <= {"WATCHDOG=1", "READY=1"}
        if words[0] != "serve":
            started.wait_for("worker.up")
        if words[0] != "worker":
            address = started.wait_for("server.up")["address"]  # Lines are written a little later.
            with urlopen(f"{address}/healthz") as answer:
                assert answer.status == 200
        assert until(heard, "WATCHDOG=1") == ["WATCHDOG=1"]
        assert started.terminate() == 0
        assert set(until(heard, "STOPPING=1")) <= {"WATCHDOG=1", "STOPPING=1"}
    finally:
        started.end()
