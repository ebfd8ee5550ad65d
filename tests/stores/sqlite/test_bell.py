"""Named pipes: an ear that is being opened is never taken for one that is gone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from pathlib import Path

from headway.core.job import JobId
from headway.stores.base import WATCHER
from headway.stores.sqlite.bell import Bell


def test_ears_open_while_others_ring(tmp_path: Path) -> None:
    store_path, stop = tmp_path / "headway.db", threading.Event()
    job_id = JobId("00000000-0000-0000-0000-000000000001")

    def ring() -> None:
        bell = Bell(store_path)
        while not stop.is_set():
            bell.ring_watchers([job_id])

    ringers = [threading.Thread(target=ring) for _ in range(2)]
    for ringer in ringers:
        ringer.start()
    try:
        bell = Bell(store_path)
        for number in range(500):
            bell.listen(f"{WATCHER}{number}").close()
    finally:
        stop.set()
        for ringer in ringers:
            ringer.join()
    assert list((tmp_path / "headway.db-wake").iterdir()) == []


async def test_an_ear_that_is_closed_while_somebody_waits_leaves_nothing_in_the_loop(tmp_path: Path) -> None:
    """The next one to get the number of its descriptor would find an entry of the loop that is not its own."""
    loop = asyncio.get_running_loop()
    ear = Bell(tmp_path / "headway.db").listen(f"{WATCHER}me")
    waiting = asyncio.create_task(ear.wait(5.0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    ear.close()
    first, second = socket.socketpair()
    with first, second:
        for end in (first, second):  # One of them has the number now.
            loop.add_writer(end, lambda: None)
            loop.remove_writer(end)
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


async def test_an_ear_that_was_closed_is_polled_no_more(tmp_path: Path) -> None:
    ear = Bell(tmp_path / "headway.db").listen(f"{WATCHER}me")
    waiting = asyncio.create_task(ear.wait(5.0))
    await asyncio.sleep(0)
    number = ear._descriptor
    waiting.cancel()
    ear.close()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not asyncio.get_running_loop().remove_reader(number)
