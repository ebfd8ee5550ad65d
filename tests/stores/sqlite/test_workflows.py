"""Workflows in a SQLite file: their cost for plain jobs, and upgrades, crashes and backups."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from headway.core.errors import BadEdge
from headway.core.job import State
from headway.core.lease import Lease, Report
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Returned, judge
from headway.core.workflow import SETTLED_MAX, Edge, Graph, GraphNode
from headway.stores.base import Exchange
from headway.stores.open import open_store
from headway.stores.sqlite.connection import SqliteConnection
from headway.stores.sqlite.own_file import OwnFileConnection, migrate
from headway.stores.sqlite.statements import MIGRATIONS, numbered
from headway.stores.sqlite.store import SqliteStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, end, register, state_of, submit, submit_one
from tests.conformance.workflows import node, run_all, submit_batch, submit_graph, submit_node, the_batch

WORKFLOW_TABLES = ("batch", "edge", "dependant", "unsettled", "step")


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> SqliteStore:
    made = open_at(tmp_path / "jobs.db", clock)
    await made.open()
    await register(made, slots=500, reserved=0)
    return made


def open_at(path: Path, clock: ManualClock) -> SqliteStore:
    made = open_store(f"sqlite:///{path}?synchronous=normal", "default", clock=clock)
    assert isinstance(made, SqliteStore)
    return made


def rows(path: Path, statement: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as raw:
        return raw.execute(statement).fetchall()


def completed(lease: Lease) -> Report:
    return judge(Returned(b"null"), lease, BUILT_IN)


# ---------------------------------------------------------------------- what a plain job pays


async def test_a_plain_job_runs_no_statement_for_workflows(store: SqliteStore, executed: list[str]) -> None:
    # The two statements of each exchange that look there do it beside what they are made for.
    await submit(store, a_job(), a_job(), a_job())
    [lease, *_] = await claim(store)
    await end(store, lease)
    texts = numbered("")
    touched = {name for name in executed if any(f" {table} " in texts[name] for table in WORKFLOW_TABLES)}
    assert touched == {"set_aside", "claim_head"}
    assert executed.count("set_aside") == 2
    assert {"submit_job", "claim_front", "finish_outcome"} <= set(executed)


async def test_members_of_a_batch_that_end_together_change_it_once(store: SqliteStore, executed: list[str]) -> None:
    batch_id, _ = await submit_batch(store, 50)
    leases = await claim(store, free=50)
    assert len(leases) == 50
    executed.clear()
    await store.exchange(Exchange(None, finished=[completed(lease) for lease in leases]))
    assert executed.count("batch_count") == 1
    assert (await the_batch(store, batch_id)).completed == 50


# ---------------------------------------------------------------------- what survives


async def test_what_a_fan_out_has_left_survives_the_process(
    store: SqliteStore, tmp_path: Path, clock: ManualClock
) -> None:
    first = node()
    await submit_graph(store, first, *[node(first.job.job_id) for _ in range(2 * SETTLED_MAX + 50)])
    [lease] = await claim(store, free=1)
    reply = await store.exchange(Exchange(None, finished=[completed(lease)]))
    assert reply.more
    stats = await store.stats()
    assert (stats.lanes["medium"].waiting, stats.lanes["medium"].held) == (SETTLED_MAX, SETTLED_MAX + 50)
    await store.close()  # As if it were killed: nothing is written at a close.
    again = open_at(tmp_path / "jobs.db", clock)
    await again.open()
    assert (await again.exchange(Exchange(None))).more
    assert not (await again.exchange(Exchange(None))).more
    assert len(await run_all(again)) == 2 * SETTLED_MAX + 50
    assert rows(tmp_path / "jobs.db", "SELECT count(*) FROM unsettled") == [(0,)]
    await again.close()


async def test_a_transaction_that_fails_while_it_settles_ends_nothing(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = node()
    [source, dependant] = await submit_graph(store, first, node(first.job.job_id))
    [lease] = await claim(store, free=1)
    run = SqliteConnection.run

    def fail(self: SqliteConnection, name: str, *values: object) -> object:
        if name == "held_delete":
            raise apsw.IOError("the disk is gone")
        return run(self, name, *values)

    monkeypatch.setattr(SqliteConnection, "run", fail)
    with pytest.raises(Exception, match="the disk is gone"):
        await end(store, lease)
    monkeypatch.setattr(SqliteConnection, "run", run)
    assert await state_of(store, source) is State.EXECUTING
    await end(store, lease)
    assert [lease.job_id for lease in await claim(store)] == [dependant]


async def test_a_refused_graph_leaves_no_row(store: SqliteStore, tmp_path: Path) -> None:
    tables = (*WORKFLOW_TABLES, "job", "delayed", "ready")
    with pytest.raises(BadEdge):
        await store.submit_graph(Graph([node(), GraphNode(a_job(), (Edge("nobody"),))]))
    await store.close()
    for table in tables:
        assert rows(tmp_path / "jobs.db", f"SELECT count(*) FROM {table}") == [(0,)], table


async def test_jobs_of_the_schema_before_run_after_the_upgrade(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "jobs.db"
    raw = OwnFileConnection(path, "NORMAL")
    assert migrate(raw, path, to=1) == [1]
    raw.raw.execute(
        "INSERT INTO namespace (name) VALUES ('default');"
        "INSERT INTO class (namespace_id, lane, rung, needs, persist) VALUES (1, 'medium', '', '[]', 1);"
        "UPDATE sequence SET last = 1;"
        "INSERT INTO job (seq, job_id, namespace_id, class_id, order_key, task, submitted_at, max_retries, timeout_ms,"
        " payload) VALUES (1, 'old', 1, 1, 1, 't', 0, 0, 1000, x'01');"
        "INSERT INTO ready (class_id, park, order_key, seq, eligible_at, epoch, attempts, crashes)"
        " VALUES (1, '', 1, 1, 0, 0, 0, 0)"
    )
    raw.close()
    store = open_at(path, clock)
    await store.open()
    assert rows(path, "PRAGMA user_version") == [(MIGRATIONS[-1][0],)]
    await register(store)
    later = await submit_node(store, "old")
    [lease] = await claim(store)
    assert (lease.job_id, lease.batch_id) == ("old", None)
    await end(store, lease)
    assert [lease.job_id for lease in await claim(store)] == [later]
    await store.close()


async def test_a_backup_keeps_held_jobs_and_batches(store: SqliteStore, tmp_path: Path, clock: ManualClock) -> None:
    batch_id, members = await submit_batch(store, 2)
    last = await submit_node(store, batch_id, member=False)
    await store.copy_to(tmp_path / "copy.db")
    await store.close()
    restored = open_at(tmp_path / "restored.db", clock)
    await restored.restore_from(tmp_path / "copy.db")
    await restored.open()
    assert (await the_batch(restored, batch_id)).live == 2
    assert await run_all(restored) == [*members, last]
    assert [await state_of(restored, job_id) for job_id in (*members, last)] == [State.COMPLETED] * 3
    await restored.close()


async def test_a_source_that_is_running_already_is_marked_in_its_lease(store: SqliteStore, tmp_path: Path) -> None:
    source = await submit_one(store)
    [lease] = await claim(store, free=1)
    await submit_node(store, source)
    assert rows(tmp_path / "jobs.db", "SELECT awaited FROM lease") == [(1,)]
    await end(store, lease)
    assert (await store.stats()).lanes["medium"].waiting == 1
