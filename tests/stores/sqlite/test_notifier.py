"""Named pipes: a subscription that is opening is never taken for a dead one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from pathlib import Path

import pytest

from headway.core.errors import StoreError
from headway.core.job import JobId
from headway.stores.base import JOB_CHANNEL
from headway.stores.open import open_store
from headway.stores.sqlite.notifier import PipeNotifier


def test_ears_open_while_others_ring(tmp_path: Path) -> None:
    store_path, stop = tmp_path / "headway.db", threading.Event()
    job_id = JobId("00000000-0000-0000-0000-000000000001")

    def notify() -> None:
        notifier = PipeNotifier(store_path)
        while not stop.is_set():
            notifier.notify_watchers([job_id])

    ringers = [threading.Thread(target=notify) for _ in range(2)]
    for ringer in ringers:
        ringer.start()
    try:
        notifier = PipeNotifier(store_path)
        for number in range(500):
            notifier.subscribe(f"{JOB_CHANNEL}{number}").close()
    finally:
        stop.set()
        for ringer in ringers:
            ringer.join()
    assert list((tmp_path / "headway.db-wake").iterdir()) == []


async def test_an_ear_that_is_closed_while_somebody_waits_leaves_nothing_in_the_loop(tmp_path: Path) -> None:
    """A later file with the same descriptor would find a foreign entry in the event loop."""
    loop = asyncio.get_running_loop()
    subscription = PipeNotifier(tmp_path / "headway.db").subscribe(f"{JOB_CHANNEL}me")
    waiting = asyncio.create_task(subscription.wait(5.0))
    await asyncio.sleep(0.01)
    waiting.cancel()
    subscription.close()
    first, second = socket.socketpair()
    with first, second:
        for end in (first, second):  # One of them has the number now.
            loop.add_writer(end, lambda: None)
            loop.remove_writer(end)
    with contextlib.suppress(asyncio.CancelledError):
        await waiting


async def test_an_ear_that_was_closed_is_polled_no_more(tmp_path: Path) -> None:
    subscription = PipeNotifier(tmp_path / "headway.db").subscribe(f"{JOB_CHANNEL}me")
    waiting = asyncio.create_task(subscription.wait(5.0))
    await asyncio.sleep(0)
    number = subscription._descriptor
    waiting.cancel()
    subscription.close()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not asyncio.get_running_loop().remove_reader(number)


JOB = JobId("00000000-0000-0000-0000-00000000002a")


def test_a_ring_writes_into_nothing_but_a_pipe(tmp_path: Path) -> None:
    # S-27: a link in the folder must not lead a ring to a file of ours.
    target, plain = tmp_path / "target.txt", tmp_path / "plain"
    for file in (target, plain):
        file.write_text("do not touch")
    folder = tmp_path / "headway.db-wake"
    folder.mkdir(mode=0o700)
    (folder / f"{JOB_CHANNEL}x").symlink_to(target)
    os.link(plain, folder / f"{JOB_CHANNEL}y")
    (folder / "w1").symlink_to(target)
    notifier = PipeNotifier(tmp_path / "headway.db")
    notifier.notify_watchers([JOB])
    notifier.notify("w1")
    assert (target.read_text(), plain.read_text()) == ("do not touch", "do not touch")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o755])
def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "headway.db-wake"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StoreError, match=r"must be a folder of the store's owner with mode 0700, but it is d"):
        PipeNotifier(tmp_path / "headway.db").subscribe("w1")
    assert list(folder.iterdir()) == []


def test_a_link_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "headway.db-wake").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="must be a folder of the store's owner"):
        PipeNotifier(tmp_path / "headway.db").subscribe("w1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
async def test_a_store_beside_another_users_folder_is_not_opened(tmp_path: Path) -> None:
    folder = tmp_path / "headway.db-wake"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65_534, 65_534)
    with pytest.raises(StoreError, match="of user 65534; remove it"):
        await open_store(f"sqlite:///{tmp_path}/headway.db").open()
    # Where the store is that user's too, root may look at it.
    (tmp_path / "headway.db").touch(mode=0o600)
    os.chown(tmp_path / "headway.db", 65_534, 65_534)
    store = open_store(f"sqlite:///{tmp_path}/headway.db")
    await store.open()
    await store.close()
