"""A workflow that fails, is cancelled and is retried, in a process that may be killed at any statement.

Every verb may be repeated, so a new process continues where the killed one stopped. The process passes the failpoint
``statement`` before each statement to the database and ``statement.after`` behind it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from headway.client.batch import retry_batch
from headway.core.errors import JobError
from headway.core.job import JobId, NewJob, RetryRule, State
from headway.core.lease import Report
from headway.core.policy.document import BUILT_IN
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Raised, Returned, judge
from headway.core.worker import WorkerInfo
from headway.core.workflow import BatchId, BatchRecord, Edge, EdgeRule, Graph, GraphNode, NewBatch, ending
from headway.runtime.failpoints import reach
from headway.stores.base import Exchange, Heartbeat, JobQuery, Store
from headway.stores.open import open_store

LEASE_MS = 600_000
FIRST, SECOND = BatchId("batch-first"), BatchId("batch-second")
FAILING = "d"  # It fails in the first round of its batch.
COUNTED = ("submitted", "completed", "failed", "cancelled", "held", "unheld")  # Totals that no kill may change.
NAMES = "abcdefghij"
AFTER: dict[str, list[tuple[str, EdgeRule]]] = {
    "b": [("a", EdgeRule.CANCEL)],
    "c": [("a", EdgeRule.RUN), ("b", EdgeRule.RUN)],
    "e": [("d", EdgeRule.CANCEL)],
    "f": [("e", EdgeRule.CANCEL), ("a", EdgeRule.CANCEL)],
    "g": [("d", EdgeRule.RUN)],
    **{name: [("a", EdgeRule.CANCEL)] for name in "hij"},
}
CALLBACKS = {"then": EdgeRule.CANCEL, "on_failure": EdgeRule.ON_FAILURE, "on_done": EdgeRule.ON_DONE}


class Outcome(NamedTuple):
    """The final states and counts of a workflow."""

    states: dict[str, State]
    batches: dict[str, tuple[str, int, int, int, int, int]]
    totals: dict[str, int]


def job_id(name: str) -> JobId:
    return JobId(f"job-{name}")


def a_node(name: str, after: Sequence[tuple[str, EdgeRule]] = (), *, member: bool = True) -> GraphNode:
    job = NewJob(job_id(name), "part", b"1", b"x" * 32, "medium", 0, 60_000, retry=RetryRule())
    edges = tuple(Edge(source if source.startswith("batch-") else job_id(source), rule) for source, rule in after)
    return GraphNode(job, edges, member)


async def play(store: Store) -> None:
    """Run the workflow, or continue it."""
    worker = WorkerInfo(worker_id="w", host="w", pid=1, slots=9, reserved=0, offers=(), version="1")
    await store.renew(Heartbeat(worker, LEASE_MS, 0, register=True))
    await store.renew(Heartbeat(worker, LEASE_MS, 0))  # Leases that a killed process had are given back.
    [second] = await store.get_batches([SECOND])
    if second is None:
        await _play_first(store)
    if second is None or second.round == 1:
        await _play_second(store)
    await _work(store)


async def _play_first(store: Store) -> None:
    """Run a graph in which a member fails, and retry it, so that its dependants wait again."""
    members = [a_node(name, AFTER.get(name, ())) for name in NAMES]
    callbacks = [a_node(name, [(FIRST, rule)], member=False) for name, rule in CALLBACKS.items()]
    await store.submit_graph(Graph([*members, *callbacks], NewBatch(FIRST, "first", open=False)))
    await _work(store)
    if (await _batch(store, FIRST)).round == 1:
        await retry_batch(store, store.retry, FIRST, "failed_and_after")
    await _work(store)


async def _play_second(store: Store) -> None:
    """Cancel a job of a chain, then the batch of the chain, and retry all of it."""
    chain = [a_node("k0"), *(a_node(f"k{n}", [(f"k{n - 1}", EdgeRule.CANCEL)]) for n in range(1, 6))]
    last = a_node("tidy", [(SECOND, EdgeRule.ON_DONE)], member=False)
    await store.submit_graph(Graph([*chain, last], NewBatch(SECOND, "second", open=False)))
    await store.cancel([job_id("k4")])
    await store.cancel_batch(SECOND)
    await _settle(store)
    await retry_batch(store, store.retry, SECOND, "all")


async def outcome(store: Store) -> Outcome:
    """Return the outcome of the workflow, after comparing the counts of its batches with a recount."""
    jobs = await store.find(JobQuery(limit=1_000))
    batches: dict[str, tuple[str, int, int, int, int, int]] = {}
    for batch_id in (FIRST, SECOND):
        batch = await _batch(store, batch_id)
        members = await store.members(batch_id, limit=1_000)
        counted = Counter(ending(job.state) for job in members)
        found = (batch.total, batch.live, batch.held, batch.running, batch.completed, batch.failed, batch.cancelled)
        names = ("completed", "failed", "cancelled")
        assert found == (len(members), 0, 0, 0, *(counted[name] for name in names)), (batch, counted)
        batches[batch_id] = (batch.status, batch.round, batch.total, batch.completed, batch.failed, batch.cancelled)
    assert not any(lane.held + lane.waiting + lane.executing for lane in (await store.stats()).lanes.values())
    totals = (await store.stats()).totals
    states = {job.job_id.removeprefix("job-"): job.state for job in jobs}
    return Outcome(states, batches, {name: totals.get(name, 0) for name in COUNTED})


async def _batch(store: Store, batch_id: BatchId) -> BatchRecord:
    [batch] = await store.get_batches([batch_id])
    assert batch is not None
    return batch


async def _work(store: Store) -> None:
    """Run jobs until none can be claimed."""
    finished: list[Report] = []
    asked = 0
    while True:
        chosen = plan(await store.snapshot(), free=3, free_below=3, offers=frozenset(), policy=BUILT_IN)
        asked += 1
        claim_id = f"{id(finished)}-{asked}".encode().rjust(16, b".")[-16:]
        answer = await store.exchange(Exchange("w", claim_id, finished=finished, plan=chosen))
        if not answer.leases and not answer.more and not finished:
            return
        first_round = (await _batch(store, FIRST)).round == 1
        finished = [
            judge(
                Raised(JobError("ValueError", "bad", retriable=False))
                if lease.job_id == job_id(FAILING) and first_round
                else Returned(b"null"),
                lease,
                BUILT_IN,
            )
            for lease in answer.leases
        ]


async def _settle(store: Store) -> None:
    while (await store.exchange(Exchange(None))).more:
        pass


def pass_points() -> None:
    """Pass a failpoint before and after each statement of every store."""
    import asyncpg  # type: ignore[import-untyped]

    from headway.stores.redis.client import RedisClient
    from headway.stores.sqlite.own_file import OwnFileConnection

    for owner, names in (
        (OwnFileConnection, ("run", "run_many", "first", "rows")),
        (asyncpg.Connection, ("fetch", "fetchrow", "fetchval", "execute")),
        (RedisClient, ("ask",)),
    ):
        for name in names:
            setattr(owner, name, _passing(getattr(owner, name), is_async=owner is not OwnFileConnection))


def _passing(function: Callable[..., Any], *, is_async: bool) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        reach("statement")
        found = function(*args, **kwargs)
        reach("statement.after")
        return found

    async def arun(*args: Any, **kwargs: Any) -> Any:
        reach("statement")
        found = await function(*args, **kwargs)
        reach("statement.after")
        return found

    return arun if is_async else run


async def main(address: str) -> None:
    store = open_store(address)
    await store.open()
    pass_points()  # What opens the store is not part of the workflow.
    await play(store)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
