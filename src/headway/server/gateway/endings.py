"""Read from a worker's report how an attempt ended."""

from __future__ import annotations

from typing import assert_never

from msgspec import UNSET

from headway.client.codec import encode_result
from headway.core.errors import MESSAGE_MAX, TRACEBACK_MAX, JobError, PayloadError, cut_middle
from headway.core.policy.retry import (
    DELAY_MS_MAX,
    Crashed,
    Ending,
    Raised,
    Released,
    Returned,
    Snoozed,
    Stopped,
    TimedOut,
    Unknown,
)
from headway.protocol.worker import TEXT_MAX, AttemptFailure, ResultReport


def ending_of(result: ResultReport, largest: int) -> Ending:
    """Return how an attempt ended. A result of more than ``largest`` bytes is not stored."""
    after_ms = (
        None if result.retry_after_seconds is None else min(round(result.retry_after_seconds * 1_000), DELAY_MS_MAX)
    )
    reason = None if result.reason is None else cut_text(result.reason, TEXT_MAX)
    match result.status:
        case "completed":
            return _returned(result, largest)
        case "failed":
            error = _error(result.error, "Error", reason or "the worker gave no reason")
            return Raised(error, after_ms, _partial(result, largest))
        case "timed_out":
            error = _error(result.error, "TimeoutError", reason or "the time limit has passed")
            return TimedOut(error, _partial(result, largest))
        case "cancelled":
            return Stopped() if reason is None else Stopped(reason)
        case "released":
            return Released() if reason is None else Released(reason)
        case "snoozed":
            return Snoozed(after_ms or 0) if reason is None else Snoozed(after_ms or 0, reason)
        case "crashed":
            return Crashed(reason or "the worker said that it crashed")
        case "unknown_task":
            return Unknown()
        case _ as never:
            assert_never(never)


def _returned(result: ResultReport, largest: int) -> Returned:
    """Encode a result. A task whose result cannot be stored completes without it."""
    if result.result_error is not None:
        return Returned(None, cut_text(result.result_error, MESSAGE_MAX))
    try:
        value = None if result.result is UNSET else result.result
        return Returned(encode_result(value, typed=False, largest=largest))
    except PayloadError as problem:
        return Returned(None, cut_text(str(problem), MESSAGE_MAX))


def _partial(result: ResultReport, largest: int) -> bytes | None:
    """Encode the partial result of an attempt that failed. Return None if the worker sent none."""
    return _returned(result, largest).result if result.result is not UNSET else None


def _error(given: AttemptFailure | None, kind: str, message: str) -> JobError:
    if given is None:
        return JobError(kind, message)
    traceback = cut_text(given.traceback or "", TRACEBACK_MAX)
    named = kind if given.type == "Error" else cut_text(given.type, TEXT_MAX)
    return JobError(named, cut_text(given.message or message, MESSAGE_MAX), traceback, given.retriable)


def cut_text(text: str, most: int) -> str:
    """Keep both ends of a long text, and escape characters that no store can hold."""
    return cut_middle(text, most).replace("\0", "\\x00")
