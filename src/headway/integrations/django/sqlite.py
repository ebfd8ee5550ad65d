"""Jobs in a project's SQLite file: everything goes through Django's connections, so through one SQLite library.

In web processes and tasks a verb runs on the connection of the thread it is called in, as part of that thread's
transaction. A worker has connections of its own, made by Django like any other.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from headway.integrations.django.conf import database
from headway.stores.base import Clock, Store
from headway.stores.shared_database import claim_sqlite, migrate_sqlite, sqlite_store

SCHEME = "django://"
_lent: ContextVar[Any] = ContextVar("ioqueue_connection", default=None)
MIGRATE = "run manage.py migrate"


def is_sqlite(alias: str | None = None) -> bool:
    """Return whether jobs are kept in SQLite."""
    return bool(connections[alias or database()].vendor == "sqlite")


def sqlite_address(alias: str) -> str:
    """Return the address by which a worker finds the file. Raises ``ImproperlyConfigured`` if there is no file."""
    if is_in_memory(alias):
        raise ImproperlyConfigured(f"the database {alias!r} is in memory, where a worker cannot see it; give it a file")
    return f"{SCHEME}{alias}"


def is_in_memory(alias: str) -> bool:
    return bool(connections[alias].is_in_memory_db())


def joined_store(alias: str, namespace: str) -> Store:
    """Make the store of a process that submits and reads, on the connection of the thread that calls a verb."""
    return _store(alias, namespace, caller=ThreadConnection(alias))


def worker_store(address: str, namespace: str, clock: Clock | None = None) -> Store:
    """Make the store of a worker's process, with connections of its own."""
    return _store(address.removeprefix(SCHEME), namespace, clock=clock)


def migrate(alias: str) -> list[int]:
    """Bring Headway's tables to this release, on Django's connection. Return the numbers of the steps taken."""
    return migrate_sqlite(ThreadConnection(alias).connection(), path_of(alias))


def claim_files() -> None:
    """See that no other SQLite library opens a file in this process that Django may open at any time."""
    entries: dict[str, Any] = connections.settings  # type: ignore[assignment, unused-ignore]
    for entry in entries.values():
        if entry["ENGINE"].endswith(("sqlite3", "spatialite")) and ":memory:" not in str(entry["NAME"]):
            claim_sqlite(Path(str(entry["NAME"])))


def path_of(alias: str) -> Path:
    """Return the file of a database; for one in memory something that is no file."""
    return Path(str(connections[alias].settings_dict["NAME"]))


class ThreadConnection:
    """Django's connection of the thread that asks."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def connection(self) -> Any:
        return self._wrapper().connection

    def after_commit(self, action: Callable[[], None]) -> None:
        # A transaction that is run by hand has no such moment: workers find the jobs when they look.
        wrapper = self._wrapper()

        def act_if_committed() -> None:
            # Django's tests may run callbacks before the transaction around the test is rolled back.
            if not wrapper.in_atomic_block:
                action()

        if wrapper.in_atomic_block:
            wrapper.on_commit(act_if_committed, robust=True)

    @property
    def in_atomic_block(self) -> bool:
        """Whether Django is in a transaction that it will end."""
        return bool(self._unopened().in_atomic_block)

    @property
    def joins(self) -> bool:
        """Whether what is written now is part of a transaction."""
        return bool(self.connection().in_transaction)

    def _wrapper(self) -> Any:
        wrapper = self._unopened()
        if wrapper is not _lent.get():
            wrapper.ensure_connection()
        return wrapper

    def _unopened(self) -> Any:
        lent = _lent.get()
        return lent if lent is not None and lent.alias == self._alias else connections[self._alias]


@contextlib.contextmanager
def lend_connection() -> Iterator[None]:
    """Let a loop that runs in this thread meanwhile use this thread's connection; by itself it would have another."""
    wrapper = connections[database()]
    wrapper.ensure_connection()
    before = _lent.set(wrapper)
    try:
        yield
    finally:
        _lent.reset(before)


def _store(alias: str, namespace: str, *, caller: ThreadConnection | None = None, clock: Clock | None = None) -> Store:
    def connect() -> tuple[sqlite3.Connection, Callable[[], None]]:
        wrapper: Any = connections.create_connection(alias)
        wrapper.inc_thread_sharing()  # One thread makes it, another one uses and closes it.
        wrapper.ensure_connection()
        return wrapper.connection, wrapper.close

    return sqlite_store(path_of(alias), connect, namespace, advice=MIGRATE, caller=caller, clock=clock)
