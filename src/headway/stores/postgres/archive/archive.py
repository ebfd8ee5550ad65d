"""The archive: ended jobs in a table that people query with SQL, and Headway once its store has forgotten them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from headway.core.errors import StoreBusy, StoreUnavailable
from headway.core.job import JobId, JobRecord
from headway.stores.base import JobQuery
from headway.stores.open import mask
from headway.stores.postgres.address import transport_of
from headway.stores.postgres.archive import rows
from headway.stores.postgres.connections import TLS_HINT
from headway.stores.transport import warn_once

CONNECTIONS = 4  # At most, in one process.
CONNECT_WITHIN, READ_WITHIN, ADD_WITHIN = 5, 5, 30  # Seconds.
NEWEST = (1 << 63) - 1

T = TypeVar("T")


def _load(name: str) -> str:
    return (files(__name__.rpartition(".")[0]) / name).read_text()


class PostgresArchive:
    """One table in a PostgreSQL database. Adding a job twice is adding it once. Belongs to one loop."""

    def __init__(self, url: str, namespace: str, *, mark: bytes = b"") -> None:
        self._url = url
        self.transport = transport_of(url)
        self._namespace = namespace
        self._mark = mark  # What stands before the JSON in payloads and results.
        self._idle: list[Any] = []  # asyncpg.Connections, which have no types.
        self._room = asyncio.Semaphore(CONNECTIONS)
        self._made = False  # The table: a reader need not be allowed to make it.
        self._add, self._get, self._find = _load("add.sql"), _load("get.sql"), _load("find.sql")

    async def add(self, jobs: Sequence[JobRecord]) -> None:
        """Keep ended jobs, all or none. Raises ``StoreUnavailable``."""
        # Whatever came twice in a batch would be refused; the latest word stands.
        latest = {job.job_id: job for job in jobs}
        written = [rows.write_job(job, self._mark) for job in latest.values()]
        columns = [list(column) for column in zip(*written, strict=True)]

        async def add(connection: Any) -> None:
            if not self._made:
                await connection.execute(_load("table.sql"), timeout=ADD_WITHIN)
                self._made = True
            await connection.execute(self._add, self._namespace, *columns, timeout=ADD_WITHIN)

        try:
            await self._run(add)
        except StoreUnavailable as problem:
            self._made = False  # It may be another server that comes back.
            raise StoreUnavailable(f"{problem}; jobs wait to be archived") from problem

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        """Return each job, or None. Raises ``StoreUnavailable``."""
        found = await self._read(self._get, [rows.text(job_id) for job_id in job_ids])
        jobs = {job.job_id: job for job in found}
        return [jobs.get(job_id) for job_id in job_ids]

    async def find(self, query: JobQuery) -> list[JobRecord]:
        """Find ended jobs, newest first. Raises ``StoreUnavailable``."""
        return await self._read(
            self._find,
            NEWEST if query.before is None else query.before,
            [state.value for state in query.states] or None,
            rows.text(query.task),
            rows.text(query.lane),
            rows.text(query.tenant),
            rows.text(query.worker_id),
            rows.moment(query.submitted_before_at),
            rows.moment(query.submitted_after_at),
            query.limit,
        )

    async def close(self) -> None:
        while self._idle:
            with contextlib.suppress(Exception):
                await self._idle.pop().close(timeout=2)

    async def _read(self, statement: str, *values: Any) -> list[JobRecord]:
        async def read(connection: Any) -> list[JobRecord]:
            try:
                found = await connection.fetch(statement, self._namespace, *values, timeout=READ_WITHIN)
            except asyncpg.UndefinedTableError:  # Nothing was archived yet.
                return []
            return [rows.read_job(row, self._mark) for row in found]

        return await self._run(read)

    async def _run(self, work: Callable[[Any], Awaitable[T]]) -> T:
        async with self._room:
            connection = await self._connect()
            try:
                value = await work(connection)
            except (TimeoutError, asyncpg.QueryCanceledError) as problem:
                connection.terminate()
                raise StoreBusy("the history takes too long to answer") from problem
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
                connection.terminate()
                raise StoreUnavailable(f"the history does not answer: {problem}") from problem
            except BaseException:
                connection.terminate()  # It may be in the middle of something.
                raise
            self._idle.append(connection)
            return value

    async def _connect(self) -> Any:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        warn_once(self.transport, mask(self._url), TLS_HINT)
        try:
            # A pooler may stand between, so nothing is prepared; nor does a plan grow old.
            return await asyncpg.connect(self._url, timeout=CONNECT_WITHIN, statement_cache_size=0)
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as problem:
            why = str(problem) or f"no connection within {CONNECT_WITHIN} s"
            raise StoreUnavailable(f"the history does not answer: {why}") from problem
