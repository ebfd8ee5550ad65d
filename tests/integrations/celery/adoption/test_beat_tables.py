"""Rows of django_celery_beat become crons of Headway."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import Headway
from headway.policy_store.catalogue import CronDocument, read_crons
from tests.integrations.celery.workers import ROOT, eventually

PROJECT = "tests.integrations.celery.adoption.beat_project"
SECOND = {"task": "work.mark", "every": 1}


class Tables:
    """The tables of the project. Another process changes them, as an admin would."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.headway = Headway(f"sqlite:///{folder}/jobs.db")
        self.log = folder / "worker.log"
        words = [sys.executable, "-W", "ignore", "-m", PROJECT]
        self.admin = subprocess.Popen(
            words, cwd=ROOT, env=self.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.call("make_tables")

    def call(self, verb: str, *given: Any) -> Any:
        """Call a function of the project in the other process."""
        assert self.admin.stdin is not None
        assert self.admin.stdout is not None
        print(json.dumps([verb, *given]), file=self.admin.stdin, flush=True)
        return json.loads(self.admin.stdout.readline())

    def close(self) -> None:
        self.admin.communicate()
        self.headway.close()

    def write(self, **rows: dict[str, Any]) -> None:
        self.call("write_rows", rows)

    def marks(self, name: str) -> dict[str, Any]:
        """Return the fields of a row that writes a dot to a file each second."""
        return SECOND | {"args": json.dumps([str(self.folder / name), "."])}

    def written(self, name: str) -> int:
        path = self.folder / name
        return len(path.read_text()) if path.exists() else 0

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "BEAT_FOLDER": str(self.folder)}

    def crons(self) -> dict[str, CronDocument]:
        async def read() -> list[tuple[CronDocument, int]]:
            return await read_crons(await self.headway.client.store())

        return {cron.name: cron for cron, _ in self.headway.portal.run(read())}

    def start_worker(self) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-W", "ignore", "-m", "headway", "worker", "--celery", PROJECT]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                words, cwd=ROOT, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def wait(self, done: Callable[[], object], what: str) -> None:
        eventually(lambda: bool(done()), what, self.log.read_text)


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    """Start two workers that read the same tables. One row ticks each second, so that workers see changes soon."""
    made = Tables(tmp_path_factory.mktemp("rows"))
    made.write(
        pulse=made.marks("pulse"),
        theirs={"task": "other.mark", "every": 1},
        once={"task": "work.mark", "every": 1, "one_off": True},
        broken={"task": "work.mark", "every": 1, "args": "not JSON"},
        nightly={
            "task": "work.mark",
            "crontab": {"minute": "30", "hour": "3", "day_of_week": "mon-fri", "timezone": "Europe/Paris"},
        },
    )
    workers = [made.start_worker() for _ in range(2)]
    try:
        made.wait(lambda: made.written("pulse") >= 1, "a row runs")
        yield made
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(30)
        made.close()


def test_rows_of_adopted_tasks_are_crons_and_others_are_not(tables: Tables) -> None:
    found = {name: (cron.expression, cron.tz) for name, cron in tables.crons().items() if cron.entry is not None}
    assert (
        found.items()
        >= {
            "celery.beat.pulse": ("@every 1s", "UTC"),
            "celery.beat.nightly": ("30 3 * * 1,2,3,4,5", "Europe/Paris"),
        }.items()
    )
    assert not {"celery.beat.theirs", "celery.beat.once", "celery.beat.broken"} & found.keys()


def test_two_workers_send_each_tick_of_a_row_once(tables: Tables) -> None:
    tables.wait(lambda: tables.written("pulse") >= 3, "the row ticks three times")
    sent = tables.headway.jobs(task="celery.beat", limit=1_000)
    keys = [job.record().idempotency_key for job in sent]
    assert len(set(keys)) == len(keys) >= 3
    assert tables.written("pulse") <= len(tables.headway.jobs(task="celery.beat", limit=1_000))


def test_a_new_row_runs_until_it_is_disabled_and_again_when_it_is_enabled(tables: Tables) -> None:
    tables.write(new=tables.marks("new"))
    tables.wait(lambda: tables.written("new") >= 1, "the new row runs")
    tables.write(new={"enabled": False})
    tables.wait(lambda: "celery.beat.new" not in tables.crons(), "the disabled row has no cron")
    tables.write(new={"enabled": True})
    tables.wait(lambda: "celery.beat.new" in tables.crons(), "the enabled row has a cron")
    tables.call("delete_rows", ["new"])
    tables.wait(lambda: "celery.beat.new" not in tables.crons(), "the deleted row has no cron")


def test_a_changed_interval_takes_effect(tables: Tables) -> None:
    tables.write(changing=tables.marks("changing") | {"every": 7_200})
    tables.wait(lambda: "celery.beat.changing" in tables.crons(), "the row is a cron")
    assert tables.crons()["celery.beat.changing"].expression == "@every 7200s"
    tables.write(changing={"every": 1})
    tables.wait(lambda: tables.written("changing") >= 1, "the row ticks at its new interval")


def test_the_options_of_a_row_reach_its_task(tables: Tables) -> None:
    path = tables.folder / "request"
    row = {"task": "work.request", "every": 1, "kwargs": json.dumps({"path": str(path)}), "queue": "celery"}
    tables.write(request=row | {"priority": 3, "expire_seconds": 60})
    tables.wait(lambda: path.exists() and path.read_text(), "the task runs")
    assert json.loads(path.read_text()) == ["celery", "request"]


def test_a_row_that_starts_later_or_has_expired_sends_nothing(tables: Tables) -> None:
    tables.write(
        later=tables.marks("later") | {"start_time": "2100-01-01T00:00:00Z"},
        expired=tables.marks("expired") | {"expires": "2020-01-01T00:00:00Z"},
    )

    def ticks(name: str) -> int:
        jobs = tables.headway.jobs(task="celery.beat", status="completed", limit=1_000)
        return sum((job.record().idempotency_key or "").startswith(f"cron:celery.beat.{name}:") for job in jobs)

    tables.wait(lambda: ticks("later") and ticks("expired"), "both tick")
    assert tables.written("later") == tables.written("expired") == 0


def test_celery_beat_leaves_the_rows_that_headway_sends(tables: Tables) -> None:
    sent = tables.call("beat_sends")
    assert {"theirs", "once"} <= set(sent)
    assert not {"pulse", "nightly", "in settings"} & set(sent)


def test_the_worker_names_the_rows_that_it_leaves_to_beat(tables: Tables) -> None:
    lines = tables.log.read_text()
    assert "celery.row_left" in lines
    assert "it runs only once" in lines


def test_a_database_that_fails_is_logged_once_and_read_again(tables: Tables) -> None:
    before = tables.log.read_text().count("celery.tables_read")
    tables.call("rename_table", "django_celery_beat_periodictask", "away")
    tables.wait(lambda: tables.log.read_text().count("celery.tables_unreadable") == 2, "each worker reports it")
    written = tables.written("pulse")
    tables.wait(lambda: tables.written("pulse") >= written + 2, "crons go on")
    assert tables.log.read_text().count("celery.tables_unreadable") == 2
    tables.call("rename_table", "away", "django_celery_beat_periodictask")
    tables.wait(lambda: tables.log.read_text().count("celery.tables_read") > before, "the tables are read again")


def test_the_check_says_what_becomes_of_each_row(tables: Tables) -> None:
    words = [sys.executable, "-W", "ignore", "-m", "headway", "celery", "check", PROJECT, "--json"]
    answer = subprocess.run(
        words, cwd=tables.folder, env=tables.environment | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=False
    )
    rows = {row["name"]: row for row in json.loads(answer.stdout)["schedule"]}
    assert rows["pulse"]["status"] == "as is"
    assert (rows["once"]["status"], rows["once"]["note"]) == (
        "differs",
        "celery beat has to send it: it runs only once",
    )
    assert rows["theirs"]["status"] == "as is"
    assert "in settings" in rows
    assert len(rows) == len(json.loads(answer.stdout)["schedule"])
