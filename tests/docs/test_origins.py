"""The pages on the five designs name things that exist, and their examples run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import httpx
import pytest

from headway.core.policy.reader import read_policy
from headway.server.uvicorn_server import bind
from tests.cli.command import Cli, until

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "origins").glob("*.md"))
REQUIREMENTS = (ROOT / "docs" / "reference" / "requirements.md").read_text()


def test_each_design_has_a_page_with_a_table_and_its_differences() -> None:
    assert {page.stem for page in PAGES} == {
        "index", "fasdis", "ioqueue", "duration-queue", "celery-routing", "priority-queue",
    }  # fmt: skip
    for page in PAGES:
        text = page.read_text()
        if page.stem != "index":
            assert re.search(r"^\| [^|]+ \| Headway \|$", text, re.MULTILINE), page.stem
            assert "## What differs, and why" in text, page.stem


def test_the_names_of_celerys_design_are_importable() -> None:
    module = import_module("headway.integrations.celery")
    page = (ROOT / "docs" / "origins" / "celery-routing.md").read_text()
    for name in (
        "select_best_queue",
        "get_all_queue_loads",
        "get_queue_load",
        "increment_pending",
        "reset_queue_counters",
    ):
        assert f"`{name}" in page
        assert callable(getattr(module, name))


def test_the_policies_that_the_pages_name_can_be_read() -> None:
    named = {name for page in PAGES for name in re.findall(r"examples/policies/([\w-]+\.toml)", page.read_text())}
    assert named == {"fasdis.toml", "durations.toml", "priority-queue.toml"}
    for name in named:
        read_policy(tomllib.loads((ROOT / "examples" / "policies" / name).read_text()), name)


def test_the_fasdis_example_schedules_and_answers(tmp_path: Path) -> None:
    with bind("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    environment = Cli(tmp_path).environment({"HEADWAY_STORE": f"sqlite:///{tmp_path}/jobs.db", "HEADWAY_GRACE": "0"})
    command = [sys.executable, "-m", "uvicorn", "main:app", "--port", str(port)]
    server = subprocess.Popen(command, cwd=ROOT / "examples" / "fasdis", env=environment, stderr=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            until(lambda: _is_ready(client))
            made = client.post("/task", json={"priority": "high", "task_type": "resize"})
            task_id = made.json()["task_id"]
            until(lambda: client.get(f"/task/{task_id}").json()["status"] == "completed")
            assert client.get(f"/api/v1/tasks/{task_id}").json()["result"] == "640 pixels wide"
    finally:
        server.terminate()
        server.wait(20)


def _is_ready(client: httpx.Client) -> bool:
    try:
        return client.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("code", ["R2.36", "R2.65", "R3.44", "R3.53", "R3.82", "R5.36"])
def test_a_declined_requirement_is_listed_with_its_reason(code: str) -> None:
    assert re.search(rf"^\| {re.escape(code)} \|", REQUIREMENTS, re.MULTILINE)
