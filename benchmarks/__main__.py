"""Measure Headway on its stores and its peers, on the same machine and in one run. ``make bench`` runs this."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contenders import OURS, PEERS, STORES, STRONG
from benchmarks.depth import measure_depth, measure_tenths
from benchmarks.drain import measure_drain
from benchmarks.enqueue import measure_enqueue
from benchmarks.features.measure import lines as feature_lines
from benchmarks.features.measure import measure_features
from benchmarks.features.table import FEATURES
from benchmarks.growth import STEPS, measure_growth
from benchmarks.growth import lines as growth_lines
from benchmarks.idle import measure_idle
from benchmarks.limits import measure_limits
from benchmarks.machine import describe, spin_ms
from benchmarks.memory import measure_memory
from benchmarks.naps import measure_naps
from benchmarks.places import Place, PostgresPlace, RedisPlace, SqlitePlace
from benchmarks.policy import lines as policy_lines
from benchmarks.policy import measure_policy
from benchmarks.report import report
from benchmarks.run import Run
from benchmarks.simulate import lines as simulate_lines
from benchmarks.simulate import measure_simulator
from benchmarks.verdicts import verdicts
from benchmarks.workflows.measure import lines as workflow_lines
from benchmarks.workflows.measure import measure_workflows


def measure_the_policy(run: Run) -> None:
    folder = run.folder / "policy"
    folder.mkdir()
    deep, tenants = (100_000, 10_000) if run.quick else (run.deep, 100_000)
    run.others["policy"] = asyncio.run(measure_policy(folder, deep=deep, tenants=tenants))


PARTS: dict[str, Callable[[Run], None]] = {
    "limits": measure_limits,
    "enqueue": measure_enqueue,
    "drain": measure_drain,
    "naps": measure_naps,
    "idle": measure_idle,
    "memory": measure_memory,
    "depth": measure_depth,
    "tenths": measure_tenths,
    "policy": measure_the_policy,
    "simulate": measure_simulator,
    "features": measure_features,
    "workflows": measure_workflows,
    "growth": measure_growth,
}
QUICK = ("limits", "enqueue", "drain", "naps", "idle", "memory", "depth")
BY_NAME = ("growth",)  # Parts that run only if they are asked for.


def main() -> None:
    options = _options()
    if not Path("/proc/self/stat").exists():
        sys.exit("this benchmark reads /proc and runs on Linux only")
    # Servers may run as another user, who must be able to reach their folder.
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        places = {store: _place(store, folder, options, stack) for store in options.stores}
        chosen = [c for c in (*OURS, *PEERS) if c.store in places and (c.ours or _wanted(c.name, options.peers))]
        run = Run(folder, places, chosen, options.quick, options.deep, options.features, options.growth, options.long)
        machine = describe()
        for part in options.only or (QUICK if options.quick else [part for part in PARTS if part not in BY_NAME]):
            PARTS[part](run)
        machine |= {"spin_after_ms": spin_ms(), "stores": [place.version for place in places.values()]}
    found = verdicts(run.rows, run.others)
    figures: dict[str, Any] = {"machine": machine, "contenders": run.rows, **run.others}
    if options.json:
        text = json.dumps(figures | {"verdicts": [verdict.as_row() for verdict in found]}, indent=2)
        if options.json == "-":
            print(text)
            return
        Path(options.json).write_text(text + "\n")
    print(report(figures, found))
    if "features" in figures:
        print("\nWhat features cost, CPU µs a job", *feature_lines(figures["features"]), sep="\n")
    if "workflows" in figures:
        print("\nWhat workflows cost, CPU µs a job", *workflow_lines(figures["workflows"]), sep="\n")
    if "growth" in figures:
        print(
            "\nHow the cost grows, CPU µs a job", *growth_lines(figures["growth"], figures.get("plan_us", {})), sep="\n"
        )
    if "simulate" in figures:
        print("\nReplay", *simulate_lines(figures["simulate"]), sep="\n")
    if "policy" in figures:
        print("\nThe policy", *policy_lines(figures["policy"]), sep="\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--only", type=_names(tuple(PARTS)), help=f"measure these parts: {','.join(PARTS)}")
    parser.add_argument("--stores", type=_names(STORES), default=STORES, help=f"measure on these: {','.join(STORES)}")
    parser.add_argument("--peers", help=f"measure these peers, or all, or none (all; quick: {','.join(STRONG)})")
    parser.add_argument(
        "--features",
        type=_names(tuple(FEATURES)),
        default=tuple(FEATURES),
        help=f"configurations that the part features measures: {','.join(FEATURES)}",
    )
    parser.add_argument(
        "--growth",
        type=_names(tuple(STEPS)),
        default=tuple(STEPS),
        help=f"axes that the part growth measures: {','.join(STEPS)}",
    )
    parser.add_argument("--long", action="store_true", help="measure also the steps of growth that take minutes each")
    parser.add_argument("--quick", action="store_true", help="fewer jobs, one round, no long parts: a few minutes")
    parser.add_argument("--deep", type=int, help="jobs waiting in a deep queue (1000000; quick: 100000)")
    parser.add_argument("--aof", action="store_true", help="have Valkey keep an append-only file, synced each second")
    parser.add_argument("--json", nargs="?", const="-", help="print the figures as JSON, or also write them to a file")
    options = parser.parse_args()
    options.deep = options.deep or (100_000 if options.quick else 1_000_000)
    options.peers = (options.peers or (",".join(STRONG) if options.quick else "all")).split(",")
    for peer in options.peers:
        if peer not in ("all", "none") and not any(_wanted(known.name, [peer]) for known in PEERS):
            parser.error(f"no peer {peer!r}; there are {', '.join(dict.fromkeys(known.name for known in PEERS))}")
    return options


def _names(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def read(text: str) -> tuple[str, ...]:
        for name in (names := tuple(text.split(","))):
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
        return names

    return read


def _wanted(name: str, asked: list[str]) -> bool:
    """Return whether a peer was asked for, by its whole name or by its name without the store or variant."""
    return "all" in asked or name in asked or name.partition(" ")[0] in asked


def _place(store: str, folder: Path, options: argparse.Namespace, stack: contextlib.ExitStack) -> Place:
    place: Place
    if store == "redis":
        place = RedisPlace(folder, aof=options.aof)
    elif store == "postgres":
        place = PostgresPlace(folder)
    else:
        place = SqlitePlace(folder)
    stack.callback(place.stop)
    return place


if __name__ == "__main__":
    main()
