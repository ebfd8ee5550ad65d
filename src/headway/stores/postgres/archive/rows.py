"""Turns jobs into rows that people can read, and these into jobs again. Nothing else here knows the columns' shapes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from headway.core.errors import JobError
from headway.core.job import Attempt, JobId, JobRecord, RetryRule, State

Row = Mapping[str, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)
_FIRST, _LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)

_json = msgspec.json.Encoder()


class _Failure(msgspec.Struct):
    type: str
    message: str
    traceback: str
    retriable: bool


class _ArchivedAttempt(msgspec.Struct):
    """An attempt as the table keeps it."""

    number: int
    epoch: int
    worker_id: str | None
    started_at: datetime
    ended_at: datetime
    reason: str
    error: _Failure | None


_log = msgspec.json.Decoder(list[_ArchivedAttempt])
_retry = msgspec.json.Decoder(dict[str, Any])


def write_job(job: JobRecord, mark: bytes) -> tuple[Any, ...]:
    """Return a job's columns, in the order of ``add``. ``mark`` stands before the JSON in payload and result."""
    error = job.error
    return (
        job.job_id, job.seq, text(job.task), job.state.value, text(job.lane), text(job.rung), _list(job.needs),
        _list(job.limits), text(job.tenant), text(job.worker_id), job.attempts, job.crashes, job.epoch,
        job.max_retries, job.timeout_ms, None if job.retry is None else _json.encode(job.retry._asdict()).decode(),
        moment(job.submitted_at), moment(job.eligible_at), moment(job.started_at), moment(job.finished_at),
        moment(job.expires_at), moment(job.cancel_requested_at), text(job.blocked_for), job.blocked_ms, job.progress,
        text(job.note), text(job.reason),
        None if error is None else text(error.type), None if error is None else text(error.message),
        None if error is None else text(error.traceback), None if error is None else error.retriable,
        text(job.result_error), text(job.trace_id), text(job.idempotency_key), text(job.unique_key),
        job.payload.removeprefix(mark).decode(), None if job.result is None else job.result.removeprefix(mark).decode(),
        _json.encode([_write_attempt(attempt) for attempt in job.history]).decode(),
    )  # fmt: skip


def read_job(row: Row, mark: bytes) -> JobRecord:
    """Put a job together again. What holds only while a job waits or runs is not there."""
    error = None
    if row["error_type"] is not None:
        error = JobError(
            row["error_type"], row["error_message"] or "", row["error_traceback"] or "", row["error_retriable"] is True
        )
    return JobRecord(
        job_id=JobId(row["job_id"]),
        seq=row["seq"],
        task=row["task"],
        payload=mark + row["payload"].encode(),
        state=State(row["state"]),
        lane=row["lane"],
        needs=tuple(row["needs"]),
        rung=row["rung"],
        tenant=row["tenant"],
        max_retries=row["max_retries"],
        timeout_ms=row["timeout_ms"],
        retry=None if row["retry"] is None else RetryRule(**_retry.decode(row["retry"])),
        attempts=row["attempts"],
        crashes=row["crashes"],
        epoch=row["epoch"],
        submitted_at=milliseconds(row["submitted_at"]),
        due_at=None,
        eligible_at=_at(row["eligible_at"]),
        started_at=_at(row["started_at"]),
        finished_at=_at(row["finished_at"]),
        expires_at=_at(row["expires_at"]),
        cancel_requested_at=_at(row["cancel_requested_at"]),
        worker_id=row["worker_id"],
        progress=row["progress"],
        note=row["note"],
        result=None if row["result"] is None else mark + row["result"].encode(),
        result_error=row["result_error"],
        error=error,
        reason=row["reason"],
        idempotency_key=row["idempotency_key"],
        unique_key=row["unique_key"],
        trace_id=row["trace_id"],
        history=tuple(_read_attempt(one) for one in _log.decode(row["attempt_log"])),
        limits=tuple(row["limits"]),
        blocked_for=row["parked_for"],
        blocked_ms=row["parked_ms"],
        seen_at=milliseconds(row["seen_at"]),
    )


def text(value: str | None) -> str | None:
    """Write a text. PostgreSQL keeps neither NUL nor half a character in one."""
    if value is None or (value.isascii() and "\0" not in value):
        return value
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def moment(at: int | None) -> datetime | None:
    """Write a moment; one that no calendar reaches is the last there is."""
    if at is None:
        return None
    try:
        return min(_LAST, _EPOCH + at * _MS)
    except OverflowError:
        return _LAST if at > 0 else _FIRST


def milliseconds(found: datetime) -> int:
    return (found - _EPOCH) // _MS


def _at(found: datetime | None) -> int | None:
    return None if found is None else milliseconds(found)


def _list(values: tuple[str, ...]) -> str:
    return _json.encode([text(value) for value in values]).decode()


def _write_attempt(attempt: Attempt) -> _ArchivedAttempt:
    error = attempt.error
    return _ArchivedAttempt(
        attempt.number,
        attempt.epoch,
        text(attempt.worker_id),
        moment(attempt.started_at) or _EPOCH,
        moment(attempt.ended_at) or _EPOCH,
        text(attempt.reason) or "",
        None
        if error is None
        else _Failure(
            text(error.type) or "", text(error.message) or "", text(error.traceback) or "", error.retriable
        ),
    )  # fmt: skip


def _read_attempt(one: _ArchivedAttempt) -> Attempt:
    error = one.error
    return Attempt(
        one.number,
        one.epoch,
        one.worker_id,
        milliseconds(one.started_at),
        milliseconds(one.ended_at),
        one.reason,
        None if error is None else JobError(error.type, error.message, error.traceback, error.retriable),
    )
