"""The output of a worker process: it includes the lines of tasks and libraries, and never delays jobs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from headway import Headway, Job
from tests.faults.conftest import tree, wait_until
from tests.worker import logging_jobs

pytestmark = pytest.mark.slow


class LoggingWorker:
    """A store, and a worker whose standard error goes to the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = f"sqlite:///{folder}/headway.db?synchronous=normal"
        self.app = Headway(self.store)
        for name, task in logging_jobs.app.tasks.items():
            options = {field.name: getattr(task.options, field.name) for field in fields(task.options)}
            self.app.task(name=name, **options)(task.fn)
        shutil.copy(logging_jobs.__file__, folder / "logging_jobs.py")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, stderr: int | None = None, **more: Any) -> subprocess.Popen[bytes]:
        with (self.folder / "worker.log").open("ab") as file:
            process: subprocess.Popen[Any] = subprocess.Popen(
                [sys.executable, "-m", "headway", "worker", "logging_jobs:app", *options],
                cwd=self.folder,
                env={**os.environ, "HEADWAY_STORE": self.store},
                stderr=file if stderr is None else stderr,
                **more,
            )
        self._process = process
        return process

    def submit(self, task: str, *args: object) -> Job[object]:
        return self.app.tasks[task].enqueue(*args)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "worker.log").read_text().splitlines()]

    def stop(self) -> int:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(40)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            for pid in reversed(tree(self._process.pid)):
                os.kill(pid, signal.SIGKILL)
            self._process.wait()
        self.app.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[LoggingWorker]:
    made = LoggingWorker(tmp_path)
    yield made
    made.close()


def test_what_tasks_log_arrives_with_their_jobs_whatever_runs_them(place: LoggingWorker) -> None:
    place.start("--log", "json")
    jobs = {task: place.submit(task) for task in ("on_loop", "in_thread", "in_process", "by_context")}
    jobs["thread_of_its_own"] = place.submit("thread_of_its_own")
    for job in jobs.values():
        job.result(timeout=60)
    assert place.stop() == 0
    lines = place.lines()  # Each is one JSON object.
    for task, where in {"on_loop": "loop", "in_thread": "thread", "in_process": "process"}.items():
        said = [line for line in lines if line.get("task") == task and line["event"] == "log.message"]
        assert [line["logger"] for line in said] == ["my.module", "my.module", "py.warnings"]
        assert {(line["job"], line["attempt"]) for line in said} == {(jobs[task].id, 1)}
        assert [line["level"] for line in said] == ["info", "error", "warning"]
        assert (said[0]["message"], said[0]["order"]) == (f"in {where}", 9)
        assert said[1]["message"] == "it failed"
        assert said[1]["traceback"].endswith("ValueError: boom\nof two lines")
        assert "UserWarning: old way" in said[2]["message"]
    (spoken,) = [line for line in lines if line["logger"] == "headway.task"]
    assert (spoken["message"], spoken["order"], spoken["job"]) == ("said 1", 9, jobs["by_context"].id)
    (died,) = [line for line in lines if line["event"] == "thread.crashed"]
    assert died["thread"] == "mine"
    assert died["traceback"].endswith("RuntimeError: alone")


def test_the_level_holds_for_tasks_too(place: LoggingWorker) -> None:
    place.start("--log", "json", "--log-level", "warning")
    for task in ("on_loop", "in_process"):
        place.submit(task).result(timeout=60)
    assert place.stop() == 0
    assert {line["level"] for line in place.lines()} == {"warning", "error"}


def test_handlers_of_the_app_are_respected(place: LoggingWorker) -> None:
    with (place.folder / "logging_jobs.py").open("a") as file:
        file.write('\nlogging.basicConfig(filename="mine.log", level="INFO", format="MINE %(message)s")\n')
    place.start("--log", "json")
    place.submit("on_loop").result(timeout=60)
    assert place.stop() == 0
    assert "MINE in loop" in (place.folder / "mine.log").read_text()
    lines = place.lines()
    assert "job.completed" in [line["event"] for line in lines]
    assert "my.module" not in [line["logger"] for line in lines]


def test_a_standard_error_that_nobody_reads_stops_nothing(place: LoggingWorker) -> None:
    # W18
    reading, writing = os.pipe()
    worker = place.start("--log", "json", "--slots", "20", stderr=writing)
    os.close(writing)
    jobs = [place.submit("tick", number) for number in range(1_200)]
    chatty = [place.submit("chatty", number) for number in range(80)]
    for number, job in enumerate(jobs):
        assert job.result(timeout=60) == number
    for number, job in enumerate(chatty):
        assert job.result(timeout=60) == number
    (alive,) = place.app.stats().workers
    assert alive.state.value == "active"
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(40) == 0
    os.close(reading)


@pytest.mark.parametrize("how", ["reader gone", "closed"])
def test_a_standard_error_that_is_gone_stops_nothing(place: LoggingWorker, how: str) -> None:
    # W18
    if how == "closed":
        worker = place.start("--log", "json", stderr=2, preexec_fn=lambda: os.close(2))
    else:
        reading, writing = os.pipe()
        worker = place.start("--log", "json", stderr=writing)
        os.close(writing)
        os.close(reading)
    for task in ("tick", "chatty"):
        assert place.submit(task, 7).result(timeout=60) == 7
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(40) == 0


def test_what_a_task_prints_passes_whole(place: LoggingWorker) -> None:
    # W18
    with (place.folder / "printed").open("wb") as printed:
        place.start("--log", "json", stdout=printed)
    place.submit("flood").result(timeout=60)
    assert place.stop() == 0
    assert (place.folder / "printed").stat().st_size == 5 << 20


def test_no_process_writes_a_traceback_of_its_own_when_its_worker_is_killed(place: LoggingWorker) -> None:
    worker = place.start("--log", "json")
    place.submit("chatty", 1).result(timeout=60)
    processes = tree(worker.pid)
    assert len(processes) >= 3
    os.kill(processes[1], signal.SIGKILL)  # The runner; its processes lose their connection.
    assert place.submit("chatty", 2).result(timeout=60) == 2
    wait_until(lambda: any(line["event"] == "worker.gone" for line in place.lines()))
    assert place.stop() == 0
    assert all("traceback" not in line for line in place.lines())


def test_a_store_that_is_refused_at_start_is_one_line_and_is_waited_for(place: LoggingWorker) -> None:
    # R1.41
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Bound and not listening: every connection is refused.
        worker = place.start("--log", "json", "--store", f"redis://127.0.0.1:{taken.getsockname()[1]}")
        wait_until(lambda: (place.folder / "worker.log").read_bytes().count(b"\n") >= 1)
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(40) == 0
    first = place.lines()[0]
    assert (first["event"], first["during"]) == ("store.unavailable", "open")
    assert first["retry_in"] > 0
    assert [line["event"] for line in place.lines()].count("store.unavailable") == 1
    assert all("traceback" not in line for line in place.lines())


def test_a_task_that_no_app_knows_is_warned_of_once(place: LoggingWorker) -> None:
    @place.app.task(name="not.there")
    async def not_there() -> None: ...

    for _ in range(20):
        not_there.enqueue()
    place.start("--log", "json", "--slots", "4")
    wait_until(lambda: any(line["event"] == "job.unknown_task" for line in place.lines()))
    assert place.submit("tick", 1).result(timeout=60) == 1
    assert place.stop() == 0
    (line,) = [line for line in place.lines() if line["event"] == "job.unknown_task"]
    assert line["task"] == "not.there"
    assert "import the module" in line["hint"]


def test_threads_with_a_time_limit_are_named_once_at_start(place: LoggingWorker) -> None:
    with (place.folder / "logging_jobs.py").open("a") as file:
        file.write("\n\nfor n in range(3):\n    app.task(name=f'slow{n}', timeout=5)(lambda: None)\n")
    place.start("--log", "json")
    assert place.submit("tick", 1).result(timeout=60) == 1
    assert place.stop() == 0
    (line,) = [line for line in place.lines() if line["event"] == "task.thread_has_timeout"]
    assert line["tasks"] == "slow0, slow1, slow2"
    assert "executor='process'" in line["hint"]
