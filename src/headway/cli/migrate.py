"""``headway migrate``: bring the store to this Headway's schema."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli import show
from headway.cli.opening import HERE, Place, make_store, path_of, run
from headway.stores.base import Store


def migrate(
    *,
    dry_run: Annotated[bool, Parameter(help="Only say what would be done.", show_default=False)] = False,
    place: Place = HERE,
) -> int:
    """Bring the store to the schema of this Headway.

    An SQLite store does this by itself whenever it is opened; this command does
    it at a moment you choose, before workers start, and says what it did. A
    store that does not exist yet is made.
    """
    store = make_store(place.settings(), create=True)
    before, newest = run(_versions(store))
    name = show.clean(str(path_of(store) or "the store"))
    if before == newest:
        print(f"{name}: schema {before}, nothing to do")
        return 0
    was = "no store yet" if before is None else f"schema {before}"
    if dry_run:
        print(f"{name}: {was}; would become schema {newest}")
        return 0
    run(_open(store))
    print(f"{name}: {was}, now schema {newest}")
    return 0


async def _versions(store: Store) -> tuple[int | None, int]:
    """Give the schema that is there (None: nothing is) and the one this Headway has."""
    newest = int((await store.facts())["schema"])
    path = path_of(store)
    if path is None or not path.exists():
        return None, newest
    return await asyncio.get_running_loop().run_in_executor(None, _version_of, path), newest


def _version_of(path: Path) -> int:
    # Read through SQLite: while a worker runs, the newest header may be in the log beside the file.
    from headway.stores.sqlite.database import Connection, migrate, naming

    with naming(path):
        connection = Connection(path, "FULL")
        try:
            migrate(connection, path, to=0)  # No step at all, but a check that the file is ours to read.
            version: int = connection.raw.pragma("user_version")  # pyright: ignore[reportUnknownMemberType]
            return version
        finally:
            connection.close()


async def _open(store: Store) -> None:
    await store.open()
    await store.close()
