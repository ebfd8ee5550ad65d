"""Killed workers, tasks that kill them, and concurrent writers: no job is lost, and none counts twice."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from django.db import connection

from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import ROOT, Workers, both, ended, wait_until
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order

pytestmark = [pytest.mark.xdist_group("django"), pytest.mark.slow]

# PostgreSQL is proven to hold under this by the tests of its store; here each writer has a connection of Django's.
lite = pytest.mark.parametrize("database", ["sqlite"], indirect=True, scope="module")

WRITER = """
import sys, django
django.setup()
from django.db import transaction
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order
sys.stdin.readline()
for number in range(30):
    try:
        with transaction.atomic():
            list(Order.objects.filter(article="nobody's"))
            Order.objects.create(article="written")
            tasks.note(f"{sys.argv[1]}-{number}")
            if number % 3 == 0:
                raise KeyError
    except KeyError:
        pass
"""


@lite
def test_a_job_whose_worker_is_killed_is_run_by_another(workers: Workers, tmp_path: Path) -> None:
    # R2.44, R2.57, R2.58
    first = workers.start("--concurrency", "1")
    held = tasks.hold(str(tmp_path))
    wait_until(lambda: (tmp_path / "begun").exists(), first)
    os.kill(first.pid, signal.SIGKILL)
    first.process.wait()
    (tmp_path / "go").touch()
    second = workers.start("--concurrency", "1")
    job = ended(held, second)
    assert (job.status, job.result) == ("done", "let go")
    assert f":{second.pid}:" in job.picked_by
    [lost] = job.history.all()
    assert f":{first.pid}:" in lost.picked_by
    assert ended(tasks.add(1), second).result == 1


@both
def test_a_task_that_kills_its_process_ends_as_a_dead_letter_and_no_other_job_with_it(workers: Workers) -> None:
    # R2.57
    worker = workers.start("--concurrency", "1")
    poison, good = tasks.die(), tasks.add(1)
    job = ended(poison, worker)
    assert (job.status, job.state, job.attempts) == ("error", "dead_letter", 3)
    assert [attempt.number for attempt in job.history.all()] == [1, 2, 3]
    assert ended(good, worker).result == 1
    assert worker.process.poll() is None


@lite
def test_several_processes_write_while_a_worker_works(workers: Workers) -> None:
    # R2.50, R2.67, R2.72
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WRITER]
    writers = [
        subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
        for number in range(2)
    ]
    worker = workers.start("--concurrency", "2")
    said = [writer.communicate(b"go\n", timeout=50)[1].decode() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], said
    wait_until(lambda: not IOJob.objects.exclude(status="done").exists(), worker)
    assert IOJob.objects.count() == 40
    assert Order.objects.filter(article="written").count() == 40
    noted = sorted(Order.objects.exclude(article="written").values_list("article", flat=True))
    assert noted == sorted(f"{writer}-{number}" for writer in range(2) for number in range(30) if number % 3)
    assert not IOJob.objects.filter(attempts__gt=0).exists()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA integrity_check")
        assert cursor.fetchone() == ("ok",)
