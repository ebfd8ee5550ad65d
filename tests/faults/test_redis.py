"""Real workers on a Redis or Valkey server that is killed, emptied, flushed and disconnected."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from headway.core.errors import JobNotFound, StoreFull, StoreUnavailable
from tests.conftest import valkey
from tests.faults.conftest import Yard, alive, tree, wait_until
from tests.faults.test_limits_live import test_limits_hold_over_two_workers_of_which_one_is_killed
from tests.faults.test_workers import (
    test_a_worker_killed_in_mid_job_loses_nothing,
    test_sigterm_gives_running_jobs_the_grace_and_returns_the_rest,
    test_the_late_result_of_a_frozen_worker_is_refused,
)
from tests.servers import Sentinels, Valkey, free_port

pytestmark = pytest.mark.slow

# These run here too, by this file's own yard.
__all__ = [
    "test_a_worker_killed_in_mid_job_loses_nothing",
    "test_limits_hold_over_two_workers_of_which_one_is_killed",
    "test_sigterm_gives_running_jobs_the_grace_and_returns_the_rest",
    "test_the_late_result_of_a_frozen_worker_is_refused",
]


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    found = Yard(tmp_path, f"{valkey().url}?prefix={tmp_path.name}")
    yield found
    found.close()


class OwnYard(Yard):
    """A yard with a server of its own, so that a test may damage it."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.server = Valkey(folder / "server", 'save ""', *options)
        self.server.start()
        super().__init__(folder, self.server.url)

    def close(self) -> None:
        super().close()
        self.server.kill()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[OwnYard]:
    found = OwnYard(tmp_path, "appendonly yes", "appendfsync always")
    yield found
    found.close()


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[OwnYard]:
    found = OwnYard(tmp_path)
    yield found
    found.close()


SKEWED = """
import os, time

def shift(read, by):
    return lambda: read() + by

by = int(os.environ["SKEW"])
time.time, time.time_ns = shift(time.time, by), shift(time.time_ns, by * 1_000_000_000)
"""


def test_hosts_whose_clocks_differ_by_ten_minutes_change_nothing(own: OwnYard) -> None:
    # T3, R5.108: one clock decides, and it is the server's.
    (own.folder / "sitecustomize.py").write_text(SKEWED)
    for skew in (600, -600):
        own.start(environment={"SKEW": str(skew), "PYTHONPATH": str(own.folder)})
    wait_until(lambda: len(own.app.stats().workers) == 2)
    later = own.submit("quick", 100, delay=1.5)
    jobs = [own.submit("quick", number) for number in range(20)]
    assert [job.result(timeout=30) for job in jobs] == [*range(20)]
    assert later.result(timeout=30) == 100
    record = later.record()
    assert record.started_at is not None
    assert 1_500 <= record.started_at - record.submitted_at < 20_000
    assert sorted(own.marks("quick")) == sorted(f"quick {number}" for number in (*range(20), 100))
    assert {job.record().attempts for job in (later, *jobs)} == {1}
    assert {worker.state for worker in own.app.stats().workers} == {"active"}


def test_a_worker_goes_on_after_its_server_was_killed_and_nothing_is_lost(own: OwnYard) -> None:
    # R2, R17: jobs wait, run and come in while the server is killed again and again.
    own.start()
    running = own.submit("slow", 1.5)
    own.until(running, "executing")
    jobs = [own.submit("quick", number) for number in range(20)]
    for number in range(3):
        own.server.kill()
        own.server.start()
        jobs += [own.submit("quick", 100 * (number + 1) + more) for more in range(20)]
    for job in jobs:
        assert own.until(job, "completed").attempts == 1
    assert own.until(running, "completed").attempts == 1


def test_a_worker_registers_anew_at_a_server_that_lost_everything_and_limits_hold(forgetful: OwnYard) -> None:
    # R1, R4: it does not go on with leases that the store does not know, and tells its rules again.
    forgetful.start()
    lost = forgetful.submit("slow", 60.0)
    forgetful.until(lost, "executing")
    forgetful.server.kill()
    forgetful.server.start()
    wait_until(lambda: [worker for worker in forgetful.app.stats().workers if worker.state == "active"])
    jobs = [forgetful.submit("capped", number, number, 0.2) for number in range(12)]
    for job in jobs:
        assert forgetful.until(job, "completed").attempts == 1
    running = most = 0
    for line in sorted(forgetful.marks("capped "), key=lambda line: int(line.split()[-1])):
        running += 1 if line.startswith("capped start") else -1
        most = max(most, running)
    assert most == 2
    with pytest.raises(JobNotFound):
        lost.record()


def test_functions_flushed_and_connections_killed_under_a_worker(own: OwnYard) -> None:
    # R10, R12, R17
    own.start()
    jobs = []
    for number in range(10):
        jobs += [own.submit("quick", 5 * number + more) for more in range(5)]
        own.server.ask("FUNCTION", "FLUSH")
        own.server.ask("CLIENT", "KILL", "TYPE", "normal")
        own.server.ask("CLIENT", "KILL", "TYPE", "pubsub")
    for number, job in enumerate(jobs):
        assert job.result(timeout=30) == number
        assert job.record().attempts == 1
    assert len(own.marks("quick")) == 50


def test_a_worker_on_a_full_server_ends_what_it_has(own: OwnYard) -> None:
    # R8
    own.start()
    running = own.submit("slow", 1.5)
    own.until(running, "executing")
    waiting = [own.submit("quick", number) for number in range(5)]
    own.server.ask("CONFIG", "SET", "maxmemory", "1000000")
    with pytest.raises(StoreFull, match="maxmemory"):
        own.submit("quick", 99)
    for job in (running, *waiting):
        assert own.until(job, "completed").attempts == 1
    own.server.ask("CONFIG", "SET", "maxmemory", "0")
    assert own.submit("quick", 100).result(timeout=20) == 100


def test_a_worker_cut_off_from_its_server_ends_its_work_in_time(own: OwnYard) -> None:
    # W20
    job = own.submit("slow", 60.0)
    worker = own.start()
    own.until(job, "executing")
    processes = tree(worker.pid)
    own.server.freeze()
    wait_until(lambda: not alive(processes[-1]), within=10)
    own.server.thaw()
    wait_until(lambda: job.status() != "executing" or job.record().epoch > 1)


def test_a_worker_says_in_time_that_its_store_does_not_answer(own: OwnYard) -> None:
    port = free_port()
    own.environment["HEADWAY_WORKER_HTTP"] = f"127.0.0.1:{port}"
    own.start("--dead-after", "60")
    address = f"http://127.0.0.1:{port}/readyz"

    def ready() -> int:
        with contextlib.suppress(httpx.ConnectError):  # It is not up yet.
            return httpx.get(address, timeout=4).status_code  # The worker itself would end the connection after 5 s.
        return 0

    wait_until(lambda: ready() == 200)
    own.server.freeze()
    wait_until(lambda: ready() == 503)
    own.server.thaw()
    wait_until(lambda: ready() == 200)


# ---------------------------------------------------------------------- Sentinel


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    made = Sentinels(tmp_path / "servers")
    made.start()
    yield made
    made.stop()


def test_a_worker_follows_a_failover_and_nothing_acknowledged_is_lost(sentinels: Sentinels, tmp_path: Path) -> None:
    # R5.102, R5: jobs are submitted until the master is killed, each acknowledged once the replica has it.
    folder = tmp_path / "yard"
    folder.mkdir()
    yard = Yard(folder, f"{sentinels.url}?replicas=1&replicas_ms=1000")
    plain = Yard(folder, sentinels.url)
    patient = (folder / "jobs.py").read_text().replace("dead_after=3,", "dead_after=30,")
    assert "dead_after=30," in patient
    (folder / "jobs.py").write_text(patient)  # Sentinels need as long as the usual lease to notice a loss.
    try:
        worker = yard.start("--slots", "4")
        running = yard.submit("slow", 2.0)
        yard.until(running, "executing")
        jobs = [yard.submit("quick", number) for number in range(50)]
        sentinels.sentinels[0].kill()  # A machine is lost with all that was on it.
        sentinels.master.kill()
        tried = time.monotonic()
        while time.monotonic() - tried < 60:
            try:
                jobs.append(plain.submit("quick", 1_000))
                break
            except StoreUnavailable:
                continue
        for job in jobs:
            plain.until(job, "completed")
        plain.until(running, "completed")
        assert b"role:master" in sentinels.replica.ask("INFO", "replication")
        assert plain.submit("quick", 1_001).result(timeout=30) == 1_001
        assert alive(worker.pid)
        worker.send(signal.SIGTERM)
        assert worker.wait(20) == 0
        with pytest.raises(StoreUnavailable, match="0 of 1 replicas"):
            yard.submit("quick", 1_002)
    finally:
        yard.close()
        plain.close()
