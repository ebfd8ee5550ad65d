"""The lines of tenants on SQLite: what is listed in them, when rows leave, and what a claim of many tenants writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw

from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, Keep, LimitRule, Policy
from headway.core.policy.retry import Returned, judge
from headway.core.snapshot import Plan
from headway.policy_store.rule_documents import write_rules
from headway.stores.base import Exchange, Store
from headway.stores.sqlite.own_file import OwnFileConnection, migrate
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, claimed_ids, end, register, submit
from tests.stores.sqlite.conftest import OpenFile


def read(path: Path, query: str, *values: Any) -> list[Any]:
    """Execute a statement as another process does."""
    connection = apsw.Connection(str(path))
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


def lines(path: Path) -> list[str]:
    """Return the tenant of each row."""
    return [tenant for (tenant,) in read(path, "SELECT tenant FROM tenant_line ORDER BY tenant, order_key")]


async def claim_and_finish(store: Store, count: int) -> list[Lease]:
    leases = await claim(store, free=count)
    for lease in leases:
        await end(store, lease)
    return leases


async def test_a_submit_removes_the_rows_of_its_tenants_that_have_left(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    await register(store, slots=9)
    await submit(store, *(a_job(tenant=tenant) for tenant in ("a", "b") for _ in range(3)))
    assert [lease.tenant for lease in await claim_and_finish(store, 4)] == ["a", "b", "a", "b"]
    assert lines(path) == ["a", "a", "a", "b", "b", "b"]
    await submit(store, a_job(tenant="a"))
    assert lines(path) == ["a", "a", "b", "b", "b"]


async def test_a_claim_clears_the_line_that_it_empties(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    await register(store, slots=9)
    await submit(store, *(a_job(tenant=tenant) for tenant in ("a", "b") for _ in range(2)), a_job())
    assert len(await claim_and_finish(store, 5)) == 5
    await submit(store, a_job())
    assert len(await claim_and_finish(store, 5)) == 1
    assert lines(path) == []


async def test_a_job_takes_its_row_with_it_when_it_is_deleted(
    open_file: OpenFile, path: Path, clock: ManualClock
) -> None:
    store = await open_file(path)
    await register(store, slots=9)
    await submit(store, a_job(tenant="a"), a_job(tenant="b"), a_job(tenant="c"))
    assert len(await claim_and_finish(store, 2)) == 2
    clock.advance(60)
    assert await store.prune(Keep(completed_ms=1_000)) == 2
    assert lines(path) == ["c"]


async def test_cancelled_blocked_and_moved_jobs_leave_the_line_at_once(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    await register(store, slots=9)
    await write_rules(store, Policy(limits={"one": LimitRule(concurrency=1, by="tenant", tasks=("slow",))}))
    jobs = [a_job(tenant=tenant, task="slow") for tenant in "aabcd"]
    await submit(store, *jobs, *(a_job(tenant="z") for _ in range(3)))
    await store.cancel([jobs[2].job_id])
    await store.reschedule([jobs[3].job_id], lane="low")
    assert lines(path) == ["a", "a", "c", "d", "z", "z", "z"]
    low = read(path, "SELECT class_id FROM tenant_line WHERE tenant = 'c'")
    assert read(path, "SELECT lane FROM class WHERE class_id = ?", *low[0]) == [("low",)]
    assert [lease.tenant for lease in await claim(store, free=4)] == ["a", "d", "z", "z"]
    assert (await store.waiting_of("a"))["medium"].waiting == 1  # It is blocked, and the other row is of the first job.
    assert lines(path) == ["a", "c", "d", "z", "z", "z"]


async def test_the_place_after_a_cancel_is_the_same_as_if_the_job_had_never_been(
    open_file: OpenFile, path: Path
) -> None:
    store = await open_file(path)
    await register(store, slots=9)
    first, last = a_job(tenant="a"), a_job(tenant="a")
    await submit(store, first, last)
    await submit(store, *(a_job(tenant="b") for _ in range(3)))
    await store.cancel([last.job_id])
    again = a_job(tenant="a")
    await submit(store, again)
    assert (await claimed_ids(store, free=9)).index(again.job_id) == 3


async def test_jobs_that_an_older_release_submits_are_in_line(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    await submit(store, a_job(tenant="a"))
    columns = "class_id, park, order_key, eligible_at, epoch, attempts, crashes, tenant"
    read(path, f"INSERT INTO ready (seq, {columns}) SELECT 99, {columns} FROM ready")
    assert (await store.waiting_of("a"))["medium"].waiting == 2


async def test_a_statement_of_an_older_release_finds_the_index_that_it_names(open_file: OpenFile, path: Path) -> None:
    store = await open_file(path)
    await submit(store, a_job(tenant="a"), a_job(tenant="b"))
    foremost = (
        "FROM ready r INDEXED BY ready_tenant WHERE r.class_id = 1 AND r.tenant = 'b' ORDER BY r.order_key, r.seq"
    )
    assert len(read(path, f"SELECT r.eligible_at {foremost} LIMIT 1")) == 1


def test_a_migration_lists_the_jobs_that_are_in_line(tmp_path: Path) -> None:
    path = tmp_path / "older.db"
    connection = OwnFileConnection(path, "NORMAL")
    migrate(connection, path, to=3)
    columns = "class_id, park, order_key, seq, tenant, eligible_at, epoch, attempts, crashes"
    for place in ("1, '', 5, 7, 'a'", "1, 'x', 6, 8, 'b'", "2, '', 9, 9, NULL"):
        connection.raw.execute(f"INSERT INTO ready ({columns}) VALUES ({place}, 0, 0, 0, 0)")
    migrate(connection, path)
    connection.close()
    assert read(path, "SELECT * FROM tenant_line") == [(1, "a", 5, 7)]


async def test_a_claim_writes_as_few_pages_for_many_tenants_as_for_none(
    open_file: OpenFile, path: Path, clock: ManualClock
) -> None:
    written = []
    for tenants in (0, 1_500):
        file = path.with_name(f"{tenants}.db")
        store = await open_file(file)
        await register(store, slots=100, reserved=0)
        # Names that differ in their first characters, and of which few fit on a page.
        names = [f"{number:04}"[::-1].ljust(100, "-") if tenants else None for number in range(1_500)]
        await submit(store, *(a_job(tenant=name) for name in names))
        finished: list[Any] = []
        before = file.with_name(f"{file.name}-wal").stat().st_size
        for _ in range(5):
            clock.advance(1)
            leases = await claim(store, free=100)
            finished = [judge(Returned(b"null"), lease, BUILT_IN) for lease in leases]
            await store.exchange(Exchange("w1", b"", finished, Plan()))
            assert len(leases) == 100
        written.append(file.with_name(f"{file.name}-wal").stat().st_size - before)
    plain, shared = written
    assert shared < 2 * plain  # It was more than four times as much with an index by tenant.
