"""A store in the SQLite file of another program, without that program."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from headway.stores.base import Clock, Store
from headway.stores.open import host_ms, open_store
from headway.stores.sqlite.database import Database
from headway.stores.sqlite.shared_file import SharedFile, migrate_shared_file
from headway.stores.sqlite.store import SqliteStore
from tests.deferred import defer_submits

SCHEME = "sharedfile://"
DEFERRED = "deferred+"  # Before the address of a Redis store.


def connect(path: Path) -> sqlite3.Connection:
    """Connect as a project does: in autocommit mode, for use in any thread."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def open_shared_file(folder: Path, namespace: str, clock: Clock, *, synchronous: str = "FULL") -> Store:
    """Return an unopened store whose tables share a file with others, through Python's own SQLite."""
    path = folder / "project.db"

    def connect_anew() -> tuple[sqlite3.Connection, Callable[[], None]]:
        raw = connect(path)
        raw.execute(f"PRAGMA synchronous = {synchronous}")
        return raw, raw.close

    raw = connect(path)
    raw.execute("PRAGMA synchronous = OFF")
    raw.execute("CREATE TABLE IF NOT EXISTS job (title TEXT)")  # A name that Headway uses as well.
    migrate_shared_file(raw, path)
    raw.close()
    return SqliteStore(Database(SharedFile(path, connect_anew)), namespace, clock=clock)


def open_hasty_shared_file(folder: Path, namespace: str, clock: Clock) -> Store:
    """Return the same store with synchronous=NORMAL, so that commits do not wait for the disk."""
    return open_shared_file(folder, namespace, clock, synchronous="NORMAL")


def open_any(address: str, namespace: str = "default") -> Store:
    """Open a store by its address.

    ``sharedfile://`` and a folder name a shared file, and ``deferred+redis://`` a Redis store with deferred submits.
    """
    if address.startswith(SCHEME):
        return open_hasty_shared_file(Path(address.removeprefix(SCHEME)), namespace, host_ms)
    if address.startswith(DEFERRED):
        return defer_submits(open_store(address.removeprefix(DEFERRED), namespace))
    return open_store(address, namespace)
