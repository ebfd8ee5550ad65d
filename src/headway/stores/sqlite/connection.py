"""A connection to SQLite that knows the statements by their names, whichever library it comes from."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

BUSY_MS = 10_000


class KnownAlready(Exception):
    """A row with this key is there already."""


class SqliteConnection(ABC):
    """What verbs need of a connection. ``raw`` is the library's own; libraries agree on what is used of it here."""

    taken: type[Exception]  # What the library raises for a key that is there already.

    def __init__(self, raw: Any, statements: Mapping[str, str]) -> None:
        self.raw = raw
        self.log_pages = 0  # Pages that wait in the log to be brought into the file, if that is ours to do.
        self._statements = statements

    def run(self, name: str, *values: Any) -> Any:
        """Execute a statement with its values in the order of its header. Return its cursor."""
        return self.raw.execute(self._statements[name], values)

    def run_many(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        self.raw.executemany(self._statements[name], rows)

    def first(self, name: str, *values: Any) -> Any:
        """Return the first column of the first row, or None."""
        row = self.raw.execute(self._statements[name], values).fetchone()
        return None if row is None else row[0]

    @abstractmethod
    def rows(self, name: str, *values: Any) -> list[dict[str, Any]]:
        """Return all rows as dictionaries; for verbs that are not hot."""

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is done inside if it raises; a key that is taken raises ``KnownAlready``."""
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
    """How a store comes by its connections, and by which library. What goes wrong is named by ``naming``."""

    path: Path
    unmarked: bool  # Whether the file must be marked before it is first written to: see ``checkpoint``.

    def prepare(self) -> SqliteConnection:
        """See that the tables are there and of this release. Gives a connection. Blocks."""
        ...

    def connect(self) -> SqliteConnection:
        """Return another connection. Blocks."""
        ...

    def checkpoint(self, connection: SqliteConnection) -> None:
        """Bring what is in the log into the file, as far as that can be done now. Never raises."""
        ...

    def version(self) -> int | None:
        """Read the schema without changing anything; None if there is nothing yet. Blocks."""
        ...

    def naming(self) -> AbstractContextManager[None]:
        """Turn what the library and the system report into Headway's errors, each with what to do."""
        ...

    def describe(self) -> dict[str, str]:
        """What an operator wants to know of the file and the library."""
        ...
