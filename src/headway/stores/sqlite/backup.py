"""Copies a store in use to one file, and restores a store from such a copy."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from uuid import uuid4

import apsw

from headway.core.errors import StoreCorrupt, StoreError
from headway.stores.base import CopySummary
from headway.stores.sqlite.own_file import OwnFile, check_copy, lacks_log


def copy_out(store: OwnFile, target: Path) -> CopySummary:
    """Copy a store in use to a new file that only its owner may read. Blocks the caller, but not writers."""
    if not store.path.exists():
        raise StoreError(f"there is no store at {store.path}", path=str(store.path))
    with store.naming():
        source = store.connect()
        try:
            return _copy(source.raw, target)
        finally:
            source.close()


def copy_in(store: OwnFile, source: Path) -> CopySummary:
    """Restore a store from a copy. Raises ``StoreError`` if a file of the store exists."""
    if not source.is_file():
        raise StoreError(f"there is no backup at {source}", path=str(source))
    for end in ("", "-wal", "-shm"):
        file = Path(f"{store.path}{end}")
        if file.exists():
            raise StoreError(
                f"{file} is in the way; stop all processes that use the store and move it away first", path=str(file)
            )
    with OwnFile(source, store.synchronous).naming():
        bare = lacks_log(source)
        raw = apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            check_copy(raw, source, bare=bare)
            return _copy(raw, store.path)
        finally:
            raw.close()


def _copy(source: apsw.Connection, target: Path) -> CopySummary:
    """Copy the data that a connection sees at one moment, check the copy, and name the file last."""
    if target.exists():
        raise StoreError(f"{target} exists; name a new file", path=str(target))
    if not target.absolute().parent.is_dir():
        raise StoreError(f"the folder {target.absolute().parent} does not exist; make it first", path=str(target))
    unfinished = target.with_name(f".{target.name}.{uuid4().hex}")
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    try:
        source.execute("BEGIN")
        try:
            jobs = _count(source)
            made = apsw.Connection(str(unfinished))
            try:
                with made.backup("main", source, "main") as backup:
                    while not backup.done:
                        backup.step(-1)
                made.execute("PRAGMA journal_mode = DELETE").fetchall()  # One file, with nothing beside it.
                _check(made, target, jobs)
                spaces = tuple(name for (name,) in made.execute("SELECT name FROM namespace ORDER BY name"))
            finally:
                made.close()
        finally:
            source.execute("COMMIT")
        os.link(unfinished, target)  # Unlike renaming, this replaces nothing.
    finally:
        with contextlib.suppress(FileNotFoundError):
            unfinished.unlink()
    return CopySummary(jobs, spaces)


def _count(raw: apsw.Connection) -> int:
    return int(raw.execute("SELECT count(*) FROM job").get)


def _check(made: apsw.Connection, target: Path, jobs: int) -> None:
    found = made.execute("PRAGMA integrity_check").get
    if found != "ok":
        raise StoreCorrupt(f"the copy for {target} is damaged: {found}", path=str(target))
    if _count(made) != jobs:
        raise StoreCorrupt(f"the copy for {target} has {_count(made)} jobs of {jobs}", path=str(target))
