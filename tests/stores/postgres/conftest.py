"""A schema of its own for each test, and connections to look at it from outside."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeAlias

import asyncpg  # type: ignore[import-untyped]
import pytest

from headway.stores.open import open_store
from headway.stores.postgres.store import PostgresStore
from headway.testing.clock import ManualClock
from tests.conftest import postgres

OpenStore = Callable[..., Awaitable[PostgresStore]]
Outside: TypeAlias = Any  # An asyncpg.Connection, which has no types.


@pytest.fixture
async def outside() -> AsyncIterator[Outside]:
    """Yield a connection of another program to the same database."""
    connection = await asyncpg.connect(postgres().url)
    yield connection
    await connection.close()


@pytest.fixture
async def url(outside: Outside) -> AsyncIterator[str]:
    """Yield the address of a schema that does not exist yet. It is dropped afterwards."""
    schema = f"test_{uuid.uuid4().hex[:12]}"
    yield f"{postgres().url}?schema={schema}"
    await outside.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


@pytest.fixture
def schema(url: str) -> str:
    return url.partition("schema=")[2]


@pytest.fixture
async def open_url(clock: ManualClock) -> AsyncIterator[OpenStore]:
    """Yield a function that opens stores by address. All are closed at the end."""
    async with AsyncExitStack() as stack:

        async def open_one(url: str, *, by_server: bool = False) -> PostgresStore:
            store = open_store(url, clock=None if by_server else clock)
            assert isinstance(store, PostgresStore)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield open_one
