"""A project's own tests: what one of them submits does not reach the next, and jobs run without a worker."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import pytest
from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connection
from django.test import TransactionTestCase

from headway.core.policy.rules import Paused
from headway.integrations.django import queue
from headway.integrations.django.models import IOJob
from tests.integrations.django.conftest import both, table
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order

pytestmark = [pytest.mark.xdist_group("django"), both]


def end_test(*, serialized: bool = False) -> None:
    """Do what Django does after each test of a TransactionTestCase."""

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
    """Count the rows that tell of jobs, in every table that has any."""
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
    assert queue().paused() == Paused()
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
