"""Jobs in a project's SQLite file. All access uses Django's connections, and so one SQLite library.

In web processes and tasks, the store uses the connection and the transaction of the calling thread. Coroutines use
those of the thread in which Django runs their synchronous code. A worker has separate connections, which Django makes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from headway.integrations.django.conf import database
from headway.runtime.immediate import Completed
from headway.stores.base import Clock, Store
from headway.stores.shared_database import claim_sqlite, migrate_sqlite, sqlite_store

T = TypeVar("T")

SCHEME = "django://"
_shared_connection: ContextVar[Any] = ContextVar("ioqueue_connection", default=None)
MIGRATE = "run manage.py migrate"


def is_sqlite() -> bool:
    """Return whether jobs are kept in SQLite."""
    return bool(connections[database()].vendor == "sqlite")


def sqlite_address(alias: str) -> str:
    """Return the store address for a worker. Raises ``ImproperlyConfigured`` for a database in memory."""
    if is_in_memory(alias):
        raise ImproperlyConfigured(f"the database {alias!r} is in memory, where a worker cannot see it; give it a file")
    return f"{SCHEME}{alias}"


def is_in_memory(alias: str) -> bool:
    return bool(connections[alias].is_in_memory_db())


def joined_store(alias: str, namespace: str) -> Store:
    """Return a store for submits and reads, on the connection of the calling thread."""
    return _store(alias, namespace, caller=ThreadConnection(alias))


def worker_store(address: str, namespace: str, clock: Clock | None = None) -> Store:
    """Return the store of a worker process, with separate connections."""
    return _store(address.removeprefix(SCHEME), namespace, clock=clock)


def migrate(alias: str) -> list[int]:
    """Migrate Headway's tables on Django's connection. Return the numbers of the migrations that ran."""
    return migrate_sqlite(ThreadConnection(alias).connection(), path_of(alias))


def claim_files() -> None:
    """Reserve Django's SQLite files, so that no other SQLite library in this process opens them."""
    entries: dict[str, Any] = connections.settings  # type: ignore[assignment, unused-ignore]
    for entry in entries.values():
        if entry["ENGINE"].endswith(("sqlite3", "spatialite")) and ":memory:" not in str(entry["NAME"]):
            claim_sqlite(Path(str(entry["NAME"])))


def path_of(alias: str) -> Path:
    """Return the path of a database. For a database in memory the path is not a file."""
    return Path(str(connections[alias].settings_dict["NAME"]))


class ThreadConnection:
    """Django's connection of the calling thread."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    @property
    def is_here(self) -> bool:
        """Whether the current thread may use the connection. Django refuses this on an event loop."""
        lent = _shared_connection.get() is not None
        return lent or asyncio._get_running_loop() is None or bool(os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"))

    def run(self, work: Callable[[], T]) -> Awaitable[T]:
        """Run a function here, or for a coroutine in the thread where Django keeps the connection of the request."""
        return Completed(work()) if self.is_here else sync_to_async(work, thread_sensitive=True)()

    def connection(self) -> Any:
        return self._wrapper().connection

    def after_commit(self, action: Callable[[], None]) -> None:
        # Django cannot run callbacks for a manual transaction; workers find its jobs at their next poll.
        wrapper = self._wrapper()

        def act_if_committed() -> None:
            # Django's tests may run callbacks before the transaction around the test is rolled back.
            if not wrapper.in_atomic_block:
                action()

        if wrapper.in_atomic_block:
            wrapper.on_commit(act_if_committed, robust=True)

    @property
    def in_atomic_block(self) -> bool:
        """Whether the connection is in a transaction that Django manages."""
        return bool(self._unopened().in_atomic_block)

    @property
    def joins(self) -> bool:
        """Whether the connection is in a transaction, which writes would join."""
        return bool(self.connection().in_transaction)

    def _wrapper(self) -> Any:
        wrapper = self._unopened()
        if wrapper is not _shared_connection.get():
            wrapper.ensure_connection()
        return wrapper

    def _unopened(self) -> Any:
        shared = _shared_connection.get()
        return shared if shared is not None and shared.alias == self._alias else connections[self._alias]


@contextlib.contextmanager
def lend_connection() -> Iterator[None]:
    """Share this thread's connection with its event loop, for which Django would otherwise open a new one."""
    wrapper = connections[database()]
    wrapper.ensure_connection()
    before = _shared_connection.set(wrapper)
    try:
        yield
    finally:
        _shared_connection.reset(before)


def _store(alias: str, namespace: str, *, caller: ThreadConnection | None = None, clock: Clock | None = None) -> Store:
    def connect() -> tuple[sqlite3.Connection, Callable[[], None]]:
        wrapper: Any = connections.create_connection(alias)
        wrapper.inc_thread_sharing()  # Another thread uses and closes it.
        wrapper.ensure_connection()
        return wrapper.connection, wrapper.close

    return sqlite_store(path_of(alias), connect, namespace, advice=MIGRATE, caller=caller, clock=clock)
