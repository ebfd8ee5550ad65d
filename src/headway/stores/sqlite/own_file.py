"""Headway's own SQLite file, through apsw: opens it, checks that it is a store, and translates errors."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import apsw

from headway.core.errors import (
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
from headway.stores.sqlite.disk_reserve import delete_reserve, reserve_path
from headway.stores.sqlite.library_guard import APSW, claim, release
from headway.stores.sqlite.statements import MIGRATIONS, for_many_rows, numbered

APPLICATION_ID = 0x48445759  # "HDWY"
SHORT_WAIT, LONG_WAIT = 0.0004, 0.002  # Seconds between two tries for the lock.
CACHED_EXECUTIONS = 1_000  # apsw drops a prepared statement after this many executions of others.
SHORT_WAITS = 25  # Tries with the short wait, before the long ones.


class _BusyHandler:
    """SQLite calls this while another process holds the lock. Return whether to try again.

    SQLite's own handler sleeps 1, 2, 5, 10 ms and more, several times as long as a transaction. With it, two workers
    would run a fifth fewer jobs.
    """

    def __init__(self) -> None:
        self._since = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._since = now
        if now - self._since > BUSY_MS / 1_000:
            return False
        time.sleep(SHORT_WAIT if tries < SHORT_WAITS else LONG_WAIT)
        return True


class OwnFileConnection(SqliteConnection):
    """A connection of apsw."""

    taken = apsw.ConstraintError

    def __init__(self, path: Path, synchronous: str) -> None:
        claim(path, APSW)
        bare = lacks_log(path)  # Before SQLite makes one.
        self._path: Path | None = path
        try:
            raw = apsw.Connection(str(path), statementcachesize=CACHED_EXECUTIONS)
        except BaseException:
            release(path, APSW)
            raise
        super().__init__(raw, numbered(""), for_many_rows(""))
        raw.set_busy_handler(_BusyHandler())
        try:
            _check_ours(raw, path)  # Before anything is changed: the first pragma writes to the file.
            if bare:
                _check_whole(raw, path)
        except BaseException:
            self.close()
            raise
        # Otherwise SQLite plans a statement again for other values, at ten times the cost of its execution.
        raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        _keep_log(raw)
        for pragma in (
            f"synchronous = {synchronous}",
            "cache_size = -16384",
            "mmap_size = 0",
            "temp_store = MEMORY",
        ):
            raw.execute(f"PRAGMA {pragma}").fetchall()
        raw.set_wal_hook(self._committed)  # In place of SQLite's own checkpoints: see ``OwnFile.checkpoint``.

    def _committed(self, _raw: apsw.Connection, _name: str, pages: int) -> int:
        self.log_pages = pages
        return apsw.SQLITE_OK

    def rows(self, name: str, *values: Any) -> list[dict[str, Any]]:
        cursor = self.run(name, *values)
        try:
            names = [column[0] for column in cursor.get_description()]
        except apsw.ExecutionCompleteError:  # There was no row.
            return []
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def close(self) -> None:
        super().close()
        if self._path is not None:
            release(self._path, APSW)
            self._path = None


def _keep_log(raw: apsw.Connection) -> None:
    """Switch to a write-ahead log. Retries, because SQLite refuses at once if several processes switch a new file."""
    patience = _BusyHandler()
    for tries in count():
        try:
            raw.execute("PRAGMA journal_mode = WAL").fetchall()
        except apsw.BusyError:
            if not patience(tries):
                raise
        else:
            return


class OwnFile:
    """A file that holds one store and nothing else. Opening it creates and migrates it."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.path = path
        self.synchronous = synchronous
        self.unmarked = False

    def prepare(self) -> SqliteConnection:
        _create(self.path)
        self.unmarked = lacks_log(self.path)
        made = OwnFileConnection(self.path, self.synchronous)
        try:
            if migrate(made, self.path):
                self.checkpoint(made)
                self.unmarked = False
        except BaseException:
            made.close()
            raise
        return made

    def connect(self) -> SqliteConnection:
        return OwnFileConnection(self.path, self.synchronous)

    def version(self) -> int | None:
        if not self.path.exists():
            return None
        with self.naming():
            # Through SQLite: while a worker runs, the newest header may be in the log beside the file.
            connection = OwnFileConnection(self.path, self.synchronous)
            try:
                _check_ours(connection.raw, self.path)
                return int(connection.raw.pragma("user_version"))
            finally:
                connection.close()

    def checkpoint(self, connection: SqliteConnection) -> None:
        """Copy the log into the file.

        The file without its log is then marked as incomplete, so that opening a copy of it fails. The mark is cleared
        in the log, and in the file once the last process has closed it.
        """
        with contextlib.suppress(apsw.Error):  # Locked or full; the next checkpoint does it.
            connection.run("needs_wal", 1)
            connection.raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        with contextlib.suppress(apsw.Error):
            connection.run("needs_wal", 0)
        connection.log_pages = 0

    def describe(self) -> dict[str, str]:
        survives = "process, system and power loss" if self.synchronous != "NORMAL" else "process crash only"
        return {
            "store": f"sqlite, {self.path.resolve()}",
            "schema": str(MIGRATIONS[-1][0]),
            "sqlite": apsw.sqlite_lib_version(),
            "durability": f"synchronous={self.synchronous}: an accepted job survives {survives}",
        }

    @contextlib.contextmanager
    def naming(self) -> Iterator[None]:
        path, facts = self.path, {"path": str(self.path)}
        try:
            yield
        except apsw.FullError as problem:
            raise StoreFull(f"the disk that holds {path} is full; free some room and try again", **facts) from problem
        except (apsw.BusyError, apsw.LockedError) as problem:
            raise StoreBusy(
                f"{path} has been locked by another process for over {BUSY_MS // 1000} s; end it or try again",
                **facts,
            ) from problem
        except apsw.NotADBError as problem:
            raise NotAStore(f"{path} is not an SQLite file; give another path in HEADWAY_STORE", **facts) from problem
        except apsw.CorruptError as problem:
            raise StoreCorrupt(
                f"{path} is damaged ({problem}); stop all workers, then recover what can be read with "
                f"`sqlite3 {path} .recover`, or restore a backup",
                **facts,
            ) from problem
        except (apsw.ReadOnlyError, apsw.PermissionsError, apsw.CantOpenError, PermissionError) as problem:
            raise StoreError(
                f"{path} cannot be opened for writing ({problem}); check the rights of the file and of its folder",
                **facts,
            ) from problem
        except (apsw.IOError, OSError) as problem:
            raise StoreUnavailable(f"{path} cannot be read or written just now: {problem}", **facts) from problem
        except apsw.Error as problem:
            raise StoreError(f"{path}: {problem}", **facts) from problem


def migrate(connection: SqliteConnection, path: Path, *, to: int | None = None) -> list[int]:
    """Migrate the file to the newest schema in one transaction. Return the numbers of the migrations that ran."""
    raw = connection.raw
    if raw.pragma("user_version") == MIGRATIONS[-1][0] and to is None:
        _check_ours(raw, path)  # The usual case waits for no writer.
        return []
    raw.execute("BEGIN IMMEDIATE")
    try:
        version = raw.pragma("user_version")
        _check_ours(raw, path)
        steps = [(number, text) for number, text in MIGRATIONS if number > version and (to is None or number <= to)]
        for _number, text in steps:
            raw.execute(text)
        if steps:
            raw.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            raw.execute(f"PRAGMA user_version = {steps[-1][0]}")
            raw.executemany(
                "INSERT OR REPLACE INTO format VALUES (?, ?)",
                [("format", FORMAT), ("oldest_reader", OLDEST_READER), ("oldest_writer", OLDEST_WRITER)],
            )
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:
            raw.execute("ROLLBACK")
        raise
    return [number for number, _ in steps]


def _check_ours(raw: apsw.Connection, path: Path) -> None:
    application = raw.pragma("application_id")
    if not application and raw.execute("SELECT count(*) FROM sqlite_schema").get:
        application = (
            raw.pragma("application_id") or -1
        )  # Another process may have created the store between the two reads.
    if not application:
        return
    if application != APPLICATION_ID:
        raise NotAStore(
            f"{path} is an SQLite file of another program, not a Headway store; give another path in HEADWAY_STORE",
            path=str(path),
        )
    known = dict(raw.execute("SELECT name, value FROM format"))
    if known.get("oldest_writer", 0) > FORMAT:
        raise StoreTooNew(
            f"{path} was written by a newer Headway (format {known.get('format')}; this one writes {FORMAT}): "
            "upgrade Headway here",
            path=str(path),
        )


def lacks_log(path: Path) -> bool:
    """Return whether the log beside a file is empty or missing."""
    try:
        return os.stat(f"{path}-wal").st_size == 0
    except FileNotFoundError:
        return True


def check_copy(raw: apsw.Connection, path: Path, *, bare: bool) -> None:
    """Check that a file is a complete store. Raises ``NotAStore``, ``StoreTooNew``, ``StoreCorrupt``."""
    if not raw.pragma("application_id"):
        raise NotAStore(f"{path} is not a Headway store", path=str(path))
    _check_ours(raw, path)
    if bare:
        _check_whole(raw, path)


def _check_whole(raw: apsw.Connection, path: Path) -> None:
    """Raise ``StoreCorrupt`` for a file that was copied in use without its log, because its latest jobs are missing."""
    if not raw.pragma("application_id"):
        return
    needed = raw.execute("SELECT value FROM format WHERE name = 'needs_wal'").get
    if needed and lacks_log(path):  # Unless another process has opened the store meanwhile.
        raise StoreCorrupt(
            f"{path} is a copy of a store in use, made without {path.name}-wal, so its latest jobs are missing; copy "
            "stores with `headway backup`, or copy both files",
            path=str(path),
        )


def _create(path: Path) -> None:
    """Create an empty file that only its owner may read. SQLite creates its log with the same mode."""
    if not path.parent.is_dir():
        raise StoreError(f"the folder {path.parent} of the store {path} does not exist; make it first", path=str(path))
    if not path.exists():
        # SQLite would remove the log, and with it the latest jobs of a file that was moved away. The second check is
        # for another process that has created both files meanwhile.
        if not lacks_log(path) and not path.exists():
            raise StoreCorrupt(
                f"{path} is missing, but {path.name}-wal beside it holds jobs; put the file back, or remove "
                "that one too to begin anew",
                path=str(path),
            )
        delete_reserve(path)  # Left by a store that was removed.
    elif path.is_file() and path.stat().st_size <= 1 and reserve_path(path).exists():  # SQLite takes one byte for none.
        raise StoreCorrupt(
            f"{path} was a store and is empty now; restore a backup, or remove the file to begin anew", path=str(path)
        )
    with contextlib.suppress(FileExistsError):
        # Only ever opened if it does not exist: closing a second descriptor of a file drops SQLite's locks on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
