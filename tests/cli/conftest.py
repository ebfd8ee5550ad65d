"""Fixtures of the tests of the command line."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cli.command import Cli, RunningCommand
from tests.cli.served import ServedCli, ServerThread


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """Return the command line in an empty folder."""
    return Cli(tmp_path)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the settings of the developer who runs the tests from this process."""
    for name in [name for name in os.environ if name.startswith("HEADWAY_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def live_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def live(live_folder: Path) -> Cli:
    """Return the command line in a folder where `headway up` runs. All tests of the module share its worker."""
    return Cli(live_folder)


@pytest.fixture(scope="module")
def live_up(live: Cli) -> Generator[RunningCommand]:
    """Start the worker of that folder."""
    started = live.start("up", "--slots", "8", "--log-level", "debug")
    try:
        started.wait_for("worker.up")
        yield started
    finally:
        started.end()


@pytest.fixture
def served(cli: Cli) -> Iterator[ServedCli]:
    """Yield the command line and a server on the same store."""
    cli.call("migrate")
    server = ServerThread(cli.folder)
    server.start()
    try:
        yield ServedCli(cli, server.url)
    finally:
        server.stop()
