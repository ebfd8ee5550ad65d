"""A project's worker: its start, its hold on jobs, and its stop."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import Workers, either, ended, wait_until
from tests.integrations.django.shop import tasks

pytestmark = [pytest.mark.xdist_group("django"), either]


def test_a_job_outlives_its_visibility_and_a_drain_waits_for_it(workers: Workers, tmp_path: Path) -> None:
    # R2.26, R2.27, R2.32, R2.36, R2.40, R2.55, R2.66
    worker = workers.start("--concurrency", "1")
    held = tasks.hold(str(tmp_path))
    waiting = tasks.add(1)
    wait_until(lambda: (tmp_path / "begun").exists(), worker)
    first = IOJob.objects.get(pk=held)
    assert (first.status, first.result) == ("running", None)
    assert first.visible_until > first.picked_at
    wait_until(lambda: IOJob.objects.get(pk=held).visible_until > first.visible_until, worker)
    worker.process.send_signal(signal.SIGINT)
    wait_until(lambda: "worker.draining" in worker.log, worker, within=5)
    # While it drains it goes on renewing: by now the first visibility has passed.
    wait_until(
        lambda: (
            IOJob.objects.get(pk=held).visible_until > first.visible_until + (first.visible_until - first.picked_at)
        ),
        worker,
    )
    (tmp_path / "go").touch()
    assert worker.process.wait(20) == 0, worker.log
    job = ended(held)
    assert (job.status, job.result, job.picked_at, job.attempts) == ("done", "let go", first.picked_at, 0)
    assert IOJob.objects.get(pk=waiting).status == "pending"
    assert IOJob.objects.get(pk=waiting).attempts == 0


def test_an_import_error_inside_a_tasks_module_is_shown(workers: Workers) -> None:
    # R2.23, R2.24, R2.30
    worker = workers.start(settings="tests.integrations.django.settings_broken", wait=False)
    assert worker.process.wait(30) == 3
    assert "No module named 'nowhere'" in worker.log
    assert "broken_tasks.py" in worker.log
