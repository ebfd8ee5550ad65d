"""Programs of commands end when the workers that run them die."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from tests.faults.conftest import WorkerProcess, Yard, alive, tree, wait_until

# Ignores SIGTERM; so does a child that has left the group and lost its parent. Both write down who they are.
SCRIPT = """
trap '' TERM HUP
cd "{folder}"
(setsid sh -c 'echo $$ >> pids; sleep 1000; sleep 1000' &)
while [ ! -s pids ]; do sleep 0.01; done
echo $$ >> pids
while :; do sleep 1; done
"""


class Scene:
    """A worker whose program runs."""

    def __init__(self, yard: Yard) -> None:
        self.yard = yard
        self.temporary = yard.folder / "temporary"
        self.temporary.mkdir()
        self._pids = yard.folder / "pids"
        self.job = yard.app.tasks["program"].enqueue(script=SCRIPT.format(folder=yard.folder))
        known = len(yard.app.stats().workers)
        self.worker: WorkerProcess = yard.start(environment={"TMPDIR": str(self.temporary)})
        wait_until(lambda: len(yard.app.stats().workers) > known)
        wait_until(lambda: len(self.pids) == 2)

    @property
    def pids(self) -> list[int]:
        return [int(pid) for pid in self._pids.read_text().split()] if self._pids.exists() else []

    def check_nothing_is_left(self, within: float) -> None:
        wait_until(lambda: not any(alive(pid) for pid in self.pids), within=within)
        wait_until(lambda: not self.folders, within=within)

    @property
    def folders(self) -> list[Path]:
        return list(self.temporary.iterdir())


@pytest.mark.parametrize("victim", ["runner", "worker"])
def test_a_killed_worker_leaves_no_orphan(yard: Yard, victim: str) -> None:
    # W1, W2, R3.34
    scene = Scene(yard)
    assert len(scene.folders) == 1
    scene.job.cancel()
    os.kill(scene.worker.runner if victim == "runner" else scene.worker.pid, signal.SIGKILL)
    scene.check_nothing_is_left(within=5)


def test_a_worker_killed_with_its_guard_leaves_no_program(yard: Yard) -> None:
    scene = Scene(yard)
    scene.job.cancel()
    program = scene.pids[1]
    for pid in set(tree(scene.worker.pid)) - {one for mine in scene.pids for one in tree(mine)}:
        with contextlib.suppress(ProcessLookupError):  # It may end with a process that was killed before it.
            os.kill(pid, signal.SIGKILL)
    try:
        wait_until(lambda: not alive(program), within=5)
    finally:  # No process is left that could know of the one that went its own way.
        os.killpg(scene.pids[0], signal.SIGKILL)


def test_a_drained_worker_takes_its_programs_along(yard: Yard) -> None:
    scene = Scene(yard)
    scene.worker.send(signal.SIGTERM)
    scene.worker.wait()
    scene.check_nothing_is_left(within=5)
    record = yard.until(scene.job, "queued")
    assert (record.attempts, record.reason) == (0, "drained")


def test_a_cancel_reaches_a_program(yard: Yard) -> None:
    scene = Scene(yard)
    scene.job.cancel()
    record = yard.until(scene.job, "cancelled", within=10)
    assert not any(alive(pid) for pid in scene.pids)
    assert record.crashes == 0
    assert not scene.folders
