"""The examples of the page on interactive sessions work."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.protocol import sessions
from tests.cli.command import Cli
from tests.servers import free_port

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "interactive-sessions.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """Yield the port of the running app of the page."""
    server, client = blocks("python")
    (tmp_path / "sessions.py").write_text(server)
    (tmp_path / "talk.py").write_text(client)
    port = free_port()
    with (tmp_path / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "headway", "up", "sessions:app", "--port", str(port)],
            cwd=tmp_path,
            env=Cli(tmp_path).environment({}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        deadline = time.monotonic() + 30
        while not _knows(port):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


@pytest.mark.slow
def test_the_example_says_what_the_page_shows(tmp_path: Path, port: int) -> None:
    shown = blocks("console")[0].partition("\n")[2]
    done = subprocess.run(
        [sys.executable, "talk.py", f"ws://127.0.0.1:{port}"], cwd=tmp_path, capture_output=True, text=True, timeout=30
    )
    assert (done.stdout, done.returncode) == (shown, 0), done.stderr


def test_the_numbers_are_those_of_the_code() -> None:
    assert f"{sessions.OUTPUT_MAX >> 10} KiB to read" in PAGE
    assert f"{sessions.PIECE >> 10} KiB or {sessions.MESSAGE_CHARACTERS:,} characters" in PAGE
    assert f"of at most {sessions.MESSAGE_MAX >> 10} KiB" in PAGE


def _knows(port: int) -> bool:
    url = f"http://127.0.0.1:{port}/api/v1/catalogue"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
        return b"shout" in answer.read()
    return False
