"""A store file, and ways to look at it from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from headway.stores.open import open_store
from headway.stores.sqlite.store import SqliteStore
from headway.testing.clock import ManualClock

OpenFile = Callable[[Path], Awaitable[SqliteStore]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "headway.db"


@pytest.fixture
async def open_file(clock: ManualClock) -> AsyncIterator[OpenFile]:
    """Open store files; they are closed by themselves."""
    async with AsyncExitStack() as stack:

        async def open_one(path: Path) -> SqliteStore:
            store = open_store(f"sqlite:///{path}", clock=clock)
            assert isinstance(store, SqliteStore)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield open_one
