"""The archive: writes ended jobs to a table that people query with SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import msgspec

from headway.core.errors import JobError, StoreUnavailable
from headway.core.job import Job

_json = msgspec.json.Encoder()


def _load(name: str) -> str:
    return (files(__name__.rpartition(".")[0]) / name).read_text()


class Archive:
    """One table in a PostgreSQL database. Adding a job twice is adding it once."""

    def __init__(self, url: str, namespace: str, *, mark: bytes = b"") -> None:
        self._url = url
        self._namespace = namespace
        self._mark = mark  # What stands before the JSON in payloads and results.
        self._connection: Any = None  # An asyncpg.Connection, which has no types.
        self._add = _load("add.sql")

    async def add(self, jobs: Sequence[Job]) -> None:
        """Keep ended jobs, all or none. Raises ``StoreUnavailable``."""
        # Whatever came twice in a batch would be refused; the latest word stands.
        latest = {job.job_id: job for job in jobs}
        columns = [list(column) for column in zip(*(_row(job, self._mark) for job in latest.values()), strict=True)]
        try:
            connection = await self._connect()
            await connection.execute(self._add, self._namespace, *columns, timeout=30)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
            await self.close()
            raise StoreUnavailable(f"the history does not answer, jobs wait to be archived: {problem}") from problem

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _connect(self) -> Any:
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._url, timeout=5, statement_cache_size=0)
            await self._connection.execute(_load("table.sql"))
        return self._connection


def _row(job: Job, mark: bytes) -> tuple[Any, ...]:
    error = job.error or JobError("", "")
    log = [
        {
            "number": attempt.number,
            "worker_id": attempt.worker_id,
            "started_at": _moment(attempt.started_at),
            "ended_at": _moment(attempt.ended_at),
            "reason": attempt.reason,
            "error": None if attempt.error is None else f"{attempt.error.type}: {attempt.error.message}",
        }
        for attempt in job.history
    ]
    return (
        job.job_id, _clean(job.task), job.state.value, job.lane, _clean(job.tenant), _clean(job.worker_id),
        job.attempts, _moment(job.submitted_at), _moment(job.eligible_at), _moment(job.started_at),
        _moment(job.finished_at),
        _clean(job.reason), _clean(error.type) or None, _clean(error.message) or None, _clean(error.traceback) or None,
        _clean(job.trace_id), _clean(job.idempotency_key), _clean(job.unique_key), _json_text(job.payload, mark),
        None if job.result is None else _json_text(job.result, mark),
        _json.encode(log).decode().replace("\\u0000", "\\ufffd"),
    )  # fmt: skip


def _json_text(raw: bytes, mark: bytes) -> str:
    return raw.removeprefix(mark).decode()


def _moment(at: int | None) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at / 1_000, UTC)


def _clean(text: str | None) -> str | None:
    """PostgreSQL keeps no NUL in text."""
    return None if text is None else text.replace("\0", "\ufffd")
