"""Long runs with random faults on a Redis or Valkey server, in ``make proof``."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Job
from headway.core.errors import StoreUnavailable
from tests.conftest import valkey
from tests.faults import test_limits_live, test_soak, test_workers
from tests.faults.conftest import Yard, wait_until
from tests.faults.test_redis import OwnYard, own

__all__ = ["own"]
pytestmark = [pytest.mark.proof, pytest.mark.timeout(0)]

_OF_A_FILE = ("locked", "cut_off", "producer_killed")  # They hold the lock of a file, or look into it.


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    found = Yard(tmp_path, f"{valkey().url}?prefix={tmp_path.name}")
    yield found
    found.close()


# Everything that is tested of workers on a file, again on a server.
for _module in (test_workers, test_limits_live, test_soak):
    for _name, _test in vars(_module).copy().items():
        if _name.startswith("test_") and not any(part in _name for part in _OF_A_FILE):
            globals()[_name] = _test


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_while_the_server_suffers(
    own: OwnYard, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    # I1 to I6: the server is killed, frozen, flushed and cut off at random, and keeps an append-only file.
    chance = random.Random(seed)
    seconds = float(os.environ.get("SOAK_SECONDS", "60"))
    workers = [own.start("--slots", "4") for _ in range(2)]

    def restart_workers() -> None:
        """Restart ended workers as a supervisor does. A worker without a connection ends when its leases expire."""
        for index, worker in enumerate(workers):
            if not worker.running:
                workers[index] = own.start("--slots", "4")

    def is_drained() -> bool:
        restart_workers()
        return not any(lane.waiting + lane.delayed + lane.executing for lane in own.app.stats().lanes.values())

    acknowledged: list[Job[object]] = []
    ends = time.monotonic() + seconds

    def produce(number: int) -> None:
        while time.monotonic() < ends:
            with contextlib.suppress(StoreUnavailable):
                acknowledged.append(own.submit("quick", number))
            number += 1

    producers = [threading.Thread(target=produce, args=[number * 10_000_000]) for number in range(2)]
    for producer in producers:
        producer.start()
    done = dict.fromkeys(("kill", "freeze", "flush", "cut"), 0)
    while time.monotonic() < ends:
        time.sleep(chance.uniform(0.2, 2))
        what = chance.choice(list(done))
        done[what] += 1
        match what:
            case "kill":
                own.server.kill()
                time.sleep(chance.uniform(0, 1))
                own.server.start()
            case "freeze":
                own.server.freeze()
                time.sleep(chance.uniform(0, 2))
                own.server.thaw()
            case "flush":
                own.server.ask("FUNCTION", "FLUSH")
            case "cut":
                own.server.ask("CLIENT", "KILL", "TYPE", "normal")
                own.server.ask("CLIENT", "KILL", "TYPE", "pubsub")
        restart_workers()
    for producer in producers:
        producer.join()
    wait_until(is_drained, within=300)
    states = [job.record() for job in acknowledged]
    lost = [record.job_id for record in states if record.state != "completed"]
    runs = own.marks("quick")
    with capsys.disabled():
        print(
            f"\nseed {seed}: {seconds:.0f} s, {done}; acknowledged {len(acknowledged)}, lost {len(lost)}, "
            f"runs beyond one {len(runs) - len(set(runs))}"
        )
    assert len(acknowledged) > seconds
    assert sum(done.values()) > seconds / 10
    assert not lost
    assert len(set(runs)) >= len(acknowledged)  # None is completed without a run.
    assert own.app.stats().totals["completed"] >= len(acknowledged)
