"""Turns what a task returned or raised into an ending that core understands."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import headway
from headway.client.codec import encode_result
from headway.client.options import Retry
from headway.client.task import Task
from headway.core import errors
from headway.core.errors import MESSAGE_MAX, TRACEBACK_MAX, JobError, PayloadError, cut_middle
from headway.core.policy.retry import DELAY_MS_MAX, Ending, Raised, Returned, Snoozed, Stopped

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


def to_ms(length: float | timedelta) -> int:
    """Return a delay from a task in milliseconds, clamped to valid values."""
    if isinstance(length, timedelta):
        length = length.total_seconds()
    if isinstance(length, bool) or not isinstance(length, (int, float)) or length != length:
        return 0
    return int(min(max(length, 0.0), DELAY_MS_MAX / 1_000) * 1_000)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as problem:
        return f"the message could not be written: {type(problem).__name__}"
