"""``headway backup`` and ``headway restore``: a whole SQLite store in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from headway.cli import render
from headway.cli.help import option
from headway.cli.store_access import STORE_HERE, StoreOptions, make_store, run
from headway.client.settings import Settings
from headway.core.errors import ConfigError
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Released
from headway.maintenance.recovery import end_worker
from headway.stores.base import BackupStore, Store
from headway.stores.open import mask, open_store

ADVICE = {
    "postgres": "use pg_dump --schema=headway, and pg_restore with all workers stopped",
    "redis": "copy the server's RDB or AOF files, after BGSAVE",
}
BackupFile = Annotated[Path, option("The backup, a file of its own.", "FILE")]


def backup(file: BackupFile, /, *, place: StoreOptions = STORE_HERE) -> None:
    """Copy an SQLite store into a new file, while workers continue.

    The copy is consistent and complete: jobs of all namespaces, results,
    policies, tokens. It is checked before it gets its name, and only its owner
    may read it. For PostgreSQL and Redis use the tools of these servers.
    """
    store = _copying(place.settings(), create=False)
    copied = run(store.copy_to(file))
    print(f"{render.clean(str(file))}: {render.plural(copied.jobs, 'job')}, checked")


def restore(file: BackupFile, /, *, place: StoreOptions = STORE_HERE) -> None:
    """Create a store from a backup.

    Fails if the store exists already: stop all processes and move it away first.
    After the restore no worker counts as alive. Jobs that were running wait
    again, without using up an attempt.
    """
    settings = place.settings()
    store = _copying(settings, create=True)

    async def bring_back() -> tuple[int, int]:
        copied = await store.restore_from(file)
        return copied.jobs, sum([await _end_workers(settings.store, name) for name in copied.namespaces])

    jobs, ended = run(bring_back())
    print(f"{mask(settings.store)}: {render.plural(jobs, 'job')}, of which {ended} ran and wait again")


async def _end_workers(url: str, namespace: str) -> int:
    """Mark the workers of a namespace dead and requeue their jobs. Return how many jobs."""
    store: Store = open_store(url, namespace)
    await store.open()
    try:
        return sum(
            [
                await end_worker(store, worker.worker_id, BUILT_IN, lambda _: Released("restored"))
                for worker in (await store.stats()).workers
            ]
        )
    finally:
        await store.close()


def _copying(settings: Settings, *, create: bool) -> BackupStore:
    backup = make_store(settings, create=create).abilities.backup
    if backup is None:
        scheme = settings.store.partition(":")[0].partition("+")[0]
        kind = next((kind for kind in ADVICE if scheme.startswith(kind)), "redis")
        raise ConfigError(f"{mask(settings.store)} is not an SQLite store: {ADVICE[kind]}")
    return backup
