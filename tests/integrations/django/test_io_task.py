"""``@io_task``: declaring, submitting, and the end of the caller's transaction."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connection, connections, transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings
from django.test.utils import setup_test_environment, teardown_test_environment
from django.utils import timezone

from headway.core.errors import BadCron, ConfigError, NotStored, ResultTimeout
from headway.integrations.django import io_cron, io_task, queue
from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import both, table, wait_until
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order

pytestmark = [pytest.mark.xdist_group("django"), both]


def transients() -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table('transient')}")
        return int(cursor.fetchone()[0])


def test_a_call_makes_a_job_and_gives_its_id() -> None:
    # R2.3, R2.10, R2.17, R2.18, R2.38
    before = timezone.now() - timedelta(seconds=5)
    job_id = tasks.add(1, right=2)
    job = IOJob.objects.get(pk=job_id)
    assert (job.status, job.task_name) == ("pending", "tests.integrations.django.shop.tasks.add")
    assert (job.args, job.kwargs) == ([], {"left": 1, "right": 2})
    assert (job.attempts, job.max_retries, job.last_error, job.result) == (0, 3, "", None)
    assert (job.picked_by, job.picked_at, job.visible_until, job.dedupe_key) == (None, None, None, None)
    assert before < job.queued_at <= job.scheduled_at < timezone.now() + timedelta(seconds=5)


def test_send_is_the_same_as_a_call() -> None:
    # R2.17
    assert IOJob.objects.get(pk=tasks.add.send(1)).kwargs == {"left": 1}


def test_run_calls_the_function_without_a_job() -> None:
    # R2.17, R2.52
    assert tasks.add.run(1, 2) == 3
    assert not IOJob.objects.exists()


def test_a_task_is_named_by_module_and_function_or_as_it_says() -> None:
    # R2.11
    assert tasks.add.name == "tests.integrations.django.shop.tasks.add"
    assert tasks.handle.name == "shop.handle"


def test_a_name_that_another_function_has_is_refused() -> None:
    # R2.4
    with pytest.raises(ConfigError, match=r"shop\.handle"):

        @io_task(name="shop.handle")
        def other() -> None: ...


def test_the_options_have_the_documented_defaults() -> None:
    # R2.12, R2.13, R2.15
    options = tasks.add.task.options
    assert (options.max_retries, options.unique, options.persist) == (3, None, True)
    assert tasks.fetch.task.options.max_retries == 5


@pytest.mark.parametrize("value", [object(), {1, 2}, float("nan"), {1: 2}], ids=["object", "set", "nan", "keys"])
def test_a_payload_that_json_cannot_hold_is_refused_at_once(value: Any) -> None:
    # R2.16, R2.47
    with pytest.raises(ValueError, match="options"):
        tasks.fetch(1, options={"value": value})
    with pytest.raises(ValueError, match="order_id"):
        tasks.touch(value)
    assert not IOJob.objects.exists()


def test_arguments_that_the_function_does_not_take_are_a_type_error() -> None:
    with pytest.raises(TypeError):
        tasks.add(1, 2, 3)  # type: ignore[call-arg]


def test_what_is_rolled_back_never_was() -> None:
    # R2.72
    with transaction.atomic():
        Order.objects.create(article="book")
        job_id = tasks.add(1)
        assert IOJob.objects.filter(pk=job_id).exists()
        transaction.set_rollback(True)
    assert (Order.objects.count(), IOJob.objects.count()) == (0, 0)


def test_a_job_is_seen_by_others_once_its_transaction_is_committed() -> None:
    # R2.72
    def seen_elsewhere() -> int:
        try:
            return int(IOJob.objects.count())
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as elsewhere:
        with transaction.atomic():
            tasks.add(1)
            assert elsewhere.submit(seen_elsewhere).result() == 0
        assert elsewhere.submit(seen_elsewhere).result() == 1


def test_a_savepoint_that_is_rolled_back_takes_only_its_own_jobs_with_it() -> None:
    with transaction.atomic():
        kept = tasks.add(1)
        with transaction.atomic():
            tasks.add(2)
            transaction.set_rollback(True)
    assert [job.pk for job in IOJob.objects.all()] == [kept]


def test_a_transaction_that_is_broken_already_says_so_in_djangos_words() -> None:
    def break_it() -> None:
        with transaction.atomic(savepoint=False), connection.cursor() as cursor:
            cursor.execute("SELECT nothing")

    with transaction.atomic():
        with pytest.raises(DatabaseError):
            break_it()
        with pytest.raises((TransactionManagementError, DatabaseError)):
            tasks.add(1)
        transaction.set_rollback(True)
    assert tasks.add(1)


def test_a_transient_job_waits_for_the_commit_and_gives_no_id() -> None:
    # R2.15, R2.19, R2.72
    with transaction.atomic():
        assert tasks.touch(1) is None
        assert transients() == 0
    assert transients() == 1
    assert not IOJob.objects.exists()


def test_a_transient_job_that_is_rolled_back_is_never_sent() -> None:
    # R2.72
    with transaction.atomic():
        tasks.touch(1)
        transaction.set_rollback(True)
    assert transients() == 0


def test_outside_a_transaction_a_transient_job_is_sent_at_once() -> None:
    # R2.19
    assert tasks.touch(1) is None
    assert transients() == 1


def test_the_same_payload_gives_the_job_that_is_pending() -> None:
    # R2.13, R2.14, R2.61, R2.62
    first = tasks.fetch(7, options={"a": 1, "b": 2})
    assert tasks.fetch(paper_id=7, options={"b": 2, "a": 1}) == first
    assert tasks.fetch(8) != first
    assert tasks.add(1) != tasks.add(1)
    assert IOJob.objects.get(pk=first).dedupe_key.startswith("tests.integrations.django.shop.tasks.fetch:")


def test_after_its_end_the_same_payload_makes_a_new_job() -> None:
    # R2.14
    first = tasks.fetch(7)
    queue().cancel_jobs([str(first)])
    assert IOJob.objects.get(pk=first).status == "error"
    assert tasks.fetch(7) != first


def test_options_of_one_call() -> None:
    # R2.39
    at = timezone.now() + timedelta(hours=1)
    job = IOJob.objects.get(pk=tasks.add.using(run_after=at, priority="high", tenant="acme")(1))
    assert abs(job.scheduled_at - at) < timedelta(milliseconds=2)
    assert (job.status, job.lane, job.tenant) == ("pending", "high", "acme")


def test_a_connection_cannot_be_named() -> None:
    with pytest.raises(ConfigError, match="connection"):
        tasks.add.using(connection=connection)


def test_an_async_view_awaits_asend() -> None:
    async def view() -> str | None:
        return await tasks.add.asend(1, 2)

    job_id = async_to_sync(view)()
    assert IOJob.objects.get(pk=job_id).kwargs == {"left": 1, "right": 2}


def test_an_async_view_awaits_the_methods_of_a_handle() -> None:
    async def view() -> tuple[str, ...]:
        try:
            job = await tasks.add.using(delay=60).aenqueue(1)
            with pytest.raises(ResultTimeout):
                await job.aresult(timeout=0.01)
            before, reasons = await job.astatus(), await job.awhy()
            return before, reasons[0].code, await job.acancel(), [event.kind async for event in job.aevents()][-1]
        finally:
            await queue().client.close()

    assert async_to_sync(view)() == ("queued", "scheduled", "cancelled", "finished")


def test_an_async_view_awaits_the_methods_of_the_queue() -> None:
    async def view() -> list[str]:
        try:
            sent = await queue().aenqueue_many([tasks.add.call(1), tasks.one_at_a_time.call("nowhere")])
            assert {job.id for job in await queue().ajobs()} == {job.id for job in sent}
            return [job.id for job in sent]
        finally:
            await queue().client.close()

    assert {job.status for job in IOJob.objects.filter(pk__in=async_to_sync(view)())} == {"pending"}


def test_on_a_running_loop_a_blocking_call_is_refused_as_the_orm_refuses_it() -> None:
    async def view() -> None:
        tasks.add(1)

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(view())


def test_a_job_cannot_be_written_through_the_model() -> None:
    job = IOJob.objects.get(pk=tasks.add(1))
    with pytest.raises(TypeError, match="read only"):
        job.save()
    with pytest.raises(TypeError, match="read only"):
        job.delete()


def test_jobs_are_asked_for_with_the_orm() -> None:
    # R2.6, R2.51
    one, two = tasks.add(1), tasks.fetch(2, options={"size": {"wide": 3}})
    assert list(IOJob.objects.values_list("pk", flat=True)) == [two, one]
    assert IOJob.objects.get(kwargs__left=1).pk == one
    assert IOJob.objects.get(kwargs__options__size__wide=3).pk == two
    assert IOJob.objects.filter(status="pending", attempts=0).count() == 2


def test_jobs_are_looked_for_in_their_own_database_and_namespace() -> None:
    tasks.add(1)
    assert IOJob.objects.using("default").count() == 1
    with override_settings(IOQUEUE_NAMESPACE="elsewhere"):
        assert IOJob.objects.count() == 0
    with override_settings(IOQUEUE_DATABASE="other"):
        assert IOJob.objects.all().db == "other"


def test_a_payload_with_nul_can_be_looked_at() -> None:
    job = IOJob.objects.get(pk=tasks.fetch(1, options={"text": "a\0b"}))
    assert job.kwargs["options"] == {"text": "a\ufffdb"}


def test_under_djangos_tests_no_connection_stays_open_beside_its_own(database: str) -> None:
    if database == "sqlite":  # There is none but Django's own.
        return

    def connected() -> int:
        with connection.cursor() as cursor:
            ours = "application_name = 'headway' AND datname = current_database()"
            cursor.execute(f"SELECT count(*) FROM pg_stat_activity WHERE {ours}")
            return int(cursor.fetchone()[0])

    queue().read_stats()
    assert connected() > 0
    setup_test_environment()  # What is submitted now is in a database that will be dropped.
    try:
        tasks.add(1)
        tasks.touch(1)
        wait_until(lambda: connected() == 0)
    finally:
        teardown_test_environment()


# ---------------------------------------------------------------------- enqueue, as everywhere in Headway


def test_enqueue_gives_a_handle_and_is_part_of_the_transaction() -> None:
    # R2.17, R2.72
    with transaction.atomic():
        lost = tasks.add.enqueue(1)
        assert IOJob.objects.get(pk=lost.id).kwargs == {"left": 1}
        transaction.set_rollback(True)
    assert not IOJob.objects.filter(pk=lost.id).exists()
    first, second = tasks.fetch.enqueue(7), tasks.fetch.using(priority="low").enqueue(7)
    assert (first.deduplicated, second.deduplicated, first.id) == (False, True, second.id)


def test_a_coroutine_enqueues_too() -> None:
    async def use() -> str:
        return (await tasks.add.aenqueue(3, right=4)).id

    assert IOJob.objects.get(pk=async_to_sync(use)()).kwargs == {"left": 3, "right": 4}


def test_the_handle_of_a_transient_job_says_that_nothing_is_kept() -> None:
    job = tasks.touch.enqueue(1)
    with pytest.raises(NotStored):
        job.status()


def test_a_cron_declared_twice_over_must_have_its_options_with_the_task() -> None:
    with pytest.raises(ConfigError, match="@io_task"):
        io_cron("0 * * * *", priority="low")(tasks.add)
    with pytest.raises(BadCron):
        io_cron("every night")
