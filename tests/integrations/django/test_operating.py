"""``manage.py headway …``: the commands of operators on the project's own store."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, NamedTuple

import pytest
from django.core.management import CommandError, call_command

from headway.integrations.django import queue
from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import ROOT, SETTINGS, both
from tests.integrations.django.shop import tasks

pytestmark = [pytest.mark.xdist_group("django"), both]

# Several commands in one process: to start one for each would take most of the time.
SCRIPT = """
import contextlib, io, json, sys
import django
django.setup()
from headway.integrations.django.management.commands.headway import Command
told = []
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = Command(stderr=err)._run(words)
    told.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(told))
"""


class Told(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def run(*commands: str) -> list[Told]:
    words = json.dumps([command.split() for command in commands])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, words],
        cwd=ROOT,
        # A store that others have set is not meant.
        env={**environment, "DJANGO_SETTINGS_MODULE": SETTINGS, "HEADWAY_STORE": "sqlite:////nowhere/jobs.db"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    told = [Told(*one) for one in json.loads(done.stdout.splitlines()[-1])]
    assert len(told) == len(commands)
    return told


def test_every_operators_command_works_on_the_projects_store() -> None:
    waiting, doomed = tasks.add.enqueue(1), tasks.add.enqueue(2)
    add = tasks.add.name
    jobs, why, stats, top, cancel, retry, dlq, pause, crons, policy, doctor, submit, resume, workers = run(
        "jobs --json", f"why {waiting.id}", "stats --json", "top --once", f"cancel {doomed.id}", f"retry {doomed.id}",
        "dlq list --json", "pause --lane low", "crons list --json", "policy show", "doctor --json",
        f"submit {add} left=5 --json", "resume", "workers --json",
    )  # fmt: skip
    for told in (jobs, why, stats, top, cancel, retry, dlq, pause, crons, policy, submit, resume, workers):
        assert told.code == 0, told
    assert {job["id"] for job in jobs.json["items"]} == {waiting.id, doomed.id}
    assert "no worker" in why.out
    assert doomed.id in cancel.out
    assert IOJob.objects.get(pk=doomed.id).status == "pending"  # Cancelled, and then retried.
    assert dlq.json["items"] == []
    assert any(check["name"] == "store" and check["status"] == "ok" for check in doctor.json["checks"]), doctor
    assert IOJob.objects.filter(task_name=add).count() == 3
    assert queue().paused().names() == []


def test_commands_that_the_project_has_itself_say_so() -> None:
    told = run("up", "serve", "migrate", "backup somewhere", "nonsense")
    assert [one.code for one in told] == [2] * 5
    assert "manage.py headway worker" in told[0].err
    assert "manage.py migrate" in told[2].err
    assert "unknown command 'nonsense'" in told[4].err


def test_the_worker_is_the_projects_own() -> None:
    with pytest.raises(CommandError, match="unrecognized arguments: --nonsense"):
        call_command("headway", "worker", "--nonsense")
