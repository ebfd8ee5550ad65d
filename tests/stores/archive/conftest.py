"""A table for ended jobs, dropped after the test, and the chore that fills it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg  # type: ignore[import-untyped]
import pytest

from headway.core.job import PAYLOAD_VERSION
from headway.maintenance.archiver import Archiver
from headway.stores.base import Store
from headway.stores.postgres.archive.archive import PostgresArchive
from tests.conftest import postgres


@pytest.fixture
async def archive() -> AsyncIterator[PostgresArchive]:
    found = PostgresArchive(postgres().url, "default", mark=PAYLOAD_VERSION)
    yield found
    connection = await asyncpg.connect(postgres().url)
    await connection.execute("DROP TABLE IF EXISTS headway_history")
    await connection.close()
    await found.close()


@pytest.fixture
async def chore(store: Store, archive: PostgresArchive) -> Archiver:
    source = store.abilities.archive_source
    assert source is not None
    made = Archiver(source, archive)
    await made()  # From now on what ends is held for it.
    return made
