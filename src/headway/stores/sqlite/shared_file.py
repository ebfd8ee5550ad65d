"""A store with its tables in another program's file, through Python's own ``sqlite3``.

The owner of the file may open it through that module at any time. No other library may open it in this process.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headway.core.errors import (
    ConfigError,
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreTooNew,
    StoreUnavailable,
)
from headway.stores.base import FORMAT, OLDEST_READER, OLDEST_WRITER
from headway.stores.sqlite.connection import BUSY_MS, SqliteConnection
from headway.stores.sqlite.library_guard import STDLIB, claim
from headway.stores.sqlite.statements import migrations, numbered, prefixed

PREFIX = "headway_"
OLDEST_SQLITE = (3, 35)  # The first with RETURNING, and with ON CONFLICT that names no column.
SCHEMA = "schema"  # The row of the table ``format`` with the number of the last migration.

# The advice to the file's owner if the tables are missing or old.
MIGRATE = "bring its tables to this release first"


_NAMES = tuple(map(str, range(1, 100)))


class SharedFileConnection(SqliteConnection):
    """A connection of ``sqlite3`` that the caller has made, in autocommit. The caller closes it."""

    taken = sqlite3.IntegrityError

    def __init__(self, raw: sqlite3.Connection, close: Callable[[], None] | None = None) -> None:
        super().__init__(raw, numbered(PREFIX))
        self._close = close

    # Since Python 3.14, ``sqlite3`` treats ?1 as a named parameter and accepts its value only by name.

    def run(self, name: str, *values: Any) -> Any:
        return self.raw.execute(self._statements[name], dict(zip(_NAMES, values, strict=False)))

    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        self.raw.executemany(self._statements[name], (dict(zip(_NAMES, values, strict=False)) for values in rows))

    def first(self, name: str, *values: Any) -> Any:
        row = self.run(name, *values).fetchone()
        return None if row is None else row[0]

    def rows(self, name: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.run(name, *values)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def close(self) -> None:
        if self._close is not None:
            self._close()


class SharedFile:
    """Headway's tables in a file. ``connect`` returns a connection and a function that closes it.

    ``advice``: what to do if the tables are missing or old. Opening does not create or migrate tables.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[], tuple[sqlite3.Connection, Callable[[], None]]],
        *,
        advice: str = MIGRATE,
    ) -> None:
        check_library()
        self.path = path
        self.unmarked = False
        self._connect = connect
        self._advice = advice
        self._claimed = False

    def prepare(self) -> SqliteConnection:
        made = self.connect()
        try:
            made.raw.execute("PRAGMA journal_mode = WAL").fetchall()
            self.check(made.raw)
        except BaseException:
            made.close()
            raise
        return made

    def connect(self) -> SqliteConnection:
        self.claim()
        raw, close = self._connect()
        for pragma in (f"busy_timeout = {BUSY_MS}", "temp_store = MEMORY", "cache_size = -16384"):
            raw.execute(f"PRAGMA {pragma}").fetchall()
        plan_once(raw)
        return SharedFileConnection(raw, close)

    def claim(self) -> None:
        """Reserve the file for ``sqlite3`` for the life of the process, because its owner may open it at any time."""
        if not self._claimed:
            claim(self.path, STDLIB)
            self._claimed = True

    def checkpoint(self, connection: SqliteConnection) -> None:
        """Do nothing, because SQLite's automatic checkpoints are on."""

    def version(self) -> int | None:
        with self.naming():
            made = self.connect()
            try:
                return read_version(made.raw, self.path)
            finally:
                made.close()

    def check(self, raw: sqlite3.Connection) -> None:
        """Check that the tables exist and are of this release. Raises ``NotAStore``, ``StoreTooNew``."""
        version, newest = read_version(raw, self.path), migrations(PREFIX)[-1][0]
        if version is None:
            raise NotAStore(f"{self.path} has none of Headway's tables: {self._advice}", path=str(self.path))
        if version < newest:
            raise NotAStore(
                f"Headway's tables in {self.path} are of an older release ({version} of {newest}): {self._advice}",
                path=str(self.path),
            )

    def describe(self) -> dict[str, str]:
        return {
            "store": f"sqlite, tables {PREFIX}* in {self.path}",
            "schema": str(migrations(PREFIX)[-1][0]),
            "sqlite": sqlite3.sqlite_version,
            "durability": "as the file's owner has set it: synchronous is full unless it was changed",
        }

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        path, facts = self.path, {"path": str(self.path)}
        try:
            yield
        except sqlite3.Error as problem:
            raise _named(path, problem) from problem
        except PermissionError as problem:
            raise StoreError(f"{path} cannot be opened for writing ({problem})", **facts) from problem
        except OSError as problem:
            raise StoreUnavailable(f"{path} cannot be read or written just now: {problem}", **facts) from problem


def check_library() -> None:
    """Raise ``ConfigError`` if Python's SQLite is too old for the statements."""
    if sqlite3.sqlite_version_info[:2] < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise ConfigError(
            f"Python's sqlite3 module brings SQLite {sqlite3.sqlite_version}, and jobs need {oldest} or newer: "
            "use a newer Python or system, or keep them in PostgreSQL"
        )


def plan_once(raw: sqlite3.Connection) -> None:
    """Make SQLite plan a statement once for all values, if this Python can set that."""
    if hasattr(raw, "setconfig"):  # Since Python 3.12.
        raw.setconfig(sqlite3.SQLITE_DBCONFIG_ENABLE_QPSG, True)  # type: ignore[attr-defined, unused-ignore]


def migrate_shared_file(raw: sqlite3.Connection, path: Path) -> list[int]:
    """Migrate the tables in a caller's file in one transaction. Return the numbers of the migrations that ran.

    Sets the file to WAL, so that readers and the writer do not wait for each other.
    """
    check_library()
    claim(path, STDLIB)
    raw.execute("PRAGMA journal_mode = WAL").fetchall()
    raw.execute("BEGIN IMMEDIATE")
    try:
        version = read_version(raw, path) or 0
        steps = [(number, text) for number, text in migrations(PREFIX) if number > version]
        for _, text in steps:
            for statement in _statements(text):
                raw.execute(statement)
        if steps:
            known = {
                "format": FORMAT, "oldest_reader": OLDEST_READER, "oldest_writer": OLDEST_WRITER, SCHEMA: steps[-1][0]
            }  # fmt: skip
            raw.executemany(prefixed("INSERT OR REPLACE INTO format VALUES (?, ?)", PREFIX), known.items())
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    return [number for number, _ in steps]


def read_version(raw: sqlite3.Connection, path: Path) -> int | None:
    """Return the schema version of the tables, or None if there are no tables. Raises ``StoreTooNew``."""
    if not raw.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (f"{PREFIX}format",)).fetchone():
        return None
    known = dict(raw.execute(prefixed("SELECT name, value FROM format", PREFIX)))
    if known.get("oldest_writer", 0) > FORMAT:
        raise StoreTooNew(
            f"Headway's tables in {path} were written by a newer Headway (format {known.get('format')}; this one "
            f"writes {FORMAT}): upgrade Headway here",
            path=str(path),
        )
    return int(known.get(SCHEMA, 0))


def _statements(text: str) -> Iterator[str]:
    """Yield the statements of a script, because ``executescript`` would commit the transaction."""
    gathered = ""
    for line in text.splitlines(keepends=True):
        gathered += line
        if sqlite3.complete_statement(gathered):
            yield gathered
            gathered = ""


def _named(path: Path, problem: sqlite3.Error) -> StoreError:
    code = getattr(problem, "sqlite_errorname", "")
    facts = {"path": str(path)}
    if code == "SQLITE_BUSY_SNAPSHOT":
        return StoreBusy(
            f"{path}: this transaction had read before it came to write, and another one has written since; run it "
            "again, or let transactions begin as writers (in Django: OPTIONS = {'transaction_mode': 'IMMEDIATE'})",
            **facts,
        )
    match "_".join(code.split("_")[:2]):
        case "SQLITE_BUSY" | "SQLITE_LOCKED":
            return StoreBusy(f"{path} has been locked by another connection for too long; try again", **facts)
        case "SQLITE_FULL":
            return StoreFull(f"the disk that holds {path} is full; free some room and try again", **facts)
        case "SQLITE_CORRUPT" | "SQLITE_NOTADB":
            return StoreCorrupt(f"{path} is damaged ({problem}); restore a backup", **facts)
        case "SQLITE_READONLY" | "SQLITE_PERM" | "SQLITE_CANTOPEN":
            return StoreError(f"{path} cannot be opened for writing ({problem}); check the rights of the file", **facts)
        case "SQLITE_IOERR":
            return StoreUnavailable(f"{path} cannot be read or written just now: {problem}", **facts)
        case _:
            return StoreError(f"{path}: {problem}", **facts)
