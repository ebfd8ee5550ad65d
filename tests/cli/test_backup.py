"""Backups of a store in use, and stores that are restored from them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from headway.core.job import State
from headway.stores.base import JobQuery, Store
from headway.stores.open import open_store
from tests.cli.command import Cli
from tests.conformance.builders import a_job, claim, end, register


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


def in_store(cli: Cli, what: Callable[[Store], Awaitable[None]]) -> None:
    """Open the store in the command's folder and pass it to a function."""

    async def work() -> None:
        store = open_store(f"sqlite:///{cli.folder}/headway.db")
        await store.open()
        try:
            await what(store)
        finally:
            await store.close()

    asyncio.run(work())


def test_a_backup_of_a_store_in_use_is_whole_and_makes_the_same_store(cli: Cli, tmp_path: Path) -> None:
    done, running, waiting = a_job(), a_job(), a_job()
    copy = tmp_path / "copy.db"

    async def use(store: Store) -> None:
        await register(store, "w1")
        await store.submit([done, running])
        for lease in await claim(store, "w1"):
            if lease.job_id == done.job_id:
                await end(store, lease)
        await store.submit([waiting])
        said = await asyncio.to_thread(cli.run, "backup", str(copy))  # While the store is open here.
        assert said.out.endswith("copy.db: 3 jobs, checked\n")
        await store.submit([a_job()])

    in_store(cli, use)
    assert copy.stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in tmp_path.glob("*copy.db*")) == ["copy.db"]

    (tmp_path / "headway.db").rename(tmp_path / "broken.db")
    said = cli.run("restore", str(copy))
    assert said.out == "sqlite:///headway.db: 3 jobs, of which 1 ran and wait again\n"

    async def look(store: Store) -> None:
        found = {job.job_id: job for job in await store.find(JobQuery())}
        assert {job_id: job.state for job_id, job in found.items()} == {
            done.job_id: State.COMPLETED, running.job_id: State.QUEUED, waiting.job_id: State.QUEUED,
        }  # fmt: skip
        assert (found[running.job_id].attempts, found[running.job_id].crashes) == (0, 0)
        assert [worker.state for worker in (await store.stats()).workers] == ["dead"]
        assert await store.leases() == []

    in_store(cli, look)


def test_nothing_is_overwritten(cli: Cli, tmp_path: Path) -> None:
    cli.call("migrate")
    cli.call("backup", "copy.db")
    assert "copy.db exists; name a new file" in cli.call("backup", "copy.db", code=1).err
    assert "headway.db is in the way; stop all processes" in cli.call("restore", "copy.db", code=1).err
    (tmp_path / "headway.db").unlink()
    (tmp_path / "headway.db-wal").write_bytes(b"of another store")
    assert "headway.db-wal is in the way" in cli.call("restore", "copy.db", code=1).err
    assert "no backup at" in cli.call("restore", "missing.db", code=1).err


def test_what_is_no_whole_store_is_not_restored(cli: Cli, tmp_path: Path) -> None:
    bare, other = tmp_path / "bare.db", tmp_path / "other.db"

    async def use(store: Store) -> None:
        await store.submit([a_job()])
        shutil.copy(cli.folder / "headway.db", bare)

    in_store(cli, use)
    shutil.copy(tmp_path / "headway.db", other)
    other.write_bytes(other.read_bytes()[:20_000])
    (tmp_path / "headway.db").unlink()
    assert "its latest jobs are missing" in cli.call("restore", "bare.db", code=1).err
    assert "damaged" in cli.call("restore", "other.db", code=1).err
    (tmp_path / "text.db").write_text("not a database at all, but long enough to be read as one" * 20)
    assert "not an SQLite file" in cli.call("restore", "text.db", code=1).err
    assert not (tmp_path / "headway.db").exists()


@pytest.mark.parametrize(
    "store, advice",
    [
        ("postgresql://db/app", "pg_dump --schema=headway"),
        ("redis://cache", "RDB or AOF files"),
        ("unix:///run/valkey.sock", "RDB or AOF files"),
    ],
)
def test_other_stores_are_copied_by_their_own_tools(cli: Cli, store: str, advice: str) -> None:
    for command in ("backup", "restore"):
        assert advice in cli.call(command, "copy.db", "--store", store, code=2).err
