"""Random graphs and batches: replies of a SQL store equal those of the memory store, and its tables equal a recount.

The bound on edges for each verb is small here, so that most verbs leave something for the next ones.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import pytest

from headway.core.errors import HeadwayError, JobError
from headway.core.job import JobId, NewJob, State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, Keep
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Ending, Raised, Released, Returned, Snoozed, judge
from headway.core.workflow import HELD_AT, BatchId, BatchQuery, Edge, EdgeRule, Graph, GraphNode, NewBatch, Step
from headway.stores.base import Exchange, JobQuery, Store
from headway.stores.memory import MemoryStore, state
from headway.stores.sql import settle, transaction
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, an_id, register
from tests.conftest import HASTY_STORES

T = TypeVar("T")

ENDINGS: list[Ending] = [
    Returned(b"\x01"),
    Returned(b"\x01"),
    Returned(b"\x01"),
    Raised(JobError("ValueError", "bad", retriable=False)),
    Raised(JobError("OSError", "later"), after_ms=0),
    Snoozed(1_000),
    Released(),
]

# Each has to give no row: what a table says is what counting the others gives. {t} stands before the names of tables.
RECOUNTS = {
    "a job is in one place": """
        SELECT j.seq FROM {t}job j
          LEFT JOIN {t}ready r ON r.seq = j.seq LEFT JOIN {t}delayed d ON d.seq = j.seq
          LEFT JOIN {t}lease l ON l.seq = j.seq LEFT JOIN {t}outcome o ON o.seq = j.seq
         WHERE (r.seq IS NOT NULL) + (d.seq IS NOT NULL) + (l.seq IS NOT NULL) + (o.seq IS NOT NULL) <> 1""",
    "a place has a job": """
        SELECT p.seq FROM (SELECT seq FROM {t}ready UNION ALL SELECT seq FROM {t}delayed
                           UNION ALL SELECT seq FROM {t}lease UNION ALL SELECT seq FROM {t}outcome
                           UNION ALL SELECT seq FROM {t}dependant
                           UNION ALL SELECT dependant_seq FROM {t}edge UNION ALL SELECT seq FROM {t}step) p
         WHERE NOT EXISTS (SELECT 1 FROM {t}job j WHERE j.seq = p.seq)""",
    "pending counts unsatisfied edges": """
        SELECT d.seq FROM {t}dependant d
         WHERE d.pending <> (SELECT count(*) FROM {t}edge e WHERE e.dependant_seq = d.seq AND e.satisfied = 0)""",
    "a held job waits for something": """
        SELECT d.seq FROM {t}delayed d WHERE d.due_at = {held_at}
           AND NOT EXISTS (SELECT 1 FROM {t}dependant w WHERE w.seq = d.seq AND w.pending > 0)""",
    "a lease repeats the mark of its job": """
        SELECT l.seq FROM {t}lease l JOIN {t}job j ON j.seq = l.seq
         WHERE coalesce(l.batch_seq, 0) <> coalesce(j.batch_seq, 0)
            OR coalesce(l.awaited, 0) <> coalesce(j.awaited, 0)""",
    "a source is marked": """
        SELECT e.source_seq FROM {t}edge e JOIN {t}job j ON j.seq = e.source_seq WHERE j.awaited IS NULL""",
    "live counts members and children": """
        SELECT b.seq FROM {t}batch b
         WHERE b.live <> (SELECT count(*) FROM {t}job j WHERE j.batch_seq = b.seq
                             AND NOT EXISTS (SELECT 1 FROM {t}outcome o WHERE o.seq = j.seq))
                       + (SELECT count(*) FROM {t}batch c WHERE c.parent_seq = b.seq AND c.finished_at IS NULL)
            OR b.children <> (SELECT count(*) FROM {t}batch c WHERE c.parent_seq = b.seq AND c.finished_at IS NULL)
            OR b.held <> (SELECT count(*) FROM {t}job j JOIN {t}delayed d ON d.seq = j.seq AND d.due_at = {held_at}
                           WHERE j.batch_seq = b.seq)""",
    "the counts of a batch add up": """
        SELECT seq FROM {t}batch WHERE live + completed + failed + cancelled <> total""",
    "a batch has ended once it is closed and empty": """
        SELECT seq FROM {t}batch WHERE (finished_at IS NULL) <> (open OR live > 0)""",
    "what is unsettled exists": """
        SELECT u.source_seq FROM {t}unsettled u
         WHERE NOT EXISTS (SELECT 1 FROM {t}job j WHERE j.seq = u.source_seq)
           AND NOT EXISTS (SELECT 1 FROM {t}batch b WHERE b.seq = u.source_seq)""",
}


@pytest.fixture(autouse=True)
def _few_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (state, transaction, settle):
        monkeypatch.setattr(module, "SETTLED_MAX", 3)


def recount(path: Path, prefix: str = "") -> dict[str, list[Any]]:
    """Return the names of counts that differ from a recount."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as raw:
        found = {
            name: raw.execute(text.format(t=prefix, held_at=HELD_AT)).fetchall() for name, text in RECOUNTS.items()
        }
    return {name: rows for name, rows in found.items() if rows}


class History:
    """Two stores, and the facts that their caller remembers."""

    def __init__(self, seed: int, store: Store, clock: ManualClock) -> None:
        self.random = Random(seed)
        self.store, self.oracle = store, MemoryStore(clock=clock)
        self.clock = clock
        self.numbers = iter(range(1, 1_000_000))
        self.job_ids: list[JobId] = []
        self.batch_ids: list[BatchId] = []
        self.leases: list[tuple[Lease, Lease]] = []
        self.claims = 0

    async def both(self, verb: Callable[[Store], Awaitable[T]]) -> tuple[T | str, T | str]:
        return await _answer(verb(self.store)), await _answer(verb(self.oracle))

    async def same(self, verb: Callable[[Store], Awaitable[T]]) -> T | str:
        first, second = await self.both(verb)
        assert first == second
        return first

    def some(self, values: list[T], most: int = 3) -> list[T]:
        return self.random.sample(values, min(len(values), self.random.randint(0, most)))

    # ------------------------------------------------------------------ the steps

    async def submit_graph(self) -> None:
        random = self.random
        tenant = random.choice([None, None, None, "acme"])
        create = None
        if random.random() < 0.4:
            key = random.choice([None, None, "k1", "k2"])
            parent = random.choice([None, *self.batch_ids[-3:]])
            create = NewBatch(
                BatchId(f"batch-{next(self.numbers):04}"), "b", key, tenant, parent, random.random() < 0.4
            )  # fmt: skip
        batch_id = random.choice([None, *self.batch_ids[-4:]])
        jobs: list[NewJob] = []
        nodes: list[GraphNode] = []
        for _ in range(random.randint(0 if create else 1, 6)):
            known = [str(job.job_id) for job in jobs] + list(self.job_ids[-8:]) + list(self.batch_ids[-4:])
            known += [] if create is None else [create.batch_id]
            after = [Edge(source, random.choice(list(EdgeRule))) for source in dict.fromkeys(self.some(known))]
            after = [edge if edge.source.startswith("batch-") else _for_job(edge) for edge in after]
            keyed = {job.job_id for job in jobs if job.unique_key or job.idempotency_key}
            after = [edge for edge in after if edge.source in keyed][:1] or after  # It may stand for another source.
            jobs.append(
                a_job(
                    an_id(next(self.numbers)), tenant=tenant, lane=random.choice(["high", "medium"]), max_retries=1,
                    delay_ms=random.choice([0, 0, 0, 2_000]), expires_ms=random.choice([None, None, None, 4_000]),
                    unique_key=random.choice([None, None, None, None, "u1"]),
                    idempotency_key=random.choice([None, None, None, None, "i1"]),
                )
            )  # fmt: skip
            nodes.append(GraphNode(jobs[-1], tuple(after), random.random() < 0.7))
        graph = Graph(nodes, create, batch_id, back=random.random() < 0.3)
        reply = await self.same(lambda store: store.submit_graph(graph))
        if isinstance(reply, str):
            return
        self.job_ids += [one.job_id for one in reply.replies if one.job_id not in self.job_ids]
        if reply.batch_id is not None and reply.batch_id not in self.batch_ids:
            self.batch_ids.append(reply.batch_id)

    async def exchange(self) -> None:
        self.claims += 1
        claim_id, free = self.claims.to_bytes(16, "big"), self.random.randint(0, 5)
        ended = [(pair, self.random.choice(ENDINGS)) for pair in self.some(self.leases, 4)]

        async def play(store: Store) -> Any:
            reports = [judge(end, pair[store is self.oracle], BUILT_IN, chance=0.5) for pair, end in ended]
            chosen = plan(await store.snapshot(), free=free, free_below=free, offers=frozenset(), policy=BUILT_IN)
            return await store.exchange(Exchange("w1", claim_id, reports, chosen))

        first, second = await self.both(play)
        assert not isinstance(first, str)
        assert not isinstance(second, str)
        assert [lease._replace(seq=0) for lease in first.leases] == [lease._replace(seq=0) for lease in second.leases]
        assert (first.refused, first.more) == (second.refused, second.more)
        self.leases += zip(first.leases, second.leases, strict=True)

    async def cancel(self) -> None:
        job_ids = self.some(self.job_ids[-10:], 2)
        await self.same(lambda store: store.cancel(job_ids, "not wanted"))

    async def retry(self) -> None:
        job_ids, alone = sorted(self.some(self.job_ids[-20:], 4)), self.random.random() < 0.2
        await self.same(lambda store: store.retry(job_ids, alone=alone))

    async def close_batch(self) -> None:
        for batch_id in self.some(self.batch_ids[-4:], 1):
            await self.same(lambda store, one=batch_id: _without_number(store.close_batch(one)))  # type: ignore[misc]

    async def cancel_batch(self) -> None:
        for batch_id in self.some(self.batch_ids[-4:], 1):
            await self.same(lambda store, one=batch_id: _without_number(store.cancel_batch(one)))  # type: ignore[misc]

    async def prune(self) -> None:
        keep_ms = self.random.choice([1_000, 8_000])
        await self.same(lambda store: store.prune(Keep(keep_ms, 2 * keep_ms, keep_ms, keep_ms)))

    async def purge(self) -> None:
        await self.same(lambda store: store.purge([State.COMPLETED, State.CANCELLED], self.job_ids[-5:]))

    async def record_step(self) -> None:
        for first, second in self.some(self.leases, 2):
            key = self.random.choice(["fetch", "store"])

            async def play(store: Store, first: Lease = first, second: Lease = second, key: str = key) -> bool:
                lease = first if store is self.store else second
                return await store.record_step(Step(lease.job_id, lease.seq, lease.token, key, key.encode()))

            await self.same(play)

    async def advance(self) -> None:
        self.clock.advance(ms=self.random.choice([1, 500, 2_000]))

    async def step(self) -> str:
        steps = [
            *[self.submit_graph] * 5, *[self.exchange] * 8, self.cancel, self.retry, self.retry, self.close_batch,
            self.close_batch, self.cancel_batch, self.prune, self.purge, self.record_step, self.advance, self.advance,
        ]  # fmt: skip
        chosen = self.random.choice(steps)
        await chosen()
        return chosen.__name__

    async def look(self, store: Store) -> dict[str, Any]:
        jobs = {job.job_id: replace(job, seq=0) for job in await store.find(JobQuery(limit=100_000))}
        ids, stats = sorted(jobs), await store.stats()
        return {
            "jobs": jobs,
            "batches": [replace(batch, seq=0) for batch in await store.find_batches(BatchQuery(limit=1_000))],
            "members": {
                batch_id: [job.job_id for job in await store.members(batch_id, limit=3)] for batch_id in self.batch_ids
            },
            "upstreams": dict(zip(ids, await store.upstreams(ids, results=True), strict=True)),
            "steps": {job_id: await store.steps(job_id) for job_id in ids},
            "lanes": {lane: numbers for lane, numbers in stats.lanes.items() if any(numbers)},
            "totals": stats.totals,
            "next_due_at": (await store.snapshot()).next_due_at,
        }


def _for_job(edge: Edge) -> Edge:
    """Return an edge with a rule that is valid for a job as its source."""
    return edge if edge.rule in (EdgeRule.CANCEL, EdgeRule.RUN, EdgeRule.HOLD) else edge._replace(rule=EdgeRule.CANCEL)


async def _answer(answer: Awaitable[T]) -> T | str:
    """Return the reply, or the error in its place."""
    try:
        return await answer
    except HeadwayError as problem:
        return f"{type(problem).__name__}: {problem}"


async def _without_number(answer: Awaitable[Any]) -> Any:
    batch = await answer
    return None if batch is None else replace(batch, seq=0)


def _differences(first: dict[str, Any], second: dict[str, Any]) -> Iterator[str]:
    for name, value in first.items():
        if isinstance(value, dict):
            for key in sorted({*value, *second[name]}, key=str):
                if value.get(key) != second[name].get(key):
                    yield f"{name}[{key}]:\n  {value.get(key)}\n  {second[name].get(key)}"
        elif value != second[name]:
            yield f"{name}:\n  {value}\n  {second[name]}"


async def play(store: Store, clock: ManualClock, seed: int, steps: int, check: Callable[[], dict[str, Any]]) -> History:
    history = History(seed, store, clock)
    for one in (history.store, history.oracle):
        await register(one, slots=8, lease_ms=10_000_000)
    for number in range(steps):
        name = await history.step()
        found = list(_differences(await history.look(store), await history.look(history.oracle)))
        assert not found, f"seed {seed}, step {number} ({name}):\n" + "\n".join(found)
        assert check() == {}, f"seed {seed}, step {number} ({name})"
    return history


@pytest.mark.parametrize("number", range(10))
async def test_random_graphs_end_as_on_the_memory_store_and_all_tables_recount(
    tmp_path: Path, clock: ManualClock, number: int, seed: int
) -> None:
    store = HASTY_STORES["sqlite"](tmp_path, "default", clock)
    await store.open()
    history = await play(store, clock, seed * 100 + number, 80, lambda: recount(tmp_path / "headway.db"))
    totals = (await store.stats()).totals
    assert len(history.leases) == totals["claimed"]
    assert totals["held"] > 0
    await store.close()
