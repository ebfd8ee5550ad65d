"""A worker in another language: the example's shell script, against a server in its own process."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.command import Cli, RunningCommand, until

SCRIPT = Path(__file__).parents[2] / "examples" / "workers" / "worker.sh"
LINES_MAX = 60

# What the script needs of curl, for machines that have none.
CURL = r"""#!{python}
import re, sys, urllib.error, urllib.request
words, headers, data, url = sys.argv[1:], {{}}, None, None
while words:
    word = words.pop(0)
    if word == "-K":
        headers |= dict(re.findall(r'header = "([^:]*): (.*)"', open(words.pop(0)).read()))
    elif word == "--data-binary":
        data = sys.stdin.buffer.read()
        words.pop(0)
    elif word == "--max-time":
        words.pop(0)
    elif not word.startswith("-"):
        url = word
try:
    request = urllib.request.Request(url, data, headers)
    sys.stdout.buffer.write(urllib.request.urlopen(request, timeout=60).read())
except urllib.error.HTTPError as problem:
    sys.exit(f"curl: (22) The requested URL returned error: {{problem.code}}")
except OSError as problem:
    sys.exit(f"curl: (7) {{problem}}")
"""


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture
def server(cli: Cli) -> Iterator[RunningCommand]:
    started = cli.start("serve", "--port", "0", "--log", "json", HEADWAY_HEARTBEAT="1", HEADWAY_DEAD_AFTER="3")
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def http(server: RunningCommand) -> Iterator[httpx.Client]:
    address = server.wait_for("server.up")["address"]
    with httpx.Client(base_url=address, timeout=30) as client:
        until(lambda: _answers(client))
        yield client


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return a PATH with curl, or with a program that replaces it."""
    folders = os.environ["PATH"]
    if shutil.which("curl") is not None:
        return folders
    stand_in = tmp_path / "bin" / "curl"
    stand_in.parent.mkdir()
    stand_in.write_text(CURL.format(python=sys.executable))
    stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
    return f"{stand_in.parent}{os.pathsep}{folders}"


class Script:
    """The running script, in a process group with all programs that it starts."""

    def __init__(self, server: str, path: str, folder: Path, **more: str) -> None:
        self.files = folder / "files"
        self.files.mkdir()
        with (folder / "script.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["sh", str(SCRIPT)],
                env={"PATH": path, "HEADWAY_SERVER": server.rstrip("/"), "TMPDIR": str(self.files)} | more,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        return self.process.wait(20)


@pytest.fixture
def script(http: httpx.Client, path: str, tmp_path: Path) -> Iterator[Script]:
    started = Script(str(http.base_url), path, tmp_path)
    try:
        yield started
    finally:
        started.end(signal.SIGKILL)


def workers(http: httpx.Client) -> dict[str, int]:
    found: dict[str, int] = http.get("/api/v1/queue/stats").json()["workers"]
    return found


def run(http: httpx.Client, **body: Any) -> dict[str, Any]:
    """Submit a task and wait until it has ended."""
    submitted = http.post("/api/v1/tasks", json=body)
    assert submitted.status_code == 201, submitted.text
    task_id = submitted.json()["task_id"]

    def ended() -> dict[str, Any] | None:
        found: dict[str, Any] = http.get(f"/api/v1/tasks/{task_id}").json()
        return found if found["status"] not in ("queued", "executing") else None

    return until(ended)


def test_it_is_short_enough_to_be_read() -> None:
    assert len(SCRIPT.read_text().splitlines()) <= LINES_MAX


def test_a_worker_in_shell_runs_tasks_and_lives_on_heartbeats(http: httpx.Client, script: Script) -> None:
    # R5.1, R5.16, R5.45, R5.46, R5.47, R5.48
    until(lambda: workers(http)["active"] == 1)
    awkward = {
        "text": 'quotes " and \\ and , "timeout_seconds": 5',
        "parameters": {"timeout_seconds": 7, "fence": "00", "deep": [{"task_id": "x"}]},
        "ä": "日本 & * $HOME `id` 'single' %s",
        "number": 1.5,
    }
    done = run(http, task_type="echo", parameters=awkward, required_capabilities=["shell"])
    assert (done["status"], done["result"]) == ("completed", awkward)
    failed = run(http, task_type="other", max_retries=0)
    assert (failed["status"], failed["error"]["type"]) == ("dead_letter", "UnknownTask")
    later = datetime.now(UTC) + timedelta(seconds=4)  # By then it would be dead, had it said nothing.
    late = run(http, task_type="echo", parameters={}, run_after=later.isoformat())
    assert late["assigned_worker_id"] == done["assigned_worker_id"]
    assert script.end() == 0
    assert until(lambda: workers(http)["active"] == 0)
    assert not list(script.files.iterdir())


def test_a_worker_in_shell_that_was_taken_for_dead_registers_anew(http: httpx.Client, script: Script) -> None:
    # R5.58
    until(lambda: workers(http)["active"] == 1)
    first = run(http, task_type="echo")["assigned_worker_id"]
    assert http.post(f"/internal/workers/{first}/drain", json={"leave": True}).status_code == 200
    second = run(http, task_type="echo")["assigned_worker_id"]
    assert second != first


def _answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_the_worker_of_the_how_to_runs_tasks_and_sends_heartbeats(cli: Cli, server: RunningCommand) -> None:
    # R5.45 to R5.48: in plain Python, as the page has it.
    page = (SCRIPT.parents[2] / "docs" / "how-to" / "write-a-worker-in-any-language.md").read_text()
    code = page.partition("```python\n")[2].partition("```")[0]
    address = server.wait_for("server.up")["address"]
    (cli.folder / "worker.py").write_text(code.replace("http://127.0.0.1:8000", address))
    with httpx.Client(base_url=f"{address}/api/v1", timeout=30) as http:
        ids = []
        for seconds in (4, 0, 0):  # The first takes longer than a worker may be silent.
            body = {"task_type": "resize", "parameters": {"seconds": seconds}, "max_retries": 0}
            ids.append(http.post("/tasks", json=body).json()["task_id"])
        with (cli.folder / "worker.err").open("wb") as errors:
            worker = subprocess.Popen([sys.executable, "worker.py"], cwd=cli.folder, stderr=errors)
        try:
            for task_id in ids:
                with http.stream("GET", f"/tasks/{task_id}/events") as events:
                    assert "event: finished" in events.read().decode()
            found = [http.get(f"/tasks/{task_id}").json() for task_id in ids]
            assert [(task["status"], task["result"]) for task in found] == [("completed", {"done": "resize"})] * 3
            assert [task["retry_count"] for task in found] == [0, 0, 0]
            assert worker.poll() is None
        finally:
            worker.kill()
            worker.wait()
    assert (cli.folder / "worker.err").read_text() == ""
