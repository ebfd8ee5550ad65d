"""Measure the CPU of a job in each configuration, in turn, several times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.drain import timed
from benchmarks.features.table import DEEP, FEATURES
from benchmarks.run import Figures, Run

MEASURED, QUICK = 24_000, 12_000  # Jobs.
# The last jobs are not measured: there, a limit would leave most slots empty.
LEFT = 3_000
PATIENCE = 60.0  # Seconds for one drain.


def measure_features(run: Run) -> None:
    """Drain each configuration in each round, so that a slow moment of the machine affects all of them alike.

    The figure of a configuration is its cheapest round.
    """
    wanted = dict.fromkeys(name for asked in run.features for name in (FEATURES[asked].beside, asked))
    found = run.others.setdefault("features", {store: {} for store in run.places})
    for number in range(2 if run.quick else 5):
        for store, costs in found.items():
            for name in wanted:
                contender = Contender(f"features {name}", "benchmarks.features.app", store, 0, variant=name)
                try:
                    cost = _cost(run, contender)
                except Exception as problem:
                    run.say(f"features: {name} on {store} failed: {problem}")
                    costs.setdefault(name, {"failed": f"{problem}"})
                    continue
                spent = f"worker {cost['worker_us']:.1f} µs, store {cost['store_us']:.1f} µs a job"
                run.say(f"features, round {number + 1}: {name} on {store}: {spent}")
                costs[name] = min(costs.get(name, cost), cost, key=lambda cost: cost.get("us", float("inf")))
    for store, costs in found.items():
        for name, cost in costs.items():
            beside = costs.get(FEATURES[name].beside, {})
            if "us" in cost and "us" in beside:
                cost["ratio"] = cost["us"] / beside["us"]
                run.rows[f"headway ({store})"][f"feature_{name}"] = cost["ratio"]


def _cost(run: Run, contender: Contender) -> Figures:
    measured = QUICK if run.quick else MEASURED
    waiting = DEEP if FEATURES[contender.variant].deep else measured + LEFT
    with run.stand(contender) as stand:
        stand.ask("fill", count=waiting, patience=PATIENCE)
        stand.place.settle()
        # Log lines cost the same with every feature, and would make all ratios smaller.
        stand.start_worker("drain", **({} if FEATURES[contender.variant].logs else {"HEADWAY_LOG_LEVEL": "warning"}))
        stand.need(stand.all_at_work, "the worker runs jobs")
        found = timed(stand, upto=measured, seconds=PATIENCE)
    return found | {"us": found["worker_us"] + found["store_us"]}


def lines(figures: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Return the table: CPU µs per job of worker and store, and the ratio to a plain job."""
    for store, costs in figures.items():
        yield f"{store:<44}{'worker':>8}{'store':>8}{'both':>8}  beside plain jobs"
        for name, cost in costs.items():
            feature = FEATURES[name]
            if "us" not in cost:
                yield f"  {feature.title:<42}  failed: {cost['failed']}"
                continue
            asked = f"{cost['ratio']:.2f} × (at most {feature.most:g})" if feature.most and "ratio" in cost else ""
            yield f"  {feature.title:<42}{cost['worker_us']:>8.1f}{cost['store_us']:>8.1f}{cost['us']:>8.1f}  {asked}"
