"""Measure the CPU of a job in each kind of graph beside that of a plain job, in turn, several times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.drain import timed
from benchmarks.run import Figures, Run
from benchmarks.workflows.longest import TITLES, longest_verbs

SHAPES = {
    "plain": "plain jobs",
    "fan_in": "a batch, then one job",
    "fan_out": "one job, then all others",
    "chain": "chains of 100",
    "dag": "a random graph",
}
JOBS = 10_000  # Jobs of one graph.
GRAPHS, QUICK = 4, 1  # Graphs per measurement. More graphs reduce noise and the weight of one-time work.
PATIENCE = 120.0  # Seconds for one graph.
LEASE_MS = 600_000
PEERS = {  # Peers that support only one shape, and the number of jobs that take a few seconds.
    "celery": ("benchmarks.peers.celery", "chord", 1_000),
    "dramatiq": ("benchmarks.peers.dramatiq", "group", 2_000),
    "rq": ("benchmarks.peers.rq", "depends_on", 500),
}


def measure_workflows(run: Run) -> None:
    """Run each graph in each round, so that a slow moment of the machine affects all. The cheapest round counts."""
    found = run.others.setdefault("workflows", {store: {} for store in run.places})
    graphs = QUICK if run.quick else GRAPHS
    for number in range(1 if run.quick else 3):
        for store, costs in found.items():
            for shape in SHAPES:
                contender = Contender(f"workflows {shape}", "benchmarks.workflows.app", store, 0)
                _keep(run, costs, shape, contender, JOBS, number, graphs)
    for store, costs in found.items():
        for shape in SHAPES:
            _compare(costs, shape, "plain")
        try:
            costs["longest"] = {"longest_ms": longest_verbs(run.places[store], JOBS)}
        except Exception as problem:
            costs["longest"] = {"failed": f"{problem}"}
    for peer in (contender for contender in run.contenders if contender.name in PEERS):
        module, shape, jobs = PEERS[peer.name]
        contender = Contender(peer.name, module, peer.store, 0, variant="workflows")
        _keep(run, found[peer.store], f"{peer.name} {shape}", contender, jobs, 0)
        _keep(run, found[peer.store], f"{peer.name} plain", contender, jobs, 0)
        _compare(found[peer.store], f"{peer.name} {shape}", f"{peer.name} plain")


def _compare(costs: Figures, shape: str, plain: str) -> None:
    """Record the ratio of a graph's CPU per job to that of a plain job."""
    if "us" in costs[shape] and "us" in costs[plain]:
        costs[shape]["ratio"] = costs[shape]["us"] / costs[plain]["us"]


def _keep(run: Run, costs: Figures, shape: str, contender: Contender, count: int, number: int, graphs: int = 1) -> None:
    try:
        cost = _cost(run, contender, shape.rpartition(" ")[2], count, graphs)
    except Exception as problem:
        run.say(f"workflows: {shape} on {contender.store} failed: {problem}")
        costs.setdefault(shape, {"failed": " ".join(f"{problem}".split())[:300]})
        return
    run.say(f"workflows, round {number + 1}: {shape} on {contender.store}: {cost['us']:.1f} µs a job")
    costs[shape] = min(costs.get(shape, cost), cost, key=lambda cost: cost.get("us", float("inf")))


def _cost(run: Run, contender: Contender, shape: str, count: int, graphs: int) -> Figures:
    jobs = count * graphs
    with run.stand(contender) as stand:
        submit_seconds = 0.0
        for _ in range(graphs):
            submit_seconds += stand.ask("call", name=shape, count=count, patience=PATIENCE)["cpu_seconds"]
        stand.place.settle()
        stand.start_worker("drain", HEADWAY_LOG_LEVEL="warning")
        stand.need(stand.all_at_work, "the worker runs jobs")
        found = timed(stand, upto=jobs, seconds=PATIENCE)
        if stand.done() < jobs:
            raise RuntimeError(f"{jobs - stand.done():,} of {jobs:,} jobs never ran")
    return found | {"us": found["worker_us"] + found["store_us"], "submit_us": submit_seconds / jobs * 1e6}


def lines(figures: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Return the table: CPU µs per job of worker and store, and the ratio to a plain job."""
    for store, costs in figures.items():
        yield f"{store:<34}{'submit':>8}{'worker':>8}{'store':>8}{'both':>8}  beside plain jobs"
        for shape, cost in costs.items():
            title = SHAPES.get(shape, shape)
            if "longest_ms" in cost:
                for what, verbs in cost["longest_ms"].items():
                    spent = ", ".join(f"{verb} {spent_ms:.1f} ms" for verb, spent_ms in verbs.items())
                    yield f"  {TITLES[what]}: CPU of the longest {spent}"
            elif "failed" in cost:
                yield f"  {title:<32}  failed: {cost['failed']}"
            else:
                ratio = f"{cost['ratio']:.2f} ×" if "ratio" in cost else ""
                spent = "".join(f"{cost[name]:>8.1f}" for name in ("submit_us", "worker_us", "store_us", "us"))
                yield f"  {title:<32}{spent}  {ratio}"
