"""Decides how an attempt ended, from what its task returned or raised and why the job was stopped."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
import traceback
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import headway
from headway.client.codec import decode_result, encode_result
from headway.client.context import NOTHING
from headway.client.options import Retry
from headway.client.task import Task
from headway.core import errors
from headway.core.errors import MESSAGE_MAX, TRACEBACK_MAX, JobError, PayloadError, cut_middle
from headway.core.policy.retry import DELAY_MS_MAX, Ending, Raised, Released, Returned, Snoozed, Stopped, TimedOut
from headway.worker.active_job import ActiveJob
from headway.worker.slot_table import Stop

# Frames that lead from a worker to a task. The demo tasks are tasks like any other.
_LEADING = tuple(
    str(Path(place).parent if Path(place).name == "__init__.py" else place)
    for place in (headway.__file__, asyncio.__file__, concurrent.futures.__file__, threading.__file__)
    if place is not None
)
_DEMO = str(Path(headway.__file__ or "").with_name("demo.py"))

FRAMES_MAX = 50


class TaskFailed(Exception):
    """Carries the ending of a task that failed in another process."""

    def __init__(self, ending: Ending) -> None:
        super().__init__()
        self.ending = ending


@dataclass(frozen=True, slots=True)
class Encoded:
    """A result that the job's process has encoded. The runner decodes it only for a middleware or a listener."""

    payload: bytes | None
    error: str | None

    def value(self) -> Any:
        return decode_result(self.payload)


def ending_of_value(job: ActiveJob, value: Any, largest: int) -> Returned:
    """Return the ending of a job whose task returned. A process has already encoded the value."""
    if isinstance(value, Encoded):
        return Returned(value.payload, value.error)
    return returned(value, job.task, largest)


def ending_of_error(job: ActiveJob, error: BaseException, largest: int) -> Ending | None:
    """Return the ending of a job whose task raised, with the partial result it handed in."""
    if job.stop is Stop.LOST:
        return None  # The lease is lost, so the store would refuse a report.
    if isinstance(error, asyncio.CancelledError):
        if job.stop is Stop.CANCEL:
            return Stopped()
        if job.stop is Stop.DRAIN:
            return Released("drained")
    ending = raised(error, job.task)
    if isinstance(ending, Raised) and job.context.kept is not NOTHING:
        return replace(ending, partial=ending_of_value(job, job.context.kept, largest).result)
    return ending


def ending_of_timeout(job: ActiveJob, ending: Ending | None, largest: int) -> TimedOut:
    """Return the ending of a job that ran out of time, with the partial result it handed in."""
    seconds, rule, partial = job.lease.limit_ms / 1_000, job.lease.retry, None
    if isinstance(ending, Returned) and rule is not None and rule.on_stop == "partial":
        partial = ending.result  # The task returned after it was asked to stop.
    elif job.context.kept is not NOTHING:
        partial = ending_of_value(job, job.context.kept, largest).result
    error = JobError("TimeoutError", f"time limit ({seconds:g} s)", retriable=not job.task.gives_up_on_timeouts)
    return TimedOut(error, partial)


def returned(value: Any, task: Task[Any, Any, Any], largest: int) -> Returned:
    """Encode a result. If it cannot be stored, the job still completes, with an error text for the result."""
    try:
        return Returned(encode_result(value, typed=task.result_kind is not Any, largest=largest))
    except PayloadError as problem:
        return Returned(None, str(problem))


def raised(error: BaseException, task: Task[Any, Any, Any] | None) -> Ending:
    match error:
        case TaskFailed():
            return error.ending
        case errors.Snooze():
            return Snoozed(to_ms(error.seconds), cut_middle(_text(error), MESSAGE_MAX) or "snoozed")
        case errors.RateLimited():
            return Snoozed(to_ms(error.seconds), "rate_limited")
        case errors.RetryAfter():
            return Raised(describe(error, retriable=True), after_ms=to_ms(error.seconds))
        case errors.Discard() | errors.UpstreamFailed():
            kind = "Discard" if isinstance(error, errors.Discard) else "UpstreamFailed"
            return Raised(JobError(type=kind, message=cut_middle(_text(error), MESSAGE_MAX), retriable=False))
        case errors.SessionClosed():
            return Stopped("its client is gone")
        case errors.BadArguments() | errors.UnknownTask():
            return Raised(describe(error, retriable=False))
        case errors.CommandFailed() if not error.retriable:
            return Raised(describe(error, retriable=False))
        case _:
            retry = task.options.retry if task is not None else None
            return Raised(describe(error, retriable=(retry or Retry()).retriable(error)))


def describe(error: BaseException, *, retriable: bool) -> JobError:
    """Return an exception as bounded text, without local variables, which may hold secrets."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    try:
        written = traceback.TracebackException(kind, error, error.__traceback__, limit=-FRAMES_MAX)
        _trim(written)
        lines = "".join(written.format())
    except Exception:  # Formatting an exception may raise another one.
        lines = "the traceback could not be written"
    return JobError(name, cut_middle(_text(error), MESSAGE_MAX), cut_middle(lines, TRACEBACK_MAX), retriable)


def _trim(written: traceback.TracebackException) -> None:
    """Remove the frames that lead from the worker to the task, also from chained and grouped exceptions."""
    files = [frame.filename for frame in written.stack]
    first = next((at for at, file in enumerate(files) if not file.startswith(_LEADING) or file == _DEMO), 0)
    del written.stack[:first]
    for behind in (written.__cause__, written.__context__, *(written.exceptions or ())):
        if behind is not None:
            _trim(behind)


def to_ms(length: float | timedelta | str) -> int:
    """Return a delay from a task in milliseconds, clamped to valid values."""
    if isinstance(length, timedelta):
        length = length.total_seconds()
    if isinstance(length, str):  # The text of a header such as Retry-After, which many clients pass on as it is.
        with contextlib.suppress(ValueError):
            length = float(length)
    if isinstance(length, bool) or not isinstance(length, (int, float)) or length != length:
        return 0
    return int(min(max(length, 0.0), DELAY_MS_MAX / 1_000) * 1_000)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:
        return f"the message could not be written: {type(problem).__name__}"
