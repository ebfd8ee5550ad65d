"""The Django project that moves from Celery to Headway: its own tests pass at each of the three steps."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import wait_until
from tests.servers import Valkey

PROJECT = Path(__file__).parents[2] / "examples" / "celery-django"
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "HEADWAY"))}
CELERY = ("celery", "-A", "shop", "worker", "--loglevel", "INFO", "--pool", "solo", "-Q", "celery,invoices")
HEADWAY = ("headway", "worker", "--celery", "shop", "--slots", "2")

ORDERS = """
import django; django.setup()
from orders.models import Order
from orders.tasks import invoice
for customer in {customers}:
    invoice.delay(Order.objects.create(customer=customer).pk, customer)
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    server = Valkey(tmp_path_factory.mktemp("broker"))
    server.start()
    yield server
    server.kill()


class Step:
    """The project at one step, with its database in a folder of its own."""

    def __init__(self, settings: str, folder: Path, broker: Valkey) -> None:
        self.folder = folder
        self._environment = {
            **OUTSIDE,
            "DJANGO_SETTINGS_MODULE": settings,
            "BROKER_URL": f"{broker.url}/0",
            "SHOP_DATA": str(folder),
            "PYTHONDONTWRITEBYTECODE": "1",
        }

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/headway.db"

    def jobs(self) -> list[dict[str, Any]]:
        """Return all jobs that Headway has."""
        listed = json.loads(self.run("-m", "headway", "jobs", "--store", self.store, "--json"))
        found: list[dict[str, Any]] = listed["items"]
        return found

    def invoiced(self) -> list[str]:
        """Return the customers of the invoices in the order in which they were written."""
        with closing(sqlite3.connect(self.folder / "shop.sqlite3")) as database:
            query = "SELECT customer FROM orders_order WHERE invoiced_at IS NOT NULL ORDER BY invoiced_at"
            return [customer for (customer,) in database.execute(query)]

    def run(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=PROJECT,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=150,
            check=False,
        )
        log = "\n".join(path.read_text() for path in self.folder.glob("*.log"))
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{log}"
        return done.stdout

    @contextmanager
    def worker(self, words: tuple[str, ...], ready: str) -> Iterator[None]:
        """Run a worker of the project. Yields once its log says that it is ready."""
        path = self.folder / f"{words[0]}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=PROJECT,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            wait_until(lambda: ready in path.read_text() or process.poll() is not None, within=60)
            assert process.poll() is None, path.read_text()
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(30)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def step(request: pytest.FixtureRequest, tmp_path: Path, broker: Valkey) -> Step:
    broker.ask("FLUSHALL")
    step = Step(request.param, tmp_path, broker)
    step.run("manage.py", "migrate", "-v", "0")
    return step


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", ["shop.settings"], indirect=True)
def test_before_the_move_celery_runs_all_tasks(step: Step) -> None:
    with step.worker(CELERY, " ready."):
        step.run("-m", "unittest", "tests")
    assert not (step.folder / "headway.db").exists()


@pytest.mark.proof  # The next test runs the same with a policy.
@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", ["shop.settings_adopted"], indirect=True)
def test_adopted_tasks_run_on_headway_and_the_others_on_celery(step: Step) -> None:
    with step.worker(CELERY, " ready."), step.worker(HEADWAY, "worker.up"):
        step.run("-m", "unittest", "tests")
    assert {job["task"] for job in step.jobs()} == {"orders.tasks.invoice", "orders.tasks.mail"}
    assert "reports.count" in (step.folder / "celery.log").read_text()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("step", ["shop.settings_adopted"], indirect=True)
def test_customers_take_turns_once_the_policy_names_them(step: Step) -> None:
    step.run("-c", ORDERS.format(customers=["first"]))
    step.run("-m", "headway", "policy", "apply", "policy.toml", "--store", step.store)
    step.run("-c", ORDERS.format(customers=[*["big"] * 8, "small"]))
    assert {job["tenant"] for job in step.jobs()} == {None, "big", "small"}
    with step.worker(CELERY, " ready."), step.worker(HEADWAY, "worker.up"):
        step.run("-m", "unittest", "tests")
        wait_until(lambda: step.invoiced().count("big") == 8)
    assert step.invoiced().index("small") < 5  # Without the policy it comes after all others.
