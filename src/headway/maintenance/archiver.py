"""Copies finished jobs to the archive, for stores that keep them only for a while."""

from __future__ import annotations

from headway.core.errors import ConfigError
from headway.stores.base import Archive, ArchiveSource, Store
from headway.stores.open import open_archive

BATCH = 500  # Jobs in one call; bounds its memory and the transaction in the archive.


def make_archiver(store: Store, url: str) -> Archiver:
    """Build the chore that archives finished jobs. Raises ``ConfigError`` if the store keeps them itself."""
    source = store.abilities.archive_source
    if source is None:
        raise ConfigError("history is for jobs on Redis; this store keeps ended jobs itself, as long as keep says")
    return Archiver(source, open_archive(url, store.namespace))


class Archiver:
    """Archives one batch at a time, and the next one soon while there are more jobs.

    A batch is marked only after the archive has it. Adding it twice changes nothing, so a crash loses no job.
    """

    def __init__(self, source: ArchiveSource, archive: Archive) -> None:
        self._source = source
        self._archive = archive
        self.archived = 0

    async def __call__(self) -> float | None:
        jobs = await self._source.unarchived(BATCH)
        if not jobs:
            return None
        await self._archive.add(jobs)
        await self._source.archived(jobs)
        self.archived += len(jobs)
        return 0.01 if len(jobs) == BATCH else None

    async def close(self) -> None:
        await self._archive.close()
