"""A SQLite connection that executes statements by name, for either SQLite library."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

from headway.stores.sqlite.statements import ROWS_AT_ONCE

BUSY_MS = 10_000


class KnownAlready(Exception):
    """A row with this key exists already."""


class SqliteConnection(ABC):
    """A connection for store methods. ``raw`` is the library's own; both libraries have the methods used here."""

    taken: type[Exception]  # The library's error for a key that exists already.

    def __init__(self, raw: Any, statements: Mapping[str, str], for_many_rows: Mapping[str, str] | None = None) -> None:
        self.raw = raw
        self.log_pages = 0  # Pages in the log to checkpoint, if Headway does that itself.
        self._statements = statements
        self._for_many_rows = for_many_rows or {}  # Some of the statements, for ``ROWS_AT_ONCE`` rows.

    def run(self, name: str, *values: Any) -> Any:
        """Execute a statement with its values in the order of its header. Return its cursor."""
        return self.raw.execute(self._statements[name], values)

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Execute a statement for each row. Write ``ROWS_AT_ONCE`` rows by one execution where the statement can."""
        done = 0
        for_many = self._for_many_rows.get(name)
        while for_many is not None and len(rows) - done >= ROWS_AT_ONCE:
            self.raw.execute(for_many, tuple(chain.from_iterable(rows[done : done + ROWS_AT_ONCE])))
            done += ROWS_AT_ONCE
        if done < len(rows):
            self.raw.executemany(self._statements[name], rows[done:])

    def first(self, name: str, *values: Any) -> Any:
        """Return the first column of the first row, or None."""
        row = self.raw.execute(self._statements[name], values).fetchone()
        return None if row is None else row[0]

    @abstractmethod
    def rows(self, name: str, *values: Any) -> list[dict[str, Any]]:
        """Return all rows as dictionaries. Slower than ``run``."""

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo the changes inside if the block raises. Raises ``KnownAlready`` for a key that exists."""
        self.raw.execute("SAVEPOINT inner")
        try:
            yield
        except BaseException as problem:
            self.raw.execute("ROLLBACK TO inner")
            self.raw.execute("RELEASE inner")
            if isinstance(problem, self.taken):
                raise KnownAlready from None
            raise
        self.raw.execute("RELEASE inner")

    def close(self) -> None:
        self.raw.close()


class Driver(Protocol):
    """Makes the connections of a store with one SQLite library. ``naming`` translates the library's errors."""

    path: Path
    unmarked: bool  # Whether the file must be marked before the first write; see ``checkpoint``.

    def prepare(self) -> SqliteConnection:
        """Check that the tables exist and are of this release. Return a connection. Blocks."""
        ...

    def connect(self) -> SqliteConnection:
        """Return another connection. Blocks."""
        ...

    def checkpoint(self, connection: SqliteConnection) -> None:
        """Copy the log into the file as far as possible now. Never raises."""
        ...

    def version(self) -> int | None:
        """Return the schema version without changing anything, or None if there is no store yet. Blocks."""
        ...

    def naming(self) -> AbstractContextManager[None]:
        """Translate errors of the library and the system to Headway's errors, which say what to do."""
        ...

    def describe(self) -> dict[str, str]:
        """Return facts about the file and the library for operators."""
        ...
