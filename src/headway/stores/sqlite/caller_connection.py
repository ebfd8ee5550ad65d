"""Runs store methods on the caller's connection, in the connection's thread and transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, TypeVar

from headway.stores.sqlite.connection import SqliteConnection
from headway.stores.sqlite.shared_file import SharedFile, SharedFileConnection
from headway.stores.sqlite.transaction import Hooks, SqliteCache

T = TypeVar("T")


class CallerConnection(Protocol):
    """The owner of the connection."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run a function in the thread of the connection: at once if that is the current thread."""
        ...

    def connection(self) -> sqlite3.Connection:
        """Return the connection of this thread, in autocommit or in the caller's transaction."""
        ...

    def after_commit(self, action: Callable[[], None]) -> None:
        """Run an action once the caller's transaction is durable, and only then."""
        ...


class CallerExecutor:
    """Runs each call in the thread of the caller's connection. A call joins that connection's transaction, if any.

    In that thread nothing waits, so callers may await a call on any event loop or on none.
    """

    def __init__(self, driver: SharedFile, caller: CallerConnection) -> None:
        self.driver = driver
        self._caller = caller

    async def open(self) -> None:
        self.driver.claim()
        await self._caller.run(self._check)

    async def close(self) -> None:
        """Do nothing, because the caller owns the connection."""

    async def version(self) -> int | None:
        return self.driver.version()

    def write(self, function: Callable[[SqliteConnection, Hooks], T], *, vital: bool = True) -> Awaitable[T]:
        return self._caller.run(lambda: self._run(function, "BEGIN IMMEDIATE"))

    def read(self, function: Callable[[SqliteConnection, Hooks], T]) -> Awaitable[T]:
        return self._caller.run(lambda: self._run(function, "BEGIN"))

    def _check(self) -> None:
        with self.driver.naming():
            self.driver.check(self._caller.connection())

    def _run(self, function: Callable[[SqliteConnection, Hooks], T], begin: str) -> T:
        raw = self._caller.connection()
        hooks = _Hooks()
        joins = raw.in_transaction
        with self.driver.naming():
            raw.execute("SAVEPOINT headway" if joins else begin)
            try:
                value = function(SharedFileConnection(raw), hooks)
                raw.execute("RELEASE headway" if joins else "COMMIT")
            except BaseException:
                if raw.in_transaction:  # Some errors undo a transaction by themselves.
                    for undo in ("ROLLBACK TO headway", "RELEASE headway") if joins else ("ROLLBACK",):
                        raw.execute(undo)
                raise
        for action in hooks.after:
            if joins:
                self._caller.after_commit(action)
            else:
                action()
        return value


class _Hooks:
    """The actions after one call. The cache keeps what the call reads only once it is durable."""

    def __init__(self) -> None:
        self.after: list[Callable[[], None]] = []

    def after_commit(self, action: Callable[[], None]) -> None:
        self.after.append(action)

    def after_rollback(self, action: Callable[[], object]) -> None:
        """Do nothing, because the cache is changed only after a commit."""

    def borrow(self, memory: SqliteCache) -> SqliteCache:
        learned = memory.copy()
        self.after.append(partial(memory.adopt, learned))
        return learned
