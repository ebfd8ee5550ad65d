"""Runs a program on the loop: no thread, no shell, and nothing left of it afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from stat import S_ISREG
from typing import IO, NamedTuple

import msgspec

from headway.client.programs.files import File
from headway.client.programs.limits import Limits
from headway.client.programs.output import Output
from headway.core.errors import CommandFailed

GUARD = Path(__file__).with_name("guard.py")
PIECE = 1 << 16
LAST_BYTES = 1.0  # Seconds that what was said may take to arrive once everybody who could say it is gone.
TAIL_LINES, TAIL_MAX = 20, 2_000
_FORCED = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)  # What lack of memory looks like.


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is ready to run. ``largest``: bytes of the largest result that is kept."""

    argv: Sequence[str]
    files: Mapping[str, bytes]
    limits: Limits
    env: Mapping[str, str]
    collect: Sequence[str]
    stdin: str | None
    largest: int

    @property
    def name(self) -> str:
        return self.argv[0].rpartition("/")[2]

    async def run(self) -> Output:
        """Run it to its end. Cancelled, it stops the program and ends when every process of it is gone.

        Raises ``CommandFailed``.
        """
        if os.name != "posix":
            raise CommandFailed("programs can be run on POSIX systems only", retriable=False)
        path = search_path(self.env)
        program = shutil.which(self.argv[0], path=path)
        if program is None:
            raise CommandFailed(f"program {self.argv[0]!r} not found on this worker (PATH {path})", retriable=False)
        guard = _Guard.start(self.limits.output)
        try:
            folder = await guard.folder()
            env = {"PATH": path, "HOME": folder, **self.env}
            _write(folder, self.files)
            ended = await guard.serve(_spec(self, program, env))
            # The guard keeps the folder only for a program that came to an end of its own.
            at_ease = ended.code == 0 and ended.problem is None and not (ended.too_much or guard.too_much)
            found = self._found(folder) if at_ease else None
            self._judge(ended, guard, found)
            files = _read(folder, found or {})
        finally:
            await guard.gone()
        return self._output(ended, guard, files)

    def _found(self, folder: str) -> dict[str, int]:
        """Name the files that came out, with their sizes. What came in counts only if it is asked for by its name."""
        found: dict[str, int] = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                patterns = [one for one in self.collect if one == entry.name or entry.name not in self.files]
                if any(fnmatchcase(entry.name, one) or entry.name == one for one in patterns):
                    facts = entry.stat(follow_symlinks=False)
                    if S_ISREG(facts.st_mode):
                        found[entry.name] = facts.st_size
        return dict(sorted(found.items()))

    def _judge(self, ended: _Ended, guard: _Guard, found: Mapping[str, int] | None) -> None:
        """Raise what a program's end means, unless it did well."""
        limits, code = self.limits, ended.code
        if ended.problem is not None:
            why = os.strerror(ended.problem) if ended.problem else "its limits cannot be set here"
            raise CommandFailed(f"{self.name} could not be started: {why}", retriable=False)
        failed = partial(CommandFailed, exit_code=code, stdout=guard.stdout, stderr=guard.stderr)
        size = len(guard.said[0]) + len(guard.said[1]) + sum((found or {}).values())
        if ended.too_much or guard.too_much or size > limits.output or _was(code, "SIGXFSZ"):
            raise failed(f"output limit ({limits.output} bytes)", retriable=False)
        killed_late = _was(code, "SIGKILL") and ended.cpu >= (limits.cpu or math.inf) - 0.1
        if limits.cpu is not None and (_was(code, "SIGXCPU") or killed_late):
            raise failed(f"time limit ({limits.cpu} s)", retriable=False)
        if code != 0:
            raise failed(_with_tail(self._ending(code), guard.stderr, guard.stdout))
        if self.collect and not found:
            sought = ", ".join(self.collect)
            raise failed(_with_tail(f"no output: {self.name} made no file {sought}", guard.stderr))
        if size > self.largest:
            raise failed(_too_large(size, self.largest), retriable=False)

    def _ending(self, code: int) -> str:
        if code > 0:
            return f"{self.name} exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        hint = ""
        if -code in _FORCED:
            memory = self.limits.memory
            hint = f" (its memory limit is {memory} bytes)" if memory else " (was there enough memory?)"
        return f"{self.name} was killed by {name}{hint}"

    def _output(self, ended: _Ended, guard: _Guard, files: dict[str, File]) -> Output:
        output = Output(
            exit_code=ended.code, stdout=guard.stdout, stderr=guard.stderr, files=files, seconds=ended.seconds
        )
        size = len(msgspec.json.encode(output, enc_hook=lambda file: file.model_dump()))
        if size > self.largest:
            raise CommandFailed(
                _too_large(size, self.largest), exit_code=0, stdout=guard.stdout, stderr=guard.stderr, retriable=False
            )
        return output


class _Ended(NamedTuple):
    """How a program ended. ``problem``: why it could not be started, as an error number."""

    code: int = 0
    cpu: float = 0.0
    seconds: float = 0.0
    too_much: bool = False
    problem: int | None = None


class _Guard:
    """The guard process of one program, and what the program says."""

    def __init__(self, process: subprocess.Popen[bytes], link: socket.socket, most: int) -> None:
        self._process = process
        self._link = link
        self._most = most
        self._lines = b""
        self._folder: str | None = None
        self._pid: int | None = None
        self._ended = False
        self.said = (bytearray(), bytearray())
        self.too_much = False
        streams = (process.stdout, process.stderr)
        self._hearing = [
            asyncio.create_task(self._hear(stream, into)) for stream, into in zip(streams, self.said, strict=True)
        ]

    @classmethod
    def start(cls, most: int) -> _Guard:
        """Start one. Not by asyncio: uvloop would let it inherit files of the worker, and speak to it over sockets."""
        link, theirs = socket.socketpair()
        link.setblocking(False)
        command = [sys.executable, "-I", "-S", str(GUARD), str(theirs.fileno()), tempfile.gettempdir()]
        try:
            process = subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={},
            )
        except BaseException:
            link.close()
            raise
        finally:
            theirs.close()
        return cls(process, link, most)

    @property
    def stdout(self) -> str:
        return self.said[0].decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.said[1].decode(errors="replace")

    async def folder(self) -> str:
        """Give the folder that it made for the program."""
        _, _, path = (await self._line()).partition(" ")
        self._folder = path
        return path

    async def serve(self, spec: bytes) -> _Ended:
        """Let it run the program; every process of that is gone afterwards."""
        with contextlib.suppress(ConnectionError):  # It has died; then there is no line to read either.
            await asyncio.get_running_loop().sock_sendall(self._link, b"%010d%s" % (len(spec), spec))
        word, _, rest = (await self._line()).partition(" ")
        if word == "unstartable":
            return _Ended(problem=int(rest))
        self._pid = int(rest)
        how, code, cpu, seconds = (await self._line()).split(" ")[1:]
        self._ended = True
        await self._heard()
        return _Ended(int(code), float(cpu), float(seconds), how == "output")

    async def gone(self) -> None:
        """Stop what still runs, and wait until all of it is gone; cancelling this changes nothing but its end."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
        try:
            await _whatever_happens(self._gone())
        finally:
            self._link.close()

    async def _gone(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while await loop.sock_recv(self._link, PIECE):
                pass
        while self._process.poll() is None:  # noqa: ASYNC110  (the end of the socket is the last thing but one that it does)
            await asyncio.sleep(0.001)
        if self._process.returncode != 0:
            self._clear()
        await self._heard()

    def _clear(self) -> None:
        """Do what the guard would have done: somebody has killed it, or it could not start."""
        if self._pid is not None and not self._ended:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _line(self) -> str:
        loop = asyncio.get_running_loop()
        while b"\n" not in self._lines:
            try:
                piece = await loop.sock_recv(self._link, PIECE)
            except ConnectionError:
                piece = b""
            if not piece:
                await self._heard()
                raise CommandFailed(_with_tail("the process that guards the program died", self.stderr))
            self._lines += piece
        line, _, self._lines = self._lines.partition(b"\n")
        return os.fsdecode(line)

    async def _hear(self, stream: IO[bytes] | None, into: bytearray) -> None:
        """Take in what the program says, up to the limit; what comes after that is thrown away."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), stream
        )
        try:
            while piece := await reader.read(PIECE):
                if self.too_much:
                    continue
                into += piece
                if len(self.said[0]) + len(self.said[1]) > self._most:
                    self.too_much = True
                    with contextlib.suppress(OSError):
                        self._link.shutdown(socket.SHUT_WR)
        finally:
            transport.close()

    async def _heard(self) -> None:
        """Wait for the end of what is said. A process that got away could keep that open for ever."""
        _, late = await asyncio.wait(self._hearing, timeout=LAST_BYTES)
        for one in late:
            one.cancel()


def search_path(env: Mapping[str, str]) -> str:
    """Give the PATH of a program: its own or the worker's, without places that depend on where it runs."""
    path = env.get("PATH") or os.environ.get("PATH") or os.defpath
    return os.pathsep.join(place for place in path.split(os.pathsep) if place.startswith("/"))


def _spec(program: Program, path: str, env: Mapping[str, str]) -> bytes:
    limits = program.limits
    texts: list[object] = [
        "" if limits.cpu is None else limits.cpu,
        "" if limits.memory is None else limits.memory,
        limits.output,
        program.stdin or "",
        path,
        len(program.argv),
        *program.argv,
        *(f"{name}={value}" for name, value in env.items()),
    ]
    return b"\0".join(os.fsencode(str(text)) for text in texts)


def _write(folder: str, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        target = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(target, "wb") as file:
            file.write(content)


def _read(folder: str, names: Mapping[str, int]) -> dict[str, File]:
    files: dict[str, File] = {}
    for name in names:
        source = os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NOFOLLOW)
        with open(source, "rb") as file:
            files[os.fsencode(name).decode(errors="replace")] = File(file.read())
    return files


def _was(code: int, name: str) -> bool:
    """Tell whether a program was ended by a signal, or says as shells do that one of its own was."""
    number = signal.Signals[name].value
    return code in (-number, 128 + number)


def _too_large(size: int, largest: int) -> str:
    return f"output limit ({largest} bytes): the result takes {size} bytes, more than payload_max keeps"


def _with_tail(text: str, *said: str) -> str:
    """Add the last lines of the first thing that was said."""
    tail = next((found for one in said if (found := _tail(one))), "")
    return f"{text}: {tail}" if tail else text


def _tail(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-TAIL_LINES:])[-TAIL_MAX:]


async def _whatever_happens(work: Awaitable[None]) -> None:
    """Wait for something to its end, even if the waiter is cancelled; then be cancelled."""
    future = asyncio.ensure_future(work)
    cancelled = False
    while not future.done():
        try:
            await asyncio.shield(future)
        except asyncio.CancelledError:
            cancelled = True
    future.result()
    if cancelled:
        raise asyncio.CancelledError
