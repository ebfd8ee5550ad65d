"""Programs on a terminal: input, output, sizes, exit codes, and no process that outlives its session."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from headway import Headway, SessionClosed
from headway.core.errors import ConfigError
from headway.terminal import run_in_terminal
from tests.sessions.dialogue import opened
from tests.sessions.tasks import make_app
from tests.sessions.test_sessions import ended, running


class Typist:
    """The context of a session, without a session."""

    def __init__(self, *lines: str) -> None:
        self.size = (24, 80)
        self.shown = b""
        self.lines = list(lines)
        self.news = asyncio.Event()
        self.sizes: asyncio.Queue[tuple[int, int]] = asyncio.Queue()
        self.gone = asyncio.Event()

    async def receive(self) -> str | bytes:
        if self.lines:
            return self.lines.pop(0)
        await self.gone.wait()
        raise SessionClosed

    async def send(self, data: bytes) -> None:
        self.shown += data
        self.news.set()

    async def resized(self) -> tuple[int, int]:
        return await self.sizes.get()

    async def sees(self, text: bytes) -> None:
        async with asyncio.timeout(30):
            while text not in self.shown:
                self.news.clear()
                await self.news.wait()


async def test_a_program_has_a_terminal_of_its_own_and_gives_its_exit_code() -> None:
    typist = Typist()
    code = await run_in_terminal(typist, ["sh", "-c", "test -t 0 && test -t 1 && tty && stty size; exit 7"])
    assert code == 7
    assert typist.shown.split()[1:] == [b"24", b"80"]
    assert typist.shown.startswith(b"/dev/pts/")


@pytest.mark.parametrize(
    "argv, code, shown",
    [
        (["sh", "-c", "kill -TERM $$"], 143, b""),
        (["/does/not/exist"], 127, b"No such file"),
        (["/etc/passwd"], 126, b"denied"),
        (["sh", "-c", "printf 'x%.0s' $(seq 100000)"], 0, b"x" * 100_000),
    ],
    ids=["killed", "missing", "not a program", "long"],
)
async def test_how_it_ended_is_told_as_shells_do(argv: list[str], code: int, shown: bytes) -> None:
    typist = Typist()
    assert await run_in_terminal(typist, argv) == code
    assert shown in typist.shown


async def test_a_client_that_reads_slowly_is_shown_everything() -> None:
    class Slow(Typist):
        async def send(self, data: bytes) -> None:
            await asyncio.sleep(0.7)
            await super().send(data)

    typist = Slow()
    assert await run_in_terminal(typist, ["sh", "-c", "sleep 60 & printf 'x%.0s' $(seq 9000); echo done"]) == 0
    assert typist.shown.endswith(b"xdone\r\n")


async def test_it_is_told_of_a_new_size() -> None:
    typist = Typist()
    script = "trap 'stty size; exit 0' WINCH; echo ready; while :; do sleep 0.05; done"
    at_work = asyncio.create_task(run_in_terminal(typist, ["bash", "-c", script]))
    await typist.sees(b"ready")
    typist.sizes.put_nowait((50, 132))
    assert await asyncio.wait_for(at_work, 10) == 0
    assert b"50 132" in typist.shown


async def test_it_gets_a_small_environment_and_not_the_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_TOKEN", "hw_secret")
    typist = Typist()
    await run_in_terminal(typist, ["env"], env={"COLOUR": "red"})
    assert b"COLOUR=red" in typist.shown
    assert b"TERM=" in typist.shown
    assert b"hw_secret" not in typist.shown


@pytest.mark.skipif(sys.platform != "linux", reason="limits are kept by Linux")
async def test_its_limits_hold() -> None:
    typist = Typist()
    began = time.monotonic()
    assert await run_in_terminal(typist, ["sh", "-c", "while :; do :; done"], cpu=1) in (128 + 24, 128 + 9)
    assert time.monotonic() - began < 8
    code = await run_in_terminal(typist, [sys.executable, "-c", "x = b'x' * (1 << 30)"], memory=256 << 20)
    assert code != 0
    assert b"MemoryError" in typist.shown


STUBBORN = "trap '' HUP TERM; (trap '' HUP TERM; echo $BASHPID $$; while :; do :; done)"


@pytest.mark.parametrize("how", ["cancelled", "gone"])
async def test_nothing_of_it_is_left_whatever_it_ignores(how: str) -> None:  # R3.34
    typist = Typist()
    script = f'set -m; {STUBBORN} & setsid -f bash -c "$AGAIN"; {STUBBORN}'
    at_work = asyncio.create_task(run_in_terminal(typist, ["bash", "-c", script], env={"AGAIN": STUBBORN}))
    while len(typist.shown.split()) < 6:
        await typist.sees(b"\n")
        await asyncio.sleep(0.05)
    pids = {int(pid) for pid in typist.shown.split()}
    began = time.monotonic()
    if how == "cancelled":
        at_work.cancel()
    else:
        typist.gone.set()
    with pytest.raises((asyncio.CancelledError, SessionClosed)):
        await at_work
    assert 0.4 < time.monotonic() - began < 30
    assert not [pid for pid in pids if _lives(pid)]


async def test_a_program_that_minds_the_hang_up_is_not_waited_for() -> None:
    # On a busy machine a process may take long to end. One that is waited for always takes the grace of 0.5 s.
    assert min([await _seconds_to_hang_up() for _ in range(5)]) < 0.4


async def _seconds_to_hang_up() -> float:
    typist = Typist()
    at_work = asyncio.create_task(run_in_terminal(typist, ["sh", "-c", "echo ready; exec sleep 60"]))
    await typist.sees(b"ready")
    began = time.monotonic()
    at_work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await at_work
    return time.monotonic() - began


# ---------------------------------------------------------------------- in a session


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headway:
    monkeypatch.chdir(tmp_path)
    return make_app("memory://", slots=1)


@pytest.fixture
async def address(app: Headway) -> AsyncIterator[str]:
    async with running(app) as address:
        yield address


async def test_a_shell_in_a_session(address: str) -> None:
    async with opened(address, "shell") as client:
        await client.socket.send(b"echo $GREETING; stty size\n")
        await client.until(b"24 80")
        await client.tell("resize", rows=40, columns=100)
        await asyncio.sleep(0.2)
        await client.socket.send(b"stty size\n")
        await client.until(b"40 100")
        await client.socket.send(b"exit 3\n")
        messages, code, _ = await client.rest()
    assert (messages[-1]["status"], messages[-1]["result"], code) == ("completed", 3, 1000)


async def test_a_stubborn_shell_is_halted(app: Headway, address: str) -> None:  # R3.12, R3.34
    async with opened(address, "shell") as client:
        await client.socket.send(b"trap '' HUP TERM; echo pid=$$; while :; do :; done\n")
        shown = b""
        while (found := re.search(rb"pid=(\d+)\r\n", shown)) is None:
            shown += await client.hear()
        pid = int(found[1])
        job = await app.tasks["work"].aenqueue()
        assert (await client.rest())[1] == 4409
        assert await job.aresult(timeout=10) == "done"
        assert not _lives(pid)
        assert (await ended(app, client.task_id)).reason == "halted"


def test_what_is_no_program_is_refused() -> None:
    app = Headway("memory://")
    for argv in ([], "bash", ["bash", "-c\0"]):
        with pytest.raises(ConfigError, match="the program is a list"):
            app.terminal(argv, name="shell")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_the_signal_numbers_that_are_meant() -> None:
    assert (signal.SIGXCPU, signal.SIGKILL) == (24, 9)
