"""Opening a file: only a store, only for its owner, and never an empty file by mistake."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import apsw
import pytest

from headway.core.errors import HeadwayError, NotAStore, StoreCorrupt, StoreError, StoreTooNew
from headway.core.job import State
from headway.stores.base import FORMAT, OLDEST_READER, OLDEST_WRITER, JobQuery
from headway.stores.sqlite.own_file import APPLICATION_ID, OwnFileConnection, migrate
from headway.stores.sqlite.statements import MIGRATIONS
from tests.conformance.builders import a_job, state_of, submit, submit_one
from tests.stores.sqlite.conftest import OpenFile

PAGE = 4096


async def a_used_file(open_file: OpenFile, path: Path, jobs: int = 200) -> None:
    """Write a store file with jobs, and close it."""
    store = await open_file(path)
    await submit(store, *(a_job(payload=b"marker" * 200) for _ in range(jobs)))
    await store.close()


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def beside(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def cut(path: Path, left: int) -> None:
    """Truncate a file to this many bytes, or by this many if negative."""
    os.truncate(path, left if left >= 0 else path.stat().st_size + left)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_only_its_owner_may_read_a_store(open_file: OpenFile, path: Path) -> None:
    # S-27
    before = os.umask(0)
    try:
        store = await open_file(path)
        await submit_one(store)
        subscription = store.subscribe("watch.test")
        files = {entry.name: mode(entry) for entry in path.parent.iterdir()}
        pipes = [mode(entry) for entry in path.with_name("headway.db-wake").iterdir()]
        subscription.close()
    finally:
        os.umask(before)
    assert files.pop("headway.db-wake") == 0o700
    assert set(files) == {"headway.db", "headway.db-wal", "headway.db-shm", "headway.db-ballast"}
    assert set(files.values()) == {0o600}
    assert pipes == [0o600]


async def test_a_new_file_says_what_it_is(open_file: OpenFile, path: Path) -> None:
    await open_file(path)
    raw = apsw.Connection(str(path))
    assert raw.pragma("application_id") == APPLICATION_ID
    assert raw.pragma("user_version") == MIGRATIONS[-1][0]
    assert raw.pragma("journal_mode") == "wal"
    assert dict(raw.execute("SELECT name, value FROM format")) == {
        "format": FORMAT, "oldest_reader": OLDEST_READER, "oldest_writer": OLDEST_WRITER,
        "needs_wal": 0,
    }  # fmt: skip
    raw.close()


async def test_jobs_are_there_when_a_file_is_opened_again(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    job_id = await submit_one(store)
    await store.close()
    assert await state_of(await open_file(path), job_id) is State.QUEUED


async def test_migrating_step_by_step_gives_the_schema_of_a_new_file(tmp_path: Path) -> None:
    def schema(connection: OwnFileConnection) -> list[object]:
        return list(connection.raw.execute("SELECT type, name, tbl_name, sql FROM sqlite_schema ORDER BY name"))

    fresh, stepped = (
        OwnFileConnection(tmp_path / "fresh.db", "NORMAL"),
        OwnFileConnection(tmp_path / "stepped.db", "NORMAL"),
    )
    numbers = [number for number, _ in MIGRATIONS]
    assert migrate(fresh, tmp_path / "fresh.db") == numbers
    for number in numbers:
        assert migrate(stepped, tmp_path / "stepped.db", to=number) == [number]
        assert stepped.raw.pragma("user_version") == number
    assert schema(fresh) == schema(stepped)
    assert migrate(fresh, tmp_path / "fresh.db") == []
    assert numbers == list(range(1, len(numbers) + 1))
    fresh.close()
    stepped.close()


@pytest.mark.parametrize("content", [b"hello", b"x" * 10_000, b"SQLite format 3\0" + b"\0" * 200])
async def test_a_file_that_is_no_database_is_refused_and_left_alone(
    open_file: OpenFile, path: Path, content: bytes
) -> None:
    write(path, content)
    with pytest.raises(HeadwayError, match=str(path)) as caught:
        await open_file(path)
    assert isinstance(caught.value, NotAStore | StoreCorrupt)
    assert read(path) == content
    assert beside(path) == ["headway.db"]


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("application_id", [0, 0x1234])
async def test_another_programs_database_is_refused_and_left_alone(
    open_file: OpenFile, path: Path, journal: str, application_id: int
) -> None:
    raw = apsw.Connection(str(path))
    raw.execute(f"PRAGMA journal_mode = {journal}; PRAGMA application_id = {application_id}")
    raw.execute("CREATE TABLE job (title TEXT); INSERT INTO job VALUES ('theirs')")
    raw.close()
    before = read(path)
    with pytest.raises(NotAStore, match=str(path)):
        await open_file(path)
    assert read(path) == before
    assert beside(path) == ["headway.db"]


async def test_a_file_that_a_newer_headway_keeps_to_itself_is_refused(open_file: OpenFile, path: Path) -> None:
    await a_used_file(open_file, path, 1)
    raw = apsw.Connection(str(path))
    raw.execute("UPDATE format SET value = ? WHERE name IN ('format', 'oldest_writer')", (FORMAT + 1,))
    raw.close()
    with pytest.raises(StoreTooNew, match=f"{path}.*format {FORMAT + 1}.*upgrade Headway"):
        await open_file(path)


async def test_a_newer_file_that_still_admits_this_headway_is_opened(open_file: OpenFile, path: Path) -> None:
    # P14
    await a_used_file(open_file, path, 1)
    raw = apsw.Connection(str(path))
    raw.execute("UPDATE format SET value = ? WHERE name = 'format'", (FORMAT + 1,))
    raw.execute("PRAGMA user_version = 9999")
    raw.close()
    assert len(await (await open_file(path)).find(JobQuery())) == 1


async def test_a_missing_folder_is_named(open_file: OpenFile, tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "headway.db"
    with pytest.raises(StoreError, match=f"{path.parent} .*does not exist"):
        await open_file(path)
    assert beside(path.parent) == []


async def test_a_folder_in_place_of_the_file_is_named(open_file: OpenFile, path: Path) -> None:
    os.mkdir(path)
    with pytest.raises(StoreError, match=str(path)):
        await open_file(path)


AS_NOBODY = """
import asyncio, os, sys
from headway.core.errors import StoreError
from headway.stores.open import open_store
import concurrent.futures.thread, headway.stores.sqlite.store  # Now, while everything may be read.

async def main():
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    store = open_store(f"sqlite:///{sys.argv[1]}")
    try:
        await store.open()
    except StoreError as refusal:
        print(type(refusal).__name__, refusal)
    else:
        print("opened")

asyncio.run(main())
"""


@pytest.fixture
def open_to_all() -> Iterator[Path]:
    """Return a folder that other users may enter, unlike tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="headway-rights-"))
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def forbid_writing(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.chmod(0o444)
    folder.chmod(0o555)


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_file_or_folder_that_may_not_be_written_is_named(
    open_file: OpenFile, open_to_all: Path, what: str
) -> None:
    # S5
    path = open_to_all / "headway.db"
    if what == "file":
        await a_used_file(open_file, path, 1)
    forbid_writing(open_to_all)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", AS_NOBODY, str(path), stdout=subprocess.PIPE)
    output = (await process.communicate())[0].decode()
    assert output.startswith(f"StoreError {path} cannot be opened for writing")
    assert "check the rights" in output


@pytest.mark.parametrize("left", [1, 100, PAGE, 3 * PAGE, -PAGE])
async def test_a_file_that_was_cut_is_refused(open_file: OpenFile, path: Path, left: int) -> None:
    await a_used_file(open_file, path)
    cut(path, left)

    async def use() -> None:
        store = await open_file(path)
        await store.find(JobQuery())
        await store.submit([a_job()])

    with pytest.raises(StoreError, match=str(path)) as caught:
        await use()
    assert isinstance(caught.value, StoreCorrupt | NotAStore)


async def test_a_file_that_was_cut_to_nothing_is_not_taken_for_a_new_one(open_file: OpenFile, path: Path) -> None:
    await a_used_file(open_file, path)
    cut(path, 0)
    with pytest.raises(StoreCorrupt, match=f"{path} was a store and is empty now"):
        await open_file(path)
    os.unlink(path)
    assert await (await open_file(path)).find(JobQuery()) == []


async def test_damage_to_the_whole_file_is_noticed_at_once(open_file: OpenFile, path: Path) -> None:
    await a_used_file(open_file, path)
    content = read(path)
    write(path, content[:PAGE] + b"\xa5" * (len(content) - PAGE))
    with pytest.raises(StoreCorrupt, match=str(path)):
        await open_file(path)


async def test_damage_to_some_pages_is_noticed_when_they_are_read(open_file: OpenFile, path: Path) -> None:
    await a_used_file(open_file, path)
    content = bytearray(read(path))
    for start in range(PAGE, len(content), PAGE):
        if b"marker" in content[start : start + PAGE]:
            content[start : start + PAGE] = b"\xa5" * PAGE
    write(path, bytes(content))
    store = await open_file(path)
    with pytest.raises(StoreCorrupt, match=f"{path} is damaged.*\\.recover"):
        await store.find(JobQuery())


OPENER = """
import asyncio, sys
from headway.stores.open import open_store

async def main():
    sys.stdin.readline()
    store = open_store(f"sqlite:///{sys.argv[1]}", sys.argv[2])
    await store.open()
    await store.write("kind", "name", b"body")
    await store.close()

asyncio.run(main())
"""


async def test_many_processes_may_open_a_new_file_at_once(open_file: OpenFile, path: Path) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", OPENER, str(path), f"namespace-{number}",
            stdin=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for number in range(6)
    ]  # fmt: skip
    answers = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [(process.returncode, errors.decode()) for process, (_, errors) in zip(processes, answers, strict=True)] == [
        (0, "")
    ] * 6


async def test_whoever_comes_while_a_new_file_gets_its_log_waits(open_file: OpenFile, tmp_path: Path) -> None:
    """SQLite refuses one of them about once in two hundred times, so the test opens a hundred files."""
    for number in range(100):
        path = tmp_path / f"{number}.db"
        stores = await asyncio.gather(*(open_file(path) for _ in range(3)))
        await stores[0].write("kind", "name", b"body")
        await asyncio.gather(*(store.close() for store in stores))


async def test_a_store_opened_before_a_fork_refuses_to_work_after_it(path: Path) -> None:
    # W13
    code = dedent(
        """
        import asyncio, os, sys
        from headway.core.errors import StoreError
        from headway.stores.open import open_store

        async def main():
            store = open_store(f"sqlite:///{sys.argv[1]}")
            await store.open()
            if (child := os.fork()) == 0:
                try:
                    await store.read("kind")
                except StoreError as refusal:
                    os._exit(7 if "fork" in str(refusal) else 8)
                os._exit(9)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            await store.close()

        asyncio.run(main())
        """
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "ignore", "-c", code, str(path), stdout=subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert output == b"7\n"
