"""Headway workers that run the adopted tasks of the test project, and apps that send to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from celery import Celery  # type: ignore[import-untyped]

from headway.integrations.celery import adoption_of
from tests.conftest import valkey
from tests.integrations.celery.adoption.project import make_app
from tests.integrations.celery.workers import ROOT, eventually

PROJECT = "tests.integrations.celery.adoption.project"


class AdoptedProject(NamedTuple):
    """An app, the worker that runs its tasks, and the trace that the worker's hooks and signals write."""

    app: Celery
    executor: str
    trace: Path
    store: str
    log: Path

    def call(self, name: str, *args: Any, **options: Any) -> Any:
        return self.app.tasks[name].apply_async(args, **options)

    def result(self, name: str, *args: Any, **options: Any) -> Any:
        return self.call(name, *args, **options).get(timeout=60)

    def traced(self, name: str) -> list[str]:
        lines = self.trace.read_text().splitlines()
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


def start_worker(folder: Path, store: str, executor: str, *more: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "ADOPTED_STORE": store,
        "ADOPTED_EXECUTOR": executor,
        "ADOPTED_TRACE": str(folder / "trace"),
    }
    with (folder / "worker.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "headway", "worker", "--celery", PROJECT, *more],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
        )


@pytest.fixture(scope="module", params=["sqlite-process", "redis-thread"])
def adopted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdoptedProject]:
    """Start one worker for all tests of a module, on each of two stores and executors."""
    kind, _, executor = request.param.partition("-")
    folder = tmp_path_factory.mktemp(kind)
    store = f"sqlite:///{folder}/jobs.db" if kind == "sqlite" else f"{valkey().url}/7"
    trace = folder / "trace"
    trace.touch()
    worker = start_worker(folder, store, executor, "--slots", "4")
    patch = pytest.MonkeyPatch()
    patch.setenv("ADOPTED_TRACE", str(trace))
    app = make_app(store, executor)
    log = folder / "worker.log"
    try:
        eventually(lambda: b"worker.up" in log.read_bytes(), "the worker starts", log.read_text)
        yield AdoptedProject(app, executor, trace, store, log)
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(30)
        adoption_of(app).headway.close()
        patch.undo()
