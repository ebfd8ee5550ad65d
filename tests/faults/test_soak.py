"""Long runs with random faults, in ``make proof``. At the end everything is drained and counted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.faults.conftest import WorkerProcess, Yard, children, wait_until

pytestmark = [pytest.mark.proof, pytest.mark.timeout(0)]

PRODUCER = """
import os, sys
from headway import Headway
app = Headway()
@app.task(name="quick")
async def quick(number: int) -> int: ...
log = open(sys.argv[1], "a")
number = int(sys.argv[2])
while True:
    job = quick.enqueue(number)
    log.write(f"{job.id} {number}\\n"); log.flush(); os.fsync(log.fileno())
    number += 1
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_nothing_acknowledged_is_lost_under_random_kills(
    yard: Yard, seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    # I1 to I6: producers and workers are killed, frozen and drained at random for a while.
    chance = random.Random(seed)
    seconds = float(os.environ.get("SOAK_SECONDS", "60"))
    logs = [yard.folder / f"producer-{number}.log" for number in range(2)]
    (yard.folder / "producer.py").write_text(PRODUCER)
    workers = [yard.start("--slots", "4") for _ in range(2)]
    producers = [_produce(yard, log, number * 10_000_000) for number, log in enumerate(logs)]
    kills = drains = freezes = 0
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        time.sleep(chance.uniform(0.5, 3))
        which = chance.randrange(len(workers))
        match chance.choice(["kill", "kill runner", "drain", "freeze", "kill producer"]):
            case "kill":
                kills += 1
                workers[which].send(signal.SIGKILL, whole_tree=True)
                workers[which] = yard.start("--slots", "4")
            case "kill runner":
                kills += 1
                for pid in children(workers[which].pid):
                    os.kill(pid, signal.SIGKILL)
            case "drain":
                drains += 1
                workers[which].send(signal.SIGTERM)
                workers[which].wait(60)
                workers[which] = yard.start("--slots", "4")
            case "freeze":
                freezes += 1
                _freeze(yard, workers[which], chance.uniform(0.5, 5))
            case "kill producer":
                number = chance.randrange(2)
                producers[number].kill()
                producers[number].wait()
                producers[number] = _produce(yard, logs[number], 1_000_000 * chance.randrange(1, 9_999))
    for producer in producers:
        producer.kill()
        producer.wait()
    acknowledged = dict(line.split() for log in logs for line in log.read_text().splitlines() if " " in line)
    wait_until(
        lambda: not any(lane.waiting + lane.delayed + lane.executing for lane in yard.app.stats().lanes.values()),
        within=300,
    )
    states = [yard.app.job(job_id).record() for job_id in acknowledged]
    lost = [record.job_id for record in states if record.state != "completed"]
    runs = yard.marks("quick")
    with capsys.disabled():
        print(
            f"\nseed {seed}: {seconds:.0f} s, {kills} kills, {drains} drains, {freezes} freezes; acknowledged "
            f"{len(acknowledged)}, lost {len(lost)}, runs beyond one {len(runs) - len(set(runs))}, "
            f"recovered {sum(1 for record in states if record.crashes)}"
        )
    assert len(acknowledged) > seconds
    assert kills + drains + freezes > seconds / 10
    assert not lost
    assert {f"quick {number}" for number in acknowledged.values()} <= set(runs)  # None is completed without a run.
    assert all(record.epoch >= record.attempts for record in states)


def _produce(yard: Yard, log: Path, start: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "producer.py", str(log), str(start)],
        cwd=yard.folder,
        env={**os.environ, "HEADWAY_STORE": yard.store},
    )


def _freeze(yard: Yard, worker: WorkerProcess, seconds: float) -> None:
    yard.freeze(worker)
    threading.Timer(seconds, worker.send, [signal.SIGCONT], {"whole_tree": True}).start()


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_crash_at_every_exchange_loses_nothing(yard: Yard, side: str) -> None:
    # W12: die at the k-th exchange, for each k, while ten jobs are under way.
    for passage in range(1, 13):
        jobs = [yard.submit("quick", number) for number in range(10)]
        struck = yard.folder / f"struck-{passage}"
        worker = yard.start(environment={"HEADWAY_FAILPOINT": f"exchange.{side}:kill:{passage}:{struck}"})
        for number, job in enumerate(jobs):
            assert job.result(timeout=60) == number
        wait_until(struck.exists)
        worker.send(signal.SIGKILL, whole_tree=True)
