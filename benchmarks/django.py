"""Cost of the queue in a Django project: submits beside rows, and a worker beside ``headway worker``.

    python -m benchmarks.django                  # SQLite and a PostgreSQL of its own, about two minutes
    python -m benchmarks.django --jobs 2000 --databases sqlite

A submit is measured in turns with ``Model.objects.create`` of a row of the same size: alone, where each is a
transaction of its own and waits for the disk, and within one transaction. Workers drain jobs that do nothing, 100 at
once, all of them submitted before; the rate is that between the first and the last end of a job.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.machine import describe
from benchmarks.places import PostgresPlace

SLOTS = 100
PATIENCE = 120.0  # Maximum seconds for a worker to end its jobs.
SHOP = "benchmarks.django_shop"
Figures = dict[str, float]


class DjangoDatabase:
    """One database, with the settings by which Django and Headway use it. It counts ended jobs."""

    def __init__(self, name: str, entry: dict[str, Any], address: str, project: str, table: str, own: str) -> None:
        self.name, self._project, self._table, self._own = name, project, table, own
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": f"{SHOP}.settings",
            "BENCH_DATABASE": json.dumps(entry),
            "HEADWAY_STORE": address,
            "HEADWAY_LOG": "json",
        }

    def run(self, *words: str) -> str:
        done = subprocess.run([sys.executable, "-m", *words], env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(words)}:\n{done.stderr}")
        return done.stdout

    def ended(self, since_at: int, *, own: bool) -> tuple[int, int, int]:
        """Return how many jobs have ended since a moment, and when the first and the last ended, in milliseconds."""
        table = self._own if own else self._table
        asked = f"SELECT count(*), min(finished_at), max(finished_at) FROM {table} WHERE finished_at >= {since_at}"  # noqa: S608
        with contextlib.closing(self._connect(own)) as connection:
            count, first, last = connection.execute(asked).fetchone()
        return int(count), first or 0, last or 0

    def _connect(self, own: bool) -> Any:
        if self.name == "postgresql":
            return psycopg.connect(self.environment["HEADWAY_STORE"] if own else self._project)
        return sqlite3.connect(self.environment["HEADWAY_STORE"].removeprefix("sqlite:///") if own else self._project)


@contextlib.contextmanager
def open_databases(folder: Path, wanted: list[str]) -> Iterator[list[DjangoDatabase]]:
    """Yield the databases. Each kind has one for the project and one for the plain worker."""
    made: list[DjangoDatabase] = []
    with contextlib.ExitStack() as stack:
        if "sqlite" in wanted:
            file = str(folder / "shop.sqlite3")
            options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
            entry: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": file, "OPTIONS": options}
            made.append(
                DjangoDatabase("sqlite", entry, f"sqlite:///{folder}/plain.db", file, "headway_outcome", "outcome")
            )
        if "postgresql" in wanted:
            place = PostgresPlace(folder)
            stack.callback(place.server.stop)
            project, plain = place.fresh(), place.fresh()
            entry = {
                "ENGINE": "django.db.backends.postgresql",
                "HOST": "127.0.0.1",
                "PORT": str(place.server.port),
                "USER": "postgres",
                "NAME": project.rpartition("/")[2],
            }
            outcome = "headway.outcome"
            made.append(DjangoDatabase("postgresql", entry, plain, project, outcome, outcome))
        yield made


def measure(database: DjangoDatabase, *, jobs: int, calls: int, turns: int) -> Figures:
    """Return the figures of one database."""
    database.run("django", "migrate", "-v", "0", "--run-syncdb")
    database.run("headway", "migrate")
    found: Figures = json.loads(database.run(f"{SHOP}.submitting", "measure", str(calls), str(turns)))
    worker = [sys.executable, "-m", "django", "run_ioqueue", "--concurrency", str(SLOTS)]
    plain = [sys.executable, "-m", "headway", "worker", f"{SHOP}.plain:app", "--slots", str(SLOTS)]
    _drained(database, worker, own=False, jobs=calls * 2 * (turns + 1))  # Left by measuring submits.
    for task in ("noop", "thread_noop"):
        database.run(f"{SHOP}.submitting", "fill", task, str(jobs))
        found[f"run_ioqueue {task}"] = _drained(database, worker, own=False, jobs=jobs)
        database.run(f"{SHOP}.plain", task, str(jobs))
        found[f"headway worker {task}"] = _drained(database, plain, own=True, jobs=jobs)
    return found


def _drained(database: DjangoDatabase, command: list[str], *, own: bool, jobs: int) -> float:
    """Run a worker until it has ended all jobs. Return how many it ended per second."""
    since_at = time.time_ns() // 1_000_000
    with tempfile.TemporaryFile() as said:  # Not a pipe: a worker would wait for a reader.
        worker = subprocess.Popen(
            [*command, "--log-level", "error"], env=database.environment, stdout=said, stderr=said
        )
        try:
            until = time.monotonic() + PATIENCE
            while (ended := database.ended(since_at, own=own))[0] < jobs:
                if worker.poll() is not None or time.monotonic() > until:
                    said.seek(0)
                    sys.exit(f"{' '.join(command)} ended {ended[0]} of {jobs}:\n{said.read().decode()}")
                time.sleep(0.5)
        finally:
            worker.send_signal(signal.SIGTERM)
            worker.wait()
    count, first, last = ended
    return count / max(1, last - first) * 1_000


def lines(name: str, found: Figures) -> Iterator[str]:
    """Return the report on one database as lines of text."""
    for way, title in (("", "alone"), (" within", "within a transaction")):
        submit, create = found[f"submit{way}"], found[f"create{way}"]
        yield f"{name}, {title}: submit {submit:,.0f} µs, create {create:,.0f} µs ({submit / create:.2f} times)"
    for task in ("noop", "thread_noop"):
        ours, plain = found[f"run_ioqueue {task}"], found[f"headway worker {task}"]
        yield f"{name}, {task}: run_ioqueue {ours:,.0f} jobs/s, headway worker {plain:,.0f} ({ours / plain:.2f} times)"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the queue in a Django project.")
    parser.add_argument("--databases", nargs="+", choices=("sqlite", "postgresql"), default=["sqlite", "postgresql"])
    parser.add_argument("--jobs", type=int, default=10_000, help="jobs to drain")
    parser.add_argument("--calls", type=int, default=200, help="submits and rows in a turn")
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    print(json.dumps(describe()))
    with tempfile.TemporaryDirectory(prefix="headway-django-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # A server may run as another user.
        with open_databases(folder, options.databases) as made:
            for database in made:
                found = measure(database, jobs=options.jobs, calls=options.calls, turns=options.turns)
                for line in lines(database.name, found):
                    print(line, flush=True)


if __name__ == "__main__":
    main()
