"""Stores inside the database of another program, such as a Django project, on connections that this program makes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headway.stores.base import Clock, Store
from headway.stores.open import host_ms
from headway.stores.sqlite.caller_connection import CallerConnection, CallerExecutor
from headway.stores.sqlite.database import Database
from headway.stores.sqlite.library_guard import STDLIB, claim
from headway.stores.sqlite.shared_file import PREFIX as SQLITE_PREFIX
from headway.stores.sqlite.shared_file import SharedFile
from headway.stores.sqlite.shared_file import check_library as check_sqlite
from headway.stores.sqlite.shared_file import migrate_shared_file as migrate_sqlite
from headway.stores.sqlite.store import SqliteStore

__all__ = [
    "SQLITE_PREFIX", "check_sqlite", "claim_sqlite", "migrate_sqlite", "postgres_schema", "postgres_store",
    "sqlite_store",
]  # fmt: skip


def sqlite_store(
    path: Path,
    connect: Callable[[], tuple[Any, Callable[[], None]]],
    namespace: str,
    *,
    advice: str,
    caller: CallerConnection | None = None,
    clock: Clock | None = None,
) -> Store:
    """Make a store in a file of the program. ``connect`` returns a connection of ``sqlite3``, and how to close it.

    ``caller``: run every verb in the calling thread instead, on its connection. ``advice``: what an operator does when
    the tables are missing or old.
    """
    file = SharedFile(path, connect, advice=advice)
    executor = Database(file) if caller is None else CallerExecutor(file, caller)
    return SqliteStore(executor, namespace, clock=clock or host_ms)


def claim_sqlite(path: Path) -> None:
    """Keep other SQLite libraries of this process away from a file that the program opens with Python's."""
    claim(path, STDLIB)


def postgres_store(url: str, connection: Callable[[], Any], namespace: str) -> Store:
    """Make a store that runs every verb on the psycopg connection of the calling thread."""
    from headway.stores.postgres.address import read_address
    from headway.stores.postgres.borrowed_connection import BorrowedConnection
    from headway.stores.postgres.store import PostgresStore

    address = read_address(url)
    borrowed = BorrowedConnection(address.shown, connection)
    return PostgresStore(address, namespace, borrowed=borrowed)


def postgres_schema(url: str) -> str:
    """Return the schema that an address names."""
    from headway.stores.postgres.address import read_address

    return read_address(url).schema
