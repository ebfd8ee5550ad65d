"""The example project, started as ``make example-django`` starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integrations.django.conftest import ROOT, Worker, wait_until
from tests.servers import free_port

pytestmark = [pytest.mark.xdist_group("django"), pytest.mark.slow]

OUTSIDE = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO", "HEADWAY"))}


def test_the_project_passes_djangos_checks() -> None:
    words = [sys.executable, "examples/django/manage.py", "check", "--fail-level", "WARNING"]
    done = subprocess.run(words, cwd=ROOT, env=OUTSIDE, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def example(tmp_path: Path) -> Iterator[httpx.Client]:
    port, log = free_port(), tmp_path / "example.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "examples/django/start.py"],
            cwd=ROOT,
            env={**OUTSIDE, "PORT": str(port)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    started = Worker(process, log)
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", follow_redirects=True, timeout=30) as client:

        def answers() -> bool:
            assert process.poll() is None, started.log
            try:
                return client.get("/").status_code == 200
            except httpx.TransportError:
                return False

        wait_until(answers, started)
        yield client
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0, started.log


def jobs(client: httpx.Client) -> list[dict[str, Any]]:
    return list(client.get("/jobs/").json()["jobs"])


@pytest.mark.proof
def test_an_order_is_printed_and_seen_on_the_page_and_in_the_admin(example: httpx.Client) -> None:
    token = example.cookies["csrftoken"]
    for _ in range(2):  # The same book is not printed twice while it waits or is printed.
        form = {"title": "Candide", "pages": "40", "csrfmiddlewaretoken": token}
        assert example.post("/order/", data=form).status_code == 200
    assert len(jobs(example)) == 1
    wait_until(lambda: jobs(example)[0]["progress"] > 0)
    wait_until(lambda: jobs(example)[0]["status"] == "done")
    [job] = jobs(example)
    assert job["result"] == "Candide, 40 pages"
    page = example.get("/admin/login/").text
    assert "csrfmiddlewaretoken" in page
    token = example.cookies["csrftoken"]
    who = {"username": "admin", "password": "admin", "csrfmiddlewaretoken": token, "next": "/admin/ioqueue/iojob/"}
    listed = example.post("/admin/login/", data=who).text
    assert job["id"] in listed
    assert "<strong>1</strong> done" in listed
