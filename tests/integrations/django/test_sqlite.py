"""Jobs in a project's SQLite file: one library, and the caller's own connection and transaction."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, connections, transaction
from django.test import TestCase, override_settings
from django.test.utils import setup_test_environment, teardown_test_environment

from headway import Headway
from headway.core.errors import IdempotencyConflict, StoreError
from headway.integrations.django import queue
from headway.integrations.django.address import store_address
from headway.integrations.django.models import IOJob
from headway.integrations.django.sqlite import path_of
from headway.stores.sqlite import shared_file
from tests.integrations.django.conftest import table, use
from tests.integrations.django.shop import tasks
from tests.integrations.django.shop.models import Order

pytestmark = [
    pytest.mark.xdist_group("django"),
    pytest.mark.parametrize("database", ["sqlite"], indirect=True, scope="module"),
]


def documents() -> list[str]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT name FROM {table('document')} WHERE kind = 'rules'")
        return [name for (name,) in cursor.fetchall()]


def found() -> list[str]:
    return [message.id for message in run_checks(tags=["ioqueue"])]


def test_the_tables_are_beside_the_projects_own_and_the_file_keeps_a_log() -> None:
    with connection.cursor() as cursor:
        names = connection.introspection.table_names(cursor)
        cursor.execute("PRAGMA journal_mode")
        assert cursor.fetchone() == ("wal",)
    assert {"shop_order", "headway_job", "headway_lease"} <= set(names)
    assert all(name.partition("_")[0] in ("auth", "django", "headway", "shop") for name in names)
    assert queue().migrate() == []


def test_no_other_sqlite_library_may_open_the_file_in_this_process() -> None:
    path = path_of("default")
    with Headway(store=f"sqlite:///{path}") as app, pytest.raises(StoreError, match="lose commits"):
        app.stats()
    assert tasks.add(1)


def test_a_file_that_the_other_library_has_open_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with Headway(store=f"sqlite:///{path}") as app:
        app.stats()

        def never() -> Any:
            raise AssertionError("it was opened")

        with pytest.raises(StoreError, match="lose commits"):
            shared_file.SharedFile(path, never).prepare()


def test_what_a_transaction_learned_is_forgotten_with_it() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table('document')}")  # A worker may have declared the limits already.
    queue().submitter.declared.clear()
    with transaction.atomic():
        tasks.add.using(priority="high")(1)  # A class that no job has used before.
        tasks.one_at_a_time("nowhere")
        transaction.set_rollback(True)
    assert not any("one_at_a_time" in name for name in documents())
    assert IOJob.objects.get(pk=tasks.add.using(priority="high")(1)).lane == "high"
    tasks.one_at_a_time("nowhere")
    assert any("one_at_a_time" in name for name in documents())


def test_callbacks_that_a_test_runs_before_the_rollback_teach_nothing() -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table('document')}")
    queue().submitter.declared.clear()
    fresh = tasks.add.using(needs={uuid.uuid4().hex})  # A class that has never been used.
    with transaction.atomic():
        with TestCase.captureOnCommitCallbacks(execute=True) as callbacks:
            fresh(1)
            tasks.one_at_a_time("nowhere")
        assert callbacks
        transaction.set_rollback(True)
    job = IOJob.objects.get(pk=fresh(2))
    assert (job.status, job.kwargs) == ("pending", {"left": 2})
    tasks.one_at_a_time("nowhere")
    assert any("one_at_a_time" in name for name in documents())


def test_verbs_are_part_of_the_transaction_that_they_are_called_in() -> None:
    job_id = str(tasks.add(1))
    with transaction.atomic():
        mine = str(tasks.add(2))
        assert queue().read_stats().lanes["medium"].waiting == 2
        assert queue().why(mine) != []
        queue().cancel_jobs([job_id])
        assert IOJob.objects.get(pk=job_id).state == "cancelled"
        transaction.set_rollback(True)
    assert IOJob.objects.get(pk=job_id).state == "queued"
    assert queue().why(mine) == []


def test_a_submit_that_is_refused_leaves_the_callers_transaction_whole() -> None:
    with transaction.atomic():
        Order.objects.create(article="book")
        keyed = tasks.add.using(idempotency_key="same")
        keyed(1)
        with pytest.raises(IdempotencyConflict):
            keyed(2)
        kept = tasks.add(3)
    assert Order.objects.count() == 1
    assert IOJob.objects.filter(pk=kept).exists()


def test_many_threads_submit_at_once() -> None:
    def submit(number: int) -> list[str | None]:
        try:
            return [tasks.add.using(priority=f"lane-{number % 3}" if number % 3 else "high")(n) for n in range(25)]
        finally:
            connections.close_all()

    with override_settings(IOQUEUE_NAMESPACE="default"), ThreadPoolExecutor(6) as threads:
        ids = [job_id for some in threads.map(submit, [0, 3, 6, 9, 12, 15]) for job_id in some]
    assert IOJob.objects.filter(pk__in=ids).count() == len(ids) == 150


def test_a_transaction_that_has_read_before_somebody_wrote_is_told_so_in_djangos_words() -> None:
    with sqlite3.connect(path_of("default"), isolation_level=None) as other:
        connection.ensure_connection()
        connection.connection.execute("BEGIN")  # As transactions begin unless the settings say otherwise.
        try:
            connection.connection.execute("SELECT count(*) FROM shop_order").fetchone()
            other.execute("INSERT INTO shop_order (article, handled_by) VALUES ('theirs', '')")
            with pytest.raises(OperationalError, match="transaction_mode"):
                tasks.add(1)
        finally:
            connection.connection.execute("ROLLBACK")
    other.close()
    assert tasks.add(1)


@pytest.fixture
def entry(database: str) -> Iterator[dict[str, Any]]:
    """Yield the settings of the database, which a test may change."""
    before = dict(connections.settings["default"])
    yield dict(before)
    if connection.connection is not None:
        connection.connection.close()  # Django itself leaves a database in memory open.
        connection.connection = None
    use({name: before[name] for name in ("ENGINE", "NAME", "OPTIONS", "TIME_ZONE")})


def test_a_database_in_memory_serves_tests_and_no_worker(entry: dict[str, Any]) -> None:
    use({"NAME": ":memory:"})
    call_command("migrate", verbosity=0, run_syncdb=True)
    with transaction.atomic():
        job_id = str(tasks.add(1))
        queue().cancel_jobs([job_id])
        assert IOJob.objects.get(pk=job_id).status == "error"
        assert queue().read_stats().kept == {"cancelled": 1}
        transaction.set_rollback(True)
    assert not IOJob.objects.exists()
    assert found() == ["ioqueue.W003"]
    setup_test_environment()
    try:
        assert found() == []  # There it is as it should be.
    finally:
        teardown_test_environment()
    with pytest.raises(CommandError, match="in memory"):
        call_command("run_ioqueue", skip_checks=True)


def test_a_file_without_the_tables_says_what_to_do(entry: dict[str, Any], tmp_path: Path) -> None:
    use({"NAME": str(tmp_path / "new.sqlite3")})
    queue().in_force._last_read = -1e9  # As in a process that has just begun.
    with pytest.raises(OperationalError, match=r"manage\.py migrate"):
        tasks.add(1)


def test_an_address_beside_djangos_is_refused() -> None:
    with override_settings(IOQUEUE_STORE="sqlite:///elsewhere.db"):
        assert found() == ["ioqueue.E007"]
        with pytest.raises(ImproperlyConfigured, match="leave out IOQUEUE_STORE"):
            store_address()


def test_checks_tell_of_transactions_that_begin_as_readers_and_of_other_times(entry: dict[str, Any]) -> None:
    assert found() == []
    use({"OPTIONS": {}})
    assert found() == ["ioqueue.W004"]
    use({"OPTIONS": entry["OPTIONS"], "TIME_ZONE": "Europe/Paris"})
    assert found() == ["ioqueue.W005"]


def test_an_sqlite_that_is_too_old_is_named_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    [message] = run_checks(tags=["ioqueue"])
    assert message.id == "ioqueue.E005"
    assert "3.34.1" in message.msg
    assert "3.35 or newer" in message.msg
