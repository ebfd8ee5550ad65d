"""Concurrent workflows: many sessions end, cancel and retry the jobs of the same graphs."""

from __future__ import annotations

import asyncio
from itertools import product
from random import Random

import pytest

from headway.core.job import JobId, State
from headway.core.lease import Report
from headway.core.policy.document import BUILT_IN, DAY, Keep
from headway.core.policy.retry import Released, Returned, judge
from headway.core.workflow import BatchId, EdgeRule, Graph, SourceStatus, settle
from headway.stores.base import Exchange, JobQuery
from headway.stores.postgres import connections
from headway.stores.postgres.statements import FUNCTIONS_VERSION
from headway.stores.postgres.store import PostgresStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, ask, claim_one, end, register, state_of
from tests.conformance.workflows import (
    FAILED,
    a_batch,
    add,
    are_held,
    node,
    run_all,
    states,
    submit_batch,
    submit_graph,
    submit_node,
    the_batch,
)
from tests.stores.postgres.conftest import OpenStore, Outside
from tests.stores.postgres.test_days import days

SESSIONS = 6
MEMBERS = 600

# What the counts of every batch must be, from its jobs and child batches as they are.
RECOUNT = """
SELECT b.batch_id, b.total = m.total + c.total AS total, b.live = m.live + c.live AS live,
       b.children = c.live AS children, b.held = m.held AS held, b.completed = m.completed + c.completed AS completed,
       b.failed = m.failed + c.ended - c.completed AS failed, b.cancelled = m.cancelled AS cancelled,
       (b.finished_at IS NULL) = (b.open OR b.live > 0) AS finished
  FROM {schema}.batch b
 CROSS JOIN LATERAL (
   SELECT count(*) AS total, count(*) FILTER (WHERE o.state IS NULL) AS live, count(d.seq) AS held,
          count(*) FILTER (WHERE o.state = 'completed') AS completed,
          count(*) FILTER (WHERE o.state IN ('failed', 'dead_letter')) AS failed,
          count(*) FILTER (WHERE o.state = 'cancelled') AS cancelled
     FROM {schema}.job j LEFT JOIN {schema}.outcome o ON o.seq = j.seq
     LEFT JOIN {schema}.delayed d ON d.seq = j.seq AND d.due_at = 253402300800000 WHERE j.batch_seq = b.seq) m
 CROSS JOIN LATERAL (
   SELECT count(*) AS total, count(*) FILTER (WHERE x.finished_at IS NULL) AS live,
          count(*) FILTER (WHERE x.finished_at IS NOT NULL) AS ended,
          count(*) FILTER (WHERE x.finished_at IS NOT NULL AND x.failed + x.cancelled = 0) AS completed
     FROM {schema}.batch x WHERE x.parent_seq = b.seq) c
"""
PENDING = """
SELECT p.seq FROM {schema}.dependant p
 WHERE p.pending <> (SELECT count(*) FROM {schema}.edge e WHERE e.dependant_seq = p.seq AND NOT e.satisfied)
"""
STUCK = """
SELECT d.seq FROM {schema}.delayed d JOIN {schema}.dependant p ON p.seq = d.seq
 WHERE d.due_at = 253402300800000
   AND (p.pending = 0 OR EXISTS (
     SELECT FROM {schema}.edge e CROSS JOIN LATERAL {schema}.source_status_{version}(e.source_seq, e.satisfied) s
      WHERE e.dependant_seq = d.seq AND NOT e.satisfied
        AND {schema}.verdict_{version}(e.rule, s.status, s.failing) <> 'wait'))
"""
PLACES = """
SELECT j.seq FROM {schema}.job j
 WHERE 1 <> (SELECT count(*) FROM {schema}.ready r WHERE r.seq = j.seq)
            + (SELECT count(*) FROM {schema}.delayed d WHERE d.seq = j.seq)
            + (SELECT count(*) FROM {schema}.lease l WHERE l.seq = j.seq)
            + (SELECT count(*) FROM {schema}.outcome o WHERE o.seq = j.seq)
"""
MARKS = """
SELECT j.seq FROM {schema}.job j LEFT JOIN {schema}.ready r ON r.seq = j.seq LEFT JOIN {schema}.lease l ON l.seq = j.seq
 WHERE (r.seq IS NOT NULL AND (r.batch_seq, r.awaited) IS DISTINCT FROM (j.batch_seq, j.awaited))
    OR (l.seq IS NOT NULL AND (l.batch_seq, l.awaited) IS DISTINCT FROM (j.batch_seq, j.awaited))
    OR (j.awaited IS NOT TRUE AND EXISTS (SELECT FROM {schema}.edge e WHERE e.source_seq = j.seq))
"""


@pytest.fixture(autouse=True)
def conflicts_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a verb fail at a deadlock instead of repeating it."""
    monkeypatch.setattr(connections, "CONTESTED", 0)


async def check(outside: Outside, schema: str, *, at_rest: bool = True) -> None:
    """Check the relations between tables that hold after any commit, and those that hold once no job is left."""
    for row in await outside.fetch(RECOUNT.format(schema=schema)):
        assert all(value for value in list(row.values())[1:]), dict(row)
    for statement in (PENDING, PLACES, MARKS):
        assert await outside.fetch(statement.format(schema=schema)) == []
    if at_rest:
        assert await outside.fetch(f"SELECT * FROM {schema}.unsettled") == []
        assert await outside.fetch(STUCK.format(schema=schema, version=FUNCTIONS_VERSION)) == []


async def work(store: PostgresStore, worker_id: str, chance: Random, bad: float = 0.0, most: int = 2_000) -> int:
    """Run jobs until none is left. Fail some and return some. Return the number of ended jobs."""
    await register(store, worker_id, slots=20, reserved=0)
    finished: list[Report] = []
    ended = idle = 0
    for _ in range(most):
        answer = await ask(store, worker_id, free=chance.randint(1, 20), finished=finished)
        assert not answer.refused
        ended += sum(report.state is not State.QUEUED for report in finished)
        idle = 0 if answer.leases or answer.more else idle + 1
        if idle == 3:
            return ended
        finished = [
            judge(
                FAILED if (draw := chance.random()) < bad
                else Released("not now") if draw > 0.98
                else Returned(b'"done"'), lease, BUILT_IN,
            )
            for lease in answer.leases
        ]  # fmt: skip
    raise AssertionError("the store never comes to rest")


async def test_members_that_end_in_many_sessions_are_counted_once_each(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    stores = [await open_url(url) for _ in range(SESSIONS)]
    batch_id, _ = await submit_batch(stores[0], MEMBERS)
    then = await submit_node(stores[0], batch_id, member=False)
    ended = await asyncio.gather(*(work(store, f"w{number}", Random(number)) for number, store in enumerate(stores, 1)))
    assert sum(ended) == MEMBERS + 1
    batch = await the_batch(stores[0], batch_id)
    assert (batch.live, batch.completed, batch.total, batch.round) == (0, MEMBERS, MEMBERS, 1)
    assert await state_of(stores[0], then) is State.COMPLETED
    await check(outside, schema)


async def test_a_job_that_waits_for_many_is_released_once_whichever_ends_last(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    stores = [await open_url(url) for _ in range(SESSIONS)]
    for seed in range(4):
        sources = [node() for _ in range(60)]
        ids = [one.job.job_id for one in sources]
        joins = [node(*ids) for _ in range(10)]
        last = node(*(one.job.job_id for one in joins))
        await submit_graph(stores[0], *sources, *joins, last)
        ended = await asyncio.gather(
            *(work(store, f"w{number}", Random(f"{seed}-{number}")) for number, store in enumerate(stores, 1))
        )
        assert sum(ended) == 71
        assert await state_of(stores[0], last.job.job_id) is State.COMPLETED
        await check(outside, schema)


async def disturb(store: PostgresStore, chance: Random, ids: list[JobId], batches: list[BatchId], turns: int) -> None:
    """Cancel, retry, add and prune at random."""
    for _ in range(turns):
        some = chance.sample(ids, 4)
        match chance.randrange(7):
            case 0 | 1:
                await store.cancel(some)
            case 2 | 3:
                await store.retry(some, alone=chance.random() < 0.2)
            case 4:
                await store.submit_graph(
                    Graph([node(*some[:2], rule=EdgeRule.RUN, member=False), node(*some[2:], member=False)])
                )
            case 5:
                await store.prune(Keep(completed_ms=DAY, failed_ms=DAY, cancelled_ms=DAY, dead_letter_ms=DAY))
            case 6:
                await store.close_batch(chance.choice(batches))


@pytest.mark.parametrize("seed", range(3))
async def test_sessions_that_end_cancel_retry_and_add_at_once_leave_nothing_hanging(
    open_url: OpenStore, url: str, schema: str, outside: Outside, seed: int
) -> None:
    chance = Random(seed)
    stores = [await open_url(url) for _ in range(SESSIONS)]
    parent = a_batch("whole", open=False)
    first = await stores[0].submit_graph(Graph([node()], parent))
    batches, ids = [parent.batch_id], [first.replies[0].job_id]
    for _ in range(4):
        new = a_batch(parent=parent.batch_id, open=False)
        nodes = [node()]
        for _ in range(60):
            known = [one.job.job_id for one in nodes]
            sources = chance.sample(known, min(len(known), chance.randrange(4)))
            job = a_job(tenant=None, unique_key=f"u{chance.randrange(1_000)}" if chance.random() < 0.1 else None)
            nodes.append(node(*sources, rule=chance.choice([EdgeRule.CANCEL, EdgeRule.CANCEL, EdgeRule.RUN]), job=job))
        nodes += [node(new.batch_id, rule=rule, member=False) for rule in EdgeRule]
        reply = await stores[0].submit_graph(Graph(nodes, new))
        batches.append(new.batch_id)
        ids += [one.job_id for one in reply.replies]
    await asyncio.gather(
        *(work(store, f"w{number}", Random(f"{seed}-{number}"), bad=0.2) for number, store in enumerate(stores[:4], 1)),
        *(disturb(store, Random(f"{seed}+{number}"), ids, batches, 60) for number, store in enumerate(stores[4:])),
    )
    await work(stores[0], "w1", chance)
    await check(outside, schema)


async def test_a_cancelled_batch_ends_while_its_members_are_claimed_and_ended(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    stores = [await open_url(url) for _ in range(SESSIONS)]
    batch_id, _ = await submit_batch(stores[0], MEMBERS)
    done = await submit_node(stores[0], batch_id, rule=EdgeRule.ON_DONE, member=False)

    async def stop() -> None:
        await asyncio.sleep(0.05)  # The members run by then. Whenever it comes, the end must be the same.
        await stores[0].cancel_batch(batch_id)

    await asyncio.gather(stop(), *(work(store, f"w{number}", Random(number)) for number, store in enumerate(stores, 1)))
    batch = await the_batch(stores[0], batch_id)
    assert (batch.live, batch.completed + batch.cancelled, batch.total) == (0, MEMBERS, MEMBERS)
    assert await state_of(stores[0], done) is State.COMPLETED
    await check(outside, schema)


async def test_verdicts_in_the_database_are_those_of_core(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    await open_url(url)
    for rule, status, failing in product(EdgeRule, SourceStatus, (False, True)):
        found = await outside.fetchval(
            f"SELECT {schema}.verdict_{FUNCTIONS_VERSION}($1, $2, $3)", rule.value, status.value, failing
        )
        assert found == settle(rule, status, failing=failing), (rule, status, failing)


async def test_a_plain_exchange_does_not_touch_the_tables_of_workflows(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    store = await open_url(url)
    await store.submit([a_job() for _ in range(20)])
    await register(store, slots=20)
    leases = (await ask(store, free=20)).leases
    await store.exchange(Exchange("w1", finished=[judge(Returned(b"1"), lease, BUILT_IN) for lease in leases]))
    await store.close()
    tables = "SELECT relname, n_tup_ins + n_tup_upd + n_tup_del FROM pg_stat_user_tables WHERE schemaname = $1"
    await outside.fetchval("SELECT pg_stat_clear_snapshot()")
    written = dict(list(map(tuple, await outside.fetch(tables, schema))))
    assert [written[name] for name in ("batch", "edge", "dependant", "unsettled", "step")] == [0] * 5
    assert await outside.fetchval(f"SELECT count(*) FROM {schema}.outcome") == 20


async def test_a_day_stays_while_a_live_job_needs_the_result_of_one_of_its_jobs(
    open_url: OpenStore, url: str, schema: str, outside: Outside, clock: ManualClock
) -> None:
    store = await open_url(url)
    await store.prune(Keep())
    [source] = [reply.job_id for reply in (await store.submit_graph(Graph([node()]))).replies]
    await register(store)
    await end(store, await claim_one(store), Returned(b'"kept"'))
    reader = await submit_node(store, source, job=a_job(delay_ms=30 * DAY))
    [table] = [
        name for name in await days(outside, schema) if await outside.fetchval(f"SELECT count(*) FROM {schema}.{name}")
    ]
    clock.advance(ms=20 * DAY)
    again = await open_url(url)
    assert await again.prune(Keep()) == 0
    assert table in await days(outside, schema)
    [[upstream]] = await again.upstreams([reader], results=True)
    assert upstream.result == b'"kept"'
    clock.advance(ms=10 * DAY)
    await register(again)
    assert await run_all(again) == [reader]
    clock.advance(ms=10 * DAY)
    last = await open_url(url)
    assert await last.prune(Keep()) == 2
    assert table not in await days(outside, schema)
    assert await last.find(JobQuery()) == []


# ---------------------------------------------------------------------- a caller's transaction


async def test_a_graph_in_a_callers_transaction_is_kept_with_its_commit(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    store = await open_url(url)
    await register(store)
    first, second = node(), node()
    then = node(first.job.job_id, second.job.job_id)
    graph = Graph([first, second, then], a_batch(open=False))
    undone = outside.transaction()
    await undone.start()
    await (await store.prepare_graph(graph)).arun(outside)
    await undone.rollback()
    assert await store.find(JobQuery()) == []
    assert await store.get_batches([graph.create.batch_id]) == [None] if graph.create else False
    async with outside.transaction():
        reply = await (await store.prepare_graph(graph)).arun(outside)
        assert await store.find(JobQuery()) == []
    assert reply.created
    assert await are_held(store, then.job.job_id)
    assert await run_all(store) == [first.job.job_id, second.job.job_id, then.job.job_id]
    assert reply.batch_id is not None
    assert (await the_batch(store, reply.batch_id)).status == "completed"
    await check(outside, schema)


async def test_a_source_may_end_while_the_caller_has_not_committed(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    store = await open_url(url)
    await register(store)
    batch_id, members = await submit_batch(store, 1)
    [plain, bad, late] = [reply.job_id for reply in await store.submit([a_job(), a_job(), a_job()])]
    graph = Graph([node(*members), node(plain), node(bad), node(batch_id), node(late)])
    async with outside.transaction():
        replies = (await (await store.prepare_graph(graph)).arun(outside)).replies
        leases = {lease.job_id: lease for lease in (await ask(store, free=3)).leases}
        assert late not in leases
        for job_id, lease in leases.items():  # None of them waits for the caller.
            async with asyncio.timeout(5):
                await end(store, lease, FAILED if job_id == bad else None)
    waiting = [reply.job_id for reply in replies]
    assert await are_held(store, *waiting)
    await store.exchange(Exchange(None))
    assert await states(store, *waiting) == ["queued", "queued", "cancelled", "queued", "queued"]
    assert await are_held(store, waiting[4])
    assert await run_all(store) == [late, waiting[0], waiting[1], waiting[3], waiting[4]]
    await check(outside, schema)


async def test_an_error_of_a_graph_does_not_end_the_callers_transaction(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    store = await open_url(url)
    await register(store)
    batch_id, _ = await submit_batch(store, 1)
    await run_all(store)
    async with outside.transaction():
        for graph in (
            Graph([node("job-nobody-knows")], a_batch()),
            Graph([node()], batch_id=batch_id),
            Graph([node()], a_batch(parent=batch_id)),
            Graph([node()], batch_id=BatchId("batch-unknown")),
        ):
            with pytest.raises(Exception, match=r"which the store does not have|takes no more jobs|no batch"):
                await (await store.prepare_graph(graph)).arun(outside)
        await (await store.prepare_graph(Graph([node()], a_batch(open=False)))).arun(outside)
    assert len(await store.find(JobQuery())) == 2
    assert await outside.fetchval(f"SELECT count(*) FROM {schema}.batch") == 2
    await check(outside, schema)


async def test_a_caller_may_add_to_a_batch_and_close_an_empty_one(
    open_url: OpenStore, url: str, schema: str, outside: Outside
) -> None:
    store = await open_url(url)
    await register(store)
    batch_id, [member] = await submit_batch(store, 1, open=True)
    lease = await claim_one(store)
    empty = a_batch("empty", open=False)
    after = node(empty.batch_id, member=False)
    async with outside.transaction():
        await (await store.prepare_graph(Graph([node(), node()], batch_id=batch_id))).arun(outside)
        await (await store.prepare_graph(Graph([after], empty))).arun(outside)
    batch = await the_batch(store, batch_id)
    assert (batch.total, batch.live) == (3, 3)
    await end(store, lease)
    await store.close_batch(batch_id)
    assert len(await run_all(store)) == 3
    assert (await the_batch(store, batch_id)).status == "completed"
    assert await state_of(store, after.job.job_id) is State.COMPLETED
    assert await state_of(store, member) is State.COMPLETED
    assert (await add(store, empty.batch_id, after)).replies[0].job_id == after.job.job_id
    await check(outside, schema)
