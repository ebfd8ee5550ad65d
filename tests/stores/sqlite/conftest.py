"""A store file, and ways to read it from outside."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from headway.stores.open import open_store
from headway.stores.sqlite.connection import SqliteConnection
from headway.stores.sqlite.store import SqliteStore
from headway.testing.clock import ManualClock

OpenFile = Callable[[Path], Awaitable[SqliteStore]]
Release = Callable[[], Awaitable[None]]

LOCKER = """
import sys, apsw
connection = apsw.Connection(sys.argv[1])
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "headway.db"


@pytest.fixture
async def open_file(clock: ManualClock) -> AsyncIterator[OpenFile]:
    """Yield a function that opens store files. All are closed at the end."""
    async with AsyncExitStack() as stack:

        async def open_one(path: Path) -> SqliteStore:
            store = open_store(f"sqlite:///{path}", clock=clock)
            assert isinstance(store, SqliteStore)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which connections add the name of each statement that they execute."""
    names: list[str] = []
    run, run_many = SqliteConnection.run, SqliteConnection.run_many

    def run_noted(self: SqliteConnection, name: str, *values: Any) -> Any:
        names.append(name)
        return run(self, name, *values)

    def run_many_noted(self: SqliteConnection, name: str, rows: Sequence[Sequence[Any]]) -> None:
        names.append(name)
        run_many(self, name, rows)

    monkeypatch.setattr(SqliteConnection, "run", run_noted)
    monkeypatch.setattr(SqliteConnection, "run_many", run_many_noted)
    return names


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[Release]:
    """Keep a file locked by another process until it is released."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", LOCKER, str(path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert await process.stdout.readline() == b"locked\n"

    async def release() -> None:
        if process.returncode is None:
            await process.communicate(b"go on\n")

    try:
        yield release
    finally:
        await release()
