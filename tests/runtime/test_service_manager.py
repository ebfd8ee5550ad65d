"""Messages to systemd, read from a real socket as systemd reads them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway.runtime.bounded_wait import end_tasks
from headway.runtime.service_manager import ServiceManager

Heard = socket.socket


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
        out.bind(str(tmp_path / "notify"))
        out.setblocking(False)
        yield out


async def next_of(heard: Heard) -> str:
    async with asyncio.timeout(30):
        return (await asyncio.get_running_loop().sock_recv(heard, 1_000)).decode()


def environment(heard: Heard, **more: str) -> dict[str, str]:
    return {"NOTIFY_SOCKET": heard.getsockname(), "PATH": "/bin", **more}


async def test_it_is_ready_once_when_all_parts_have_started(heard: Heard) -> None:
    manager = ServiceManager.from_environment(environment(heard))
    manager.expect("a")
    manager.expect("b")
    manager.started("a")
    with pytest.raises(BlockingIOError):
        heard.recv(1_000)
    manager.started("b")
    assert await next_of(heard) == "READY=1"
    manager.started("a")  # Again, after a restart.
    with pytest.raises(BlockingIOError):
        heard.recv(1_000)


async def test_signs_of_life_go_on_while_it_stops(heard: Heard) -> None:
    watched = environment(heard, WATCHDOG_USEC="20000", WATCHDOG_PID=str(os.getpid()))
    manager = ServiceManager.from_environment(watched)
    stopping = asyncio.Event()
    reporting = asyncio.create_task(manager.report(stopping))
    assert [await next_of(heard) for _ in range(3)] == ["WATCHDOG=1"] * 3
    stopping.set()
    while (state := await next_of(heard)) == "WATCHDOG=1":
        pass
    assert state == "STOPPING=1"
    assert await next_of(heard) == "WATCHDOG=1"
    await end_tasks((reporting,))


@pytest.mark.parametrize("more", [{}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "soon"}])
async def test_without_a_watchdog_of_its_own_it_reports_only_the_stop(heard: Heard, more: dict[str, str]) -> None:
    manager = ServiceManager.from_environment(environment(heard, **more))
    stopping = asyncio.Event()
    reporting = asyncio.create_task(manager.report(stopping))
    stopping.set()
    await reporting
    assert await next_of(heard) == "STOPPING=1"
    with pytest.raises(BlockingIOError):
        heard.recv(1_000)


async def test_an_abstract_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        name = f"headway-{os.getpid()}-{id(heard)}"
        heard.bind(f"\0{name}")
        heard.setblocking(False)
        ServiceManager.from_environment({"NOTIFY_SOCKET": f"@{name}"}).started("all")
        assert await next_of(heard) == "READY=1"


def test_child_processes_do_not_inherit_the_socket(heard: Heard) -> None:
    given = environment(heard, WATCHDOG_USEC="20000", WATCHDOG_PID=str(os.getpid()))
    ServiceManager.from_environment(given)
    assert given == {"PATH": "/bin"}


@pytest.mark.parametrize("address", [{}, {"NOTIFY_SOCKET": "vsock:2:1234"}])
async def test_without_systemd_nothing_is_sent(address: dict[str, str]) -> None:
    manager = ServiceManager.from_environment({**address, "WATCHDOG_USEC": "20000"})
    manager.started("all")
    await manager.report(asyncio.Event())  # Returns at once.


async def test_a_socket_that_is_gone_is_logged_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = ServiceManager.from_environment({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    stopping = asyncio.Event()
    stopping.set()
    with caplog.at_level(logging.WARNING, "headway.systemd"):
        manager.started("all")
        await manager.report(stopping)
    assert [record.getMessage().split()[:2] for record in caplog.records] == [["systemd.unreachable", "state=READY=1"]]
