"""``manage.py run_ioqueue``: real workers run real jobs."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import json
import re
import socket
import time
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from headway import PayloadError
from headway.integrations.django import queue
from headway.integrations.django.models import IOJob
from headway.policy_store.catalogue import CronDocument, read_crons
from tests.integrations.django.conftest import SELDOM, Worker, both, ended, wait_until
from tests.integrations.django.names import Status
from tests.integrations.django.shop import django_tasks_here as declared
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order

pytestmark = [pytest.mark.xdist_group("django"), both]


def test_a_job_runs_and_its_row_tells_of_it(worker: Worker) -> None:
    # R2.6, R2.22, R2.25, R2.28, R2.29, R2.41, R2.49
    job = ended(tasks.add(1, 2), worker)
    assert (job.status, job.result, job.last_error, job.attempts) == ("done", 3, "", 0)
    assert job.queued_at <= job.picked_at <= job.finished_at
    host, pid, unique = job.picked_by.split(":")
    assert (host, int(pid)) == (socket.gethostname(), worker.pid)
    assert re.fullmatch(r"[0-9a-f]{6}", unique)


def test_a_sync_task_uses_the_orm_in_a_thread_and_leaves_no_connection_open(worker: Worker) -> None:
    # R2.66
    order = Order.objects.create(article="book")
    job = ended(tasks.handle(order.pk), worker)
    assert job.status == "done", job.last_traceback
    order.refresh_from_db()
    assert order.handled_by.startswith("headway-task")
    # CONN_MAX_AGE is 0: as after a request, the connection is closed.
    wait_until(lambda: not is_connected(job.result), worker)


def is_connected(backend_pid: int) -> bool:
    if not backend_pid:
        return False
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [backend_pid])
        return bool(cursor.fetchone()[0])


def test_an_async_task_uses_the_orm_too(worker: Worker) -> None:
    order = Order.objects.create(article="book")
    job = ended(tasks.ahandle(order.pk), worker)
    assert job.status == "done", job.last_traceback
    order.refresh_from_db()
    assert order.handled_by == "a coroutine"
    wait_until(lambda: not is_connected(job.result), worker)


def test_a_transient_job_runs(worker: Worker) -> None:
    # R2.1, R2.8, R2.19
    order = Order.objects.create(article="book")
    tasks.touch(order.pk)
    wait_until(lambda: Order.objects.get(pk=order.pk).handled_by == "touched", worker)
    assert not IOJob.objects.exists()


def test_a_job_that_keeps_failing_ends_as_error_with_its_attempts(worker: Worker) -> None:
    # R2.42, R2.43, R2.51, R2.71
    job = ended(tasks.fail("no such paper\0"), worker)
    assert (job.status, job.state, job.attempts, job.max_retries) == ("error", "dead_letter", 2, 1)
    assert job.last_error == "ValueError: no such paper\ufffd"
    assert "in fail" in job.last_traceback
    history = list(job.history.all())
    assert [attempt.number for attempt in history] == [1, 2]
    assert all("no such paper" in attempt.error and attempt.picked_by for attempt in history)


def test_a_result_that_cannot_be_kept_does_not_run_the_task_again(worker: Worker) -> None:
    # R2.64
    job = ended(tasks.unstorable(), worker)
    assert (job.status, job.result, job.attempts) == ("done", None, 0)
    assert "object" in job.result_error


def test_crons_of_the_project_are_made_known_by_its_workers(worker: Worker) -> None:
    async def read() -> dict[str, CronDocument]:
        return {cron.task: cron for cron, _ in await read_crons(await queue().client.store())}

    crons = queue().portal.run(read())
    names = [f"{tasks.__name__}.{name}" for name in ("nightly", "often")]
    nightly, often = (crons[name] for name in names)
    assert (nightly.expression, nightly.tz, nightly.max_retries, nightly.lane) == (
        "0 3 29 2 *", "Europe/Paris", 1, "medium"
    )  # fmt: skip
    assert (often.overlap, often.max_retries, often.lane) == ("allow", 3, "low")
    assert ended(tasks.nightly.enqueue().id, worker).result == "swept"


def test_a_handle_tells_of_its_job(worker: Worker) -> None:
    job = tasks.add.enqueue(20, right=2)
    assert job.result(timeout=30) == 22
    assert (job.status(), job.deduplicated, IOJob.objects.get(pk=job.id).status) == ("completed", False, "done")


def test_a_job_submits_another(worker: Worker) -> None:
    job = ended(tasks.submit_from_a_job(20), worker)
    assert ended(job.result, worker).result == 20


def test_as_many_jobs_run_at_once_as_there_are_slots(worker: Worker, tmp_path: Path) -> None:
    # R2.25: four slots, and each job waits until all four have begun.
    jobs = [tasks.meet.enqueue(str(tmp_path), 4) for _ in range(4)]
    assert len({ended(job.id, worker).result for job in jobs}) == 4


def test_a_commit_wakes_the_worker(worker: Worker) -> None:
    # R2.67
    def seconds() -> float:
        began = time.monotonic()
        with transaction.atomic():
            job_id = tasks.add(1)
        assert ended(job_id, worker).status == "done"
        return time.monotonic() - began

    # A worker that could not renew its leases in time, on a busy machine, is not woken; it is not so every time.
    assert any(seconds() < SELDOM / 2 for _ in range(3))


def test_jobs_that_wait_for_a_limit_hold_no_slot(worker: Worker, tmp_path: Path) -> None:
    # R2.68
    limited = [tasks.one_at_a_time(str(tmp_path)) for _ in range(6)]
    wait_until(lambda: (tmp_path / "begun").exists(), worker)
    assert ended(tasks.add(1), worker).result == 1  # There are four slots.
    assert sorted(IOJob.objects.values_list("status", flat=True)) == ["done", *["pending"] * 5, "running"]
    (tmp_path / "go").touch()
    assert {ended(job_id, worker).status for job_id in limited} == {"done"}


# ---------------------------------------------------------------------- tasks of Django Tasks


def finished(result: Any, worker: Worker) -> Any:
    def is_finished() -> bool:
        result.refresh()
        return result.is_finished

    wait_until(is_finished, worker)
    return result


def test_a_worker_runs_them(worker: Worker) -> None:
    sync, coroutine = declared.double.enqueue(3, times=2), declared.adouble.enqueue(2)
    context = declared.where.enqueue("here")
    result = finished(sync, worker)
    assert (result.status, result.return_value, result.attempts) == (Status.SUCCESSFUL, 12, 1)
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert f":{worker.pid}:" in result.worker_ids[0]
    assert finished(coroutine, worker).return_value == 4
    assert finished(context, worker).return_value == {"attempt": 1, "id": context.id, "text": "here"}


def test_a_task_that_fails_is_failed_with_its_error(worker: Worker) -> None:
    result = finished(declared.explode.enqueue(), worker)
    assert (result.status, result.attempts) == (Status.FAILED, 1)
    assert [error.exception_class for error in result.errors] == [KeyError]
    assert "nothing there" in result.errors[0].traceback
    with pytest.raises(ValueError, match="failed"):
        _ = result.return_value


def test_a_result_that_json_cannot_hold_is_a_failure(worker: Worker) -> None:
    result = finished(declared.odd_result.enqueue(), worker)
    assert result.status == Status.FAILED
    assert [error.exception_class for error in result.errors] == [TypeError]


@pytest.mark.parametrize("name, says", [("too_large", "bytes"), ("not_a_number", "nan")])
def test_a_result_that_cannot_be_kept_is_a_failure_that_names_the_problem(worker: Worker, name: str, says: str) -> None:
    # R2.64: the work is done and is not done again.
    result = finished(getattr(declared, name).enqueue(), worker)
    assert (result.status, result.attempts) == (Status.FAILED, 1)
    [error] = result.errors
    assert error.exception_class is PayloadError
    assert says in error.traceback
    job = IOJob.objects.get(pk=result.id)
    assert (job.status, says in job.result_error) == ("done", True)
    assert told_of(result, worker) == ["FAILED PayloadError"]


def told_of(result: Any, worker: Worker) -> list[str]:
    """Wait for the signal of a finished task, and return its texts."""
    told = Order.objects.filter(article__startswith=f"finished {result.id}")
    wait_until(told.exists, worker)
    return [order.article.split(maxsplit=2)[2] for order in told]


def test_the_context_and_the_result_tell_the_same_of_earlier_attempts(worker: Worker) -> None:
    at = timezone.now().replace(microsecond=0) - timedelta(minutes=1)
    result = finished(declared.third_time.using(run_after=at).enqueue(), worker)
    assert (result.status, result.attempts, result.errors[2:]) == (Status.SUCCESSFUL, 3, [])
    said = result.return_value
    assert said["status"] == "RUNNING"
    assert said["enqueued_at"] == result.enqueued_at.isoformat()
    assert said["started_at"] == result.started_at.isoformat()
    assert said["last_attempted_at"] == result.last_attempted_at.isoformat()
    assert result.started_at < result.last_attempted_at
    assert datetime.fromisoformat(said["run_after"]) == at
    assert said["errors"] == ["LookupError: attempt 1", "LookupError: attempt 2"]
    assert said["worker_ids"] == result.worker_ids
    assert [f":{worker.pid}:" in name for name in result.worker_ids] == [True] * 3
    assert said["backend"] == "retrying"
    assert told_of(result, worker) == ["SUCCESSFUL LookupError,LookupError"]


@pytest.mark.parametrize(
    "name, says",
    [
        ("double", "SUCCESSFUL"),
        ("explode", "FAILED KeyError"),
        ("overstay", "FAILED TimeoutError"),
        ("die", "FAILED WorkerDied"),
    ],
)
def test_the_signal_says_once_what_the_store_has_recorded(worker: Worker, name: str, says: str) -> None:
    result = finished(getattr(declared, name).enqueue(*([1] if name == "double" else [])), worker)
    assert " ".join([result.status, *(error.exception_class.__name__ for error in result.errors)]) == says
    assert told_of(result, worker) == [says]
    finished(declared.double.enqueue(1), worker)  # Whatever was to be told has been told.
    assert told_of(result, worker) == [says]


@pytest.mark.parametrize("value", [None, 1, "text", [1, [2]], {"a": {"b": None}}, {"status": Status.READY}])
def test_values_come_back_as_they_went(worker: Worker, value: Any) -> None:
    assert finished(declared.give.enqueue(value), worker).return_value == value


# ---------------------------------------------------------------------- looking


def test_the_status_command_tells_of_jobs_and_workers(worker: Worker) -> None:
    # R2.51
    ended(tasks.add(1), worker)
    tasks.add.using(delay=3600)(1)
    told = StringIO()
    call_command("ioqueue_status", "--json", stdout=told)
    status = json.loads(told.getvalue())
    assert status["counts"]["pending"] == 1
    assert status["counts"]["done"] >= 1
    assert [entry["slots"] for entry in status["workers"] if f":{worker.pid}:" in entry["picked_by"]] == [4]
    told = StringIO()
    call_command("ioqueue_status", stdout=told, no_color=True)
    assert re.search(r"^pending +1$", told.getvalue(), re.MULTILINE)
    assert f":{worker.pid}:" in told.getvalue()
