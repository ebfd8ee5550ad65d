"""Django Tasks on the project's queue, with the guarantees of the framework for backends that keep results."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from headway import JobCancelled
from headway.integrations.django import HeadwayBackend, queue
from headway.integrations.django.loading import adopt_django_tasks
from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import both, table
from tests.integrations.django.names import (
    InvalidTask,
    Status,
    default_task_backend,
    exceptions,
    task_backends,
    task_enqueued,
)
from tests.integrations.django.shop import django_tasks_here as declared
from tests.integrations.django.shop import tasks

BACKEND = "headway.integrations.django.HeadwayBackend"

pytestmark = [pytest.mark.xdist_group("django"), both]


def test_the_backend_says_what_it_can() -> None:
    backend = default_task_backend
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority
    assert isinstance(task_backends["default"], HeadwayBackend)
    assert [message for message in run_checks() if (message.id or "").startswith("ioqueue")] == []


def test_a_task_is_enqueued_and_its_result_read_again() -> None:
    # R2.3
    result = declared.double.enqueue(3, times=2)
    assert (result.status, result.task, result.attempts) == (Status.READY, declared.double, 0)
    assert result.enqueued_at is not None
    again = declared.double.get_result(result.id)
    assert (again.id, again.status, again.args, again.kwargs) == (result.id, Status.READY, [3], {"times": 2})
    assert (again.started_at, again.finished_at, again.errors, again.worker_ids) == (None, None, [], [])
    assert again.task == declared.double
    with pytest.raises(ValueError, match="not finished"):
        _ = again.return_value
    job = IOJob.objects.get(pk=result.id)
    assert (job.args, job.kwargs, job.max_retries) == ([3], {"times": 2}, 0)
    assert job.task_name == declared.double.module_path


def test_a_result_keeps_the_options_of_its_task() -> None:
    at = timezone.now() + timedelta(hours=1)
    result = declared.double.using(queue_name="mail", priority=-5, run_after=at).enqueue(1)
    again = default_task_backend.get_result(result.id)
    assert again == result
    assert (again.task.queue_name, again.task.priority, again.task.run_after) == ("mail", -5, at)
    job = IOJob.objects.get(pk=result.id)
    assert (job.lane, abs(job.scheduled_at - at) < timedelta(milliseconds=2)) == ("low", True)


@pytest.mark.parametrize("priority, lane", [(100, "high"), (1, "high"), (0, "medium"), (-1, "low"), (-100, "low")])
def test_priorities_are_mapped_onto_lanes(priority: int, lane: str) -> None:
    result = declared.double.using(priority=priority).enqueue(1)
    assert IOJob.objects.get(pk=result.id).lane == lane


@pytest.mark.parametrize(
    "change",
    [
        lambda: declared.double.using(priority=101),
        lambda: declared.double.using(queue_name="unknown"),
        lambda: declared.double.using(run_after=timezone.now().replace(tzinfo=None)),
    ],
    ids=["priority", "queue", "naive"],
)
def test_what_the_framework_forbids_is_refused(change: Callable[[], object]) -> None:
    with pytest.raises(InvalidTask):
        change()


@pytest.mark.parametrize(
    "queue_name, priority, lane",
    [("default", 5, "high"), ("default", 0, "medium"), ("mail", 5, "low"), ("low", 100, "low")],
)
def test_a_queue_is_a_lane_and_only_the_default_one_goes_by_priority(queue_name: str, priority: int, lane: str) -> None:
    result = declared.double.using(queue_name=queue_name, priority=priority).enqueue(1)
    assert IOJob.objects.get(pk=result.id).lane == lane


def test_a_queue_that_is_no_lane_is_refused_and_the_checks_say_so() -> None:
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default", "low", "post"]}}):
        [warning] = [message for message in run_checks() if message.id == "ioqueue.W007"]
        assert "the queue 'post' is no lane of the policy" in warning.msg
        assert '"queues": {"post": "low"}' in warning.msg
        with pytest.raises(InvalidTask, match="the queue 'post' is no lane of the policy"):
            declared.double.using(queue_name="post").enqueue(1)
        assert not IOJob.objects.exists()
        assert declared.double.using(queue_name="low").enqueue(1).id


def test_what_enqueue_returns_is_what_the_store_has() -> None:
    for result in (declared.double.enqueue(3, times=2), declared.where.enqueue("here")):
        assert result == default_task_backend.get_result(result.id)
        assert result.enqueued_at == IOJob.objects.get(pk=result.id).queued_at


def test_a_result_outlives_changes_of_the_settings() -> None:
    result = declared.double.using(queue_name="mail").enqueue(1)
    with override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["default"]}}):
        again = default_task_backend.get_result(result.id)
        assert (again.task.queue_name, again.status) == ("mail", Status.READY)
    gone = declared.double.using(backend="retrying").enqueue(1)
    with override_settings(TASKS={"default": {"BACKEND": BACKEND}}):
        assert default_task_backend.get_result(gone.id).backend == "default"


def test_a_result_names_its_own_backend_whoever_reads_it() -> None:
    result = declared.double.using(backend="retrying").enqueue(1)
    again = default_task_backend.get_result(result.id)
    assert (again.backend, again.task.backend) == ("retrying", "retrying")
    assert again == result


@pytest.mark.parametrize("result_id", ["", "1\0", "\ud800", "x" * 10_000, "018f0000-0000-7000-8000-000000000000"])
def test_an_id_that_no_job_has_is_a_result_that_does_not_exist(result_id: str) -> None:
    with transaction.atomic():
        with pytest.raises(exceptions.TaskResultDoesNotExist):
            default_task_backend.get_result(result_id)
        assert IOJob.objects.count() == 0  # The transaction goes on.


def test_a_cancelled_job_is_failed_with_an_error_that_says_so() -> None:
    result = declared.double.enqueue(1)
    queue().cancel_jobs([result.id])
    result.refresh()
    assert result.status == Status.FAILED
    [error] = result.errors
    assert error.exception_class is JobCancelled
    assert "cancelled" in error.traceback


def test_a_task_is_looked_up_only_where_the_project_has_tasks() -> None:
    # S-24
    result = declared.double.enqueue(1)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table('job')} SET task = 'antigravity.fly'")
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        default_task_backend.get_result(result.id)
    assert "antigravity" not in sys.modules


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises((TypeError, ValueError)):
        declared.give.enqueue(object())
    assert not IOJob.objects.exists()


def test_a_result_that_does_not_exist_or_is_of_another_task() -> None:
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        default_task_backend.get_result("123")
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        default_task_backend.get_result(str(tasks.add(1)))
    with pytest.raises(exceptions.TaskResultMismatch):
        declared.give.get_result(declared.double.enqueue(1).id)


def test_a_task_is_part_of_the_transaction() -> None:
    # R2.72
    with transaction.atomic():
        result = declared.double.enqueue(1)
        assert declared.double.get_result(result.id).status == Status.READY
        transaction.set_rollback(True)
    with pytest.raises(exceptions.TaskResultDoesNotExist):
        result.refresh()


def test_the_async_verbs() -> None:
    async def use() -> str:
        result = await declared.adouble.aenqueue(2)
        await result.arefresh()
        return (await declared.adouble.aget_result(result.id)).status

    assert async_to_sync(use)() == "READY"


def test_a_signal_tells_of_an_enqueued_task() -> None:
    told: list[str] = []

    def hear(task_result: Any, **_: Any) -> None:
        told.append(task_result.id)

    task_enqueued.connect(hear)
    try:
        result = declared.double.enqueue(1)
    finally:
        task_enqueued.disconnect(hear)
    assert told == [result.id]


def test_options_are_checked_and_used() -> None:
    def with_options(**options: Any) -> Any:
        return {"default": {"BACKEND": "headway.integrations.django.HeadwayBackend", "OPTIONS": options}}

    with override_settings(TASKS=with_options(lanes={0: "high", -100: "low"})):
        assert [task_backends["default"].lane(number) for number in (5, 0, -1)] == ["high", "high", "low"]
    with (
        override_settings(TASKS=with_options(lane={})),
        pytest.raises(ImproperlyConfigured, match="lanes"),
    ):
        _ = task_backends["default"]


def test_a_worker_learns_of_all_tasks_that_are_imported() -> None:
    known = adopt_django_tasks()
    assert declared.double.module_path in known
    assert declared.adouble.module_path in known
