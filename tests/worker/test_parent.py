"""A parent and its runners: replacement of runners, and the end of the whole worker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from headway import Headway
from headway.core.errors import StoreUnavailable
from headway.runtime.signals import Signals
from headway.stores.base import Heartbeat, HeartbeatReply, Store
from headway.stores.open import open_store
from headway.worker.parent import Parent
from tests.faults import jobs

pytestmark = pytest.mark.slow


class RefusingOpener:
    """An opener of stores that refuse the renewals of some workers."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.refused: set[str] = set()
        self.refuse_all = False

    def open(self, *args: Any, **options: Any) -> Store:
        store = open_store(*args, **options)
        renew = store.renew

        async def renewing(beat: Heartbeat) -> HeartbeatReply:
            worker_id = beat.worker.worker_id
            if worker_id not in self.seen:
                self.seen.append(worker_id)
            if self.refuse_all or worker_id in self.refused:
                raise StoreUnavailable("no route")
            return await renew(beat)

        store.renew = renewing  # type: ignore[method-assign]
        return store


@contextlib.asynccontextmanager
async def running(
    folder: Path, deaf: RefusingOpener, processes: int = 2
) -> AsyncIterator[tuple[Parent, asyncio.Task[int], Signals]]:
    signals = Signals()
    parent = Parent(
        "jobs:app",
        processes=processes,
        overrides={"store": f"sqlite:///{folder}/headway.db"},
        signals=signals,
        opener=deaf.open,
    )
    task = asyncio.create_task(parent.run())
    try:
        yield parent, task, signals
    finally:
        signals.received()
        signals.received()
        await task


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(45):
        while not what():  # noqa: ASYNC110  (processes change it)
            await asyncio.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(jobs.__file__, tmp_path / "jobs.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


async def test_a_runner_that_is_cut_off_alone_is_replaced(folder: Path) -> None:
    # W20
    deaf = RefusingOpener()
    async with running(folder, deaf) as (_, task, signals):
        await until(lambda: len(deaf.seen) == 2)
        first, second = deaf.seen
        deaf.refused.add(first)
        await until(lambda: len(deaf.seen) == 3)
        assert not task.done()
        assert second not in deaf.refused
        signals.received()
        assert await task == 0


async def test_a_worker_exits_with_1_when_all_its_runners_are_cut_off(folder: Path) -> None:
    # W20
    deaf = RefusingOpener()
    async with running(folder, deaf) as (_, task, _signals):
        await until(lambda: len(deaf.seen) == 2)
        deaf.refuse_all = True
        async with asyncio.timeout(45):
            assert await task == 1


async def test_no_chore_fails_when_a_runner_dies(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    deaf = RefusingOpener()
    async with running(folder, deaf, processes=1) as (parent, _, _signals):
        await until(lambda: deaf.seen)
        (runner,) = parent._runners
        read = []
        process = runner._process
        assert process is not None
        with caplog.at_level(logging.INFO, "headway"):
            os.killpg(process.pid, signal.SIGKILL)
            while len(deaf.seen) < 2:
                read.append(parent._idle_since())  # As the chore does that samples what jobs wait for.
                await asyncio.sleep(0.001)
        assert 0.0 in read
        assert not [record for record in caplog.records if record.exc_info]


async def test_no_process_of_a_worker_that_runs_programs_can_be_read_by_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = asyncio.Event()
    monkeypatch.setattr("headway.worker.runner_process.hide_from_programs", hidden.set)
    app = Headway(f"sqlite:///{folder}/headway.db")
    app.task(name="dumpable")(jobs.dumpable.fn)
    app.task(name="dumpable_process", executor="process")(jobs.dumpable_process.fn)
    async with app, running(folder, RefusingOpener(), processes=1), asyncio.timeout(45):
        for task in ("dumpable", "dumpable_process"):
            assert await (await app.tasks[task].aenqueue()).aresult() == 0
        await hidden.wait()
