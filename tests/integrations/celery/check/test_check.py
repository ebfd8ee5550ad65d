"""``headway celery check`` on projects as people write them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from headway.core.policy.reader import read_policy
from tests.integrations.celery.check.projects import HARD, PLAIN


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, because an imported Celery app remains the current one."""
    return subprocess.run(
        [sys.executable, "-m", "headway", "celery", "check", *words],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if "DJANGO" not in name} | {"COLUMNS": "160"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = write(tmp_path_factory.mktemp("plain"), PLAIN)
    answer = check(folder, "shop", "--json", "--policy", "policy.toml")
    assert answer.returncode == 0, answer.stderr
    return folder, json.loads(answer.stdout)


@pytest.fixture(scope="module")
def hard(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    answer = check(write(tmp_path_factory.mktemp("hard"), HARD), "legacy", "--json")
    assert answer.returncode == 1, answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def found(report: dict[str, Any], status: str) -> dict[tuple[str, str], dict[str, Any]]:
    return {(one["kind"], one["name"]): one for one in report["findings"] if one["status"] == status}


def test_a_usual_project_runs_and_nothing_is_refused(plain: tuple[Path, dict[str, Any]]) -> None:
    _, report = plain
    assert report["ok"]
    assert [task["name"] for task in report["tasks"]] == ["shop.tasks.export", "shop.tasks.mail"]
    assert report["files"] == 3  # Neither tests nor the virtual environment.
    assert not found(report, "refused")
    as_is = set(found(report, "as is"))
    assert {
        ("task option", "bind"), ("task option", "max_retries"), ("task option", "soft_time_limit"),
        ("retry option", "exc"), ("retry option", "countdown"), ("request", "id"), ("canvas", "chain"),
        ("call option", "countdown"), ("exception", "SoftTimeLimitExceeded"), ("signal", "task_failure"),
        ("task method", "s"), ("task method", "si"), ("app", "AsyncResult"), ("result", "state"),
        ("schedule", "crontab"), ("setting", "beat_schedule"), ("setting", "task_routes"),
    } <= as_is  # fmt: skip


def test_what_differs_says_how_and_where(plain: tuple[Path, dict[str, Any]]) -> None:
    _, report = plain
    differs = found(report, "differs")
    assert "over all workers" in differs["task option", "rate_limit"]["note"]
    assert "shop.tasks.export" in differs["task option", "rate_limit"]["places"]
    assert differs["call option", "queue"]["places"] == ["shop/tasks.py:18", "shop.tasks.mail"]
    assert "--max-jobs-per-child" in differs["setting", "worker_max_tasks_per_child"]["note"]
    assert ("setting", "task_acks_late") in differs
    assert {name for kind, name in differs if kind == "task option"} == {"priority", "rate_limit", "time_limit"}


def test_the_proposed_policy_can_be_applied(plain: tuple[Path, dict[str, Any]]) -> None:
    folder, report = plain
    text = (folder / "policy.toml").read_text()
    assert text == report["proposal"]["policy_toml"]
    policy = read_policy(tomllib.loads(text), where="policy.toml")
    export, mail = policy.tasks["shop.tasks.export"], policy.tasks["shop.tasks.mail"]
    assert (export.priority, export.timeout_ms) == ("low", 60_000)  # Queue bulk, time_limit 60.
    assert mail.priority == "high"  # Priority 0 on Redis.
    rate = policy.limits["shop.tasks.export:rate/1m"]
    assert (rate.count, rate.period_ms) == (10, 60_000)
    assert "#   bulk -> low (1 task, its name has the word 'bulk')" in text
    flags = ["--slots 8", "--max-jobs-per-child 100", "--max-memory-per-child 195"]
    assert report["proposal"]["worker_flags"] == flags


def test_what_is_refused_is_named_with_its_reason(hard: dict[str, Any]) -> None:
    assert not hard["ok"]
    refused = found(hard, "refused")
    assert set(refused) == {
        ("schedule", "solar"),
        ("setting", "task_serializer='pickle'"),
        ("task method", "add_to_chord"),
        ("task option", "serializer='pickle'"),
    }
    assert refused["task method", "add_to_chord"]["places"] == ["legacy.py:27", "legacy.reset"]
    assert "workers read its tables" in found(hard, "differs")["schedule", "django_celery_beat"]["note"]
    assert "JSON" in refused["task option", "serializer='pickle'"]["note"]
    assert {task["name"]: task["status"] for task in hard["tasks"]} == {
        "legacy.other": "refused",
        "legacy.reset": "refused",
    }
    assert hard["unreadable"] == ["broken.py"]


def test_base_classes_controls_and_unknown_options_are_listed(hard: dict[str, Any]) -> None:
    assert ("task method", "on_failure") in found(hard, "as is")
    differs = found(hard, "differs")
    assert "only Celery's own workers" in differs["control", "broadcast"]["note"]
    assert "Celery has no such name" in differs["task option", "colour"]["note"]


def test_each_entry_of_the_schedule_has_its_own_verdict(hard: dict[str, Any]) -> None:
    assert {line["name"]: line["status"] for line in hard["schedule"]} == {
        "dawn": "refused",
        "gone": "differs",
        "quick": "differs",
    }
    reset = next(task for task in hard["tasks"] if task["name"] == "legacy.reset")
    assert reset["lane"] == "high"  # Priority 9 on RabbitMQ.


def test_people_read_the_same_report(tmp_path: Path) -> None:
    answer = check(write(tmp_path, HARD), "legacy")
    assert answer.returncode == 1
    shown = " ".join(answer.stdout.split())
    for text in (
        "legacy: 2 tasks",
        "2 use something that is refused",
        "the header of a chord cannot grow",
        "not readable: broken.py",
        "Headway has no solar events",
        'priority = "high"',
        "Start: headway worker --celery legacy",
        "keep its tasks on Celery with adopt(only=…)",
    ):
        assert text in shown


def test_the_settings_of_a_django_project_are_found_under_their_prefix(tmp_path: Path) -> None:
    example = Path(__file__).parents[4] / "examples" / "celery-django"
    answer = check(shutil.copytree(example, tmp_path / "shop"), "shop", "--json")
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    settings = {one["name"] for one in report["findings"] if one["kind"] == "setting"}
    assert {"broker_url", "result_backend", "task_routes"} <= settings
    assert {task["name"]: task["queue"] for task in report["tasks"]} == {
        "orders.tasks.invoice": "invoices",
        "orders.tasks.mail": "celery",
        "reports.count": "celery",
    }


def test_a_project_that_cannot_be_imported_is_an_error(tmp_path: Path) -> None:
    answer = check(write(tmp_path, {"bad.py": "import no_such_package\n"}), "bad")
    assert answer.returncode == 2
    assert "the Celery app bad cannot be imported" in answer.stderr
