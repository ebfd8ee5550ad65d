"""Tests of a project: jobs of one test do not reach the next, and jobs run without a worker."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase
from django.test.utils import setup_test_environment, teardown_test_environment

from headway.core.policy.enforced import PauseSet
from headway.integrations.django import queue, testing
from headway.integrations.django.models import IOJob
from headway.integrations.django.testing import arun_jobs, run_jobs
from tests.integrations.django.conftest import both, table, wait_until
from tests.integrations.django.names import Status
from tests.integrations.django.shop import django_tasks_here as declared
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order

pytestmark = [pytest.mark.xdist_group("django"), both]


def end_test(*, serialized: bool = False) -> None:
    """Clean up as Django does after each test of a TransactionTestCase."""

    class Case(TransactionTestCase):
        databases = {"default"}  # noqa: RUF012
        serialized_rollback = serialized

        def runTest(self) -> None: ...

    if serialized:
        connection._test_serialized_contents = "[]"
    try:
        Case()._fixture_teardown()
    finally:
        if serialized:
            del connection._test_serialized_contents
            call_command("migrate", verbosity=0, database="default")  # Permissions, for the tests of other modules.
        ContentType.objects.clear_cache()


def rows() -> dict[str, int]:
    """Return the number of rows about jobs in each table that has any."""
    found = {}
    with connection.cursor() as cursor:
        for name in ("job", "ready", "delayed", "lease", "outcome", "attempt", "transient", "unique_key", "idempotency",
                     "park", "rate", "expiry"):  # fmt: skip
            cursor.execute(f"SELECT count(*) FROM {table(name)}")
            found[name] = cursor.fetchone()[0]
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize("serialized", [False, True])
def test_a_transaction_test_case_leaves_no_jobs(serialized: bool) -> None:
    Order.objects.create(article="book")
    tasks.add(1)
    tasks.fetch.using(delay=60)(1)
    tasks.touch(1)
    tasks.add.using(idempotency_key="k", tenant="acme", expires=60)(2)
    cancelled = str(tasks.add(3))
    queue().cancel_jobs([cancelled])
    queue().pause(lane="low")
    assert {"job", "ready", "delayed", "outcome", "transient", "unique_key", "idempotency"} <= rows().keys()
    end_test(serialized=serialized)
    assert (rows(), Order.objects.count()) == ({}, 0)
    assert queue().paused() == PauseSet()
    assert IOJob.objects.get(pk=tasks.add.using(idempotency_key="k", tenant="acme")(5)).status == "pending"
    assert IOJob.objects.get(pk=tasks.fetch(1)).status == "pending"


def test_a_flush_leaves_the_jobs_of_other_projects_in_the_database() -> None:
    tasks.add(1)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT namespace_id FROM {table('namespace')} WHERE name = 'default'")
        mine = cursor.fetchone()[0]
        cursor.execute(f"UPDATE {table('job')} SET namespace_id = -1")
        tasks.add(2)
        call_command("flush", interactive=False, verbosity=0, database="default")
        cursor.execute(f"SELECT namespace_id FROM {table('job')}")
        assert cursor.fetchall() == [(-1,)]
    assert mine > 0


def test_migrating_deletes_nothing() -> None:
    job_id = tasks.add(1)
    call_command("migrate", verbosity=0, database="default")
    assert IOJob.objects.get(pk=job_id).status == "pending"


# ---------------------------------------------------------------------- running jobs without a worker


class _RolledBack:
    """The transaction and environment of a ``TestCase``."""

    def __init__(self) -> None:
        self._atomic: Any = transaction.atomic()

    def __enter__(self) -> None:
        setup_test_environment()
        self._atomic.__enter__()

    def __exit__(self, *problem: Any) -> None:
        transaction.set_rollback(True)
        self._atomic.__exit__(None, None, None)
        teardown_test_environment()


@pytest.fixture(params=["rolled back", "committed"])
def around(request: pytest.FixtureRequest) -> Any:
    return _RolledBack() if request.param == "rolled back" else contextlib.nullcontext()


def test_jobs_run_in_the_transaction_of_the_test(around: Any) -> None:
    # R2.52
    with around:
        order = Order.objects.create(article="book")
        jobs: list[Any] = [
            tasks.handle.enqueue(order.pk),
            tasks.ahandle.enqueue(order.pk),
            tasks.submit_from_a_job.enqueue(20),
        ]
        ran = run_jobs()
        order.refresh_from_db()
        assert order.handled_by == "a coroutine"
        assert [IOJob.objects.get(pk=job.id).status for job in jobs] == ["done"] * 3
        assert IOJob.objects.get(pk=IOJob.objects.get(pk=jobs[2].id).result).result == 20
        assert (len(ran.completed), ran.failed, ran.retried, ran.attempts) == (4, [], [], 4)
        assert run_jobs().attempts == 0
    if isinstance(around, _RolledBack):
        assert (rows(), Order.objects.count()) == ({}, 0)


def test_every_verb_sees_the_transaction_of_the_test() -> None:
    with _RolledBack():
        first, second = tasks.add.enqueue(1), tasks.add.enqueue(2)
        assert first.status() == "queued"
        assert queue().read_stats().lanes["medium"].waiting == 2
        assert [reason.code for reason in second.why()] != []
        second.cancel()
        run_jobs()
        assert (first.result(timeout=1), second.status()) == (1, "cancelled")
        assert second.retry() == "queued"
        assert run_jobs().attempts == 1
    assert rows() == {}


def test_delayed_jobs_and_retries_run_when_the_time_may_pass(around: Any) -> None:
    with around:
        later = tasks.add.using(delay=3600).enqueue(1)
        failing = tasks.fail.enqueue("no such paper")
        ran = run_jobs()
        assert [job.id for job in ran.retried] == [failing.id]
        assert IOJob.objects.get(pk=later.id).status == "pending"
        ran = run_jobs(advance=True)
        assert ([job.id for job in ran.completed], [job.id for job in ran.failed]) == ([later.id], [failing.id])
        job = IOJob.objects.get(pk=failing.id)
        assert (job.status, job.state, job.history.count()) == ("error", "dead_letter", 2)


def test_an_error_of_a_task_can_be_raised_in_the_test(around: Any) -> None:
    with around:
        job = tasks.fail.enqueue("no such paper")
        with pytest.raises(ValueError, match="no such paper"):
            run_jobs(raise_errors=True)
        assert IOJob.objects.get(pk=job.id).last_error == "ValueError: no such paper"


def test_an_error_in_the_database_fails_the_job_and_not_the_test(around: Any) -> None:
    with around:
        job = tasks.break_the_database.enqueue()
        run_jobs(advance=True)
        assert IOJob.objects.get(pk=job.id).state == "dead_letter"
        assert IOJob.objects.get(pk=job.id).last_error.startswith("django.db.utils.")


def test_tasks_of_django_tasks_run_with_their_signals(around: Any) -> None:
    with around:
        good, bad = declared.double.enqueue(3), declared.explode.enqueue()
        coroutine, context = declared.adouble.enqueue(2), declared.where.enqueue("here")
        run_jobs()
        for result in (good, bad, coroutine, context):
            result.refresh()
        assert (good.return_value, coroutine.return_value) == (6, 4)
        assert context.return_value == {"attempt": 1, "id": context.id, "text": "here"}
        assert (bad.status, [error.exception_class for error in bad.errors]) == (Status.FAILED, [KeyError])
        told = {order.article for order in Order.objects.filter(article__startswith="finished")}
        assert {f"finished {good.id} SUCCESSFUL", f"finished {bad.id} FAILED KeyError"} <= told


def test_transient_jobs_run_once_their_callbacks_have(around: Any) -> None:
    with around:
        order = Order.objects.create(article="book")
        with TestCase.captureOnCommitCallbacks(execute=True):
            tasks.touch.enqueue(order.pk)
        assert run_jobs().attempts == 1
        order.refresh_from_db()
        assert order.handled_by == "touched"
    if isinstance(around, _RolledBack):
        assert rows() == {}


def test_limits_and_uniqueness_hold_as_in_a_worker(around: Any, tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    queue().submitter.declared.clear()
    with around:
        limited: list[Any] = [tasks.one_at_a_time.enqueue(str(tmp_path)) for _ in range(3)]
        first, second = tasks.fetch.enqueue(7), tasks.fetch.enqueue(7)
        assert second.deduplicated
        run_jobs()
        assert [IOJob.objects.get(pk=job.id).status for job in (*limited, first)] == ["done"] * 4
        assert not tasks.fetch.enqueue(7).deduplicated
    # What a rolled back test has declared is declared again by the next.
    assert (tasks.one_at_a_time.name in queue().submitter.declared) is not isinstance(around, _RolledBack)


def test_an_async_test_runs_jobs_too() -> None:
    async def use() -> Any:
        job = await tasks.add.aenqueue(20, 2)
        await arun_jobs()
        return (await IOJob.objects.aget(pk=job.id)).result

    assert async_to_sync(use)() == 22


def test_a_handle_is_awaited_in_the_transaction_of_an_async_test() -> None:
    async def use() -> tuple[str, ...]:
        job, other = await tasks.add.aenqueue(20, 2), await tasks.add.using(delay=60).aenqueue(1)
        try:
            before = await job.astatus()
            await other.acancel()
            await arun_jobs()
            assert await job.aresult(timeout=1) == 22
            return before, await job.astatus(), await other.astatus()
        finally:
            await queue().client.close()

    with _RolledBack():
        assert async_to_sync(use)() == ("queued", "completed", "cancelled")


def test_a_transient_job_of_a_test_leaves_no_connection_open() -> None:
    def sessions() -> int:
        with connection.cursor() as cursor:
            if connection.vendor == "sqlite":
                return 0
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            return int(cursor.fetchone()[0])

    before = sessions()
    setup_test_environment()
    try:
        with transaction.atomic():
            tasks.touch(1)
    finally:
        teardown_test_environment()
    wait_until(lambda: sessions() <= before)


def test_jobs_that_never_end_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(testing, "ATTEMPTS_MAX", 5)
    tasks.submit_itself.enqueue()
    with pytest.raises(RuntimeError, match="5 attempts"):
        run_jobs()
