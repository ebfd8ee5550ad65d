"""Turns rows into core's values, and values into columns. Nothing else in this folder knows the columns' shapes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from headway.core.errors import JobError
from headway.core.job import Attempt, ClassKey, JobId, JobRecord, RetryRule
from headway.core.lease import Lease
from headway.core.policy.document import Ladder
from headway.core.policy.enforced import RuleIndex
from headway.core.policy.ladder import RunningJobs, budget_of
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import WorkerInfo, WorkerState
from headway.stores.base import WAITING_COUNTED
from headway.stores.texts import escape_error, is_writable
from headway.stores.unreadable import DAMAGE, read_or, read_state, read_worker_state, unreadable_error, why_unreadable

Row = Mapping[str, Any]

_ESCAPED = "\x01"

_json = msgspec.json.Encoder()
_error = msgspec.json.Decoder(JobError)
_retry = msgspec.json.Decoder(RetryRule)
_more = msgspec.json.Decoder(tuple[int, int, int, int, str | None, int])
_strings = msgspec.json.Decoder(tuple[str, ...])
_picture = msgspec.json.Decoder(
    tuple[
        list[
            tuple[
                int, str, str, tuple[str, ...], bool, bool, int, int | None, int | None, int, int | None, int, int,
            ]
        ]
        | None,
        int | None,
    ]
)  # fmt: skip


def text(value: str | None) -> str | None:
    """Write a text. What PostgreSQL cannot keep in one, NUL and lone surrogates, is escaped behind a mark."""
    if value is None or (value.isascii() and "\0" not in value and not value.startswith(_ESCAPED)):
        return value
    if "\0" in value or value.startswith(_ESCAPED) or any("\ud800" <= letter <= "\udfff" for letter in value):
        return _ESCAPED + json.dumps(value)
    return value


def texts(values: Sequence[str | None]) -> list[str | None]:
    """Write a column of texts that a store accepts: of those, only one that begins with the mark is escaped."""
    return [text(value) if value is not None and value < "\x02" else value for value in values]


def read_text(value: str | None) -> str | None:
    """Read a text. One that begins with the mark but was never escaped is read as it is."""
    if value is None or not value.startswith(_ESCAPED):
        return value
    try:
        read = json.loads(value[1:])
    except ValueError:
        return value
    return read if isinstance(read, str) else value


def error_text(error: JobError | None) -> str | None:
    if error is None:
        return None
    try:
        return _json.encode(error).decode()  # Written in JSON, NUL does no harm.
    except UnicodeEncodeError:
        return _json.encode(escape_error(error)).decode()


def retry_text(rule: RetryRule | None) -> str | None:
    return None if rule is None else _json.encode(rule).decode()


def read_retry(value: str | None) -> RetryRule | None:
    return None if value is None else _retry.decode(value)


def try_retry(value: str | None) -> tuple[RetryRule | None, str | None]:
    """Read a rule for retries, or say why it cannot be read."""
    try:
        return read_retry(value), None
    except DAMAGE as problem:
        return None, why_unreadable(problem)


def read_more(value: str) -> tuple[int, int, int, int, str | None, int]:
    """Read what is said of a claimed job that is not at its first attempt, was delayed, or has a rule for retries."""
    return _more.decode(value)


def strings_text(values: Sequence[str]) -> str | None:
    """Write a list of texts; none for an empty one."""
    return _json.encode(list(values)).decode() if values else None


def read_strings(value: str | None) -> tuple[str, ...]:
    return () if value is None else _strings.decode(value)


def try_strings(value: str | None) -> tuple[tuple[str, ...], str | None]:
    """Read a list of texts, or say why it cannot be read."""
    try:
        return read_strings(value), None
    except DAMAGE as problem:
        return (), why_unreadable(problem)


def read_held(value: str | None) -> tuple[str, ...]:
    """Read the limits that a lease counts against. A text that cannot be read counts against none."""
    return read_or((), lambda: read_strings(value))


def read_error(value: str | None) -> JobError | None:
    if value is None:
        return None
    return read_or(unreadable_error(value), lambda: _error.decode(value))


def ids_list(job_ids: Sequence[JobId]) -> list[str]:
    """Return the ids among these that a job may have; an operator may have typed anything."""
    return [job_id for job_id in job_ids if is_writable(job_id)]


def class_key(lane: str, rung: str, needs: Sequence[str], persist: bool) -> ClassKey:
    return ClassKey(lane, tuple(needs), rung or None, persist)


def snapshot(
    picture: str, now_at: int, rule_index: RuleIndex, floor: RunningJobs | None
) -> tuple[Snapshot, dict[ClassKey, int], dict[int, tuple[int, int]]]:
    """Read what the function of the same name gives; the numbers of the classes in it; and by number where each begins,
    and after which rewind.
    """
    listed, next_due_at = _picture.decode(picture)
    views: list[ClassView] = []
    numbers: dict[ClassKey, int] = {}
    floors: dict[int, tuple[int, int]] = {}
    for class_id, lane, rung, needs, persist, fair, line, oldest_at, head_key, parks, park_key, rewound, clock in (
        listed or ()
    ):
        key = ClassKey(lane, needs, rung or None, persist)
        numbers[key] = class_id
        # Where tenants share, a job may still be put before the first that waits, but not before what was taken.
        reached = clock if fair else head_key
        if persist and reached is not None:
            floors[class_id] = (reached, rewound)
        heads = [found for found in (head_key, park_key) if found is not None]
        views.append(
            ClassView(
                key,
                min(line + parks, WAITING_COUNTED),
                oldest_at,
                min(heads, default=0),
                fair,
                rule_index.blocked_reason(lane, key.rung, floor if persist else None),
            )
        )
    return Snapshot(now_at, tuple(views), next_due_at, floor), numbers, floors


def lease(row: Row, ladder: Ladder) -> Lease:
    retry, unreadable = try_retry(row["retry"])
    return Lease(
        JobId(row["job_id"]),
        row["seq"],
        row["token"],
        read_text(row["task"]) or "",
        row["payload"],
        row["lane"],
        read_text(row["tenant"]),
        read_text(row["trace_id"]),
        row["epoch"],
        row["attempts"],
        row["crashes"],
        row["max_retries"],
        row["timeout_ms"],
        row["asked_timeout_ms"],
        retry,
        row["started_at"],
        row["cancel_at"] is not None,
        tuple(row["needs"]),
        row["worker_id"],
        row["rung"] or None,
        row["assigned"],
        budget_of(ladder, row["assigned"]),
        row["submitted_at"],
        row["eligible_at"],
        unreadable,
    )


def attempt(row: Row) -> Attempt:
    return Attempt(
        row["number"],
        row["epoch"],
        row["worker_id"],
        row["started_at"],
        row["ended_at"],
        read_text(row["reason"]) or "",
        read_error(row["error"]),
    )


def job(row: Row, history: Iterable[Attempt], now_at: int) -> JobRecord:
    return JobRecord(
        job_id=JobId(row["job_id"]),
        seq=row["seq"],
        task=read_text(row["task"]) or "",
        payload=row["payload"],
        state=read_state(row["state"]),
        lane=row["lane"],
        needs=tuple(row["needs"]),
        rung=row["rung"] or None,
        tenant=read_text(row["tenant"]),
        max_retries=row["max_retries"],
        timeout_ms=row["timeout_ms"],
        retry=try_retry(row["retry"])[0],
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
        note=read_text(row["note"]),
        result=row["result"],
        result_error=read_text(row["result_error"]),
        error=read_error(row["error"]),
        reason=read_text(row["reason"]),
        idempotency_key=read_text(row["idempotency_key"]),
        unique_key=read_text(row["unique_key"]),
        trace_id=read_text(row["trace_id"]),
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
        offers=tuple(row["offers"]),
        version=row["version"],
        protocol=row["protocol"],
        state=WorkerState.DEAD if row["lease_ends_at"] <= now_at else state,
        started_at=row["started_at"],
        heartbeat_at=row["heartbeat_at"],
        lease_ends_at=row["lease_ends_at"],
        running=row["running"],
    )
