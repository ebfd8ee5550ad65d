"""The pages on the five designs name existing things, and their examples run."""

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


@pytest.mark.parametrize(
    "page, words",
    [
        ("fasdis", ["MAX_CONCURRENT_TASKS", "HIGH_PRIORITY_RESERVED", "high_priority_queue", "low_priority_queue"]),
        ("fasdis", ["global_sem", "low_priority_cap", "BRPOP", "GET /task?priority=", "GET /task/{task_id}", "--host"]),
        ("ioqueue", ["IOQUEUE_TASK_MODULES", "IOQUEUE_MAX_CONCURRENCY", "IOQUEUE_VISIBILITY_TIMEOUT_SEC"]),
        ("ioqueue", ["IOQUEUE_POLL_INTERVAL_SEC", "IOQUEUE_REDIS_URL", "IOQUEUE_REDIS_QUEUE_KEY"]),
        ("ioqueue", ["IOQUEUE_MEMORY_BLPOP_TIMEOUT_SEC"]),
        ("ioqueue", ["registry", "IOJob", "DBBroker", "MemoryBroker", "Runner", "dedupe", "persist", "run_ioqueue"]),
        ("duration-queue", ["victim", "lower", "interactive", "task.counter", "task:ID:backend", "queue.finished"]),
        ("duration-queue", ["queue.incoming", "queue.outcoming", "queue.processing", "queue.executing", "backend.set"]),
        ("celery-routing", ["select_best_queue", "decrement_pending", "enqueue_task_to_user_queue", "queue_0:running"]),
        ("celery-routing", ["enqueue_task_with_load_balancing", "reset_queue_counters", "group(", "@shared_task"]),
        (
            "priority-queue",
            ["promotion_interval_seconds", "promotion_batch_size", "low_to_medium_seconds", "queue:dlq"],
        ),
        (
            "priority-queue",
            ["required_capabilities", "effective_priority", "idempotency_key", "max_retries", "Sentinel"],
        ),
    ],
)
def test_a_page_maps_the_words_of_its_design(page: str, words: list[str]) -> None:
    text = (ROOT / "docs" / "origins" / f"{page}.md").read_text()
    assert [word for word in words if word not in text] == []


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
    assert named == {path.name for path in (ROOT / "examples" / "policies").glob("*.toml")}
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


@pytest.mark.parametrize(
    "code, page, words",
    [
        ("R2.36", "ioqueue", "`IOQUEUE_MEMORY_BLPOP_TIMEOUT_SEC` has no effect"),
        ("R2.63", "ioqueue", "without comparing the arguments again"),
        ("R2.65", "ioqueue", "no mode that runs transient jobs at least once"),
        ("R2.70", "ioqueue", "and a maximum number if you want one"),
        ("R3.44", "duration-queue", "A client gets no backend address"),
        ("R3.53", "duration-queue", "Records do not expire after 600 seconds"),
        ("R3.61", "duration-queue", "Records are kept after the end"),
        ("R3.82", "duration-queue", "A drained worker returns its job"),
        ("R3.89", "duration-queue", "Durations have names, not numbers"),
        ("R3.92", "duration-queue", "passed over is counted when you ask"),
        ("R4.48", "celery-routing", "refuses a user without `+fcall`"),
        ("R5.12", "priority-queue", "No longest wait of 30 minutes"),
        ("R5.30", "priority-queue", "UUIDs of version 7"),
        ("R5.36", "priority-queue", "`promotion_batch_size` do not exist"),
        ("R5.72", "priority-queue", "grows after a timeout only"),
    ],
)
def test_what_is_declined_or_changed_is_on_the_page_of_its_design(code: str, page: str, words: str) -> None:
    assert re.search(rf"^\| {re.escape(code)} \|", REQUIREMENTS, re.MULTILINE)
    differences = (ROOT / "docs" / "origins" / f"{page}.md").read_text().partition("## What differs, and why")[2]
    assert words in " ".join(differences.split())
