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

    An SQLite store does this by itself whenever it is opened; this command does
    it at a moment you choose, before workers start, and prints what it did. A
    PostgreSQL store is changed by this command only. A store that does not exist
    yet is created.
    """
    store = make_store(place.settings(), create=True)
    before, newest = run(store.schema())
    name = render.clean(str(store.abilities.path or "the store"))
    if before == newest:
        if (migrate := store.abilities.migrate) is not None and not dry_run:
            run(migrate())  # The functions may be of an older release.
        print(f"{name}: schema {before}, nothing to do")
        return
    was = "no store yet" if before is None else f"schema {before}"
    if dry_run:
        print(f"{name}: {was}; would become schema {newest}")
        return
    run(_open(store) if (migrate := store.abilities.migrate) is None else migrate())
    print(f"{name}: {was}, now schema {newest}")


async def _open(store: Store) -> None:
    await store.open()
    await store.close()
