"""``--reload`` restarts a worker with the present source."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway import Headway
from headway.worker.autoreload import changed_file, source_times

SOURCE = """
from headway import Headway

app = Headway()


@app.task
async def version() -> int:
    return {number}
"""

PATIENCE = 60.0


def wait_until(what: Callable[[], object], log: Path | None = None) -> None:
    ends = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < ends, "not in time" if log is None else log.read_text()
        time.sleep(0.02)


def write(path: Path, text: str, seconds: float) -> None:
    """Write a file with this modification time, because two quick writes may get the same one."""
    path.write_text(text)
    os.utime(path, (seconds, seconds))


def test_a_change_is_a_file_that_is_new_gone_or_written(tmp_path: Path) -> None:
    (tmp_path / "package" / "__pycache__").mkdir(parents=True)
    (tmp_path / ".venv").mkdir()
    for name in ("tasks.py", "package/more.py", "headway.toml", "notes.txt", "package/__pycache__/x.py", ".venv/y.py"):
        write(tmp_path / name, "", 1_000)
    seen = source_times(tmp_path)
    assert sorted(Path(path).name for path in seen) == ["headway.toml", "more.py", "tasks.py"]
    assert changed_file(seen, source_times(tmp_path)) is None
    write(tmp_path / "package" / "more.py", "", 2_000)
    assert changed_file(seen, source_times(tmp_path)) == str(tmp_path / "package" / "more.py")
    seen = source_times(tmp_path)
    (tmp_path / "new.py").touch()
    assert changed_file(seen, source_times(tmp_path)) == str(tmp_path / "new.py")
    seen = source_times(tmp_path)
    (tmp_path / "tasks.py").unlink()
    assert changed_file(seen, source_times(tmp_path)) == str(tmp_path / "tasks.py")
    assert source_times(tmp_path / "nowhere") == {}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "worker.log"


@pytest.fixture
def worker(tmp_path: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    write(tmp_path / "tasks.py", SOURCE.format(number=1), 1_000)
    outside = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY")}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "headway", "worker", "tasks:app", "--reload"],
            cwd=tmp_path,
            env={**outside, "HEADWAY_STORE": f"sqlite:///{tmp_path}/jobs.db"},
            stdout=file,
            stderr=file,
        )
    yield process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()


@pytest.mark.timeout(180)
def test_a_worker_runs_the_source_as_it_is_now(worker: subprocess.Popen[bytes], tmp_path: Path, log: Path) -> None:
    with Headway(f"sqlite:///{tmp_path}/jobs.db") as app:

        @app.task(name="tasks.version")
        async def version() -> int:
            return 0

        assert version.enqueue().result(timeout=PATIENCE) == 1
        write(tmp_path / "tasks.py", "def broken(:\n", 2_000)
        wait_until(lambda: "worker.reloading" in log.read_text(), log)
        wait_until(lambda: "SyntaxError" in log.read_text(), log)  # It waits for the next change.
        write(tmp_path / "tasks.py", SOURCE.format(number=2), 3_000)
        assert version.enqueue().result(timeout=PATIENCE) == 2
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    assert "Traceback" not in log.read_text().split("worker.reloading")[-1]
