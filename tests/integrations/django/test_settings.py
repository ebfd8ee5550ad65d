"""The ``IOQUEUE_*`` settings: names, defaults, and the messages of ``manage.py check``."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.test import override_settings

from headway.integrations.django.address import address_of
from headway.integrations.django.conf import PREFIX, Options, read_options
from headway.integrations.django.loading import load_task_modules
from headway.integrations.django.management.commands import run_ioqueue
from headway.integrations.django.queue import worker_settings
from headway.stores.postgres.address import read_address
from tests.integrations.django.shop import tasks

pytestmark = pytest.mark.xdist_group("django")

ROOT = Path(__file__).parents[3]

DOCUMENTED: dict[str, Any] = {
    "IOQUEUE_TASK_MODULES": (),
    "IOQUEUE_MAX_CONCURRENCY": 8,
    "IOQUEUE_VISIBILITY_TIMEOUT_SEC": 300,
    "IOQUEUE_POLL_INTERVAL_SEC": 0.5,
    "IOQUEUE_REDIS_URL": "redis://cache:6379/5",
    "IOQUEUE_REDIS_QUEUE_KEY": "ioqueue:memory",
    "IOQUEUE_MEMORY_BLPOP_TIMEOUT_SEC": 5,
}


def found(**changed: Any) -> list[str]:
    """Return the ids of the messages of the checks with these settings."""
    with override_settings(**changed):
        return [message.id for message in run_checks(tags=["ioqueue"])]


def test_every_setting_is_optional_and_has_the_documented_default(monkeypatch: pytest.MonkeyPatch) -> None:
    # R2.30, R2.31, R2.32, R2.33, R2.34, R2.35, R2.36, R2.37
    monkeypatch.setenv("REDIS_URL", "redis://cache:6379")
    options = Options()
    for setting, default in DOCUMENTED.items():
        assert getattr(options, setting.removeprefix(PREFIX).lower()) == default
    with override_settings():
        for setting in [name for name in dir(settings) if name.startswith(PREFIX)]:
            delattr(settings, setting)
        assert read_options() == (options, [])


def test_the_page_for_django_names_every_setting_with_its_default() -> None:
    # R2.31
    page = (ROOT / "docs" / "how-to" / "django.md").read_text()
    rows = dict(re.findall(r"^\| `(IOQUEUE_\w+)` \| ([^|]+) \|", page, re.MULTILINE))
    shown = {f"{PREFIX}{name.upper()}": getattr(Options(), name) for name in Options.__slots__}
    assert rows.keys() == shown.keys()
    for setting, default in shown.items():
        if setting == "IOQUEUE_REDIS_URL":
            assert rows[setting].strip() == "`${REDIS_URL}/5`"
        elif default not in ((), None):
            assert rows[setting].strip() == f"`{default}`"


def test_settings_reach_the_worker() -> None:
    # R2.31, R2.32, R2.33
    options = Options(max_concurrency=3, visibility_timeout_sec=60, poll_interval_sec=2, grace_sec=7)
    told = worker_settings(options)
    assert (told["slots"], told["reserved"], told["dead_after"], told["heartbeat"]) == (3, 0, 60, 20)
    assert (told["poll"], told["grace"]) == (2, 7)


def test_what_is_right_gives_no_message() -> None:
    assert found() == []


@pytest.mark.parametrize(
    "setting, value",
    [
        ("IOQUEUE_MAX_CONCURRENCY", 0),
        ("IOQUEUE_MAX_CONCURRENCY", "8"),
        ("IOQUEUE_VISIBILITY_TIMEOUT_SEC", -1),
        ("IOQUEUE_POLL_INTERVAL_SEC", True),
        ("IOQUEUE_TASK_MODULES", "shop.tasks"),
        ("IOQUEUE_NAMESPACE", ""),
        ("IOQUEUE_STORE", "nowhere"),
    ],
)
def test_a_wrong_value_is_an_error(setting: str, value: object) -> None:
    assert found(**{setting: value}) == ["ioqueue.E001"]


def test_a_namespace_that_is_none_is_an_error() -> None:
    assert found(IOQUEUE_NAMESPACE="a b") == ["ioqueue.E002"]


def test_a_setting_that_does_not_exist_is_a_warning_that_names_the_nearest() -> None:
    with override_settings(IOQUEUE_MAX_CONCURENCY=3):
        [message] = run_checks(tags=["ioqueue"])
    assert message.id == "ioqueue.W001"
    assert "IOQUEUE_MAX_CONCURRENCY" in message.msg


def test_the_settings_for_redis_select_where_transient_jobs_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    # R2.20, R2.34, R2.35: the key keeps queues at one server apart.
    monkeypatch.setenv("REDIS_URL", "redis://user:secret@cache:6379/0?replicas=1")
    assert worker_settings(Options())["transient_store"] is None  # Transient jobs pass through the database.
    with override_settings(IOQUEUE_REDIS_URL="redis://cache/7"):
        assert worker_settings(read_options()[0])["transient_store"] == "redis://cache/7?prefix=ioqueue:memory"
    with override_settings(IOQUEUE_REDIS_QUEUE_KEY="previews"):
        chosen = worker_settings(read_options()[0])["transient_store"]
        assert chosen == "redis://user:secret@cache:6379/5?replicas=1&prefix=previews"


def test_a_redis_that_cannot_be_one_is_an_error() -> None:
    assert found(IOQUEUE_REDIS_URL="redis://cache/5") == []
    assert found(IOQUEUE_REDIS_URL="cache:6379") == ["ioqueue.E001"]


def test_a_database_that_cannot_hold_jobs_is_an_error_that_says_what_works() -> None:
    with override_settings(IOQUEUE_DATABASE="other"):
        [message] = run_checks(tags=["ioqueue"])
        with pytest.raises(ImproperlyConfigured, match="PostgreSQL 13"):
            tasks.add(1)
        with pytest.raises(CommandError, match="unknown"):
            call_command("run_ioqueue", skip_checks=True)
    assert message.id == "ioqueue.E004"
    assert "PostgreSQL 13" in message.hint
    assert found(IOQUEUE_DATABASE="none") == ["ioqueue.E003"]


def test_reloading_runs_the_same_command_without_the_option(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(words: list[str], folder: Path) -> int:
        ran.append(words)
        return 7

    monkeypatch.setattr(run_ioqueue, "run_reloading", run)
    monkeypatch.setattr(sys, "argv", ["manage.py", "run_ioqueue", "--reload", "--slots", "3"])
    monkeypatch.setattr(run_ioqueue, "get_child_arguments", lambda: [sys.executable, *sys.argv])
    with pytest.raises(SystemExit) as ended:
        call_command("run_ioqueue", "--reload", "--slots", "3", skip_checks=True)
    assert (ended.value.code, ran) == (7, [[sys.executable, "manage.py", "run_ioqueue", "--slots", "3"]])


def test_no_change_of_the_models_is_missing_from_the_migrations() -> None:
    call_command("makemigrations", "ioqueue", check=True, dry_run=True, verbosity=0)


def test_without_a_list_every_app_is_asked_for_its_tasks() -> None:
    # R2.23, R2.24
    assert [module.__name__ for module in load_task_modules([])] == ["tests.integrations.django.shop.tasks"]


def test_a_module_in_the_list_that_is_missing_is_an_error() -> None:
    # R2.24
    with pytest.raises(ModuleNotFoundError, match=r"shop\.chores"):
        load_task_modules(["tests.integrations.django.shop.chores"])
    sys.modules.pop("tests.integrations.django.broken_tasks", None)
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        load_task_modules(["tests.integrations.django.broken_tasks"])


@pytest.mark.parametrize(
    "entry, address",
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "me"}, "postgresql://me@db:5433/shop"),
        ({"NAME": "a/b", "HOST": "::1", "USER": "m@e", "PASSWORD": "p:w"}, "postgresql://m%40e:p%3Aw@[::1]/a%2Fb"),
        (
            {"NAME": "shop", "HOST": "/run/pg", "PORT": "5433", "USER": "me", "PASSWORD": "p w"},
            "postgresql:///shop?host=/run/pg&port=5433&user=me&password=p%20w",
        ),
        (
            {"NAME": "shop", "HOST": "db", "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql://db/shop?sslmode=require",
        ),
    ],
)
def test_an_entry_of_databases_is_written_as_an_address(entry: dict[str, Any], address: str) -> None:
    assert address_of(entry) == address
    read_address(address)
