"""A Django project on a real PostgreSQL or on SQLite, and workers that run its jobs."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import django
import psycopg
import pytest
from django.apps import apps

from headway.integrations.django.framework import RELEASE
from tests.conftest import postgres

ROOT = Path(__file__).parents[3]
SETTINGS = "tests.integrations.django.settings"
DATABASE = "django_tests"
KINDS = ("postgresql", "sqlite")
PATIENCE = 30.0
SELDOM = 10.0  # Seconds; what takes less was woken.
JOB_TABLES = (
    "job",
    "ready",
    "delayed",
    "lease",
    "outcome",
    "attempt",
    "transient",
    "unique_key",
    "idempotency",
    "park",
    "batch",
    "edge",
    "dependant",
    "unsettled",
    "step",
)

os.environ.setdefault("DJANGO_SETTINGS_MODULE", SETTINGS)
if not apps.ready:
    django.setup()


# For a module whose tests are to hold wherever jobs may be kept.
both = pytest.mark.parametrize("database", KINDS, indirect=True, scope="module")
# Where much time goes by and little depends on the database: the other one in the proofs.
either = pytest.mark.parametrize(
    "database", [KINDS[0], pytest.param(KINDS[1], marks=pytest.mark.proof)], indirect=True, scope="module"
)

_made: dict[str, dict[str, Any]] = {}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("django")


@pytest.fixture(scope="module")
def database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """Create a database with the tables of the project and of Headway, as any project does."""
    from django.core.management import call_command

    from headway.integrations.django import queue

    kind = getattr(request, "param", KINDS[0])
    if new := kind not in _made:
        _made[kind] = _make_postgres() if kind == "postgresql" else _make_sqlite(folder)
    use(_made[kind])
    if new:
        call_command("migrate", verbosity=0, database="default", run_syncdb=True)
    yield kind
    queue().close()


def use(entry: dict[str, Any]) -> None:
    """Use this database in the project, here and in child processes."""
    from django.contrib.contenttypes.models import ContentType
    from django.db import connections

    connections.close_all()
    connections.settings["default"] = {**connections.settings["default"], **entry}
    del connections["default"]
    ContentType.objects.clear_cache()
    os.environ["DJANGO_TESTS_DATABASE"] = json.dumps(entry)


def _make_postgres() -> dict[str, Any]:
    server = postgres()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
        connection.execute(f"CREATE DATABASE {DATABASE}")
    place = {"HOST": "127.0.0.1", "PORT": str(server.port), "USER": "postgres", "NAME": DATABASE}
    return {"ENGINE": "django.db.backends.postgresql", "OPTIONS": {}, **place}


def _make_sqlite(folder: Path) -> dict[str, Any]:
    options = {"transaction_mode": "IMMEDIATE", "timeout": 20} if RELEASE >= (5, 1) else {"timeout": 20}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(folder / "project.sqlite3"), "OPTIONS": options}


def table(name: str) -> str:
    """Return the name of one of Headway's tables in this database."""
    from django.db import connection

    return f"headway.{name}" if connection.vendor == "postgresql" else f"headway_{name}"


@pytest.fixture(autouse=True)
def _empty(database: str) -> None:
    """Remove all jobs, workers and orders before each test."""
    from django.db import connection

    from tests.integrations.django.shop.models import Order

    with connection.cursor() as cursor:
        for name in (*JOB_TABLES, "worker"):
            cursor.execute(f"DELETE FROM {table(name)}")
    Order.objects.all().delete()


class Workers:
    """``manage.py run_ioqueue`` processes. Each writes its output to a file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *options: str, settings: str = SETTINGS, wait: bool = True, poll: float = 0.5) -> Worker:
        """Start a worker, and wait until it is ready. ``poll``: seconds between polls if no submit wakes it."""
        path = self._folder / f"worker-{len(self._processes)}.log"
        with path.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "django", "run_ioqueue", *options],
                stdout=file,
                stderr=file,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": settings}
                | {"DJANGO_TESTS_POLL": str(poll)},
            )
        self._processes.append(process)
        worker = Worker(process, path)
        if wait:
            wait_until(lambda: "worker.up" in worker.log or process.poll() is not None, worker)
            assert process.poll() is None, worker.log
        return worker

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE)
            if process.poll() is None:
                process.kill()
                process.wait()


class Worker:
    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._path = path

    @property
    def log(self) -> str:
        return self._path.read_text(errors="replace")


def wait_until(what: Callable[[], object], worker: Worker | None = None, *, within: float = PATIENCE) -> None:
    ends = time.monotonic() + within
    while not what():
        assert time.monotonic() < ends, "not in time" if worker is None else worker.log
        time.sleep(0.01)


def ended(job_id: str | None, worker: Worker | None = None) -> Any:
    """Wait until a job has ended, and return it."""
    from headway.integrations.django.models import IOJob

    wait_until(lambda: IOJob.objects.get(pk=job_id).status in ("done", "error"), worker)
    return IOJob.objects.get(pk=job_id)


@pytest.fixture
def workers(database: str, tmp_path: Path) -> Iterator[Workers]:
    made = Workers(tmp_path)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def worker(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    """Start one worker for all tests of a module that only need their jobs run. It seldom polls."""
    made = Workers(tmp_path_factory.mktemp("worker"))
    yield made.start(poll=SELDOM)
    made.stop()
