"""Turns rows into core's values, and values into columns. Nothing else in this folder knows the columns' shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from headway.core.errors import JobError
from headway.core.job import Attempt, ClassKey, JobId, JobRecord, RetryRule
from headway.core.lease import Lease
from headway.core.policy.document import Ladder
from headway.core.policy.ladder import budget_of
from headway.core.worker import WorkerInfo, WorkerState
from headway.stores.texts import escape_error, escape_surrogates, is_writable
from headway.stores.unreadable import DAMAGE, read_or, read_state, read_worker_state, unreadable_error, why_unreadable

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


def read_held(text: str | None) -> tuple[str, ...]:
    """Read the limits that a lease counts against. A text that cannot be read counts against none."""
    return () if text is None else read_or((), lambda: _strings.decode(text))


def read_needs(text: str) -> tuple[str, ...]:
    """Read what a class needs. If that cannot be read, no worker offers it."""
    return read_or((str(text),), lambda: _strings.decode(text))


def read_error(text: str | None) -> JobError | None:
    return None if text is None else read_or(unreadable_error(text), lambda: _error.decode(text))


class RunFields(NamedTuple):
    """What a job says of its run, as far as that can be read."""

    task: str
    payload: bytes
    tenant: str | None
    trace_id: str | None
    retry: RetryRule | None
    unreadable: str | None = None  # Why not all of it could be read.


def read_terms(task: Any, payload: Any, tenant: Any, trace_id: Any, retry: Any) -> RunFields:
    """Read what a job says of its run. A column may hold a value of any type, if another program wrote it."""
    try:
        rule = None if retry is None else _retry.decode(retry)
        if are_sound(task, payload, tenant, trace_id):
            return RunFields(task, payload, tenant, trace_id, rule)
        unreadable = why_unreadable(TypeError("a column holds a value of another type"))
    except DAMAGE as problem:
        rule, unreadable = None, why_unreadable(problem)
    return RunFields(as_text(task) or "", _as_bytes(payload), as_text(tenant), as_text(trace_id), rule, unreadable)


def are_sound(task: Any, payload: Any, tenant: Any, trace_id: Any) -> bool:
    """Return whether columns hold what this release writes to them."""
    return (
        type(task) is str
        and type(payload) is bytes
        and (tenant is None or type(tenant) is str)
        and (trace_id is None or type(trace_id) is str)
    )


def as_text(value: Any) -> str | None:
    """Read a text. A column may hold a value of any type, if another program wrote it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    return None if value is None else str(value)


def _as_bytes(value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "backslashreplace")


def class_key(lane: str, rung: str, needs: str, persist: int) -> ClassKey:
    return ClassKey(lane, read_needs(needs), rung or None, bool(persist))


def lease(row: Row, ladder: Ladder) -> Lease:
    terms = read_terms(row["task"], row["payload"], row["tenant"], row["trace_id"], row["retry"])
    return Lease(
        JobId(row["job_id"]),
        row["seq"],
        row["token"],
        terms.task,
        terms.payload,
        row["lane"],
        terms.tenant,
        terms.trace_id,
        row["epoch"],
        row["attempts"],
        row["crashes"],
        row["max_retries"],
        row["timeout_ms"],
        row["asked_timeout_ms"],
        terms.retry,
        row["started_at"],
        row["cancel_at"] is not None,
        read_needs(row["needs"]),
        row["worker_id"],
        row["rung"] or None,
        row["assigned"],
        budget_of(ladder, row["assigned"]),
        row["submitted_at"],
        row["eligible_at"],
        terms.unreadable,
    )


def attempt(row: Row) -> Attempt:
    return Attempt(
        row["number"],
        row["epoch"],
        row["worker_id"],
        row["started_at"],
        row["ended_at"],
        row["reason"],
        read_error(row["error"]),
    )


def job(row: Row, history: Iterable[Attempt], now_at: int) -> JobRecord:
    terms = read_terms(row["task"], row["payload"], row["tenant"], row["trace_id"], row["retry"])
    return JobRecord(
        job_id=JobId(row["job_id"]),
        seq=row["seq"],
        task=terms.task,
        payload=terms.payload,
        state=read_state(row["state"]),
        lane=row["lane"],
        needs=read_needs(row["needs"]),
        rung=row["rung"] or None,
        tenant=terms.tenant,
        max_retries=row["max_retries"],
        timeout_ms=row["timeout_ms"],
        retry=terms.retry,
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
        error=read_error(row["error"]),
        reason=row["reason"],
        idempotency_key=row["idempotency_key"],
        unique_key=row["unique_key"],
        trace_id=terms.trace_id,
        history=tuple(history),
        limits=read_held(row["limits"]),
        parked=row["park"] or None,
        parked_for=row["parked_for"],
        parked_ms=row["parked_ms"],
        assigned=row["assigned"],
        seen_at=now_at,
    )


def worker(row: Row, now_at: int) -> WorkerInfo:
    state = read_worker_state(row["state"])
    return WorkerInfo(
        worker_id=row["worker_id"],
        host=row["host"],
        pid=row["pid"],
        slots=row["slots"],
        reserved=row["reserved"],
        offers=read_held(row["offers"]),
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
