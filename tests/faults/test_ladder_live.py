"""The ladder with real worker processes that are killed at random while it is full: no count ever exceeds a limit."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from headway import Job
from headway.core.job import State
from headway.core.policy.document import BUILT_IN, ELASTIC, Ladder, Policy, Rung
from headway.core.policy.ladder import RunningJobs
from headway.policy_store.versions import apply_policy
from headway.stores.base import Store
from tests.conftest import ADDRESSES
from tests.faults.conftest import WorkerProcess, Yard, alive, tree, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

LIMITS = {"fast": 6, "medium": 4, "slow": 2}
SECONDS = {"fast": 1, "medium": 4, "slow": 20}
LADDER = Ladder(tuple(Rung(name, SECONDS[name] * 1_000, limit=limit) for name, limit in LIMITS.items()))
POLICY = replace(BUILT_IN, ladder=LADDER, reserve=replace(BUILT_IN.reserve, slots=0), crash_limit=100)
WORKERS, SLOTS = 3, 3


class Run(NamedTuple):
    """One attempt, timed by the monotonic clock that all processes of a machine share."""

    rung: str
    began: int
    ended: int


@pytest.fixture
def yard(store_name: str, tmp_path: Path) -> Iterator[Yard]:
    found = Yard(tmp_path, ADDRESSES[store_name](tmp_path))
    found.app.portal.run(_apply(found, POLICY))
    yield found
    found.close()


async def _apply(yard: Yard, policy: Policy) -> None:
    await apply_policy(await yard.app.client.store(), policy, now_at=1)


@pytest.mark.parametrize("store_name", ["sqlite"])
def test_no_limit_is_exceeded_while_workers_die(yard: Yard, seed: int) -> None:
    """R3.13 to R3.16, R3.65, R3.71, R3.79, R3.80, R3.82"""
    _storm(yard, random.Random(seed), seconds=6)


@pytest.mark.proof
@pytest.mark.parametrize("store_name", ["sqlite", "redis", "postgres"])
def test_no_limit_is_exceeded_in_a_long_storm(yard: Yard, seed: int) -> None:
    _storm(yard, random.Random(seed), seconds=60)


def _storm(yard: Yard, chance: random.Random, *, seconds: float) -> None:
    died: dict[int, int] = {}  # By process: when it was seen to be gone.
    workers = [yard.start("--slots", str(SLOTS)) for _ in range(WORKERS)]
    watcher = _Watcher(yard)
    watcher.start()
    jobs: list[Job[object]] = []
    began = time.monotonic()
    # It goes on until every limit was reached, however busy the machine is.
    while time.monotonic() < began + seconds or (watcher.most != LIMITS and time.monotonic() < began + 120):
        waiting = sum(lane.waiting for lane in yard.app.stats().lanes.values())
        for _ in range(12 - waiting):
            rung = chance.choice([*LIMITS, ELASTIC, ELASTIC])
            length = chance.uniform(0.05, 0.8)
            jobs.append(yard.submit("climb", rung, len(jobs), length, duration=rung, on_stop="retry_longer"))
        if chance.random() < 0.4:
            victim = chance.choice(workers)
            workers.remove(victim)
            _kill(victim, died)
            workers.append(yard.start("--slots", str(SLOTS)))
        time.sleep(chance.uniform(0.1, 0.5))
    for job in jobs:
        yard.until(job, "completed", "failed", within=120)
    watcher.stop()
    assert watcher.wrong == []
    assert watcher.looks > 10
    assert watcher.most == LIMITS
    runs = _runs(yard, died)
    assert _most(runs, "fast", "medium", "slow", ELASTIC) <= LIMITS["fast"]
    assert _most(runs, "medium", "slow") <= LIMITS["medium"]
    assert _most(runs, "slow") <= LIMITS["slow"]
    wait_until(lambda: yard.app.portal.run(_running_jobs(yard)).counts == (0, 0, 0))
    stats = yard.app.stats()
    assert [lane.executing for lane in stats.lanes.values()] == [0] * len(stats.lanes)
    assert Counter(job.status() for job in jobs)[State.COMPLETED] > len(jobs) / 2


class _Watcher(threading.Thread):
    """A thread that reads the store as often as it can, and records each limit that is exceeded."""

    def __init__(self, yard: Yard) -> None:
        super().__init__(daemon=True)
        self._yard = yard
        self._over = threading.Event()
        self.wrong: list[RunningJobs] = []
        self.most: Counter[str] = Counter()
        self.looks = 0

    def run(self) -> None:
        while not self._over.is_set():
            running_jobs = self._yard.app.portal.run(_running_jobs(self._yard))
            self.looks += 1
            for index, (name, limit) in enumerate(LIMITS.items()):
                count = sum(running_jobs.counts[index:])
                self.most[name] = max(self.most[name], count)
                if count > limit:
                    self.wrong.append(running_jobs)
            time.sleep(0.005)

    def stop(self) -> None:
        self._over.set()
        self.join()


async def _running_jobs(yard: Yard) -> RunningJobs:
    store: Store = await yard.app.client.store()
    running_jobs = (await store.snapshot()).running_jobs
    assert running_jobs is not None
    return running_jobs


def _kill(worker: WorkerProcess, died: dict[int, int]) -> None:
    pids = tree(worker.pid)
    worker.send(signal.SIGKILL, whole_tree=True)
    worker.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids))
    died.update(dict.fromkeys(pids, time.monotonic_ns()))


def _runs(yard: Yard, died: dict[int, int]) -> list[Run]:
    """Read the runs from the marks. A killed run lasted at least until its last mark."""
    began: dict[tuple[str, str, str], int] = {}
    last: dict[tuple[str, str, str], int] = {}
    runs: list[Run] = []
    for line in yard.marks("climb "):
        _, what, rung, number, pid, moment = line.split()
        run = rung, number, pid
        if what == "start":
            began[run] = last[run] = int(moment)
        elif what == "runs":
            last[run] = int(moment)
        else:
            runs.append(Run(rung, began.pop(run), int(moment)))
    assert all(last[run] <= died.get(int(run[2]), last[run]) for run in began)
    return [*runs, *(Run(run[0], at, last[run]) for run, at in began.items())]


def _most(runs: list[Run], *rungs: str) -> int:
    """Return the largest number of these runs at any moment."""
    changes = sorted(change for run in runs if run.rung in rungs for change in ((run.began, 1), (run.ended, -1)))
    running = most = 0
    for _, change in changes:
        running += change
        most = max(most, running)
    return most
