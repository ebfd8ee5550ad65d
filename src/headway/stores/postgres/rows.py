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
from headway.core.policy.rules import Rulebook
from headway.core.policy.ladder import Floor
from headway.core.snapshot import ClassView, Snapshot
from headway.core.worker import Worker, WorkerState
from headway.stores.base import WAITING_COUNTED

Row = Mapping[str, Any]

_json = msgspec.json.Encoder()
_error = msgspec.json.Decoder(JobError)
_retry = msgspec.json.Decoder(RetryRule)
_strings = msgspec.json.Decoder(tuple[str, ...])
_picture = msgspec.json.Decoder(
    tuple[
        list[
            tuple[
                int, str, str, tuple[str, ...], bool, bool, int, int | None, int | None, int, int | None,
            ]
        ]
        | None,
        int | None,
    ]
)  # fmt: skip


def text(value: str | None) -> str | None:
    """Write a text that people made: what PostgreSQL cannot keep in one becomes a question mark."""
    if value is None or (value.isascii() and "\0" not in value):
        return value
    return value.replace("\0", "?").encode("utf-8", "replace").decode()


def error_text(error: JobError | None) -> str | None:
    if error is None:
        return None
    plain = JobError(*(text(part) or "" for part in (error.type, error.message, error.traceback)), error.retriable)
    return _json.encode(plain).decode()


def retry_text(rule: RetryRule | None) -> str | None:
    return None if rule is None else _json.encode(rule).decode()


def read_retry(value: str | None) -> RetryRule | None:
    return None if value is None else _retry.decode(value)


def strings_text(values: Sequence[str]) -> str | None:
    """Write a list of texts; none for an empty one."""
    return _json.encode(list(values)).decode() if values else None


def read_strings(value: str | None) -> tuple[str, ...]:
    return () if value is None else _strings.decode(value)


def ids_list(job_ids: Sequence[JobId]) -> list[str]:
    """List ids that somebody typed; no job has one that is not even text."""
    return [job_id for job_id in job_ids if "\0" not in job_id and text(job_id) == job_id]


def class_key(lane: str, rung: str, needs: Sequence[str], persist: bool) -> ClassKey:
    return ClassKey(lane, tuple(needs), rung or None, persist)


def snapshot(picture: str, now_at: int, book: Rulebook, floor: Floor | None) -> tuple[Snapshot, dict[ClassKey, int]]:
    """Read what the function of the same name gives; and the numbers of the classes in it."""
    listed, next_due_at = _picture.decode(picture)
    views: list[ClassView] = []
    numbers: dict[ClassKey, int] = {}
    for class_id, lane, rung, needs, persist, fair, line, oldest_at, head_key, parks, park_key in listed or ():
        key = ClassKey(lane, needs, rung or None, persist)
        numbers[key] = class_id
        heads = [found for found in (head_key, park_key) if found is not None]
        views.append(
            ClassView(
                key,
                min(line + parks, WAITING_COUNTED),
                oldest_at,
                min(heads, default=0),
                fair,
                book.blocks(lane, key.rung, floor if persist else None),
            )
        )
    return Snapshot(now_at, tuple(views), next_due_at, floor), numbers


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
        tuple(row["needs"]),
        row["worker_id"],
        row["rung"] or None,
        row["assigned"],
        budget_of(ladder, row["assigned"]),
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
        needs=tuple(row["needs"]),
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
        limits=read_strings(row["limits"]),
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
        offers=tuple(row["offers"]),
        version=row["version"],
        protocol=row["protocol"],
        state=WorkerState.DEAD if row["lease_ends_at"] <= now_at else state,
        started_at=row["started_at"],
        heartbeat_at=row["heartbeat_at"],
        lease_ends_at=row["lease_ends_at"],
        running=row["held"],
    )
