"""Converts rows to core values, and values to columns. Only this module knows the types of the columns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from headway.core.errors import JobError
from headway.core.job import Attempt, ClassKey, JobId, JobRecord, RetryRule
from headway.core.lease import Lease
from headway.core.policy.document import Ladder
from headway.core.policy.ladder import budget_of
from headway.core.worker import WorkerInfo, WorkerState
from headway.core.workflow import HELD_AT, BatchId, BatchRecord, EdgeRule, SourceStatus, Upstream
from headway.stores.texts import escape_error, is_writable
from headway.stores.unreadable import read_or, read_state, read_worker_state, unreadable_error

Row = Mapping[str, Any]

_json = msgspec.json.Encoder()
_error = msgspec.json.Decoder(JobError)
_retry = msgspec.json.Decoder(RetryRule)
_strings = lru_cache(maxsize=10_000)(msgspec.json.Decoder(tuple[str, ...]).decode)  # Many jobs have the same limits.


def json_text(value: object) -> str:
    return _json.encode(value).decode()


class RunFields(NamedTuple):
    """The fields of a job that its run needs, as far as they are readable."""

    task: str
    payload: bytes
    tenant: str | None
    trace_id: str | None
    retry: RetryRule | None
    unreadable: str | None = None  # Why a field is not readable.


class RowCodec(ABC):
    """Reads and writes columns. Subclasses define how a database stores texts and lists."""

    @abstractmethod
    def text(self, value: str | None) -> str | None:
        """Return a text of a running job as a column value. The text may contain any character."""

    @abstractmethod
    def read_text(self, value: Any) -> str | None: ...

    @abstractmethod
    def array(self, values: Iterable[object]) -> Any:
        """Return a list as one parameter of a statement."""

    @abstractmethod
    def read_array(self, value: Any) -> tuple[str, ...]:
        """Read a column that holds a list of texts. Raises one of ``DAMAGE``."""

    @abstractmethod
    def are_plain(self, task: Any, payload: Any, tenant: Any, trace_id: Any) -> bool:
        """Return whether these columns can be used without decoding."""

    @abstractmethod
    def read_run(self, task: Any, payload: Any, tenant: Any, trace_id: Any, retry: Any) -> RunFields:
        """Read the fields of a job that its run needs."""

    def ids(self, job_ids: Sequence[JobId]) -> Any:
        """Return the valid ids as one parameter. Ids typed by an operator may contain any character."""
        return self.array([job_id for job_id in job_ids if is_writable(job_id)])

    def error_text(self, error: JobError | None) -> str | None:
        if error is None:
            return None
        try:
            return json_text(error)
        except UnicodeEncodeError:
            return json_text(escape_error(error))

    def retry_text(self, rule: RetryRule | None) -> str | None:
        return None if rule is None else json_text(rule)

    def read_retry(self, value: str | None) -> RetryRule | None:
        return None if value is None else _retry.decode(value)

    def strings_text(self, values: Sequence[str]) -> str | None:
        """Return a list of texts as one text, or None for an empty list."""
        return json_text(list(values)) if values else None

    def read_strings(self, value: str | None) -> tuple[str, ...]:
        return () if value is None else _strings(value)

    def read_limit_keys(self, value: Any) -> tuple[str, ...]:
        """Read the limits that count a lease."""
        return self.read_held(value)

    def read_held(self, value: str | None) -> tuple[str, ...]:
        """Read the limits that count a lease. An unreadable text means no limits."""
        return () if value is None else read_or((), lambda: _strings(value))

    def read_needs(self, value: Any) -> tuple[str, ...]:
        """Read the needs of a class. An unreadable value becomes a need that no worker offers."""
        return read_or((str(value),), lambda: self.read_array(value))

    def read_error(self, value: str | None) -> JobError | None:
        return None if value is None else read_or(unreadable_error(value), lambda: _error.decode(value))

    def class_key(self, lane: str, rung: str, needs: Any, persist: int) -> ClassKey:
        return ClassKey(lane, self.read_needs(needs), rung or None, bool(persist))

    def lease(self, row: Row, ladder: Ladder) -> Lease:
        run = self.read_run(row["task"], row["payload"], row["tenant"], row["trace_id"], row["retry"])
        return Lease(
            JobId(row["job_id"]),
            row["seq"],
            row["token"],
            run.task,
            run.payload,
            row["lane"],
            run.tenant,
            run.trace_id,
            row["epoch"],
            row["attempts"],
            row["crashes"],
            row["max_retries"],
            row["timeout_ms"],
            row["asked_timeout_ms"],
            run.retry,
            row["started_at"],
            row["cancel_at"] is not None,
            self.read_needs(row["needs"]),
            row["worker_id"],
            row["rung"] or None,
            row["assigned"],
            budget_of(ladder, row["assigned"]),
            row["submitted_at"],
            row["eligible_at"],
            row["batch_id"],
            run.unreadable,
        )

    def attempt(self, row: Row) -> Attempt:
        return Attempt(
            row["number"],
            row["epoch"],
            row["worker_id"],
            row["started_at"],
            row["ended_at"],
            self.read_text(row["reason"]) or "",
            self.read_error(row["error"]),
        )

    def job(self, row: Row, history: Iterable[Attempt], now_at: int) -> JobRecord:
        run = self.read_run(row["task"], row["payload"], row["tenant"], row["trace_id"], row["retry"])
        held = row["due_at"] == HELD_AT
        return JobRecord(
            job_id=JobId(row["job_id"]),
            seq=row["seq"],
            task=run.task,
            payload=run.payload,
            state=read_state(row["state"]),
            lane=row["lane"],
            needs=self.read_needs(row["needs"]),
            rung=row["rung"] or None,
            tenant=run.tenant,
            max_retries=row["max_retries"],
            timeout_ms=row["timeout_ms"],
            retry=run.retry,
            attempts=row["attempts"],
            crashes=row["crashes"],
            epoch=row["epoch"],
            submitted_at=row["submitted_at"],
            due_at=None if held else row["due_at"],
            eligible_at=row["eligible_at"],
            started_at=row["started_at"],
            finished_at=row["finished_at"],
            expires_at=row["expires_at"],
            cancel_requested_at=row["cancel_at"],
            worker_id=row["worker_id"],
            progress=row["progress"],
            note=self.read_text(row["note"]),
            result=row["result"],
            result_error=self.read_text(row["result_error"]),
            error=self.read_error(row["error"]),
            reason=self.read_text(row["reason"]),
            idempotency_key=self.read_text(row["idempotency_key"]),
            unique_key=self.read_text(row["unique_key"]),
            trace_id=run.trace_id,
            history=tuple(history),
            limits=self.read_held(row["limits"]),
            blocked_by=row["park"] or None,
            blocked_for=row["parked_for"],
            blocked_ms=row["parked_ms"],
            assigned=row["assigned"],
            held=held,
            batch_id=row["batch_id"],
            seen_at=now_at,
        )

    def batch(self, row: Row, now_at: int) -> BatchRecord:
        return BatchRecord(
            batch_id=BatchId(row["batch_id"]),
            seq=row["seq"],
            name=self.read_text(row["name"]) or "",
            key=self.read_text(row["key"]),
            tenant=self.read_text(row["tenant"]),
            parent=row["parent"],
            open=bool(row["open"]),
            total=row["total"],
            live=row["live"],
            children=row["children"],
            held=row["held"],
            running=row["running"],
            completed=row["completed"],
            failed=row["failed"],
            cancelled=row["cancelled"],
            failing=bool(row["failing"]),
            round=row["round"],
            created_at=row["created_at"],
            cancel_requested_at=row["cancel_at"],
            finished_at=row["finished_at"],
            seen_at=now_at,
        )

    def upstream(self, row: Row) -> Upstream:
        return Upstream(
            source=row["source"],
            rule=EdgeRule(row["rule"]),
            satisfied=bool(row["satisfied"]),
            status=SourceStatus(row["status"]),
            state=None if row["state"] is None else read_state(row["state"]),
            result=row["result"],
            name=self.read_text(row["name"]),
            live=row["live"],
            total=row["total"],
        )

    def worker(self, row: Row, now_at: int) -> WorkerInfo:
        state = read_worker_state(row["state"])
        return WorkerInfo(
            worker_id=row["worker_id"],
            host=row["host"],
            pid=row["pid"],
            slots=row["slots"],
            reserved=row["reserved"],
            offers=read_or((), lambda: self.read_array(row["offers"])),
            version=row["version"],
            protocol=row["protocol"],
            state=WorkerState.DEAD if row["lease_ends_at"] <= now_at else state,
            started_at=row["started_at"],
            heartbeat_at=row["heartbeat_at"],
            lease_ends_at=row["lease_ends_at"],
            running=row["running"],
        )
