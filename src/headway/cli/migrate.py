"""``headway migrate``: bring the store to this Headway's schema."""

from __future__ import annotations

from typing import Annotated

from headway.cli import render
from headway.cli.help import flag
from headway.cli.store_access import STORE_HERE, StoreOptions, make_store, run
from headway.stores.base import Store


def migrate(
    *, dry_run: Annotated[bool, flag("Print the changes and make none.")] = False, place: StoreOptions = STORE_HERE
) -> None:
    """Migrate the store to the schema of this version of Headway.

    A store on SQLite or Redis is also migrated when the first process of this
    version opens it. This command does it at a moment you choose, before
    workers start, and prints what it did. A store on PostgreSQL is changed by
    this command only. A store that does not exist yet is created. Workers of
    the previous release can continue to run.
    """
    store = make_store(place.settings(), create=True)
    for line in run(_migrate(store, dry_run=dry_run)):
        print(render.clean(line))


async def _migrate(store: Store, *, dry_run: bool) -> list[str]:
    """Migrate a store unless this is a dry run. Return the lines to print."""
    able = store.abilities
    try:
        before, newest = await store.schema()
        changes = [] if able.pending_changes is None else await able.pending_changes()
        name = able.path or "the store"
        was = "no store yet" if before is None else f"schema {before}"
        if not changes and before is not None:
            newer = f" (newer than {newest}, the one of this Headway)" if before > newest else ""
            return [f"{name}: {was}{newer}, nothing to do"]
        if dry_run:
            said = f"{name}: {was}; would become schema {newest}"
        else:
            await (store.open() if able.migrate is None else able.migrate())
            said = f"{name}: {was}, now schema {newest}"
        return [said, *(f"  {change}" for change in changes)]
    finally:
        await store.close()
