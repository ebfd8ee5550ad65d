"""Verbs on the caller's own psycopg connection, in the caller's thread and transaction.

A verb never waits, so it runs on any event loop or without one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from asyncpg import exceptions as pg  # type: ignore[import-untyped]

from headway.stores.postgres.connections import Connection, Isolation, naming

T = TypeVar("T")


class BorrowedConnection:
    """Replaces the pool of a store. Each verb has a savepoint, so that an error undoes only that verb."""

    def __init__(self, shown: str, connection: Callable[[], Any]) -> None:
        self._shown = shown
        self._connection = connection

    async def close(self) -> None:
        """Do nothing: the connection belongs to the caller."""

    async def run(self, work: Callable[[Connection], Awaitable[T]], isolation: Isolation | None = None) -> T:
        """Run a function on the connection, in the isolation level of the caller's transaction."""
        connection = self._connection()
        with naming(self._shown), connection.transaction():
            return await work(_PsycopgConnection(connection))


class _PsycopgConnection:
    """Adapts psycopg to the interface of asyncpg that the store uses."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, statement: str, *values: Any) -> list[NamedRow]:
        import psycopg

        try:
            with psycopg.RawCursor(self._connection, row_factory=_make_record) as cursor:
                cursor.execute(statement.encode(), [_as_list(value) for value in values])
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as problem:
            message = problem.diag.message_primary or str(problem)
            raise pg.PostgresError.new({"C": problem.sqlstate or "XX000", "M": message}) from problem

    async def fetchrow(self, statement: str, *values: Any) -> NamedRow | None:
        found = await self.fetch(statement, *values)
        return found[0] if found else None

    async def fetchval(self, statement: str, *values: Any) -> Any:
        row = await self.fetchrow(statement, *values)
        return None if row is None else row[0]


class NamedRow(tuple[Any, ...]):
    """A row that is read by position or by name, as a row of asyncpg is."""

    names: Sequence[str]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.names.index(key) if isinstance(key, str) else key)

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self.names else default

    def keys(self) -> Sequence[str]:
        return self.names

    def values(self) -> tuple[Any, ...]:
        return tuple(self)

    def items(self) -> list[tuple[str, Any]]:
        return list(zip(self.names, self, strict=True))


def _make_record(cursor: Any) -> Callable[[Sequence[Any]], NamedRow]:
    class Row(NamedRow):
        names = tuple(column.name for column in cursor.description or ())

    return Row


def _as_list(value: Any) -> Any:
    """Return a sequence as a list. For psycopg a tuple is a composite value; for asyncpg it is an array too."""
    return [_as_list(part) for part in value] if isinstance(value, (tuple, list)) else value
