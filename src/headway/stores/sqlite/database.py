"""One SQLite file: opening it, checking that it is ours, writing in groups, naming what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import apsw

from headway.core.errors import (
    HeadwayError,
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreTooNew,
    StoreUnavailable,
)
from headway.stores.assets import load_migrations, load_queries
from headway.stores.base import FORMAT, OLDEST_READER, OLDEST_WRITER

T = TypeVar("T")

APPLICATION_ID = 0x48445759  # "HDWY"
BUSY_MS = 10_000
GROUP_MAX = 256  # Calls folded into one transaction.
BALLAST_BYTES = 2 << 20
ALL = 1_000_000  # More rows than there can be leases.

QUERIES = load_queries("headway.stores.sqlite")
MIGRATIONS = load_migrations("headway.stores.sqlite")


class KnownAlready(Exception):
    """A row with this key is there already."""


class Connection:
    """A connection that knows the statements by their names."""

    def __init__(self, path: Path, synchronous: str) -> None:
        self.raw = apsw.Connection(str(path), statementcachesize=200)
        self.raw.set_busy_timeout(BUSY_MS)
        try:
            _check_ours(self.raw, path)  # Before anything is changed: the first pragma writes to the file.
        except BaseException:
            self.raw.close()
            raise
        # Otherwise a statement is planned anew at every execution with other values, at ten times its own cost.
        self.raw.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        for pragma in (
            "journal_mode = WAL",
            f"synchronous = {synchronous}",
            "cache_size = -16384",
            "mmap_size = 0",
            "temp_store = MEMORY",
            "wal_autocheckpoint = 2000",
        ):
            self.raw.execute(f"PRAGMA {pragma}").fetchall()

    def run(self, name: str, *values: Any) -> Any:
        """Execute a statement with its values in the order in which it first names them. Gives its cursor."""
        return self.raw.execute(QUERIES[name], values)

    def run_many(self, name: str, rows: Iterable[Sequence[Any]]) -> None:
        self.raw.executemany(QUERIES[name], rows)

    def first(self, name: str, *values: Any) -> Any:
        """Give the first column of the first row, or None."""
        row = self.raw.execute(QUERIES[name], values).fetchone()
        return None if row is None else row[0]

    def rows(self, name: str, *values: Any) -> list[dict[str, Any]]:
        """Give all rows as dictionaries; for verbs that are not hot."""
        cursor = self.raw.execute(QUERIES[name], values)
        try:
            names = [column[0] for column in cursor.get_description()]
        except apsw.ExecutionCompleteError:  # There was no row.
            return []
        return [dict(zip(names, row, strict=True)) for row in cursor]

    def named(self, name: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
        return list(self.raw.execute(QUERIES[name], values))

    @contextlib.contextmanager
    def savepoint(self) -> Iterator[None]:
        """Undo what is done inside if it raises; a key that is taken raises ``KnownAlready``."""
        self.raw.execute("SAVEPOINT inner")
        try:
            yield
        except BaseException as problem:
            self.raw.execute("ROLLBACK TO inner")
            self.raw.execute("RELEASE inner")
            if isinstance(problem, apsw.ConstraintError):
                raise KnownAlready from None
            raise
        self.raw.execute("RELEASE inner")

    def close(self) -> None:
        self.raw.close()


class Database:
    """A file with one writing thread and one reading thread.

    Calls that wait while another commits are folded into the next transaction, so a burst of single
    submits costs few synchronisations of the disk. Futures belong to whichever loop made the call.
    """

    def __init__(self, path: Path, synchronous: str) -> None:
        self.path = path
        self.synchronous = synchronous
        self._writes: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._after: list[Callable[[], None]] = []
        self._undo: list[Callable[[], object]] = []
        self._pid = os.getpid()

    def open(self) -> None:
        """Make or migrate the file and start the threads. Blocks; raises what ``naming`` names."""
        with naming(self.path):
            _create(self.path)
            writer = Connection(self.path, self.synchronous)
            try:
                migrate(writer, self.path)
            except BaseException:
                writer.close()
                raise
            reader = Connection(self.path, self.synchronous)
        _lay_ballast(self.path)
        self._start("writer", self._write, writer)
        self._start("reader", self._read, reader)

    def version(self) -> int | None:
        """Read the file's schema without changing it; None if there is no file. Blocks."""
        if not self.path.exists():
            return None
        with naming(self.path):
            # Through SQLite: while a worker runs, the newest header may be in the log beside the file.
            connection = Connection(self.path, self.synchronous)
            try:
                _check_ours(connection.raw, self.path)
                return int(connection.raw.pragma("user_version"))
            finally:
                connection.close()

    def write(self, function: Callable[[Connection], T], *, vital: bool = True) -> asyncio.Future[T]:
        """Run a function inside a transaction; its effects are durable when the future is done.

        On a full disk the ballast is given up for what is vital: results and renewals, not new jobs.
        """
        return self._call(self._writes, function, vital)

    def read(self, function: Callable[[Connection], T]) -> asyncio.Future[T]:
        """Run a function on the reading connection, beside any writer."""
        return self._call(self._reads, function, False)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Do something once the running transaction is durable, and only then."""
        self._after.append(action)

    def after_rollback(self, action: Callable[[], object]) -> None:
        """Undo something in memory if the running transaction is undone."""
        self._undo.append(action)

    def close(self) -> None:
        for calls in (self._writes, self._reads):
            calls.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _start(self, name: str, function: Callable[[Connection], None], connection: Connection) -> None:
        thread = threading.Thread(target=function, args=(connection,), name=f"headway-sqlite-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _call(
        self, calls: queue.SimpleQueue[_Call | None], function: Callable[[Connection], T], vital: bool
    ) -> asyncio.Future[T]:
        if not self._threads:
            raise StoreError(f"the store {self.path} is not open")
        if os.getpid() != self._pid:
            raise StoreError(f"the store {self.path} was opened in another process; open it again after a fork")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        calls.put(_Call(future, function, vital))
        return future

    def _write(self, connection: Connection) -> None:
        """Woken by a call; takes at most a group of them; ends on None."""
        while (first := self._writes.get()) is not None:
            group = [first]
            ending = False
            while len(group) < GROUP_MAX:
                try:
                    call = self._writes.get_nowait()
                except queue.Empty:
                    break
                if call is None:
                    ending = True
                    break
                group.append(call)
            self._write_group(connection, group)
            if ending:
                break
        connection.close()

    def _write_group(self, connection: Connection, group: list[_Call]) -> None:
        self._after, self._undo = [], []
        try:
            with naming(self.path):
                connection.raw.execute("BEGIN IMMEDIATE")
                try:
                    for call in group:
                        self._write_one(connection, call, alone=len(group) == 1)
                    connection.raw.execute("COMMIT")
                except BaseException:
                    if connection.raw.in_transaction:
                        connection.raw.execute("ROLLBACK")
                    raise
        except Exception as problem:
            for undo in self._undo:
                undo()
            # One at a time, so that each fails by its own fault alone; a lock is nobody's, and waiting is over.
            if len(group) > 1 and not isinstance(problem, StoreBusy):
                for call in group:
                    self._write_group(connection, [call])
                return
            if isinstance(problem, StoreFull) and group[0].vital and _drop_ballast(self.path):
                self._write_group(connection, group)
                return
            for call in group:
                call.value, call.error = None, problem
            self._after = []
        for action in self._after:
            action()
        _settle(group)

    def _write_one(self, connection: Connection, call: _Call, *, alone: bool) -> None:
        """Run one call; a refusal undoes that call alone."""
        after, undone = len(self._after), len(self._undo)
        if not alone:
            connection.raw.execute("SAVEPOINT one")
        try:
            call.value, call.error = call.function(connection), None
        except HeadwayError as refusal:
            call.error = refusal
            del self._after[after:]
            for undo in self._undo[undone:]:
                undo()
            del self._undo[undone:]
            if alone:
                connection.raw.execute("ROLLBACK")
                connection.raw.execute("BEGIN IMMEDIATE")
            else:
                connection.raw.execute("ROLLBACK TO one")
        if not alone:
            connection.raw.execute("RELEASE one")

    def _read(self, connection: Connection) -> None:
        while (call := self._reads.get()) is not None:
            try:
                with naming(self.path):
                    # One transaction, so that a verb of several statements sees one moment.
                    connection.raw.execute("BEGIN")
                    try:
                        call.value = call.function(connection)
                    finally:
                        connection.raw.execute("COMMIT")
            except Exception as problem:
                call.error = problem
            _settle([call])
        connection.close()


class _Call:
    """A function on its way through a thread, and the future of who asked."""

    __slots__ = ("error", "function", "future", "value", "vital")

    def __init__(self, future: asyncio.Future[Any], function: Callable[[Connection], Any], vital: bool) -> None:
        self.future, self.function, self.vital = future, function, vital
        self.value: Any = None
        self.error: BaseException | None = None


def _settle(calls: list[_Call]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
    for call in calls:
        by_loop.setdefault(call.future.get_loop(), []).append(call)
    for loop, mine in by_loop.items():
        with contextlib.suppress(RuntimeError):  # The loop was closed; nobody waits any more.
            loop.call_soon_threadsafe(_deliver, mine)


def _deliver(calls: list[_Call]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.value)


def migrate(connection: Connection, path: Path, *, to: int | None = None) -> list[int]:
    """Bring the file to the newest schema, in one transaction. Gives the numbers of the steps taken."""
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
        )  # Another process may have made the store between the two looks.
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


def _create(path: Path) -> None:
    """Make an empty file that only its owner may read; SQLite gives its helpers the same mode."""
    if not path.parent.is_dir():
        raise StoreError(f"the folder {path.parent} of the store {path} does not exist; make it first", path=str(path))
    if not path.exists():
        _drop_ballast(path)  # Left by a store that was removed.
    elif path.is_file() and path.stat().st_size <= 1 and _ballast(path).exists():  # SQLite takes one byte for none.
        raise StoreCorrupt(
            f"{path} was a store and is empty now; restore a backup, or remove the file to begin anew", path=str(path)
        )
    with contextlib.suppress(FileExistsError):
        # Only ever opened if it does not exist: closing a second descriptor of a file drops SQLite's locks on it.
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _ballast(path: Path) -> Path:
    return path.with_name(path.name + "-ballast")


def _lay_ballast(path: Path) -> None:
    """Keep some room beside the file: on a full disk SQLite could not even record results without it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(_ballast(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptor, 0, BALLAST_BYTES)
        except OSError:
            _drop_ballast(path)
        finally:
            os.close(descriptor)


def _drop_ballast(path: Path) -> bool:
    try:
        _ballast(path).unlink()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turn what SQLite and the system report into Headway's errors, each with what to do."""
    facts = {"path": str(path)}
    try:
        yield
    except apsw.FullError as problem:
        raise StoreFull(f"the disk that holds {path} is full; free some room and try again", **facts) from problem
    except (apsw.BusyError, apsw.LockedError) as problem:
        raise StoreBusy(
            f"{path} has been locked by another process for over {BUSY_MS // 1000} s; end it or try again", **facts
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
            f"{path} cannot be opened for writing ({problem}); check the rights of the file and of its folder", **facts
        ) from problem
    except (apsw.IOError, OSError) as problem:
        raise StoreUnavailable(f"{path} cannot be read or written just now: {problem}", **facts) from problem
    except apsw.Error as problem:
        raise StoreError(f"{path}: {problem}", **facts) from problem
