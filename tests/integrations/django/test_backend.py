"""Django Tasks on the project's queue: what the framework promises of any backend that keeps results."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from headway.integrations.django import HeadwayBackend
from headway.integrations.django.loading import adopt_django_tasks
from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import both
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
