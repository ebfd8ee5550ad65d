"""The process in which jobs of executor ``process`` run, one at a time. Only a runner starts it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import FrameType
from typing import Any, Protocol, TypeVar

from headway.client.app import Headway
from headway.client.context import Context, current, job_facts
from headway.client.invoke import invoke_async, invoke_plain
from headway.client.loading import load_app
from headway.client.members import MemberPage, read_members
from headway.core.errors import StepError, StoreUnavailable, UnknownTask
from headway.core.job import State
from headway.core.lease import Lease
from headway.core.policy.retry import Raised, Returned, Snoozed
from headway.core.workflow import BatchId, Step
from headway.observability.logs import configure_logs, flush_logs
from headway.runtime.immediate import run_now
from headway.runtime.os_support import adopt_orphans, die_with_parent, hide_from_programs, resident_memory
from headway.runtime.supervisor import children
from headway.worker.executors import wire
from headway.worker.outcomes import raised, returned

R = TypeVar("R")


class AskRunner(Protocol):
    """Sends a question to the runner and returns its answer, of this kind."""

    def __call__(self, message: wire.ProcessMessage, kind: type[R]) -> R: ...


class _Interrupted(BaseException):
    """The runner asked this job to stop."""


class _Channel:
    """The socket to the runner, with blocking calls."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: wire.ProcessMessage) -> None:
        try:
            self._connection.sendall(wire.pack(message))
        except OSError:  # The runner is gone.
            _leave()

    def receive(self) -> Any:
        (length,) = wire.HEADER.unpack(self._read(wire.HEADER.size))
        return wire.unpack(self._read(length))

    def pending(self) -> Iterator[Any]:
        """Yield the messages that have arrived, without waiting."""
        while select.select([self._connection], [], [], 0)[0]:
            yield self.receive()

    def _read(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = self._connection.recv(size - len(parts))
            except OSError:
                part = b""
            if not part:
                _leave()
            parts += part
        return bytes(parts)


def _leave() -> None:
    """End this process: the runner is gone, so no process would receive the job's end."""
    os._exit(0)


def main() -> None:
    die_with_parent()
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    channel = _Channel(socket.socket(fileno=int(sys.argv[1])))
    hello = channel.receive()
    try:
        app = load_app(hello.app, hello.folder)
    except BaseException as problem:
        channel.send(wire.LoadFailed(f"{type(problem).__name__}: {problem}"))
        return
    if app.runs_programs:
        hide_from_programs()
    configure_logs(hello.log, hello.log_level, job_facts=job_facts)
    channel.send(wire.AppLoaded())
    loop = asyncio.new_event_loop()
    while True:
        message = channel.receive()
        if isinstance(message, wire.RunJob):  # Other messages are for a job that has ended.
            ended = _run(app, message, channel, loop)
            ended.spent = _end_programs()
            if hello.measure:
                ended.memory = resident_memory()
            flush_logs()  # The runner may kill this process once it has received the end.
            channel.send(ended)


def _run(app: Headway, run: wire.RunJob, channel: _Channel, loop: asyncio.AbstractEventLoop) -> wire.JobEnd:
    name = run.lease.task
    task = app.tasks.get(name) or app.import_task(name)
    try:
        if task is None:
            raise UnknownTask(f"no task {name!r} in this app")
        signal.signal(signal.SIGTERM, _interrupt)
        try:
            value = _call(task, run, channel, loop)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except (_Interrupted, asyncio.CancelledError):
        return wire.JobEnd(cancelled=True)
    except BaseException as error:
        return _ended(error, task)
    ending = returned(value, task, run.largest)
    return wire.JobEnd(result=ending.result, result_error=ending.result_error)


def _end_programs() -> bool:
    """Kill the programs that a job has left behind. Return whether there were any.

    The helper processes of ``multiprocessing`` stay, because they end with this process.
    """
    own = {getattr(module, name, None) for module, name in _multiprocessing_helpers()}
    ended = False
    deadline = time.monotonic() + 1.0
    while time.monotonic() < deadline:
        found = [pid for pid in children() if pid not in own]
        if not found:
            break
        ended = True
        for pid in found:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)
    return ended


def _multiprocessing_helpers() -> Iterator[tuple[Any, str]]:
    if module := sys.modules.get("multiprocessing.resource_tracker"):
        yield getattr(module, "_resource_tracker", None), "_pid"
    if module := sys.modules.get("multiprocessing.forkserver"):
        yield getattr(module, "_forkserver", None), "_forkserver_pid"


class _Context(Context):
    """A context that exchanges messages with the runner."""

    __slots__ = ("_channel", "_encode")

    def __init__(self, app: Headway, run: wire.RunJob, channel: _Channel, encode: Callable[[Any], Returned]) -> None:
        super().__init__(
            run.lease,
            {},
            lambda _, fraction, note: channel.send(wire.JobProgress(fraction, note)),
            read_messages=self._apply_budgets,
            runtime=_ProcessRuntime(app, self._ask),
        )
        self._channel, self._encode = channel, encode

    def partial(self, value: Any) -> None:
        partial = self._encode(value)
        self._channel.send(wire.PartialResult(partial.result, partial.result_error))

    def _apply_budgets(self) -> None:
        for message in self._channel.pending():
            self._apply_budget(message)

    def _apply_budget(self, message: Any) -> None:
        if isinstance(message, wire.BudgetChange):
            limit = message.limit_ms
            self._lease = self._lease._replace(timeout_ms=limit, budget_ms=None)
            if self._budget is not None:
                self._budget.shrink(self._started + limit / 1_000)

    def _ask(self, message: wire.ProcessMessage, kind: type[R]) -> R:
        """Send a question to the runner and wait for the answer."""
        self._channel.send(message)
        while not isinstance(answer := self._channel.receive(), kind):
            self._apply_budget(answer)
        return answer


class _ProcessRuntime:
    """Asks by messages to the runner, which blocks this process meanwhile."""

    def __init__(self, app: Headway, ask: AskRunner) -> None:
        self.app = app
        self._ask = ask

    async def read_members(self, batch_id: BatchId, states: Sequence[State], cursor: str | None) -> MemberPage:
        answer = self._ask(wire.ReadMembers(batch_id, list(states), cursor), wire.MembersReply)
        if answer.error is not None:
            raise StoreUnavailable(answer.error)
        return answer.page or await read_members(await self.app.client.store(), batch_id, states, cursor)

    async def steps(self, lease: Lease) -> dict[str, bytes]:
        return self._ask_steps(wire.ReadSteps()).steps

    async def record_step(self, step: Step) -> bool:
        return self._ask_steps(wire.KeepStep(step.key, step.value)).held

    def _ask_steps(self, message: wire.ReadSteps | wire.KeepStep) -> wire.StepsReply:
        answer = self._ask(message, wire.StepsReply)
        if answer.error is not None:
            raise StepError(answer.error) if answer.refused else StoreUnavailable(answer.error)
        return answer

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return run_now(coroutine)


def _call(task: Any, run: wire.RunJob, channel: _Channel, loop: asyncio.AbstractEventLoop) -> Any:
    context = _Context(task.app, run, channel, lambda value: returned(value, task, run.largest))
    current.set(context)
    args, kwargs = task.signature.decode(run.lease.payload)
    if task.options.context:
        args.insert(0, context)
    dependencies = task.signature.dependencies
    if task.is_async:
        return loop.run_until_complete(invoke_async(task.fn, args, kwargs, dependencies, context))
    return invoke_plain(task.fn, args, kwargs, dependencies, context, loop.run_until_complete)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Interrupted


def _ended(error: BaseException, task: Any) -> wire.JobEnd:
    match ending := raised(error, task):
        case Snoozed():
            return wire.JobEnd(kind="snooze", seconds=ending.after_ms / 1_000, message=ending.reason)
        case Raised():
            problem = ending.error
            return wire.JobEnd(
                kind="raised" if ending.after_ms is None else "retry_after",
                error=problem.type,
                message=problem.message,
                traceback=problem.traceback,
                retriable=problem.retriable,
                seconds=(ending.after_ms or 0) / 1_000,
            )
        case _:
            raise AssertionError(ending)


if __name__ == "__main__":
    main()
