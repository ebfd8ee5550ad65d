"""Runs a program on the event loop, without a thread or a shell, and removes its processes and folder afterwards."""

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
from codecs import getincrementaldecoder
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, NamedTuple, TypeVar

import msgspec

from headway.client.programs.files import File
from headway.client.programs.limits import Limits
from headway.client.programs.output import Output
from headway.client.programs.output_files import find_files, move_files, read_files
from headway.core.errors import CommandFailed
from headway.runtime.bounded_wait import done_even_if_cancelled
from headway.runtime.os_support import SUPERVISOR

T = TypeVar("T")
WriteOutput = Callable[[str, str], None]  # Takes the name of a stream, and text.
KeepOutput = Callable[[Output], None]  # Takes the output of a program that failed or was stopped.

PIECE = 1 << 16
LAST_BYTES = 1.0  # Seconds to wait for the last output after every process of the program has ended.
TAIL_LINES, TAIL_MAX = 20, 2_000
_FORCED = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)  # Signals that lack of memory can cause.


def _ignore(*_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Program:
    """A program that is ready to run. ``largest``: maximum bytes of a stored result.

    ``artifacts``: the folder for the output files; None keeps them in the result.
    """

    argv: Sequence[str]
    files: Mapping[str, bytes]
    limits: Limits
    env: Mapping[str, str]
    collect: Sequence[str]
    stdin: str | None
    largest: int
    artifacts: str | None = None

    @property
    def name(self) -> str:
        return self.argv[0].rpartition("/")[2]

    async def run(self, *, write_output: WriteOutput = _ignore, keep: KeepOutput = _ignore) -> Output:
        """Run the program and return its output. Raises ``CommandFailed``.

        A cancellation stops the program and takes effect once all its processes are gone.
        """
        if os.name != "posix":
            raise CommandFailed("programs can be run on POSIX systems only", retriable=False)
        path = search_path(self.env)
        program = shutil.which(self.argv[0], path=path)
        if program is None:
            raise CommandFailed(f"program {self.argv[0]!r} not found on this worker (PATH {path})", retriable=False)
        supervisor = _SupervisorProcess.start(self.limits.output, write_output)
        try:
            folder = await supervisor.folder()
            env = {"PATH": path, "HOME": folder, **self.env}
            _write(folder, self.files)
            try:
                ended = await supervisor.serve(_spec(self, program, env))
            except asyncio.CancelledError:
                if (stopped := await _uncancelled(supervisor.stopped())) is not None:
                    keep(await _uncancelled(self._collect_output(stopped, supervisor, folder)))
                raise
            try:
                found = find_files(folder, self.collect, self.files)
                self._judge(ended, supervisor, found)
                output = await self._made(ended, supervisor, folder, found)
                if (size := output.size()) > self.largest:
                    raise supervisor.failure(ended)(_too_large(size, self.largest), retriable=False)
                return output
            except CommandFailed:
                if ended.problem is None:
                    keep(await _uncancelled(self._collect_output(ended, supervisor, folder)))
                raise
        finally:
            await supervisor.gone()

    async def _collect_output(self, ended: _ProgramExit, supervisor: _SupervisorProcess, folder: str) -> Output:
        """Return the output of a program that failed or was stopped, cut to the size of a stored result."""
        found = find_files(folder, self.collect, self.files)
        kept = dict(found)
        while self.artifacts is None and sum(kept.values()) > self.largest:  # Do not read files that cannot be kept.
            del kept[max(kept, key=kept.__getitem__)]
        output = (await self._made(ended, supervisor, folder, kept)).cut_to(self.largest)
        return output if len(kept) == len(found) else msgspec.structs.replace(output, cut=True)

    def _judge(self, ended: _ProgramExit, supervisor: _SupervisorProcess, found: Mapping[str, int]) -> None:
        """Raise ``CommandFailed`` unless the program succeeded."""
        limits, code = self.limits, ended.code
        if ended.problem is not None:
            why = os.strerror(ended.problem) if ended.problem else "its limits cannot be set here"
            raise CommandFailed(f"{self.name} could not be started: {why}", retriable=False)
        failed = supervisor.failure(ended)
        size = len(supervisor.output[0]) + len(supervisor.output[1]) + sum(found.values())
        if ended.too_much or supervisor.too_much or size > limits.output or _was(code, "SIGXFSZ"):
            raise failed(f"output limit ({limits.output} bytes)", retriable=False)
        killed_late = _was(code, "SIGKILL") and ended.cpu >= (limits.cpu or math.inf) - 0.1
        if limits.cpu is not None and (_was(code, "SIGXCPU") or killed_late):
            raise failed(f"time limit ({limits.cpu} s)", retriable=False)
        if code != 0:
            raise failed(_with_tail(self._ending(code), supervisor.stderr, supervisor.stdout))
        if self.collect and not found:
            sought = ", ".join(self.collect)
            raise failed(_with_tail(f"no output: {self.name} made no file {sought}", supervisor.stderr))
        if size > self.largest and self.artifacts is None:
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

    async def _made(
        self, ended: _ProgramExit, supervisor: _SupervisorProcess, folder: str, found: Mapping[str, int]
    ) -> Output:
        made = partial(
            Output, exit_code=ended.code, stdout=supervisor.stdout, stderr=supervisor.stderr, seconds=ended.seconds
        )
        if self.artifacts is None:
            return made(files={name: File(content) for name, content in read_files(folder, found).items()})
        # A copy of large files to another disk would block the event loop.
        return made(files={}, artifacts=await asyncio.to_thread(move_files, folder, found, self.artifacts))


class _ProgramExit(NamedTuple):
    """The exit of a program. ``problem``: the error number if the supervisor could not start it."""

    code: int = 0
    cpu: float = 0.0
    seconds: float = 0.0
    too_much: bool = False
    problem: int | None = None


class _SupervisorProcess:
    """The supervisor process of one program, and the program's output streams."""

    def __init__(
        self, process: subprocess.Popen[bytes], link: socket.socket, most: int, write_output: WriteOutput
    ) -> None:
        self._process = process
        self._link = link
        self._most = most
        self._write_output = write_output
        self._lines = b""
        self._folder: str | None = None
        self._pid: int | None = None
        self._asked = False  # Whether the supervisor has received the spec.
        self._ended = False
        self.output = (bytearray(), bytearray())
        self.too_much = False
        streams = (("stdout", process.stdout), ("stderr", process.stderr))
        self._stream_readers = [
            asyncio.create_task(self._read_stream(name, stream, into))
            for (name, stream), into in zip(streams, self.output, strict=True)
        ]

    @classmethod
    def start(cls, most: int, write_output: WriteOutput) -> _SupervisorProcess:
        """Start a supervisor. Under uvloop, asyncio would let it inherit worker files and use sockets as pipes."""
        link, theirs = socket.socketpair()
        link.setblocking(False)
        command = [sys.executable, "-I", "-S", str(SUPERVISOR), str(theirs.fileno()), tempfile.gettempdir()]
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
        return cls(process, link, most, write_output)

    @property
    def stdout(self) -> str:
        return self.output[0].decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self.output[1].decode(errors="replace")

    def failure(self, ended: _ProgramExit) -> Callable[..., CommandFailed]:
        """Return a function that builds the error of a program, with its exit code and output."""
        return partial(CommandFailed, exit_code=ended.code, stdout=self.stdout, stderr=self.stderr)

    async def folder(self) -> str:
        """Return the folder that the supervisor made for the program."""
        _, _, path = (await self._line()).partition(" ")
        self._folder = path
        return path

    async def serve(self, spec: bytes) -> _ProgramExit:
        """Run the program and return its exit. All its processes are gone then."""
        with contextlib.suppress(ConnectionError):  # The supervisor died; reading its line fails too.
            await asyncio.get_running_loop().sock_sendall(self._link, b"%010d%s" % (len(spec), spec))
        self._asked = True
        return await self._end()

    async def stopped(self) -> _ProgramExit | None:
        """Stop the program and return its exit, or None if it never started. The folder stays."""
        if not self._asked:
            return None
        self._stop()
        try:
            ended = await self._end()
        except CommandFailed:  # The supervisor has died, and the folder is gone.
            return None
        return ended if ended.problem is None else None

    def _stop(self) -> None:
        with contextlib.suppress(OSError):
            self._link.send(b"s")

    async def _end(self) -> _ProgramExit:
        while True:
            word, *rest = (await self._line()).split(" ")
            if word == "unstartable":
                return _ProgramExit(problem=int(rest[0]))
            if word == "began":
                self._pid = int(rest[0])
                continue
            how, code, cpu, seconds = rest
            self._ended = True
            await self._wait_for_streams()
            return _ProgramExit(int(code), float(cpu), float(seconds), how == "output")

    async def gone(self) -> None:
        """Stop the program and wait until all its processes are gone. A cancellation takes effect only then."""
        with contextlib.suppress(OSError):
            self._link.shutdown(socket.SHUT_WR)
        try:
            await _uncancelled(self._gone())
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
        await self._wait_for_streams()

    def _clear(self) -> None:
        """Kill the program's group and remove its folder, because the supervisor was killed or could not start."""
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
                await self._wait_for_streams()
                raise CommandFailed(_with_tail("the process that guards the program died", self.stderr))
            self._lines += piece
        line, _, self._lines = self._lines.partition(b"\n")
        return os.fsdecode(line)

    async def _read_stream(self, name: str, stream: IO[bytes] | None, into: bytearray) -> None:
        """Read a stream of the program up to the output limit, and discard the rest."""
        reader = asyncio.StreamReader()
        text = getincrementaldecoder("utf-8")("replace")  # A piece may end inside a character.
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), stream
        )
        try:
            while piece := await reader.read(PIECE):
                if self.too_much:
                    continue
                into += piece
                self._write_output(name, text.decode(piece))
                if len(self.output[0]) + len(self.output[1]) > self._most:
                    self.too_much = True
                    self._stop()
        finally:
            transport.close()

    async def _wait_for_streams(self) -> None:
        """Wait until the program's streams end, with a timeout: a process that escaped could keep them open forever."""
        _, late = await asyncio.wait(self._stream_readers, timeout=LAST_BYTES)
        for one in late:
            one.cancel()


def search_path(env: Mapping[str, str]) -> str:
    """Return the PATH of a program, from ``env`` or from the worker, without relative folders."""
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
        if "/" in name:
            os.makedirs(os.path.join(folder, os.path.dirname(name)), 0o700, exist_ok=True)
        target = os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(target, "wb") as file:
            file.write(content)


def _was(code: int, name: str) -> bool:
    """Return whether a signal ended a program, or ended its child as an exit code of 128 plus the signal says."""
    number = signal.Signals[name].value
    return code in (-number, 128 + number)


def _too_large(size: int, largest: int) -> str:
    return f"output limit ({largest} bytes): the result takes {size} bytes, more than payload_max keeps"


def _with_tail(text: str, *outputs: str) -> str:
    """Return a text with the last lines of the first output that is not empty."""
    tails = ("\n".join(one.strip().splitlines()[-TAIL_LINES:])[-TAIL_MAX:] for one in outputs)
    tail = next(filter(None, tails), "")
    return f"{text}: {tail}" if tail else text


async def _uncancelled(work: Awaitable[T]) -> T:
    """Wait for an awaitable to its end even if the caller is cancelled, and raise ``CancelledError`` only then."""
    future = asyncio.ensure_future(work)
    cancelled = await done_even_if_cancelled(future)
    result = future.result()
    if cancelled:
        raise asyncio.CancelledError
    return result
