"""Turns rows into core's values, and values into columns. Nothing else in this folder knows the columns' shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headway.core.errors import JobError
from headway.core.job import Attempt, ClassKey, Job, JobId, RetryRule, State
from headway.core.lease import Lease
from headway.core.policy.document import Ladder
from headway.core.policy.ladder import budget_of
from headway.core.worker import Worker, WorkerState
from headway.stores.texts import escape_error, escape_surrogates, is_writable

Row = Mapping[str, Any]

_json = msgspec.json.Encoder()
_error = msgspec.json.Decoder(JobError)
_retry = msgspec.json.Decoder(RetryRule)
_strings = msgspec.json.Decoder(tuple[str, ...])


def json_text(value: object) -> str:
    return _json.encode(value).decode()


def error_text(error: JobError | None) -> str | None:
    if error is None:
        return None
    try:
        return json_text(error)
    except UnicodeEncodeError:
        return json_text(escape_error(error))


def text(value: str | None) -> str | None:
    """Write a word of a running job, which may be any text."""
    return None if value is None else escape_surrogates(value)


def retry_text(rule: RetryRule | None) -> str | None:
    return None if rule is None else json_text(rule)


def read_retry(text: str | None) -> RetryRule | None:
    return None if text is None else _retry.decode(text)


def read_strings(text: str) -> tuple[str, ...]:
    return _strings.decode(text)


def class_key(lane: str, rung: str, needs: str, persist: int) -> ClassKey:
    return ClassKey(lane, _strings.decode(needs), rung or None, bool(persist))


def lease(row: Row, ladder: Ladder) -> Lease:
    return Lease(
        JobId(row["job_id"]),
        row["seq"],
        row["token"],
        row["task"],
        row["payload"],
        row["lane"],
        row["tenant"],
        row["trace_id"],
        row["epoch"],
        row["attempts"],
        row["crashes"],
        row["max_retries"],
        row["timeout_ms"],
        row["asked_timeout_ms"],
        read_retry(row["retry"]),
        row["started_at"],
        row["cancel_at"] is not None,
        _strings.decode(row["needs"]),
        row["worker_id"],
        row["rung"] or None,
        row["assigned"],
        budget_of(ladder, row["assigned"]),
        row["submitted_at"],
        row["eligible_at"],
    )


def attempt(row: Row) -> Attempt:
    return Attempt(
        row["number"],
        row["epoch"],
        row["worker_id"],
        row["started_at"],
        row["ended_at"],
        row["reason"],
        None if row["error"] is None else _error.decode(row["error"]),
    )


def job(row: Row, history: Iterable[Attempt], now_at: int) -> Job:
    return Job(
        job_id=JobId(row["job_id"]),
        seq=row["seq"],
        task=row["task"],
        payload=row["payload"],
        state=State(row["state"]),
        lane=row["lane"],
        needs=_strings.decode(row["needs"]),
        rung=row["rung"] or None,
        tenant=row["tenant"],
        max_retries=row["max_retries"],
        timeout_ms=row["timeout_ms"],
        retry=read_retry(row["retry"]),
        attempts=row["attempts"],
        crashes=row["crashes"],
        epoch=row["epoch"],
        submitted_at=row["submitted_at"],
        due_at=row["due_at"],
        eligible_at=row["eligible_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        expires_at=row["expires_at"],
        cancel_requested_at=row["cancel_at"],
        worker_id=row["worker_id"],
        progress=row["progress"],
        note=row["note"],
        result=row["result"],
        result_error=row["result_error"],
        error=None if row["error"] is None else _error.decode(row["error"]),
        reason=row["reason"],
        idempotency_key=row["idempotency_key"],
        unique_key=row["unique_key"],
        trace_id=row["trace_id"],
        history=tuple(history),
        limits=() if row["limits"] is None else _strings.decode(row["limits"]),
        parked=row["park"] or None,
        parked_for=row["parked_for"],
        parked_ms=row["parked_ms"],
        assigned=row["assigned"],
        seen_at=now_at,
    )


def worker(row: Row, now_at: int) -> Worker:
    state = WorkerState(row["state"])
    return Worker(
        worker_id=row["worker_id"],
        host=row["host"],
        pid=row["pid"],
        slots=row["slots"],
        reserved=row["reserved"],
        offers=_strings.decode(row["offers"]),
        version=row["version"],
        protocol=row["protocol"],
        state=WorkerState.DEAD if row["lease_ends_at"] <= now_at else state,
        started_at=row["started_at"],
        heartbeat_at=row["heartbeat_at"],
        lease_ends_at=row["lease_ends_at"],
        running=row["running"],
    )


def json_list(values: Sequence[object]) -> str:
    return json_text(list(values))


def ids_list(job_ids: Sequence[JobId]) -> str:
    """List ids that somebody typed; no job has one that is not even text."""
    return json_text([job_id for job_id in job_ids if is_writable(job_id)])
