"""A process is killed at each statement of finish, release, cancel and retry: no job hangs or fires twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway.core.job import State
from headway.stores.memory.store import MemoryStore
from headway.stores.open import open_store
from headway.testing.clock import ManualClock
from tests.conftest import ADDRESSES
from tests.faults import workflow_steps
from tests.faults.workflow_steps import FIRST, SECOND, Outcome, outcome, play

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DURABLE = ["sqlite", "redis", "postgres"]


@pytest.fixture(scope="module")
def expected() -> Outcome:
    """Return the outcome of the workflow when no process is killed."""

    async def run() -> Outcome:
        store = MemoryStore(clock=ManualClock())
        await play(store)
        return await outcome(store)

    found = asyncio.run(run())
    assert found.states.pop("on_failure") is State.CANCELLED  # The second round has no failure.
    assert set(found.states.values()) == {State.COMPLETED}
    assert found.batches == {FIRST: ("completed", 2, 10, 10, 0, 0), SECOND: ("completed", 2, 6, 6, 0, 0)}
    assert found.totals["completed"] == 19 + 2  # on_done fired in two rounds, and on_failure in the first.
    return found


@pytest.mark.parametrize(
    "kind, passage",
    [("sqlite", 30), ("sqlite", 150), ("redis", 15), ("redis", 40), ("postgres", 30), ("postgres", 90)],
)
def test_a_process_killed_at_a_statement_leaves_a_workflow_that_ends_as_planned(
    kind: str, passage: int, tmp_path: Path, expected: Outcome
) -> None:
    assert _struck(ADDRESSES[kind](tmp_path), passage, tmp_path, expected)


@pytest.mark.proof
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("store_name", DURABLE)
def test_a_process_killed_at_any_statement_leaves_a_workflow_that_ends_as_planned(
    store_name: str, tmp_path: Path, expected: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = 0
    while True:
        folder = tmp_path / f"{killed}"
        folder.mkdir()
        if not _struck(ADDRESSES[store_name](folder), killed + 1, folder, expected):
            break
        killed += 1
    with capsys.disabled():
        print(f"\n{store_name}: killed at each of {killed} statements")
    assert killed > 40


def _struck(address: str, passage: int, folder: Path, expected: Outcome) -> bool:
    """Run the workflow in a process that dies at a statement, then continue it. Return whether the process died."""
    struck = folder / "struck"
    ended = subprocess.run(
        [sys.executable, "-m", workflow_steps.__name__, address],
        cwd=ROOT,
        env={**os.environ, "HEADWAY_FAILPOINT": f"statement:kill:{passage}:{struck}"},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == (-signal.SIGKILL if struck.exists() else 0), ended.stderr.decode()
    found = asyncio.run(_go_on(address))
    assert found.states.pop("on_failure") is State.CANCELLED
    assert found == expected
    return struck.exists()


async def _go_on(address: str) -> Outcome:
    store = open_store(address)
    await store.open()
    try:
        await play(store)
        return await outcome(store)
    finally:
        await store.close()
