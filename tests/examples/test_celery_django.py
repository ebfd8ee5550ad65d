"""The Django project that moves from Celery to Headway: its own tests pass at each of the three steps."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.faults.conftest import wait_until
from tests.servers import Valkey

PROJECT = Path(__file__).parents[2] / "examples" / "celery-django"
OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "HEADWAY"))}
CELERY = ("celery", "-A", "shop", "worker", "--loglevel", "INFO", "--pool", "solo", "-Q", "celery,invoices")
HEADWAY = ("headway", "worker", "--celery", "shop", "--slots", "2")


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
        if not (self.folder / "headway.db").exists():
            return []
        listed = json.loads(self.run("-m", "headway", "jobs", "--store", self.store, "--json"))
        found: list[dict[str, Any]] = listed["items"]
        return found

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
        """Run a worker of the project, from the moment that its log says it is ready."""
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


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("settings", ["shop.settings", "shop.settings_adopted"])
def test_the_tests_of_the_project_pass_at_each_step(settings: str, tmp_path: Path, broker: Valkey) -> None:
    broker.ask("FLUSHALL")
    step = Step(settings, tmp_path, broker)
    step.run("manage.py", "migrate", "-v", "0")
    with ExitStack() as workers:
        workers.enter_context(step.worker(CELERY, " ready."))
        if settings != "shop.settings":
            workers.enter_context(step.worker(HEADWAY, "worker.up"))
        step.run("-m", "unittest", "tests")
    adopted = {job["task"] for job in step.jobs()}
    assert adopted == (set() if settings == "shop.settings" else {"orders.tasks.invoice", "orders.tasks.mail"})
