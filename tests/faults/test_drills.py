"""The drills of docs/how-to/operate.md, on real servers, file systems and workers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.errors import StoreError
from headway.core.job import State
from tests.faults.conftest import Yard, wait_until
from tests.servers import Postgres, Server, Valkey

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

# The tasks of jobs.py under lease times that an outage of these tests does not exceed.
APP = """
import jobs
from headway import Headway
app = Headway(heartbeat=5, dead_after=60)
for name in ("quick", "slow"):
    app.task(name=name)(jobs.app.tasks[name].fn)
"""
REFUSED = 20  # Submits that must be refused before an outage ends.
DISK_MIB = 24
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
SERVERS: dict[str, Callable[[Path], Server]] = {
    "valkey": lambda folder: Valkey(folder, "appendonly yes", "appendfsync always"),
    "postgres": lambda folder: Postgres(folder, durable=True),
}


class Load:
    """A thread that submits jobs and records which ones the store acknowledged."""

    def __init__(self, yard: Yard) -> None:
        self._yard = yard
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.acknowledged: list[str] = []
        self.refused: Counter[str] = Counter()

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            try:
                self.acknowledged.append(str(self._yard.submit("quick", len(self.acknowledged)).id))
            except StoreError as problem:
                self.refused[problem.code] += 1

    def more(self, count: int = 20) -> None:
        """Wait until this many further jobs are acknowledged."""
        wanted = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= wanted)


def all_completed(yard: Yard, ids: list[str]) -> bool:
    found = [job.record().state for job in map(yard.app.job, ids)]
    return set(found) == {State.COMPLETED}


@contextlib.contextmanager
def a_yard(folder: Path, store: str | None = None) -> Iterator[tuple[Yard, Path]]:
    """Yield a folder with the tasks and a worker, and the log file of the worker."""
    place = folder / "yard"
    place.mkdir()
    (place / "drills.py").write_text(APP)
    yard, log = Yard(place, store), folder / "worker.log"
    try:
        with log.open("wb") as file:
            yard.start(app="drills:app", stderr=file)
        yield yard, log
    finally:
        yard.close()


def lines(log: Path, event: str) -> list[str]:
    return [line for line in log.read_text().splitlines() if event in line]


# ---------------------------------------------------------------------- the store stops


@pytest.mark.parametrize("name", SERVERS)
def test_a_store_that_is_killed_under_load_and_started_again_loses_nothing(name: str, tmp_path: Path) -> None:
    server = SERVERS[name](tmp_path / "server")
    server.start()
    try:
        with a_yard(tmp_path, server.url) as (yard, log):  # type: ignore[attr-defined]
            with Load(yard) as load:
                load.more()
                server.kill()
                wait_until(lambda: load.refused.total() >= REFUSED, within=60)
                wait_until(lambda: lines(log, "store.unavailable"))
                server.start()
                load.more()
            wait_until(lambda: all_completed(yard, load.acknowledged))
            assert set(load.refused) == {"store_unavailable"}
            # A process says so once each of its chores has reached the store, and some run once a minute.
            wait_until(lambda: len(lines(log, "store.recovered")) == len(lines(log, "store.unavailable")), within=90)
            assert 1 <= len(lines(log, "store.unavailable")) <= 2  # One for the parent, one for its runner.
            assert len(lines(log, "wakeups.interrupted")) <= 2
    finally:
        server.stop()


@pytest.mark.parametrize("name", SERVERS)
def test_a_worker_that_starts_before_its_store_comes_up_with_it(name: str, tmp_path: Path) -> None:
    server = SERVERS[name](tmp_path / "server")
    server.start()
    yard, log = Yard(tmp_path, server.url), tmp_path / "worker.log"  # type: ignore[attr-defined]
    (tmp_path / "drills.py").write_text(APP)
    try:
        job = yard.submit("quick", 1)
        server.kill()
        command = [sys.executable, "-m", "headway", "worker", "drills:app", "--log-level", "warning"]
        environment = {**os.environ, **yard.environment}
        with log.open("wb") as file, subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=file) as worker:
            try:
                wait_until(lambda: lines(log, "store.unavailable"))
                server.start()
                yard.until(job, "completed")
                assert len(lines(log, "store.recovered")) == 1
            finally:
                worker.terminate()
    finally:
        yard.close()
        server.stop()


# ---------------------------------------------------------------------- the disk is full


class Disk:
    """A small file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Write until the file system is full."""
        with self._filler.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 9, 1):
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * size):
                        pass

    def free(self) -> None:
        self._filler.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=777", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("only root can mount a file system")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_jobs_that_run_when_the_disk_of_a_file_fills_up_are_finished(disk: Disk, tmp_path: Path) -> None:
    with a_yard(tmp_path, f"sqlite:///{disk.path}/headway.db") as (yard, _), Load(yard) as load:
        load.more()
        running = yard.submit("slow", 3.0)
        yard.until(running, "executing")
        disk.fill()
        wait_until(lambda: load.refused.total() >= REFUSED)
        assert yard.until(running, "completed").attempts == 1
        assert set(load.refused) == {"store_full"}
        disk.free()
        load.more()
        wait_until(lambda: all_completed(yard, load.acknowledged))


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_a_server_whose_append_only_file_fills_the_disk_loses_nothing(fsync: str, disk: Disk, tmp_path: Path) -> None:
    server = Valkey(disk.path / "server", "appendonly yes", f"appendfsync {fsync}", 'save ""')
    server.start()
    try:
        with a_yard(tmp_path, server.url) as (yard, log):
            with Load(yard) as load:
                load.more()
                running = yard.submit("slow", 1.0)
                yard.until(running, "executing")
                disk.fill()
                wait_until(lambda: load.refused.total() >= REFUSED, within=60)
                assert server.running == (fsync == "everysec")  # With `always` it ends itself, and has to be started.
                disk.free()
                if not server.running:
                    server.kill()
                    server.start()
                load.more()
            wait_until(lambda: all_completed(yard, [*load.acknowledged, str(running.id)]))
            assert set(load.refused) == {"store_unavailable"}
            said = "accepts no writes" if fsync == "everysec" else "does not answer"
            assert any(said in line for line in lines(log, "store.unavailable"))
    finally:
        server.stop()


# ---------------------------------------------------------------------- the clock jumps


@pytest.mark.skipif(not FAKETIME.exists(), reason="needs libfaketime (Debian: faketime)")
@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_jumps_by_an_hour_neither_stops_nor_repeats_a_job(
    name: str, hours: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0")
    with monkeypatch.context() as only_the_server:
        for variable, value in {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME_TIMESTAMP_FILE": str(offset),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }.items():
            only_the_server.setenv(variable, value)
        server = SERVERS[name](tmp_path / "server")
        server.start()
    try:
        with a_yard(tmp_path, server.url) as (yard, log):  # type: ignore[attr-defined]
            with Load(yard) as load:
                load.more()
                running, later = yard.submit("slow", 8.0), yard.submit("quick", -1, delay=4)
                yard.until(running, "executing")
                offset.write_text(f"{hours * 3_600:+d}")
                load.more(100)
                assert yard.until(running, "completed").attempts == 1
                assert yard.until(later, "completed").attempts == 1
            wait_until(lambda: all_completed(yard, load.acknowledged))
            assert load.refused == {}
            assert lines(log, "worker.taken_for_dead") == []
            assert Counter(yard.marks("quick")).most_common(1)[0][1] == 1
    finally:
        server.stop()
