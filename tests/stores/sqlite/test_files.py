"""A store's files while they are open: deleted, replaced, copied."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from headway.core.errors import StoreCorrupt, StoreUnavailable
from headway.stores.base import JobQuery, Store
from headway.stores.sqlite import database
from tests.conformance.builders import a_job, submit_one
from tests.stores.sqlite.conftest import OpenFile


def remove(path: Path) -> None:
    path.unlink()


def move(path: Path, to: Path) -> None:
    path.rename(to)


def size(path: Path) -> int:
    return path.stat().st_size


async def until(what: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not what():  # noqa: ASYNC110  (it is a thread that we wait for)
            await asyncio.sleep(0.01)


async def refuses_everything(store: Store, said: str) -> None:
    with pytest.raises(StoreUnavailable, match=said):
        await store.submit([a_job()])
    with pytest.raises(StoreUnavailable, match=said):
        await store.find(JobQuery())


async def test_a_file_that_was_deleted_takes_nothing_more(open_file: OpenFile, path: Path) -> None:
    # S4: SQLite itself would go on writing into it.
    store = await open_file(path)
    await submit_one(store)
    remove(path)
    await refuses_everything(store, "was deleted while it was open")


async def test_a_file_that_was_replaced_takes_nothing_more(open_file: OpenFile, path: Path, tmp_path: Path) -> None:
    # S4, S8: an older copy was moved over it.
    store = await open_file(path)
    await submit_one(store)
    shutil.copy(path, tmp_path / "old.db")
    move(tmp_path / "old.db", path)
    await refuses_everything(store, "was replaced while it was open")


async def test_a_log_that_was_deleted_takes_nothing_more(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    await submit_one(store)
    remove(Path(f"{path}-wal"))
    await refuses_everything(store, "-wal was deleted while it was open")


async def test_a_file_that_was_put_back_is_the_store_again(open_file: OpenFile, path: Path, tmp_path: Path) -> None:
    store = await open_file(path)
    kept = await submit_one(store)
    move(path, tmp_path / "away.db")
    await refuses_everything(store, "was deleted while it was open")
    move(tmp_path / "away.db", path)
    later = await submit_one(store)
    assert {job.job_id for job in await store.find(JobQuery())} == {kept, later}


async def test_a_log_whose_file_is_missing_is_not_thrown_away(open_file: OpenFile, path: Path, tmp_path: Path) -> None:
    # SQLite itself would remove it when it makes a new file in its place.
    store = await open_file(path)
    kept = await submit_one(store)
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", tmp_path / f"other.db{end}")
    move(tmp_path / "other.db", tmp_path / "away.db")
    with pytest.raises(StoreCorrupt, match=r"other.db is missing, but other.db-wal beside it holds jobs"):
        await open_file(tmp_path / "other.db")
    move(tmp_path / "away.db", tmp_path / "other.db")
    again = await open_file(tmp_path / "other.db")
    assert [job.job_id for job in await again.find(JobQuery())] == [kept]


async def test_a_process_may_change_its_folder(
    open_file: OpenFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = await open_file(Path("here.db"))
    monkeypatch.chdir("/")
    await submit_one(store)


# ---------------------------------------------------------------------- copies


async def test_a_copy_without_the_log_is_refused_and_never_empty(
    open_file: OpenFile, path: Path, tmp_path: Path
) -> None:
    # S4: `cp jobs.db` of a store in use.
    store = await open_file(path)
    for copied in ("new.db", "used.db"):
        shutil.copy(path, tmp_path / copied)
        with pytest.raises(StoreCorrupt, match=r"made without .*-wal, so its latest jobs are missing"):
            await open_file(tmp_path / copied)
        await submit_one(store)


async def test_a_copy_made_after_a_checkpoint_is_refused_too(
    open_file: OpenFile, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOG_PAGES_MAX", 0)  # After every transaction.
    store = await open_file(path)
    for _ in range(3):
        await submit_one(store)
    shutil.copy(path, tmp_path / "copy.db")
    with pytest.raises(StoreCorrupt, match="its latest jobs are missing"):
        await open_file(tmp_path / "copy.db")


async def test_a_store_that_is_opened_again_refuses_its_bare_copies_again(
    open_file: OpenFile, path: Path, tmp_path: Path
) -> None:
    first = await open_file(path)
    await submit_one(first)
    await first.close()
    second = await open_file(path)
    await submit_one(second)
    shutil.copy(path, tmp_path / "copy.db")
    with pytest.raises(StoreCorrupt, match="its latest jobs are missing"):
        await open_file(tmp_path / "copy.db")


async def test_copies_of_both_files_and_of_a_closed_store_are_whole(
    open_file: OpenFile, path: Path, tmp_path: Path
) -> None:
    store = await open_file(path)
    kept = await submit_one(store)
    for end in ("", "-wal"):
        shutil.copy(f"{path}{end}", tmp_path / f"both.db{end}")
    with sqlite3.connect(tmp_path / "saved.db") as target, sqlite3.connect(tmp_path / "both.db") as source:
        source.backup(target)  # What the program sqlite3 does for ``.backup``.
    source.close()
    target.close()
    await store.close()
    shutil.copy(path, tmp_path / "closed.db")
    for copied in ("both.db", "saved.db", "closed.db"):
        copy = await open_file(tmp_path / copied)
        assert [job.job_id for job in await copy.find(JobQuery())] == [kept]


async def test_an_idle_store_brings_its_log_into_the_file(
    open_file: OpenFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "IDLE", 0.01)
    store = await open_file(path)
    small = size(path)
    await store.submit([a_job(payload=b"x" * 100_000)])
    await until(lambda: size(path) > small + 50_000)
