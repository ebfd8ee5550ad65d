"""Tasks in any module of a project: workers find them, or name the missing line."""

# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false, reportIndexIssue=false
# (Django brings no types, and what pyright makes of its code is not always so.)

from __future__ import annotations

import importlib
import json
import sys
from io import StringIO

import pytest
from django.core.checks import run_checks
from django.core.management import call_command
from django.test import override_settings

from headway.client.app import CronEntry
from headway.integrations.django import queue
from headway.integrations.django.loading import load_task_modules, module_of_task, task_modules
from tests.integrations.django.conftest import Worker, both, ended, wait_until
from tests.integrations.django.shop import emails
from tests.integrations.django.shop.services import billing

pytestmark = [pytest.mark.xdist_group("django"), both]

SHOP = "tests.integrations.django.shop"


def test_a_worker_imports_the_module_of_a_task_that_nothing_else_imports(worker: Worker) -> None:
    # R2.69
    assert ended(billing.bill(7), worker).result == "billed 7"
    assert ended(billing.bill_apart(8), worker).result == "billed 8 apart"
    assert ended(emails.welcome.enqueue("Ann").id, worker).result == "welcome Ann"
    # Its neighbours in the module are known with it, and the store is told.
    wait_until(lambda: offered() >= {f"task:{SHOP}.services.billing.bill", f"task:{SHOP}.emails.welcome"}, worker)


def offered() -> set[str]:
    stats = queue().read_stats()
    return {offer for worker in stats.workers for offer in worker.offers}


def test_a_task_that_no_module_declares_stays_queued_and_the_status_says_why(worker: Worker) -> None:
    name = f"{SHOP}.emails.goodbye"
    task = queue().task(name=name)(lambda: None)
    job_id = queue().submit(task.call())
    wait_until(lambda: "task.not_found" in worker.log, worker)
    line = next(json.loads(line) for line in worker.log.splitlines() if "task.not_found" in line)
    assert line["task"] == name
    assert line["advice"].endswith(f'IOQUEUE_TASK_MODULES = ["{SHOP}.emails"]')

    def status() -> dict[str, object]:
        told = StringIO()
        call_command("ioqueue_status", "--json", stdout=told)
        values: dict[str, object] = json.loads(told.getvalue())
        return values

    wait_until(lambda: status()["unknown_tasks"] == [name], worker)
    told = StringIO()
    call_command("ioqueue_status", stdout=told, no_color=True)
    assert f"no live worker knows the task {name}" in told.getvalue()
    assert any("knows the task" in text for text in queue().why(str(job_id)))
    del queue().tasks[name]


@pytest.mark.parametrize(
    "name, module",
    [
        (f"{SHOP}.emails.welcome", f"{SHOP}.emails"),
        (f"{SHOP}.services.billing.bill", f"{SHOP}.services.billing"),
        (f"{SHOP}.services.billing.helper", None),  # Not decorated, so no task.
        (f"{SHOP}.services.billing.io_task", None),  # Imported there, not declared.
        (f"{SHOP}.services.nowhere.bill", None),
        (f"{SHOP}.services", None),
        ("os.system", None),  # No part of the project.
        ("subprocess.run", None),
        ("antigravity.fly", None),
        ("django.test.utils.override_settings", None),
        (f"{SHOP}.emails.welcome; import os", None),
        ("..emails.welcome", None),
        ("welcome", None),
        ("", None),
    ],
)
def test_a_name_out_of_the_store_is_imported_only_if_it_is_a_task_of_the_project(name: str, module: str | None) -> None:
    # S-24
    before = set(sys.modules)
    assert module_of_task(name) == module
    assert set(sys.modules) == before


def test_modules_of_the_setting_are_loaded_beside_those_of_the_apps() -> None:
    names = [f"{SHOP}.emails", f"{SHOP}.tasks"]
    assert task_modules(names) == [f"{SHOP}.tasks", f"{SHOP}.emails"]
    assert [module.__name__ for module in load_task_modules(names)] == [f"{SHOP}.tasks", f"{SHOP}.emails"]


def test_the_checks_tell_of_a_task_that_no_worker_will_find() -> None:
    assert importlib.import_module(f"{SHOP}.named").lost.name == "shop.well_named"
    found = [message for message in run_checks(tags=["ioqueue"]) if message.id == "ioqueue.W006"]
    assert ["shop.well_named" in message.msg for message in found] == [True]
    assert found[0].hint.endswith(f'IOQUEUE_TASK_MODULES = ["{SHOP}.named"]')
    with override_settings(IOQUEUE_TASK_MODULES=[f"{SHOP}.named"]):
        assert [message for message in run_checks(tags=["ioqueue"]) if message.id == "ioqueue.W006"] == []
    del queue().tasks["shop.well_named"]
    del sys.modules[f"{SHOP}.named"]


def test_the_checks_tell_of_a_cron_that_no_worker_will_import() -> None:
    # Nothing submits it, so no job leads a worker to its module.
    bill = billing.bill.task
    queue().crons[bill.name] = CronEntry(bill.name, "0 * * * *")
    try:
        found = [message.msg for message in run_checks(tags=["ioqueue"]) if message.id == "ioqueue.W006"]
    finally:
        del queue().crons[bill.name]
    assert [bill.name in text for text in found] == [True]
