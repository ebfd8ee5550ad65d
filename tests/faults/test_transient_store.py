"""Real workers with durable jobs from a file and transient ones from a server that stops and starts."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from headway import Worker
from headway.core.errors import StoreUnavailable
from tests.faults.conftest import Yard, wait_until
from tests.servers import Valkey, free_port

pytestmark = pytest.mark.slow


class PairedYard(Yard):
    """A yard with a server of its own for transient jobs, which loses them at a restart."""

    def __init__(self, folder: Path) -> None:
        self.server = Valkey(folder / "server", 'save ""')
        self.server.start()
        super().__init__(folder, transient=self.server.url)

    def close(self) -> None:
        super().close()
        self.server.kill()

    def most_at_once(self) -> int:
        moves = [line.split() for line in self.marks("passing ") + self.marks("kept ")]
        running = most = 0
        for _, move, *_, _at in sorted(moves, key=lambda words: int(words[-1])):
            running += 1 if move == "start" else -1
            most = max(most, running)
        return most

    def send(self, count: int, seconds: float = 0.0) -> None:
        """Send transient jobs."""
        self.app.enqueue_many(self.app.tasks["passing"].call(number, seconds) for number in range(count))

    def has_ended(self, count: int) -> bool:
        return self.ended("passing") >= count

    def ended(self, task: str) -> int:
        return len(self.marks(f"{task} end"))


@pytest.fixture
def paired(tmp_path: Path) -> Iterator[PairedYard]:
    found = PairedYard(tmp_path)
    yield found
    found.close()


def test_a_flood_of_transient_jobs_leaves_room_for_durable_ones_under_one_limit(paired: PairedYard) -> None:
    # R2.2, R2.5, R2.9, R2.46, R2.75: producer and worker are two processes with a file and a server between them.
    paired.send(600, 0.02)
    paired.start("--slots", "4")
    wait_until(lambda: paired.ended("passing") > 20)
    jobs = [paired.submit("kept", number, 0.02) for number in range(20)]
    for job in jobs:
        paired.until(job, "completed")
    assert paired.ended("passing") < 600, "the flood was over before the durable jobs were"
    wait_until(lambda: paired.ended("passing") == 600)
    assert paired.most_at_once() <= 4
    wait_until(lambda: paired.app.stats().totals.get("transient_completed") == 600)
    assert len({line.split()[2] for line in paired.marks("passing start")}) == 600  # Each ran once.


def test_durable_jobs_go_on_while_the_server_is_gone_and_transient_ones_once_it_is_back(paired: PairedYard) -> None:
    # R2.5: an outage of Redis is one of transient jobs alone.
    paired.start("--slots", "4")
    paired.send(3)
    wait_until(lambda: paired.ended("passing") == 3)
    paired.server.kill()
    before = time.monotonic()
    jobs = [paired.submit("kept", number) for number in range(10)]
    for job in jobs:
        paired.until(job, "completed")
    assert time.monotonic() - before < 6
    with pytest.raises(StoreUnavailable, match="transient jobs cannot be submitted, their store is away"):
        paired.send(1)
    for number in range(3):  # It comes back empty, and goes, and comes.
        paired.server.start()
        wait_until(lambda: _sent(paired), within=20)
        wait_until(partial(paired.has_ended, 4 + number), within=20)
        if number < 2:
            paired.server.kill()
    assert paired.until(paired.submit("kept", 99), "completed").attempts == 1


def test_a_frozen_server_holds_durable_jobs_up_for_a_moment_only(paired: PairedYard) -> None:
    paired.start("--slots", "2")
    paired.until(paired.submit("kept", 0), "completed")
    paired.server.freeze()
    for number in range(1, 6):
        paired.until(paired.submit("kept", number), "completed", within=30)
    paired.server.thaw()
    wait_until(lambda: _sent(paired), within=20)
    wait_until(lambda: paired.ended("passing") == 1)


def test_a_killed_worker_loses_the_transient_jobs_it_held_and_no_durable_one(paired: PairedYard) -> None:
    # R2.45, R2.65: at most once, and at least once.
    worker = paired.start("--slots", "4", "--reserved", "0")
    jobs = [paired.submit("kept", number, 2.0) for number in range(2)]
    paired.send(2, 2.0)
    wait_until(lambda: len(paired.marks("passing start")) == 2 and len(paired.marks("kept start")) == 2)
    paired.send(4)
    worker.send(signal.SIGKILL, whole_tree=True)
    paired.start("--slots", "4")
    for job in jobs:
        assert paired.until(job, "completed").attempts == 2
    wait_until(lambda: paired.ended("passing") == 4)
    time.sleep(0.3)
    assert len(paired.marks("passing start")) == 6  # Those two were not given out again.
    totals = paired.app.stats().totals
    assert totals["transient_completed"] == 4


def test_a_worker_starts_without_the_server_and_finds_it_later(paired: PairedYard) -> None:
    paired.server.kill()
    paired.start("--slots", "2")
    paired.until(paired.submit("kept", 1), "completed")
    paired.server.start()
    wait_until(lambda: _sent(paired), within=20)
    wait_until(lambda: paired.ended("passing") == 1, within=20)


def test_workers_over_http_get_both_kinds_from_a_server(paired: PairedYard) -> None:
    # R2.1, R2.2: the server plans for them, over both stores.
    port = free_port()
    with (paired.folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "headway", "serve", "--port", str(port)],
            cwd=paired.folder,
            env={**os.environ, **paired.environment},
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: _answers(port))
        paired.start("--server", f"http://127.0.0.1:{port}", "--slots", "2", "--reserved", "0")
        paired.send(20, 0.01)
        jobs = [paired.submit("kept", number, 0.01) for number in range(5)]
        for job in jobs:
            paired.until(job, "completed")
        wait_until(lambda: paired.ended("passing") == 20)
        assert paired.most_at_once() <= 2
        wait_until(lambda: paired.app.stats().totals.get("transient_completed") == 20)
    finally:
        server.terminate()
        server.wait(30)


def test_a_worker_inside_a_process_takes_both_kinds(paired: PairedYard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(paired.folder)
    with Worker(paired.app):
        paired.send(3)
        assert paired.until(paired.submit("kept", 1), "completed").attempts == 1
        wait_until(lambda: paired.ended("passing") == 3)


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _sent(yard: PairedYard) -> bool:
    """Send one transient job. Return whether the server accepted it."""
    try:
        yard.send(1)
    except StoreUnavailable:
        return False
    return True
