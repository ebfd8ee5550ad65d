"""Measure the CPU of a job in each kind of graph beside that of a plain job, in turn, several times."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.drain import timed
from benchmarks.run import Figures, Run
from headway.core.job import JobId, NewJob
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Returned, judge
from headway.core.worker import WorkerInfo
from headway.core.workflow import Edge, Graph, GraphNode
from headway.runtime.job_ids import new_job_id
from headway.stores.base import Exchange, Heartbeat, Store
from headway.stores.open import open_store

SHAPES = {
    "plain": "plain jobs",
    "fan_in": "a batch, then one job",
    "fan_out": "one job, then all others",
    "chain": "chains of 100",
    "dag": "a random graph",
}
JOBS, QUICK = 10_000, 4_000
PATIENCE = 120.0  # Seconds for one graph.
LEASE_MS = 600_000
PEERS = {  # Peers with a shape of their own, and how many jobs last for a few seconds there.
    "celery": ("benchmarks.peers.celery", "chord", 1_000),
    "dramatiq": ("benchmarks.peers.dramatiq", "group", 2_000),
    "rq": ("benchmarks.peers.rq", "depends_on", 500),
}


def measure_workflows(run: Run) -> None:
    """Run each graph in each round, so that a slow moment of the machine meets all alike. The cheapest round counts."""
    found = run.others.setdefault("workflows", {store: {} for store in run.places})
    count = QUICK if run.quick else JOBS
    for number in range(1 if run.quick else 3):
        for store, costs in found.items():
            for shape in SHAPES:
                contender = Contender(f"workflows {shape}", "benchmarks.workflows.app", store, 0)
                _keep(run, costs, shape, contender, count, number)
    for store, costs in found.items():
        for shape in SHAPES:
            _compare(costs, shape, "plain")
        try:
            # A machine that is busy stops a verb half-way, so the quickest of three fan-outs counts.
            costs["longest"] = {"longest_ms": min(_longest_ms(run, store, count) for _ in range(3))}
        except Exception as problem:
            costs["longest"] = {"failed": f"{problem}"}
    for peer in (contender for contender in run.contenders if contender.name in PEERS):
        module, shape, jobs = PEERS[peer.name]
        contender = Contender(peer.name, module, peer.store, 0, variant="workflows")
        _keep(run, found[peer.store], f"{peer.name} {shape}", contender, jobs, 0)
        _keep(run, found[peer.store], f"{peer.name} plain", contender, jobs, 0)
        _compare(found[peer.store], f"{peer.name} {shape}", f"{peer.name} plain")


def _compare(costs: Figures, shape: str, plain: str) -> None:
    """Note how many times the CPU of a plain job a job of a graph takes."""
    if "us" in costs[shape] and "us" in costs[plain]:
        costs[shape]["ratio"] = costs[shape]["us"] / costs[plain]["us"]


def _keep(run: Run, costs: Figures, shape: str, contender: Contender, count: int, number: int) -> None:
    try:
        cost = _cost(run, contender, shape.rpartition(" ")[2], count)
    except Exception as problem:
        run.say(f"workflows: {shape} on {contender.store} failed: {problem}")
        costs.setdefault(shape, {"failed": " ".join(f"{problem}".split())[:300]})
        return
    run.say(f"workflows, round {number + 1}: {shape} on {contender.store}: {cost['us']:.1f} µs a job")
    costs[shape] = min(costs.get(shape, cost), cost, key=lambda cost: cost.get("us", float("inf")))


def _cost(run: Run, contender: Contender, shape: str, count: int) -> Figures:
    with run.stand(contender) as stand:
        asked = stand.ask("call", name=shape, count=count, patience=PATIENCE)
        stand.place.settle()
        stand.start_worker("drain", HEADWAY_LOG_LEVEL="warning")
        stand.need(stand.all_at_work, "the worker runs jobs")
        found = timed(stand, upto=count, seconds=PATIENCE)
        if stand.done() < count:
            raise RuntimeError(f"{count - stand.done():,} of {count:,} jobs never ran")
    submit_us = asked["cpu_seconds"] / count * 1e6
    return found | {"us": found["worker_us"] + found["store_us"], "submit_us": submit_us}


def _longest_ms(run: Run, store: str, count: int) -> float:
    """Return how long the longest verb took that released a part of a large fan-out."""
    place = run.places[store]
    return asyncio.run(_release_all(place.fresh(), count)) * 1_000


async def _release_all(url: str, count: int) -> float:
    store = open_store(url)
    await store.open()
    try:
        return await _time_release(store, count)
    finally:
        await store.close()


async def _time_release(store: Store, count: int) -> float:
    worker = WorkerInfo(worker_id="bench", host="bench", pid=1, slots=1, reserved=0, offers=(), version="1")
    await store.renew(Heartbeat(worker, LEASE_MS, LEASE_MS, register=True))
    source = _new_job()
    nodes = [GraphNode(source), *(GraphNode(_new_job(), (Edge(source.job_id),)) for _ in range(count))]
    await store.submit_graph(Graph(nodes))
    [lease] = await _claim(store)
    longest, more = 0.0, True
    reports = [judge(Returned(b"null"), lease, BUILT_IN)]
    while more:
        began = time.perf_counter()
        answer = await store.exchange(Exchange(None, finished=reports))
        longest = max(longest, time.perf_counter() - began)
        more, reports = answer.more, []
    held = sum(lane.held for lane in (await store.stats()).lanes.values())
    if held:
        raise RuntimeError(f"{held:,} of {count:,} jobs are still held")
    return longest


async def _claim(store: Store) -> list[Lease]:
    chosen = plan(await store.snapshot(), free=1, free_below=1, offers=frozenset(), policy=BUILT_IN)
    return list((await store.exchange(Exchange("bench", b"x" * 16, plan=chosen))).leases)


def _new_job() -> NewJob:
    return NewJob(JobId(new_job_id()), "bench.noop", b"[]", b"x" * 32, "medium", 0, 60_000)


def lines(figures: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Lay the figures out: CPU µs a job of worker and store, and how many times that of a plain job."""
    for store, costs in figures.items():
        yield f"{store:<34}{'submit':>8}{'worker':>8}{'store':>8}{'both':>8}  beside plain jobs"
        for shape, cost in costs.items():
            title = SHAPES.get(shape, shape)
            if "longest_ms" in cost:
                yield f"  longest verb of a fan-out: {cost['longest_ms']:.1f} ms"
            elif "failed" in cost:
                yield f"  {title:<32}  failed: {cost['failed']}"
            else:
                ratio = f"{cost['ratio']:.2f} ×" if "ratio" in cost else ""
                spent = "".join(f"{cost[name]:>8.1f}" for name in ("submit_us", "worker_us", "store_us", "us"))
                yield f"  {title:<32}{spent}  {ratio}"
