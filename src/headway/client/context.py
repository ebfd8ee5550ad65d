"""The context of a running job."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, MutableMapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from headway.client.session import TaskSession
from headway.client.steps import MISSING, InlineRuntime, JobRuntime, StepLog
from headway.core.errors import ConfigError, SessionClosed
from headway.core.job import JobId
from headway.core.lease import Lease
from headway.observability.traces import shown_trace, taken_trace

if TYPE_CHECKING:
    from headway.client.app import Headway
    from headway.client.batch import Batch

Q = ParamSpec("Q")
S = TypeVar("S")

ReportProgress = Callable[[Lease, float, str | None], None]
WriteJobOutput = Callable[[Lease, str, str], None]  # Takes the name of a stream, and text.


class Budget:
    """The remaining time of an attempt."""

    __slots__ = ("_ends", "_read_messages", "_shrunk")

    def __init__(self, length: float, started: float, read_messages: Callable[[], None] | None = None) -> None:
        self._ends = started + length
        self._read_messages = read_messages  # Reads the worker's messages, in executors where nothing else does.
        self._shrunk = False

    @property
    def shrunk(self) -> bool:
        """Whether the worker shortened the time after the attempt had started."""
        if self._read_messages is not None:
            self._read_messages()
        return self._shrunk

    @property
    def remaining(self) -> float:
        """Seconds until the worker stops the attempt; never negative."""
        if self._read_messages is not None:
            self._read_messages()
        return max(0.0, self._ends - time.monotonic())

    def shrink(self, ends: float) -> None:
        """Set an earlier end, in seconds of the monotonic clock. A later end changes nothing."""
        if ends < self._ends:
            self._ends, self._shrunk = ends, True


NOTHING: Any = object()  # The task has set no partial result.


_NO_SOURCES: Mapping[str, str] = MappingProxyType({})


class Context:
    """The running job. Tasks with ``context=True``, middleware and dependencies receive it."""

    # The worker makes one for every job and few tasks use it, so properties read the lease only on access.
    __slots__ = (
        "_budget",
        "_lease",
        "_read_messages",
        "_report",
        "_runtime",
        "_started",
        "_step_log",
        "_task_session",
        "_write",
        "cancelled",
        "kept",
        "sources",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        lease: Lease,
        state: Mapping[str, Any] = MappingProxyType({}),
        report: ReportProgress | None = None,
        started: float | None = None,
        read_messages: Callable[[], None] | None = None,
        write: WriteJobOutput | None = None,
        runtime: JobRuntime | None = None,
    ) -> None:
        self._lease = lease
        self._runtime = runtime
        self._step_log: StepLog | None = None
        self._read_messages = read_messages
        self._write = write
        self.kept = NOTHING  # The last value that ``partial`` received.
        self._report = report
        self._started = time.monotonic() if started is None else started
        self._budget: Budget | None = None
        self._task_session: TaskSession | None = None
        self.state = state  # The mapping that the lifespan yielded.
        self.sources: Mapping[str, str] = _NO_SOURCES  # The trace ids of jobs whose results it takes, for its span.
        self.cancelled = False  # True once the job should stop. Tasks in threads must check it.

    @property
    def job_id(self) -> str:
        """The id of the job."""
        return self._lease.job_id

    @property
    def task(self) -> str:
        """The name of the task."""
        return self._lease.task

    @property
    def lane(self) -> str:
        """The lane in which the job waited."""
        return self._lease.lane

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._lease.attempts

    @property
    def crashes(self) -> int:
        """How many earlier attempts ended because their process died."""
        return self._lease.crashes

    @property
    def submitted_at(self) -> int:
        """When the job was submitted, in milliseconds since 1970; 0 for a transient job."""
        return self._lease.submitted_at

    @property
    def epoch(self) -> int:
        """A number that grows with every claim of the job. External systems can refuse a smaller one."""
        return self._lease.epoch

    @property
    def tenant(self) -> str | None:
        """The tenant of the job, if it has one."""
        return self._lease.tenant

    @property
    def trace_id(self) -> str:
        """The trace id of the job, which its log lines carry."""
        return trace_of(self._lease)

    @property
    def traceparent(self) -> str | None:
        """The W3C traceparent that the job carries, to pass on in calls that the task makes."""
        return taken_trace(self._lease.trace_id)

    @property
    def budget(self) -> Budget:
        """The remaining time of the attempt."""
        if self._budget is None:
            self._budget = Budget(self._lease.limit_ms / 1_000, self._started, self._read_messages)
        return self._budget

    def shrink(self, lease: Lease) -> None:
        """Shorten the job's time to that of its changed lease. The worker calls this."""
        self.budget.shrink(self._started + lease.limit_ms / 1_000)
        self._lease = lease

    def partial(self, value: Any) -> None:
        """Record a partial result, which replaces an earlier one.

        If the job finally fails or times out, the store keeps the partial result beside the error, as
        ``JobFailed.partial``. If the job reaches the length of its rung and has ``on_stop="partial"``, the partial
        result becomes the result of the job.
        """
        self.kept = value

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Report the progress of the job, from 0 to 1. Never blocks. The store keeps only the latest report."""
        self.keep_note(fraction, None if note is None else str(note)[:500])

    def keep_note(self, fraction: float, note: str | None) -> None:
        """Report progress with a note of any length, for Headway's own code."""
        if self._report is not None:
            self._report(self._lease, min(1.0, max(0.0, float(fraction))), note)

    def output(self, stream: str, text: str) -> None:
        """Add a program's output to the job's events. Never blocks.

        Commands call this on the event loop. ``stream`` is ``stdout`` or ``stderr``.
        """
        if self._write is not None:
            self._write(self._lease, stream, text)

    # ------------------------------------------------------------------ workflows

    @property
    def runtime(self) -> JobRuntime:
        """What runs the job, for Headway's own code."""
        if self._runtime is None:
            raise ConfigError(f"task {self.task} is not run by a worker, so it has neither app nor batch")
        return self._runtime

    @property
    def app(self) -> Headway:
        """The app whose task runs."""
        return self.runtime.app

    @property
    def batch(self) -> Batch[Any]:
        """The batch of the job, to which the task can add jobs. Raises ``ConfigError`` if the job has none."""
        if self._lease.batch_id is None:
            raise ConfigError(f"job {self.job_id} of task {self.task} belongs to no batch")
        return self.app.batch_of(self._lease.batch_id).of_member(self.tenant)

    def step(self, key: str, function: Callable[Q, S], /, *args: Q.args, **kwargs: Q.kwargs) -> S:
        """Call a function and keep what it returns under a name. Return the kept value when the job runs again.

        The value must fit into 64 KiB of JSON. A function that raises keeps nothing. Raises ``StepError``.
        """
        log = self._steps()
        value = log.find_blocking(key, function)
        if value is MISSING:
            value = function(*args, **kwargs)
            log.keep_blocking(key, value, function)
        return cast("S", value)

    @overload
    async def astep(
        self, key: str, function: Callable[Q, Coroutine[Any, Any, S]], /, *args: Q.args, **kwargs: Q.kwargs
    ) -> S: ...
    @overload
    async def astep(self, key: str, function: Callable[Q, S], /, *args: Q.args, **kwargs: Q.kwargs) -> S: ...

    async def astep(self, key: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Async twin of ``step``. A plain function runs in a thread."""
        log = self._steps()
        value = await log.find(key, function)
        if value is MISSING:
            if inspect.iscoroutinefunction(function):
                value = await function(*args, **kwargs)
            else:
                value = await asyncio.to_thread(function, *args, **kwargs)
            await log.keep(key, value, function)
        return value

    def _steps(self) -> StepLog:
        if self._step_log is None:
            self._step_log = StepLog(self._runtime or InlineRuntime(), self._lease)
        return self._step_log

    # ------------------------------------------------------------------ interactive tasks

    async def receive(self) -> str | bytes:
        """Wait for the next message of the session's client. Return text as ``str`` and data as ``bytes``.

        Raises ``SessionClosed``, an ``EOFError``, once the client has left and cannot return.
        """
        return await self._session().receive()

    async def send(self, data: str | bytes | bytearray | memoryview) -> None:
        """Send data to the session's client. Waits while the client reads too slowly. Raises ``SessionClosed``."""
        await self._session().send(data)

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        """Yield the messages of the session's client until the client has left and cannot return."""
        with contextlib.suppress(SessionClosed):
            while True:
                yield await self.receive()

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the client's window, as the client last reported them."""
        return self._session().size

    async def resized(self) -> tuple[int, int]:
        """Wait until the client resizes its window and return the new size. Raises ``SessionClosed``."""
        return await self._session().resized()

    def attach_session(self, task_session: TaskSession) -> None:
        """Connect the job to its session. The worker calls this."""
        self._task_session = task_session

    def _session(self) -> TaskSession:
        if self._task_session is None:
            raise ConfigError(
                f"task {self.task} has no client to talk to; only a job of a task with "
                'duration="interactive" has one, once a client opened its session'
            )
        return self._task_session

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines identify the job."""
        return _JobLog(logging.getLogger("headway.task"), {"headway": self.log_facts()})

    def log_facts(self) -> dict[str, Any]:
        """Return the log fields that identify this job."""
        return {
            "job": self.job_id,
            "task": self.task,
            "worker": self._lease.worker_id or None,
            "lane": self.lane or None,
            "attempt": self.attempt,
            "tenant": self._lease.tenant,
            "trace_id": self.trace_id,
        }


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        extra = dict(self.extra or {})
        kwargs["extra"] = {**extra, **kwargs.get("extra", {})}
        return msg, kwargs


# The job that the current code runs for. Jobs that it submits inherit its trace.
current: ContextVar[Context | None] = ContextVar("headway_context", default=None)


def job_facts() -> dict[str, Any]:
    """Return the log fields of the job that the caller runs for, or an empty dict outside of jobs."""
    context = current.get()
    return {} if context is None else context.log_facts()


def trace_of(lease: Lease) -> str:
    """Return the trace id that logs and operators see."""
    return shown_trace(lease.trace_id, lease.job_id)


def inline_lease(task: str) -> Lease:
    """Build a lease for a task that the caller runs directly, without a store."""
    hour_ms = 3_600_000
    return Lease(JobId("inline"), 0, b"", task, b"", "", None, None, 1, 1, 0, 0, hour_ms, hour_ms, None, 0)
