"""Runs the program of a session under its own terminal."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from headway.runtime.bounded_wait import done_even_if_cancelled, end_tasks
from headway.runtime.os_support import SUPERVISOR
from headway.runtime.supervisor import TERMINAL

CHUNK = 32 << 10
# The only variables passed on, because the worker's environment may hold passwords.
INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "SHELL", "TMPDIR")


class TerminalSession(Protocol):
    """The part of a session's context that ``run_in_terminal`` needs."""

    @property
    def size(self) -> tuple[int, int]: ...
    async def receive(self) -> str | bytes: ...
    async def send(self, data: bytes) -> None: ...
    async def resized(self) -> tuple[int, int]: ...


async def run_in_terminal(
    ctx: TerminalSession,
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    cpu: int | None = None,
    memory: int | None = None,
) -> int:
    """Run a program under a terminal that the session's client types into. Return its exit code, as shells do.

    ``env`` is added to a small environment (PATH, HOME, TERM and the like), not to the worker's own. ``cpu``: CPU
    seconds for each process. ``memory``: bytes of address space for each process.
    If the session ends first, all processes of the terminal get SIGHUP, and SIGKILL half a second later. This function
    returns when they are gone.
    """
    terminal = await _Terminal.start(argv, ctx.size, _environment(env), cwd, cpu, memory)
    try:
        return await _attend(ctx, terminal)
    finally:
        await terminal.end()


async def _attend(ctx: TerminalSession, terminal: _Terminal) -> int:
    """Pass bytes in both directions, and window sizes to the program, until the program or the session ends."""
    exited = asyncio.ensure_future(terminal.process.wait())
    output = asyncio.ensure_future(_show(ctx, terminal))
    others = [asyncio.ensure_future(_type(ctx, terminal)), asyncio.ensure_future(_follow_size(ctx, terminal))]
    try:
        # Wait until all processes have ended, then until their output is sent.
        for last in (exited, output):
            await asyncio.wait({last, *others}, return_when=asyncio.FIRST_COMPLETED)
            for other in others:
                if other.done():
                    other.result()  # The session is over.
        output.result()
        return exited.result()
    finally:
        parts: list[asyncio.Future[Any]] = [output, *others, exited]
        await end_tasks(parts)


async def _show(ctx: TerminalSession, terminal: _Terminal) -> None:
    while data := await terminal.read():
        await ctx.send(data)


async def _type(ctx: TerminalSession, terminal: _Terminal) -> None:
    while True:
        message = await ctx.receive()
        await terminal.write(message.encode("utf-8", "replace") if isinstance(message, str) else message)


async def _follow_size(ctx: TerminalSession, terminal: _Terminal) -> None:
    while True:
        terminal.resize(await ctx.resized())


class _Terminal:
    """A program, and the user's side of its terminal."""

    def __init__(self, process: asyncio.subprocess.Process, master: int, link: int) -> None:
        self.process = process
        self._master = master
        self._link = link  # The supervisor ends everything when this pipe closes, also if the worker dies.
        self._loop = asyncio.get_running_loop()
        os.set_blocking(master, False)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        size: tuple[int, int],
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None,
        cpu: int | None,
        memory: int | None,
    ) -> _Terminal:
        master, slave = pty.openpty()
        theirs, link = os.pipe()
        limits = ["" if limit is None else str(limit) for limit in (cpu, memory)]
        try:
            _set_size(master, size)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-I",
                "-S",
                str(SUPERVISOR),
                str(theirs),
                TERMINAL,
                *limits,
                *argv,
                stdin=slave,
                stdout=slave,
                stderr=slave,
                env=dict(env),
                cwd=cwd,
                pass_fds=[theirs],
                start_new_session=True,
            )
        except BaseException:
            os.close(master)
            os.close(link)
            raise
        finally:
            os.close(slave)
            os.close(theirs)
        return cls(process, master, link)

    def resize(self, size: tuple[int, int]) -> None:
        """Set the size. The kernel sends SIGWINCH to the processes in the foreground."""
        with contextlib.suppress(OSError):
            _set_size(self._master, size)

    async def read(self) -> bytes:
        """Return output of the program, or ``b""`` once no process has the terminal open."""
        while True:
            try:
                return os.read(self._master, CHUNK)
            except BlockingIOError:
                await self._ready(self._loop.add_reader, self._loop.remove_reader)
            except OSError:  # EIO on Linux: no process has the terminal open.
                return b""

    async def write(self, data: bytes) -> None:
        """Write input for the program. Waits while the program does not read."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._master, left) :]
            except BlockingIOError:
                await self._ready(self._loop.add_writer, self._loop.remove_writer)
            except OSError:  # The program has ended.
                return

    async def end(self) -> None:
        """Stop every process of the terminal, by force if needed, and wait until they are gone."""
        os.close(self._link)
        await done_even_if_cancelled(asyncio.ensure_future(self.process.wait()))  # The slot is free only then.
        os.close(self._master)

    async def _ready(self, watch: Callable[..., object], unwatch: Callable[[int], object]) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        watch(self._master, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            unwatch(self._master)


def _environment(more: Mapping[str, str] | None) -> dict[str, str]:
    kept = {name: os.environ[name] for name in INHERITED_VARIABLES if name in os.environ}
    return {"TERM": "xterm-256color", "PATH": os.defpath, **kept, **(more or {})}


def _set_size(descriptor: int, size: tuple[int, int]) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
