"""Sessions across real processes: several servers at one port, workers on each store, HTTP workers, and crashes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from headway import Headway
from tests.conftest import ADDRESSES
from tests.faults.conftest import PATIENCE, alive, children, tree, wait_until
from tests.servers import free_port
from tests.sessions import tasks
from tests.sessions.dialogue import knock, opened, resumed
from tests.sessions.test_sessions import ended

pytestmark = pytest.mark.slow

NOWHERE = "sqlite:////nowhere/at/all.db"  # Opening it would fail.


class Site:
    """A store, server processes at one port, and a worker."""

    def __init__(self, folder: Path, store: str) -> None:
        self.folder = folder
        self.store = store
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.app = Headway(store)
        self._processes: list[subprocess.Popen[bytes]] = []
        shutil.copy(tasks.__file__, folder / "session_tasks.py")

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADWAY_")}
        variables = {"HEADWAY_STORE": self.store, "HEADWAY_SESSION_GRACE": "3"} | variables
        with (self.folder / f"{words[0]}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "headway", *words, "--log", "json"],
                cwd=self.folder,
                env=kept | variables,
                stdout=log,
                stderr=log,
            )
        self._processes.append(process)
        return process

    def serve(self, count: int = 2) -> subprocess.Popen[bytes]:
        process = self.start("serve", "--port", str(self.port), "--workers", str(count))
        wait_until(self._answers)
        return process

    def work(self, **variables: str) -> subprocess.Popen[bytes]:
        process = self.start("worker", "session_tasks:app", "--slots", "1", "--reserved", "0", **variables)
        wait_until(lambda: self.app.stats().workers)
        wait_until(self._knows)
        return process

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.address}/healthz", timeout=1):
            return True
        return False

    def _knows(self) -> bool:
        """Return whether the worker has published its tasks."""
        with urllib.request.urlopen(f"{self.address}/api/v1/catalogue", timeout=5) as answer:
            return b'"deaf"' in answer.read()

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.app.close()


@pytest.fixture
def site(store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    made = Site(tmp_path, ADDRESSES[store_name](tmp_path))
    yield made
    made.close()


@pytest.fixture
def sqlite_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.chdir(tmp_path)
    made = Site(tmp_path, f"sqlite:///{tmp_path}/headway.db")
    yield made
    made.close()


async def go_through(site: Site) -> None:
    """Open, talk, resize, leave and resume several times, be denied, and be halted."""
    job = Headway(site.store).task(name="work")(_work)
    await warm_up(site)
    async with opened(site.address, "echo", parameters={"prompt": "> "}) as client:
        assert (await client.expect("text"))["data"] == "> "
        await client.tell("resize", rows=30, columns=90)
        await client.say("size")
        assert (await client.expect("text"))["data"] == "30x90"
        async with knock(site.address, task_type="echo") as other:  # R3.30
            await other.expect("denied")
            assert (await other.rest())[1] == 4429
    secret = client.secret
    for _ in range(6):  # Some of them come to the process that has the session, and some do not.
        async with resumed(site.address, client.task_id, secret) as client:
            await client.say("again")
            assert (await client.expect("text"))["data"] == "again"
            await client.socket.send(b"\0\xff" * 10_000)
            assert await client.hear() == b"\0\xff" * 10_000
            secret = client.secret
    async with knock(site.address, task_id=client.task_id, resume="wrong") as stranger:  # R3.86
        await stranger.expect("denied")
        assert (await stranger.rest())[1] == 4404
    async with resumed(site.address, client.task_id, secret) as client:
        handle = await job.aenqueue()
        began = time.monotonic()
        messages, code, reason = await client.rest()  # R3.12, R3.25
        assert (messages[-1], code) == ({"type": "halted", "reason": reason}, 4409)
        assert time.monotonic() - began < 8
        assert await handle.aresult(timeout=20) == "done"
        halted = await ended(site.app, client.task_id)
        assert (halted.state, halted.reason) == ("cancelled", "halted")
        assert ((await handle.arecord()).started_at or 0) >= halted.finished_at  # R3.34
    await job.app.aclose()
    await site.app.aclose()


async def warm_up(site: Site) -> None:
    """Open sessions until one starts. On a busy machine the worker may be too slow for that in its first second."""
    async with asyncio.timeout(PATIENCE):
        while True:
            async with knock(site.address, task_type="echo") as client:
                if (await client.hear())["type"] == "started":
                    await client.say("bye")
                    await client.rest()
                    return


async def _work(seconds: float = 0.0) -> str:
    return "done"


@pytest.mark.parametrize("store_name", ["sqlite", "redis", "postgres"])  # Those that processes share by an address.
async def test_the_whole_of_it_on_every_store(site: Site) -> None:
    await asyncio.to_thread(site.serve)
    await asyncio.to_thread(site.work)
    await go_through(site)


async def test_the_whole_of_it_with_a_worker_over_http(sqlite_site: Site) -> None:
    await asyncio.to_thread(sqlite_site.serve, 1)
    await asyncio.to_thread(sqlite_site.work, HEADWAY_SERVER=sqlite_site.address, HEADWAY_STORE=NOWHERE)
    await go_through(sqlite_site)


async def test_a_shell_in_a_real_worker_is_gone_when_it_is_halted(sqlite_site: Site) -> None:  # R3.34
    await asyncio.to_thread(sqlite_site.serve)
    await asyncio.to_thread(sqlite_site.work)
    await warm_up(sqlite_site)
    async with opened(sqlite_site.address, "shell") as client:
        await client.socket.send(b"trap '' HUP TERM; echo pid=$((0+$$)).; while :; do :; done\n")
        shown = await client.until(b".\r\n")
        pid = int(shown.rpartition(b"pid=")[2].partition(b".")[0])
        handle = await Headway(sqlite_site.store).task(name="work")(_work).aenqueue()
        assert (await client.rest())[1] == 4409
        assert await handle.aresult(timeout=20) == "done"
        assert not alive(pid)


async def test_nothing_of_a_shell_outlives_a_worker_that_is_killed(sqlite_site: Site) -> None:
    await asyncio.to_thread(sqlite_site.serve)
    worker = await asyncio.to_thread(sqlite_site.work)
    await warm_up(sqlite_site)
    async with opened(sqlite_site.address, "shell") as client:
        await client.socket.send(b"trap '' HUP TERM; setsid -f sleep 1000; echo pid=$((0+$$)).; while :; do :; done\n")
        shown = await client.until(b".\r\n")
        pid = int(shown.rpartition(b"pid=")[2].partition(b".")[0])
        family = [process for process in tree(worker.pid) if process != worker.pid]
        assert pid in family
        for process in (worker.pid, *children(worker.pid)):
            os.kill(process, signal.SIGKILL)
        await asyncio.to_thread(wait_until, lambda: not [process for process in family if alive(process)], within=10)


async def test_a_client_is_told_when_its_worker_dies(sqlite_site: Site) -> None:
    await asyncio.to_thread(sqlite_site.serve)
    await asyncio.to_thread(sqlite_site.work)
    await warm_up(sqlite_site)
    async with opened(sqlite_site.address, "die") as client:
        await client.say("now")
        messages, code, _ = await client.rest()
    assert (messages[-1]["type"], messages[-1]["status"], code) == ("result", "failed", 1000)
    assert messages[-1]["error"]["type"] == "WorkerDied"
    job = await ended(sqlite_site.app, client.task_id)
    assert (job.state, job.attempts) == ("failed", 1)


async def test_a_session_ends_when_its_server_dies(sqlite_site: Site) -> None:  # R3.64
    server = await asyncio.to_thread(sqlite_site.serve)
    await asyncio.to_thread(sqlite_site.work)
    await warm_up(sqlite_site)
    async with opened(sqlite_site.address, "deaf") as client:
        for pid in [server.pid, *children(server.pid)]:
            os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert (await client.rest())[1] is None
        job = await ended(sqlite_site.app, client.task_id)
        assert (job.state, job.reason) == ("cancelled", "its client is gone")
        assert time.monotonic() - began < 8


async def test_a_frozen_server_is_missed_within_seconds(sqlite_site: Site) -> None:
    server = await asyncio.to_thread(sqlite_site.serve, 1)
    await asyncio.to_thread(sqlite_site.work)
    await warm_up(sqlite_site)
    async with opened(sqlite_site.address, "deaf") as client:
        server.send_signal(signal.SIGSTOP)
        try:
            job = await asyncio.wait_for(sqlite_site.app.job(client.task_id).arecord(), 5)
            assert job.state == "executing"
            job = await sqlite_site.app.client.ended(job.job_id, 20)
            assert job.state == "cancelled"
        finally:
            server.send_signal(signal.SIGCONT)
