"""Runs jobs in a pool of warm processes, each of which can be killed alone."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from headway.core.errors import HeadwayError, JobError, StepError
from headway.core.log_event import LogEvent
from headway.core.policy.retry import Crashed, Raised, Snoozed
from headway.core.workflow import BatchId, Step
from headway.runtime.bounded_wait import end_tasks
from headway.runtime.os_support import SUPERVISOR
from headway.worker.active_job import ActiveJob
from headway.worker.executors import wire
from headway.worker.executors.base import Executor
from headway.worker.outcomes import Encoded, TaskFailed, to_ms
from headway.worker.recycling import MIB, TOO_LOW, ChildBounds, replaceable_after
from headway.worker.slot_table import Stop

log = logging.getLogger("headway.worker")

STOP_GRACE = 1.0  # Seconds between asking a process to stop and killing it.
NO_BOUNDS = ChildBounds()
START_TIMEOUT = 60.0  # Seconds for a process to start and load the app.


class ProcessExecutor(Executor):
    """A pool of processes, each running one job at a time, kept warm between jobs."""

    def __init__(
        self, app_path: str | None, largest: int, log: str | None = None, bounds: ChildBounds = NO_BOUNDS
    ) -> None:
        self._app_path = app_path
        self._log_setting = log
        self._largest = largest
        self._idle: list[_Child] = []
        self._busy: dict[ActiveJob, _Child] = {}
        self._bounds = bounds
        self._starting: list[asyncio.Task[_Child]] = []  # They replace processes that have reached a bound.
        self._warned = False

    async def prepare(self, tasks: Sequence[str]) -> None:
        """Start one process before the first job."""
        if self._app_path is None:
            hint = "executor='process' needs an app that can be imported by a path"
            log.warning(LogEvent("task.process_impossible", tasks=", ".join(tasks), hint=hint))
        else:
            self._idle.append(await self._start())

    async def call(self, job: ActiveJob) -> Any:
        child = await self._take()
        if job.stop is not Stop.NO:
            self._idle.append(child)
            raise asyncio.CancelledError
        self._busy[job] = child
        keep = False
        try:
            ended = await child.run(wire.RunJob(job.lease._replace(token=b""), self._largest), job)
            keep = child.alive and not child.stopping and not ended.spent
            if keep and (reason := self._reached(child, ended)):
                keep = False
                self._start_replacement(child, reason, ended)
            return _outcome(ended)
        except _ProcessDied as death:
            raise TaskFailed(Crashed(str(death))) from None
        finally:
            del self._busy[job]
            if keep:
                self._idle.append(child)
            else:
                child.kill()

    async def _take(self) -> _Child:
        """Return an idle process, one that is being started, or a new one."""
        if self._idle:
            return self._idle.pop()
        if self._starting:
            return await self._starting.pop(0)
        return await self._start()

    async def _start(self, memory_after: float = 0.0) -> _Child:
        level = logging.getLevelName(logging.getLogger("headway").getEffectiveLevel()).lower()
        measure = self._bounds.memory > 0
        hello = wire.LoadApp(self._app_path or "", os.getcwd(), self._log_setting, level, measure)
        child = await _Child.start(hello)
        child.memory_after = memory_after
        return child

    def _reached(self, child: _Child, ended: wire.JobEnd) -> str | None:
        """Return the bound that a process has reached with the job that ended, if any."""
        if 0 < self._bounds.jobs <= child.jobs:
            return "jobs"
        if not 0 < self._bounds.memory < ended.memory:
            return None
        if child.age >= child.memory_after:
            return "memory"
        if not self._warned:
            self._warned = True
            facts = {"memory_mib": ended.memory // MIB, "bound_mib": self._bounds.memory // MIB, "hint": TOO_LOW}
            log.warning(LogEvent("worker.memory_bound_low", process=child.pid, **facts))
        return None

    def _start_replacement(self, child: _Child, reason: str, ended: wire.JobEnd) -> None:
        """Start a process in place of one that has reached a bound, before a job needs it."""
        facts = {"reason": reason, "jobs": child.jobs, "memory_mib": ended.memory // MIB}
        log.debug(LogEvent("process.recycling", process=child.pid, **facts))
        after = replaceable_after(child.memory_after, child.age) if reason == "memory" else child.memory_after
        starting = asyncio.get_running_loop().create_task(self._start(after))
        starting.add_done_callback(self._started)
        self._starting.append(starting)

    def _started(self, starting: asyncio.Task[_Child]) -> None:
        """Keep the new process for the next job. If it could not start, the next job tries again."""
        if starting in self._starting:
            self._starting.remove(starting)
            if not starting.cancelled() and starting.exception() is None:
                self._idle.append(starting.result())

    def stop(self, job: ActiveJob) -> None:
        job.context.cancelled = True
        if job.stop is Stop.LOST:
            self.kill(job)
        elif (child := self._busy.get(job)) is not None:
            child.ask_to_stop()

    def kill(self, job: ActiveJob) -> None:
        if (child := self._busy.get(job)) is not None:
            child.end_all()

    def shrink(self, job: ActiveJob) -> None:
        child = self._busy.get(job)
        if child is not None:
            child.send(wire.BudgetChange(job.lease.limit_ms))

    async def close(self) -> None:
        starting, self._starting = self._starting, []
        await end_tasks(starting)
        started = [task.result() for task in starting if not task.cancelled() and task.exception() is None]
        for child in (*self._idle, *self._busy.values(), *started):
            child.kill()
        self._idle = []


class _ProcessDied(Exception):
    """The process ended before it sent a reply."""


class _Child:
    """One process, connected to the runner by a pair of sockets."""

    def __init__(
        self, process: subprocess.Popen[bytes], reader: asyncio.StreamReader, writer: asyncio.StreamWriter, link: int
    ) -> None:
        self._process = process  # The supervisor, which ends with the exit code or signal of the job process.
        self._link: int | None = link  # The supervisor kills the job process and its programs when this is closed.
        self._reader = reader
        self._writer = writer
        self.stopping = False
        self.jobs = 0  # How many this process has started.
        self.memory_after = 0.0  # Seconds of age before it may be replaced for its memory.
        self._began = time.monotonic()

    @classmethod
    async def start(cls, hello: wire.LoadApp) -> _Child:
        from headway.runtime.supervisor import JOBS  # Not at the start: Windows lacks what the supervisor imports.

        ours, theirs = socket.socketpair()
        until, link = os.pipe()
        number = str(theirs.fileno())
        command = [sys.executable, "-m", "headway.worker.executors.process_main", number]
        process = subprocess.Popen(  # noqa: ASYNC220, S603  (it returns at once, and runs only ourselves)
            [sys.executable, "-I", "-S", str(SUPERVISOR), str(until), JOBS, number, *command],
            pass_fds=[theirs.fileno(), until],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # A Ctrl-C on the terminal is for the parent alone.
        )
        theirs.close()
        os.close(until)
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 26)
        child = cls(process, reader, writer, link)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                child.send(hello)
                answer = await child._receive()
        except BaseException:
            child.kill()
            raise
        if isinstance(answer, wire.LoadFailed):
            child.kill()
            raise TaskFailed(Crashed(f"the job's process could not load {hello.app}: {answer.message}"))
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def age(self) -> float:
        return time.monotonic() - self._began

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    async def run(self, job: wire.RunJob, running: ActiveJob) -> wire.JobEnd:
        self.jobs += 1
        self.send(job)
        while True:
            message = await self._receive()
            if isinstance(message, wire.JobProgress):
                running.context.keep_note(message.fraction, message.note)
            elif isinstance(message, wire.PartialResult):
                running.context.partial(Encoded(message.result, message.result_error))
            elif isinstance(message, (wire.ReadSteps, wire.KeepStep)):
                self.send(await _answer_step(message, running))
            elif isinstance(message, wire.ReadMembers):
                self.send(await _answer_members(message, running))
            elif isinstance(message, wire.JobEnd):
                return message

    def ask_to_stop(self) -> None:
        """Interrupt the job, and kill the process after the grace."""
        if self.stopping:
            return
        self.stopping = True
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        asyncio.get_running_loop().call_later(STOP_GRACE, self.kill)

    def kill(self) -> None:
        """Kill the process and everything it started."""
        self.end_all()
        try:
            self._process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            self._process.kill()  # The kernel then kills the job process, too.
        self._writer.close()

    def end_all(self) -> None:
        """Make the supervisor kill the process and everything that it started, at once. Any thread may call this."""
        link, self._link = self._link, None
        if link is not None:
            os.close(link)

    def send(self, message: wire.ProcessMessage) -> None:
        self._writer.write(wire.pack(message))

    async def _receive(self) -> Any:
        try:
            (length,) = wire.HEADER.unpack(await self._reader.readexactly(wire.HEADER.size))
            return wire.unpack(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _ProcessDied(await self._cause()) from None

    async def _cause(self) -> str:
        for _ in range(100):  # The socket closes a moment before the process has ended.
            code = self._process.poll()
            if code is not None:
                break
            await asyncio.sleep(0.01)
        else:
            return "the job's process closed its connection"
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"the job's process died of signal {-code} ({signal.Signals(-code).name})"
        return f"the job's process exited with code {code}"


async def _answer_step(message: wire.ReadSteps | wire.KeepStep, running: ActiveJob) -> wire.StepsReply:
    """Read or keep a step for a job in its process."""
    runtime, lease = running.context.runtime, running.lease
    try:
        if isinstance(message, wire.ReadSteps):
            return wire.StepsReply(await runtime.steps(lease))
        step = Step(lease.job_id, lease.seq, lease.token, message.key, message.value)
        return wire.StepsReply(held=await runtime.record_step(step))
    except HeadwayError as problem:
        return wire.StepsReply(error=str(problem), refused=isinstance(problem, StepError))


async def _answer_members(message: wire.ReadMembers, running: ActiveJob) -> wire.MembersReply:
    """Read results of a batch for a job in its process, unless the process can read them from the store."""
    read = running.context.runtime.read_members
    if read is None:
        return wire.MembersReply()
    try:
        return wire.MembersReply(await read(BatchId(message.batch_id), message.states, message.cursor))
    except HeadwayError as problem:
        return wire.MembersReply(error=str(problem))


def _outcome(ended: wire.JobEnd) -> Any:
    """Return the value a job returned in its process, or raise what it raised there."""
    if ended.cancelled:
        raise asyncio.CancelledError
    error = JobError(ended.error, ended.message, ended.traceback, ended.retriable)
    match ended.kind:
        case "returned":
            return Encoded(ended.result, ended.result_error)
        case "snooze":
            raise TaskFailed(Snoozed(to_ms(ended.seconds), ended.message))
        case "retry_after":
            raise TaskFailed(Raised(error, after_ms=to_ms(ended.seconds)))
        case _:
            raise TaskFailed(Raised(error))
