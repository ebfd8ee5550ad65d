"""Measure how much CPU the store spends on the longest verb while a large graph or batch changes.

The time on the clock says little on a busy machine. A store that is held keeps the CPU, so its CPU time is the time
that it is held for on an idle machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from benchmarks.machine import exact_cpu_seconds, tree
from benchmarks.places import Place
from headway.client.batch import retry_batch
from headway.client.graph import new_batch_id
from headway.core.job import JobId, NewJob, State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Returned, judge
from headway.core.worker import WorkerInfo
from headway.core.workflow import BatchId, Edge, Graph, GraphNode, NewBatch
from headway.runtime.job_ids import new_job_id
from headway.stores.base import Exchange, Heartbeat, Store
from headway.stores.open import open_store

T = TypeVar("T")

LEASE_MS = 600_000
ADDED = 1_000  # Members that one graph adds.
TITLES = {
    "fan_out": "one job releases all others",
    "fan_out_tenant": "one job of a tenant releases all others",
    "cancel": "a batch is cancelled",
    "retry": "a cancelled batch is retried",
}


class VerbTimer:
    """A timer around verbs of a store, which records the CPU of the longest. ``server``: its process, if it has one."""

    def __init__(self, server: int | None) -> None:
        self._server = server
        self.verbs: dict[str, float] = {}  # Seconds, by the name of the verb.

    async def __call__(self, name: str, verb: Awaitable[T]) -> T:
        before = self._spent()
        found = await verb
        spent = self._spent()
        # One process serves a verb. Other processes of the server do background work for earlier verbs.
        longest = max(seconds - before.get(pid, 0.0) for pid, seconds in spent.items())
        self.verbs[name] = max(longest, self.verbs.get(name, 0.0))
        return found

    @property
    def longest(self) -> float:
        return max(self.verbs.values())

    def _spent(self) -> Mapping[int, float]:
        if self._server is None:
            return {os.getpid(): time.process_time()}
        return {pid: exact_cpu_seconds(pid, alone=True) for pid in tree(self._server)}


Play = Callable[[Store, VerbTimer, int], Awaitable[None]]


def longest_verbs(place: Place, count: int) -> dict[str, dict[str, float]]:
    """Return the CPU milliseconds of the longest verb in each situation. The best of three runs counts."""
    server = getattr(place, "server", None)
    found: dict[str, dict[str, float]] = {}
    for what, play in PLAYS.items():
        runs = []
        for _ in range(3):
            timer = VerbTimer(None if server is None else server.pid)
            asyncio.run(_play(place.fresh(), play, timer, count))
            runs.append(timer)
        best = min(runs, key=lambda timer: timer.longest)
        found[what] = {verb: seconds * 1_000 for verb, seconds in best.verbs.items()}
    return found


async def _play(url: str, play: Play, timer: VerbTimer, n: int) -> None:
    store = open_store(url)
    await store.open()
    try:
        worker = WorkerInfo(worker_id="bench", host="bench", pid=1, slots=1, reserved=0, offers=(), version="1")
        await store.renew(Heartbeat(worker, LEASE_MS, LEASE_MS, register=True))
        await play(store, timer, n)
    finally:
        await store.close()


async def _fan_out(store: Store, timer: VerbTimer, count: int, tenant: str | None = None) -> None:
    source = _new_job(tenant)
    nodes = [GraphNode(source), *(GraphNode(_new_job(tenant), (Edge(source.job_id),)) for _ in range(count))]
    await store.submit_graph(Graph(nodes))
    [lease] = await _claim(store)
    await timer("exchange", store.exchange(Exchange(None, finished=[judge(Returned(b"null"), lease, BUILT_IN)])))
    await _settle(store, timer)
    held = sum(lane.held for lane in (await store.stats()).lanes.values())
    if held:
        raise RuntimeError(f"{held:,} of {count:,} jobs are still held")


async def _cancel(store: Store, timer: VerbTimer, count: int) -> None:
    batch_id = await _batch(store, count)
    await timer("cancel_batch", store.cancel_batch(batch_id))
    await _settle(store, timer)
    await _check(store, batch_id, "cancelled", count)


async def _retry(store: Store, timer: VerbTimer, count: int) -> None:
    batch_id = await _batch(store, count)
    await store.cancel_batch(batch_id)
    await _settle(store, VerbTimer(None))

    async def retry(job_ids: Any, *, alone: bool) -> list[State | None]:
        return await timer("retry", store.retry(job_ids, alone=alone))

    await retry_batch(store, retry, batch_id, "all")
    await _settle(store, timer)
    await _check(store, batch_id, "waiting", count)


PLAYS: dict[str, Play] = {
    "fan_out": _fan_out,
    "fan_out_tenant": partial(_fan_out, tenant="acme"),
    "cancel": _cancel,
    "retry": _retry,
}


async def _batch(store: Store, count: int) -> BatchId:
    """Fill a batch in which every second job waits for the one before, and one job waits for the batch."""
    batch_id = new_batch_id()
    await store.submit_graph(Graph(create=NewBatch(batch_id, "rows")))
    for start in range(0, count, ADDED):
        jobs = [_new_job() for _ in range(min(ADDED, count - start))]
        nodes = [GraphNode(job, (Edge(jobs[at - 1].job_id),) if at % 2 else ()) for at, job in enumerate(jobs)]
        await store.submit_graph(Graph(nodes, batch_id=batch_id))
    await store.close_batch(batch_id)
    await store.submit_graph(Graph([GraphNode(_new_job(), (Edge(batch_id),), member=False)]))
    return batch_id


async def _settle(store: Store, timer: VerbTimer) -> None:
    """Call exchange until the store has nothing left to settle."""
    while (await timer("exchange", store.exchange(Exchange(None)))).more:
        pass


async def _check(store: Store, batch_id: BatchId, what: str, count: int) -> None:
    [batch] = await store.get_batches([batch_id])
    found = 0 if batch is None else getattr(batch, what) + (batch.held if what == "waiting" else 0)
    if found != count:
        raise RuntimeError(f"{found:,} of {count:,} jobs are {what}")


async def _claim(store: Store) -> list[Lease]:
    chosen = plan(await store.snapshot(), free=1, free_below=1, offers=frozenset(), policy=BUILT_IN)
    return list((await store.exchange(Exchange("bench", b"x" * 16, plan=chosen))).leases)


def _new_job(tenant: str | None = None) -> NewJob:
    return NewJob(JobId(new_job_id()), "bench.noop", b"[]", b"x" * 32, "medium", 0, 60_000, tenant=tenant)
