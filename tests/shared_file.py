"""A store that is a guest in another program's SQLite file, without any such program."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from headway.stores.base import Clock, Store
from headway.stores.open import host_ms, open_store
from headway.stores.sqlite.database import Database
from headway.stores.sqlite.shared_file import SharedFile, migrate_shared_file
from headway.stores.sqlite.store import SqliteStore
from tests.deferred import posting

SCHEME = "guest://"
INBOX = "inbox+"  # Before the address of a Redis store.


def connect(path: Path) -> sqlite3.Connection:
    """Connect as a project does: in autocommit, for any thread."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def open_guest(folder: Path, namespace: str, clock: Clock, *, synchronous: str = "FULL") -> Store:
    """Make an unopened store whose tables are in a file with others, through Python's own SQLite."""
    path = folder / "project.db"

    def connect_anew() -> tuple[sqlite3.Connection, Callable[[], None]]:
        raw = connect(path)
        raw.execute(f"PRAGMA synchronous = {synchronous}")
        return raw, raw.close

    raw = connect(path)
    raw.execute("CREATE TABLE IF NOT EXISTS job (title TEXT)")  # A name that Headway uses as well.
    migrate_shared_file(raw, path)
    raw.close()
    return SqliteStore(Database(SharedFile(path, connect_anew)), namespace, clock=clock)


def open_hasty_guest(folder: Path, namespace: str, clock: Clock) -> Store:
    """The same; what is written need not survive a power cut."""
    return open_guest(folder, namespace, clock, synchronous="NORMAL")


def open_any(address: str, namespace: str = "default") -> Store:
    """Open a store by its address: a guest by ``guest://`` and its folder, one that is posted to by ``inbox+redis://``."""
    if address.startswith(SCHEME):
        return open_hasty_guest(Path(address.removeprefix(SCHEME)), namespace, host_ms)
    if address.startswith(INBOX):
        return posting(open_store(address.removeprefix(INBOX), namespace))
    return open_store(address, namespace)
