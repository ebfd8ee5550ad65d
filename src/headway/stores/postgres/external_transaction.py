"""Submits inside a caller's transaction, by one statement on the caller's connection."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Generic, TypeVar

from headway.core.errors import ConfigError
from headway.core.job import SubmitReply
from headway.core.workflow import GraphReply
from headway.stores.postgres.graph import GraphSubmit
from headway.stores.postgres.submit import PlainSubmit, SubmitBatch

_KNOWN = "an asyncpg connection, a psycopg Connection or AsyncConnection, or an SQLAlchemy Session or Connection"


R = TypeVar("R")


class _Statement(Generic[R]):
    """A statement that returns one row, for the connection of any driver."""

    def __init__(self, statement: str, values: tuple[Any, ...]) -> None:
        self._statement = statement
        self._values = values

    def _read(self, row: Any) -> R:
        raise NotImplementedError

    def run(self, connection: Any) -> R:
        """Execute it on a blocking connection. Raises ``ConfigError`` for another object."""
        if _is(connection, "psycopg", "Connection"):
            with connection.cursor(row_factory=sys.modules["psycopg.rows"].dict_row) as cursor:
                return self._read(cursor.execute(self._percent(), self._values).fetchone())
        if _is(connection, "sqlalchemy.orm", "Session", "scoped_session"):
            connection = connection.connection()
        if _is(connection, "sqlalchemy", "Connection"):
            result = connection.exec_driver_sql(self._for(connection), self._values)
            return self._read(result.mappings().one())
        raise self._unfit(connection, "aenqueue", _waits(connection))

    async def arun(self, connection: Any) -> R:
        """Execute it on an async connection. Raises ``ConfigError`` for another object."""
        if _is(connection, "asyncpg", "Connection") or _is(connection, "asyncpg.pool", "PoolConnectionProxy"):
            return self._read(await connection.fetchrow(self._statement, *self._values))
        if _is(connection, "psycopg", "AsyncConnection"):
            async with connection.cursor(row_factory=sys.modules["psycopg.rows"].dict_row) as cursor:
                await cursor.execute(self._percent(), self._values)
                return self._read(await cursor.fetchone())
        if _is(connection, "sqlalchemy.ext.asyncio", "AsyncSession", "async_scoped_session"):
            connection = await connection.connection()
        if _is(connection, "sqlalchemy.ext.asyncio", "AsyncConnection"):
            result = await connection.exec_driver_sql(self._for(connection), self._values)
            return self._read(result.mappings().one())
        raise self._unfit(connection, "enqueue", _blocks(connection))

    def _percent(self) -> str:
        return _percent(self._statement)

    def _for(self, connection: Any) -> str:
        """Return the statement in the form of SQLAlchemy's driver."""
        dialect = connection.dialect
        if dialect.name != "postgresql":
            raise ConfigError(f"connection= is for {dialect.name}, but the jobs are in PostgreSQL")
        return self._statement if dialect.driver == "asyncpg" else self._percent()

    def _unfit(self, connection: Any, other: str, fits_there: bool) -> ConfigError:
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        if fits_there:
            return ConfigError(f"connection= is a {kind}: submit through it with {other}() instead")
        return ConfigError(f"connection= is a {kind}; known are {_KNOWN}")


class ExternalSubmit(_Statement[list[SubmitReply] | None]):
    """A prepared submit. The answer None means that the rules have changed; prepare another one."""

    def __init__(self, batch: SubmitBatch, statement: str, values: tuple[Any, ...]) -> None:
        super().__init__(statement, values)
        self._batch = batch

    def _read(self, row: Any) -> list[SubmitReply] | None:
        return None if row["status"] == "stale" else self._batch.answers(row)


class ExternalGraph(_Statement[GraphReply]):
    """A prepared submit of a graph."""

    def __init__(self, graph: GraphSubmit, statement: str, values: tuple[Any, ...]) -> None:
        super().__init__(statement, values)
        self._graph = graph

    def _read(self, row: Any) -> GraphReply:
        return self._graph.reply(row)


class PlainExternalSubmit(_Statement[list[SubmitReply] | None]):
    """The same for one plain job, at a third of the cost. The answer None means that the job is not plain."""

    def __init__(
        self, plain: PlainSubmit, statement: str, values: tuple[Any, ...], unfit: Callable[[], object]
    ) -> None:
        super().__init__(statement, values)
        self._plain = plain
        self._not_plain = unfit

    def _read(self, row: Any) -> list[SubmitReply] | None:
        if not row["done"]:
            self._not_plain()
            return None
        return self._plain.answers()


@lru_cache(maxsize=64)
def _percent(statement: str) -> str:
    return re.sub(r"\$\d+", "%s", statement)


def _is(value: object, module: str, *names: str) -> bool:
    """Return whether a value is of one of a driver's classes, without importing the driver."""
    loaded = sys.modules.get(module)
    kinds = tuple(kind for name in names if isinstance(kind := getattr(loaded, name, None), type))
    return isinstance(value, kinds)


def _blocks(value: object) -> bool:
    return (
        _is(value, "psycopg", "Connection")
        or _is(value, "sqlalchemy", "Connection")
        or _is(value, "sqlalchemy.orm", "Session", "scoped_session")
    )


def _waits(value: object) -> bool:
    return (
        _is(value, "asyncpg", "Connection")
        or _is(value, "asyncpg.pool", "PoolConnectionProxy")
        or _is(value, "psycopg", "AsyncConnection")
        or _is(value, "sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession", "async_scoped_session")
    )
