"""A pytest plugin that lets Celery's own integration tests run against adopted apps and a Headway worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import celery.contrib.testing.app as testing  # type: ignore[import-untyped]
import celery.contrib.testing.worker as workers  # type: ignore[import-untyped]
import pytest

from headway.integrations.celery import adopt

STORE = os.environ["UPSTREAM_STORE"]
FOLDER = Path(os.environ["UPSTREAM_FOLDER"])
SECONDS = int(os.environ.get("UPSTREAM_SECONDS", "90"))  # A test that takes longer has hung.
_outcomes: dict[str, str] = {}
_make_app = testing.TestApp


def adopted_app(*args: Any, **kwargs: Any) -> Any:
    app = _make_app(*args, **kwargs)
    adopt(app, store=STORE)
    return app


@contextmanager
def headway_worker(app: Any, **_: Any) -> Iterator[Any]:
    log = FOLDER / "worker.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "headway",
                "worker",
                "--celery",
                "upstream_project",
                "--slots",
                os.environ.get("UPSTREAM_SLOTS", "1"),
            ],
            stdout=output,
            stderr=output,
        )
    try:
        until = time.monotonic() + 60
        while b"worker.up" not in log.read_bytes():
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.05)
        yield app
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(40)


testing.TestApp = adopted_app
workers.start_worker = headway_worker


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    def late(*_: Any) -> None:
        pytest.fail(f"no end within {SECONDS} s")  # Not an Exception, which redis-py would catch.

    signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    name = report.nodeid.partition("t/integration/")[2] or report.nodeid
    if report.when == "call" or report.failed or report.skipped:
        _outcomes.setdefault(name, report.outcome)
        if report.failed:
            _outcomes[name] = "failed"
            with (FOLDER / "failures.txt").open("a") as file:
                file.write(f"{name}: {str(report.longrepr)[-600:]!r}\n")


def pytest_sessionfinish() -> None:
    (FOLDER / "outcomes.json").write_text(json.dumps(_outcomes, indent=1))
