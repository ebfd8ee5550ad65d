"""One SQLite file with a writer thread, which groups calls, and a reader thread, which runs one call at a time."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from headway.core.errors import HeadwayError, StoreBusy, StoreError, StoreFull
from headway.core.log_event import LogEvent
from headway.stores.sqlite.connection import Driver, SqliteConnection
from headway.stores.sqlite.disk_reserve import delete_reserve, has_room, write_reserve
from headway.stores.sqlite.file_identity import FileIdentity
from headway.stores.sqlite.repair import repair_texts
from headway.stores.sqlite.transaction import Hooks, SqliteCache

T = TypeVar("T")
log = logging.getLogger("headway.sqlite")

GROUP_MAX = 256  # Maximum calls in one transaction.
LOG_PAGES_MAX = 2_000  # Pages in the log that cause a checkpoint.
IDLE = 5.0  # Seconds without a call that cause a checkpoint of a smaller log.


class Database:
    """A file with one writing thread and one reading thread.

    Calls that arrive during a commit share the next transaction, so a burst of single submits needs few
    synchronisations of the disk. Each future belongs to the event loop of its caller.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.path = driver.path
        self._writes: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._reads: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open_or_not = threading.Lock()  # No call may follow the end marker of a queue.
        self._after: list[Callable[[], None]] = []
        self._undo: list[Callable[[], object]] = []
        self._pid = os.getpid()
        self._identity = FileIdentity(driver.path)

    async def open(self) -> None:
        """Open the file and start the threads. Raises ``StoreError``."""
        await asyncio.get_running_loop().run_in_executor(None, self._open)

    async def close(self) -> None:
        """Stop the threads after they have processed all calls."""
        await asyncio.get_running_loop().run_in_executor(None, self._close)

    async def version(self) -> int | None:
        """Return the schema version without changing anything, or None if there is no store yet."""
        return await asyncio.get_running_loop().run_in_executor(None, self.driver.version)

    def write(self, function: Callable[[SqliteConnection, Hooks], T], *, vital: bool = True) -> asyncio.Future[T]:
        """Run a function in a transaction. Its effects are durable when the future is done.

        On a full disk the writer deletes the reserve for vital calls: results and renewals, but not new jobs.
        """
        return self._call(self._writes, function, vital)

    def write_waiting(
        self, function: Callable[[SqliteConnection, Hooks], T], *, vital: bool = True, timeout: float | None = None
    ) -> T:
        """Run a function in a transaction and wait, for a thread without a loop. Raises ``TimeoutError``."""
        self._check_process()
        done: concurrent.futures.Future[T] = concurrent.futures.Future()
        self._put(self._writes, _Call(done, function, vital))
        try:
            return done.result(timeout)
        except TimeoutError:
            done.cancel()
            raise

    def read(self, function: Callable[[SqliteConnection, Hooks], T]) -> asyncio.Future[T]:
        """Run a function on the reading connection, beside any writer."""
        return self._call(self._reads, function, False)

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run an action once the running transaction is durable, and only then."""
        self._after.append(action)

    def after_rollback(self, action: Callable[[], object]) -> None:
        """Run an action if the running transaction is rolled back."""
        self._undo.append(action)

    def borrow(self, memory: SqliteCache) -> SqliteCache:
        """Return the cache itself, because the one writer thread undoes its changes after a rollback."""
        return memory

    def _open(self) -> None:
        with self.driver.naming():
            writer = self.driver.prepare()
            try:
                reader = self.driver.connect()
            except BaseException:
                writer.close()
                raise
            self._identity.note()
        write_reserve(self.path)
        self._start("writer", self._write, writer)
        self._start("reader", self._read, reader)

    def _close(self) -> None:
        with self._open_or_not:
            threads, self._threads = self._threads, []
            for calls in (self._writes, self._reads) if threads else ():
                calls.put(None)
        for thread in threads:
            thread.join()

    def _start(self, name: str, function: Callable[[SqliteConnection], None], connection: SqliteConnection) -> None:
        thread = threading.Thread(target=function, args=(connection,), name=f"headway-sqlite-{name}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _call(
        self, calls: queue.SimpleQueue[_Call | None], function: Callable[[SqliteConnection, Hooks], T], vital: bool
    ) -> asyncio.Future[T]:
        self._check_process()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._put(calls, _Call(future, function, vital))
        return future

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise StoreError(f"the store {self.path} was opened in another process; open it again after a fork")

    def _put(self, calls: queue.SimpleQueue[_Call | None], call: _Call) -> None:
        with self._open_or_not:
            if not self._threads:
                raise StoreError(f"the store {self.path} is not open")
            calls.put(call)

    def _write(self, connection: SqliteConnection) -> None:
        """Run calls in groups of at most ``GROUP_MAX``. Wakes on a call or for a checkpoint. Ends on None."""
        while (first := self._next_write(connection)) is not None:
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
            if self.driver.unmarked:
                self.driver.unmarked = False
                self.driver.checkpoint(connection)
            self._write_group(connection, group)
            if connection.log_pages > LOG_PAGES_MAX:
                self.driver.checkpoint(connection)
            if ending:
                break
        connection.close()

    def _next_write(self, connection: SqliteConnection) -> _Call | None:
        try:
            return self._writes.get(timeout=IDLE if connection.log_pages else None)
        except queue.Empty:
            self.driver.checkpoint(connection)
            return self._writes.get()

    def _write_group(self, connection: SqliteConnection, group: list[_Call]) -> None:
        self._after, self._undo = [], []
        try:
            self._identity.check()
            with self.driver.naming():
                connection.raw.execute("BEGIN IMMEDIATE")
                try:
                    for call in group:
                        self._write_one(connection, call, alone=len(group) == 1)
                    connection.raw.execute("COMMIT")
                except BaseException:
                    if connection.raw.in_transaction:
                        connection.raw.execute("ROLLBACK")
                    raise
            self._identity.check()  # Again, because a write to a deleted file does not count.
        except Exception as problem:
            for undo in self._undo:
                undo()
            # Run calls one at a time, so that only faulty ones fail. A lock is not the fault of a call: do not repeat.
            if len(group) > 1 and not isinstance(problem, StoreBusy):
                for call in group:
                    self._write_group(connection, [call])
                return
            if isinstance(problem, StoreFull) and group[0].vital and delete_reserve(self.path):
                self._write_group(connection, group)
                return
            if isinstance(problem, UnicodeDecodeError) and repair_texts(connection):
                self._write_group(connection, group)
                return
            for call in group:
                call.value, call.error = None, problem
            self._after = []
        for action in self._after:
            try:
                action()
            except Exception:  # The transaction is durable, and this thread has to serve the next one.
                log.exception(LogEvent("store.after_commit_failed", path=self.path))
        _settle(group)

    def _write_one(self, connection: SqliteConnection, call: _Call, *, alone: bool) -> None:
        """Run one call, and undo only this call if it is refused. Skip a call that its caller has cancelled."""
        if call.future.done():
            return
        after, undone = len(self._after), len(self._undo)
        if not alone:
            connection.raw.execute("SAVEPOINT one")
        try:
            if not call.vital and not has_room(self.path):
                raise StoreFull(
                    f"the disk that holds {self.path} is full; what is left is kept for running jobs. Free some room",
                    path=str(self.path),
                )
            call.value, call.error = call.function(connection, self), None
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

    def _read(self, connection: SqliteConnection) -> None:
        while (call := self._reads.get()) is not None:
            try:
                self._identity.check()
                with self.driver.naming():
                    try:
                        call.value = self._read_once(connection, call)
                    except UnicodeDecodeError:
                        if not repair_texts(connection):
                            raise
                        call.value = self._read_once(connection, call)
            except Exception as problem:
                call.error = problem
            _settle([call])
        connection.close()

    def _read_once(self, connection: SqliteConnection, call: _Call) -> Any:
        """Run one call in a transaction, so that all its statements see one moment."""
        connection.raw.execute("BEGIN")
        try:
            return call.function(connection, self)
        finally:
            connection.raw.execute("COMMIT")


_Future = asyncio.Future[Any] | concurrent.futures.Future[Any]


class _Call:
    """A function to run in a thread, and the caller's future."""

    __slots__ = ("error", "function", "future", "value", "vital")

    def __init__(self, future: _Future, function: Callable[[SqliteConnection, Hooks], Any], vital: bool) -> None:
        self.future, self.function, self.vital = future, function, vital
        self.value: Any = None
        self.error: BaseException | None = None


def _settle(calls: list[_Call]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
    for call in calls:
        if isinstance(call.future, asyncio.Future):
            by_loop.setdefault(call.future.get_loop(), []).append(call)
        else:
            _deliver([call])
    for loop, mine in by_loop.items():
        with contextlib.suppress(RuntimeError):  # The loop was closed; no task waits any more.
            loop.call_soon_threadsafe(_deliver, mine)


def _deliver(calls: list[_Call]) -> None:
    for call in calls:
        if call.future.done():
            continue
        if call.error is not None:
            call.future.set_exception(call.error)
        else:
            call.future.set_result(call.value)
