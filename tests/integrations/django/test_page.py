"""The steps of the Django page lead from an empty project to a running job."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.conftest import postgres
from tests.integrations.django.conftest import KINDS, ROOT, Worker, wait_until
from tests.shared_file import connect

pytestmark = [pytest.mark.xdist_group("django"), pytest.mark.slow]

PAGE = (ROOT / "docs" / "how-to" / "django.md").read_text()
DATABASE = "django_page"


class Project:
    """A folder with a project, created by the commands and files of the page."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        outside = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "HEADWAY"))}
        self.environment = {**outside, "PYTHONWARNINGS": "ignore"}

    def run(self, *words: str, errors: bool = False) -> str:
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=50
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + (done.stderr if errors else "")

    def start_worker(self) -> Worker:
        path = self.folder / "worker.log"
        with path.open("wb") as file:
            command = [sys.executable, "manage.py", "run_ioqueue"]
            process = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=file, stderr=file)
        return Worker(process, path)


def files_of_the_page(kind: str) -> list[tuple[str, str]]:
    """Return path and text of the files that the page shows for a kind of database. The first line has the path."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    blocks = [block for block in blocks if kind == "postgresql" or "backends.postgresql" not in block]
    return [(block.partition("\n")[0].removeprefix("# "), block) for block in blocks]


@pytest.fixture
def project(tmp_path: Path, kind: str) -> Project:
    assert "django-admin startproject shop\ncd shop\npython manage.py startapp orders\n" in PAGE
    outer = Project(tmp_path)
    outer.run("-m", "django", "startproject", "shop")
    made = Project(tmp_path / "shop")
    made.run("manage.py", "startapp", "orders")
    for path, text in files_of_the_page(kind):
        with (made.folder / path).open("a" if path.endswith("settings.py") else "w") as file:
            file.write(text)
    if kind == "postgresql":
        server = postgres()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
            connection.execute(f"CREATE DATABASE {DATABASE}")
        with (made.folder / "shop" / "settings.py").open("a") as file:
            place = {"HOST": "127.0.0.1", "PORT": str(server.port), "USER": "postgres", "NAME": DATABASE}
            file.write(f"DATABASES['default'] |= {place!r}\n")
    return made


def job_in(project: Project, kind: str, job_id: str) -> tuple[str, object]:
    """Read the status and result of a job from the view, as any program may."""
    asked = f"SELECT status, result FROM ioqueue_iojob WHERE id = '{job_id}'"
    if kind == "sqlite":
        with contextlib.closing(connect(project.folder / "db.sqlite3")) as raw:
            status, result = raw.execute(asked).fetchone()
            return status, result and json.loads(result)
    with psycopg.connect(f"{postgres().url.removesuffix('/postgres')}/{DATABASE}", autocommit=True) as connection:
        status, result = connection.execute(asked.encode()).fetchone() or ("", None)
        return status, result


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_project_comes_to_a_running_job(project: Project, kind: str) -> None:
    # R2.22, R2.37, R2.49
    assert "python manage.py migrate\npython manage.py run_ioqueue\n" in PAGE
    project.run("manage.py", "migrate")
    worker = project.start_worker()
    try:
        [submit] = re.findall(r'^python manage.py shell -c "(.*)"$', PAGE, re.MULTILINE)
        said = project.run("manage.py", "shell", "-v", "0", "-c", f"import orders.report, orders.views; {submit}")
        job_id = said.strip().splitlines()[-1]

        wait_until(lambda: job_in(project, kind, job_id) == ("done", "receipt of order 7 sent"), worker)
        assert "OK" in project.run("manage.py", "test", "orders", "-v", "2", errors=True)
        assert re.search(r"^done +1$", project.run("manage.py", "ioqueue_status"), re.MULTILINE)
    finally:
        worker.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(30)
        worker.process.kill()
