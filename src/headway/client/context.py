"""What a running task may know and say."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from headway.client.session import TaskSession
from headway.core.errors import ConfigError, SessionClosed
from headway.core.job import JobId
from headway.core.lease import Lease
from headway.observability.traces import shown_trace, taken_trace

Report = Callable[[Lease, float, str | None], None]
WriteOutput = Callable[[Lease, str, str], None]  # Takes the name of a stream, and text.


class Budget:
    """What is left of an attempt's time."""

    __slots__ = ("_ends", "_read_messages", "_shrunk")

    def __init__(self, length: float, started: float, read_messages: Callable[[], None] | None = None) -> None:
        self._ends = started + length
        self._read_messages = read_messages  # Looks for news that has come in meanwhile, where no other task does.
        self._shrunk = False

    @property
    def shrunk(self) -> bool:
        """Whether it was lowered after the attempt had begun."""
        if self._read_messages is not None:
            self._read_messages()
        return self._shrunk

    @property
    def remaining(self) -> float:
        """Seconds until the attempt is stopped; never negative."""
        if self._read_messages is not None:
            self._read_messages()
        return max(0.0, self._ends - time.monotonic())

    def shrink(self, ends: float) -> None:
        """End no later than this moment of the monotonic clock."""
        if ends < self._ends:
            self._ends, self._shrunk = ends, True


NOTHING: Any = object()  # No partial result was handed in.


class Context:
    """The running job, handed to tasks made with ``context=True``, to middleware and to dependencies."""

    # Made for every job, wanted by few: all that can be read from the lease is read only when asked for.
    __slots__ = (
        "_budget",
        "_conversation",
        "_lease",
        "_read_messages",
        "_report",
        "_started",
        "_write",
        "cancelled",
        "kept",
        "state",
    )  # fmt: skip

    def __init__(
        self,
        lease: Lease,
        state: Mapping[str, Any] = MappingProxyType({}),
        report: Report | None = None,
        started: float | None = None,
        read_messages: Callable[[], None] | None = None,
        write: WriteOutput | None = None,
    ) -> None:
        self._lease = lease
        self._read_messages = read_messages
        self._write = write
        self.kept = NOTHING  # What ``partial`` was told last.
        self._report = report
        self._started = time.monotonic() if started is None else started
        self._budget: Budget | None = None
        self._conversation: TaskSession | None = None
        self.state = state  # What the lifespan yielded.
        self.cancelled = False  # True once the job should stop; threads must look by themselves.

    @property
    def job_id(self) -> str:
        return self._lease.job_id

    @property
    def task(self) -> str:
        return self._lease.task

    @property
    def lane(self) -> str:
        return self._lease.lane

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._lease.attempts

    @property
    def epoch(self) -> int:
        """A number that grows with every claim and never falls; outside systems can refuse a smaller one."""
        return self._lease.epoch

    @property
    def tenant(self) -> str | None:
        return self._lease.tenant

    @property
    def trace_id(self) -> str:
        return trace_of(self._lease)

    @property
    def traceparent(self) -> str | None:
        """The W3C traceparent that came with the job, for what it calls in turn."""
        return taken_trace(self._lease.trace_id)

    @property
    def budget(self) -> Budget:
        """What is left of the attempt's time."""
        if self._budget is None:
            self._budget = Budget(self._lease.limit_ms / 1_000, self._started, self._read_messages)
        return self._budget

    def shrink(self, lease: Lease) -> None:
        """Called by the worker: the job may run no longer than its lease says now."""
        self.budget.shrink(self._started + lease.limit_ms / 1_000)
        self._lease = lease

    def partial(self, value: Any) -> None:
        """Keep a result that is not complete; the latest counts.

        If the job fails or runs out of time for good, it is kept beside the error, as ``JobFailed.partial``. It
        becomes the job's result if the job is stopped by the length of its rung and has ``on_stop="partial"``.
        """
        self.kept = value

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Report how far the job has come, 0 to 1. Never blocks; only the latest report is kept."""
        if self._report is not None:
            self._report(self._lease, min(1.0, max(0.0, float(fraction))), None if note is None else str(note)[:500])

    def output(self, stream: str, text: str) -> None:
        """Pass on what a program writes, for the readers of the job's events. Never blocks.

        Called by commands, on the loop. ``stream`` is ``stdout`` or ``stderr``.
        """
        if self._write is not None:
            self._write(self._lease, stream, text)

    # ------------------------------------------------------------------ interactive tasks

    async def receive(self) -> str | bytes:
        """Wait for what the session's client sends next: text as ``str``, data as ``bytes``.

        Raises ``SessionClosed``, an ``EOFError``, once the client is gone for good.
        """
        return await self._session().receive()

    async def send(self, data: str | bytes | bytearray | memoryview) -> None:
        """Send to the session's client; waits while it is behind with reading. Raises ``SessionClosed``."""
        await self._session().send(data)

    async def __aiter__(self) -> AsyncIterator[str | bytes]:
        """Yield what the session's client sends, until it is gone for good."""
        with contextlib.suppress(SessionClosed):
            while True:
                yield await self.receive()

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the window of the session's client, as it said last."""
        return self._session().size

    async def resized(self) -> tuple[int, int]:
        """Wait until the client's window has another size, and give that. Raises ``SessionClosed``."""
        return await self._session().resized()

    def converse(self, conversation: TaskSession) -> None:
        """Called by the worker: the job is a session, and this is its end of it."""
        self._conversation = conversation

    def _session(self) -> TaskSession:
        if self._conversation is None:
            raise ConfigError(
                f"task {self.task} has no client to talk to: only a job that a session was opened for has one, "
                'of a task made with duration="interactive"'
            )
        return self._conversation

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the job."""
        return _JobLog(logging.getLogger("headway.task"), {"headway": self.log_facts()})

    def log_facts(self) -> dict[str, Any]:
        """Return the members of a log line that identify this job."""
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


# The job that this piece of code runs for; jobs submitted from inside one inherit its trace.
current: ContextVar[Context | None] = ContextVar("headway_context", default=None)


def job_facts() -> dict[str, Any]:
    """Return the members of a log line that identify the job for which the calling code runs; none outside of jobs."""
    context = current.get()
    return {} if context is None else context.log_facts()


def trace_of(lease: Lease) -> str:
    """Return the trace id that people and logs see."""
    return shown_trace(lease.trace_id, lease.job_id)


def inline_lease(task: str) -> Lease:
    """Make up a lease for a task that is called here and now."""
    hour_ms = 3_600_000
    return Lease(JobId("inline"), 0, b"", task, b"", "", None, None, 1, 1, 0, 0, hour_ms, hour_ms, None, 0)
