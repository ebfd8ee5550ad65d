"""A store in another program's file, and verbs in a caller's transaction there."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from headway.core.errors import IdempotencyConflict, NotAStore, StoreBusy, StoreTooNew
from headway.core.job import ClassKey
from headway.runtime.immediate import Completed
from headway.stores.base import FORMAT, JobQuery, Store
from headway.stores.sqlite import shared_file
from headway.stores.sqlite.caller_connection import CallerExecutor
from headway.stores.sqlite.shared_file import PREFIX, SharedFile, SharedFileConnection, migrate_shared_file, plan_once
from headway.stores.sqlite.statements import QUERIES, TABLES, numbered, prefixed, queries
from headway.stores.sqlite.store import SqliteStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, submit_one
from tests.conformance.histories import play
from tests.conformance.test_histories import Histories
from tests.conftest import HASTY_STORES
from tests.shared_file import connect, open_shared_file

T = TypeVar("T")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "project.db"


@pytest.fixture
def raw(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection to a file with a table of its own and Headway's tables."""
    made = connect(path)
    made.execute("CREATE TABLE book (title TEXT)")
    migrate_shared_file(made, path)
    yield made
    made.close()


class Caller:
    """A program with one connection, and its actions after a commit."""

    def __init__(self, raw: sqlite3.Connection) -> None:
        self._raw = raw
        self.after: list[Callable[[], None]] = []

    def run(self, work: Callable[[], T]) -> Completed[T]:
        return Completed(work())

    def connection(self) -> sqlite3.Connection:
        return self._raw

    def after_commit(self, action: Callable[[], None]) -> None:
        self.after.append(action)

    def commit(self) -> None:
        self._raw.execute("COMMIT")
        while self.after:
            self.after.pop(0)()

    def roll_back(self) -> None:
        self._raw.execute("ROLLBACK")
        self.after.clear()


@pytest.fixture
def caller(raw: sqlite3.Connection) -> Caller:
    return Caller(raw)


@pytest.fixture
def joined(path: Path, caller: Caller, clock: ManualClock) -> Store:
    return make_joined(path, caller, clock)


def make_joined(path: Path, caller: Caller, clock: Callable[[], int], namespace: str = "default") -> Store:
    return SqliteStore(
        CallerExecutor(SharedFile(path, lambda: (connect(path), lambda: None)), caller), namespace, clock=clock
    )


# ---------------------------------------------------------------------- tables with other names


@pytest.mark.parametrize("name", sorted(QUERIES))
def test_every_statement_finds_its_tables_under_their_other_names(raw: sqlite3.Connection, name: str) -> None:
    values = dict.fromkeys(re.findall(r":(\w+)", queries(PREFIX)[name]))
    raw.execute("EXPLAIN " + queries(PREFIX)[name], values)
    numbers = [str(number) for number in range(1, 1 + len(values))]
    raw.execute("EXPLAIN " + numbered(PREFIX)[name], dict.fromkeys(numbers))


def test_only_tables_are_renamed() -> None:
    text = "UPDATE park SET park = :park WHERE park.open = 1 AND park IN (SELECT park FROM ready r WHERE r.park > 1)"
    told = (
        "UPDATE x_park SET park = :park WHERE x_park.open = 1 AND park IN (SELECT park FROM x_ready r WHERE r.park > 1)"
    )
    assert prefixed(text, "x_") == told
    assert prefixed(text, "") is text


def test_nothing_of_headways_is_without_its_prefix(raw: sqlite3.Connection) -> None:
    names = [name for (name,) in raw.execute("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")]
    assert len(names) > len(TABLES)
    assert [name for name in names if not name.startswith(PREFIX)] == ["book"]


# ---------------------------------------------------------------------- opening


def test_migrating_twice_changes_nothing(raw: sqlite3.Connection, path: Path) -> None:
    before = raw.execute("PRAGMA data_version").fetchone(), raw.total_changes
    assert migrate_shared_file(raw, path) == []
    assert (raw.execute("PRAGMA data_version").fetchone(), raw.total_changes) == before


async def test_missing_and_newer_tables_are_refused_with_what_to_do(path: Path, caller: Caller) -> None:
    empty = connect(path.with_name("empty.db"))
    with pytest.raises(NotAStore, match=r"none of Headway's tables: bring"):
        SharedFile(path, lambda: (empty, empty.close)).check(empty)
    empty.close()
    raw = caller.connection()
    raw.execute("UPDATE headway_format SET value = ? WHERE name = 'oldest_writer'", (FORMAT + 1,))
    with pytest.raises(StoreTooNew, match="upgrade Headway"):
        SharedFile(path, lambda: (raw, raw.close)).check(raw)


async def test_two_connections_that_want_to_write_wait_for_each_other_and_not_for_ever(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S2
    monkeypatch.setattr(shared_file, "BUSY_MS", 200)
    store = open_shared_file(tmp_path, "default", clock)
    await store.open()
    other = connect(tmp_path / "project.db")
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="locked by another connection"):
            await submit_one(store)
        other.execute("ROLLBACK")
        await submit_one(store)
    finally:
        other.close()
        await store.close()


def test_where_python_can_ask_for_it_a_statement_is_planned_once(raw: sqlite3.Connection) -> None:
    plan_once(raw)
    assert SharedFileConnection(raw).first("classes_count", 1) == 0


# ---------------------------------------------------------------------- joining


async def test_what_the_caller_rolls_back_never_was(joined: Store, caller: Caller) -> None:
    caller.connection().execute("BEGIN")
    await joined.submit([a_job(lane="high")])
    assert len(await joined.find(JobQuery())) == 1
    caller.roll_back()
    assert await joined.find(JobQuery()) == []
    # Neither the namespace nor the class that it made is remembered.
    await joined.submit([a_job(lane="high")])
    assert [view.key for view in (await joined.snapshot()).classes] == [ClassKey("high")]


async def test_others_see_it_after_the_callers_commit_and_are_told_then(
    joined: Store, caller: Caller, path: Path, clock: ManualClock
) -> None:
    other = connect(path)
    elsewhere = make_joined(path, Caller(other), clock)
    subscription = elsewhere.subscribe("watch.test")
    try:
        caller.connection().execute("BEGIN")
        job_id = await submit_one(joined)
        assert await elsewhere.find(JobQuery()) == []
        assert await subscription.wait(0.03) is None
        caller.commit()
        assert await subscription.wait(5) == [job_id]
        assert [job.job_id for job in await elsewhere.find(JobQuery())] == [job_id]
    finally:
        subscription.close()
        other.close()


async def test_outside_a_transaction_a_verb_is_one_of_its_own(joined: Store, caller: Caller) -> None:
    await submit_one(joined)
    assert not caller.connection().in_transaction
    assert caller.after == []


async def test_a_refused_verb_undoes_itself_alone(joined: Store, caller: Caller) -> None:
    raw = caller.connection()
    raw.execute("BEGIN")
    raw.execute("INSERT INTO book VALUES ('Candide')")
    first = await submit_one(joined, a_job(idempotency_key="k"))
    with pytest.raises(IdempotencyConflict):
        await joined.submit([a_job(lane="low"), a_job(idempotency_key="k", payload=b"other")])
    caller.commit()
    assert raw.execute("SELECT title FROM book").fetchall() == [("Candide",)]
    assert [job.job_id for job in await joined.find(JobQuery())] == [first]


def test_a_verb_needs_no_loop(joined: Store) -> None:
    answer = joined.submit([a_job()])
    with pytest.raises(StopIteration) as end:
        answer.send(None)
    assert len(end.value.value) == 1


# ---------------------------------------------------------------------- histories


def _open_joined(folder: Path, namespace: str, clock: Callable[[], int]) -> Store:
    path = folder / "project.db"
    raw = connect(path)
    raw.execute("PRAGMA synchronous = OFF")
    migrate_shared_file(raw, path)
    return make_joined(path, Caller(raw), clock, namespace)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["shared_file", "joined"])
def test_a_random_history_comes_out_as_on_the_memory_store(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(HASTY_STORES, "joined", _open_joined)
    play(Histories, kind, seed * 100, examples=15, steps=40)
