"""Run with ``make bench``: measures Headway on SQLite beside the limits of this machine, in one run."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.limits import bare_sqlite
from benchmarks.machine import Counter, cpu_seconds, pss_mib, worker
from benchmarks.policy import lines as policy_lines
from benchmarks.policy import measure_policy

Figures = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--jobs", type=int, default=40_000, help="jobs in a drain")
    parser.add_argument("--deep", type=int, default=1_000_000, help="jobs waiting in the deep drain; 0 leaves it out")
    parser.add_argument("--latency", type=int, default=1_000, help="submits, 20 ms apart; 0 leaves it out")
    parser.add_argument("--tenants", type=int, default=100_000, help="tenants in the widest case of the policy")
    parser.add_argument("--only", choices=("policy",), help="measure this part alone")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if not shutil.which("true"):
        sys.exit("this benchmark reads /proc and runs on Linux only")
    figures: Figures = {}
    for title, part in (
        ("the limits of this machine (bare apsw)", measure_limits),
        ("one-by-one and bulk enqueue", measure_enqueue),
        ("drain of no-op jobs, one worker", measure_drain),
        ("drain from a deep queue", measure_depth),
        ("start latency of an idle worker", measure_latency),
        ("the policy", measure_the_policy),
    ):
        if options.only and options.only not in title:
            continue
        print(f"measuring {title} …", file=sys.stderr)
        with tempfile.TemporaryDirectory(prefix="headway-bench-") as folder:
            part(figures, Path(folder), options)
    print(json.dumps(figures, indent=2) if options.json else table(figures))


def measure_limits(figures: Figures, folder: Path, options: argparse.Namespace) -> None:
    figures["bare"] = bare_sqlite(folder, jobs=options.jobs)


def measure_enqueue(figures: Figures, folder: Path, options: argparse.Namespace) -> None:
    app = _app(folder)

    async def run() -> None:
        from benchmarks.tasks import noop

        single = 2_000
        began, cpu = time.perf_counter(), time.process_time()
        for number in range(single):
            await noop.aenqueue(number, TEXT)
        figures["enqueue_one_by_one"] = _rate(single, began, cpu)
        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*(noop.aenqueue(number, TEXT) for number in range(single)))
        figures["enqueue_concurrent"] = _rate(single, began, cpu)
        began, cpu = time.perf_counter(), time.process_time()
        await app.aenqueue_many(noop.call(number, TEXT) for number in range(options.jobs))
        figures["enqueue_bulk"] = _rate(options.jobs, began, cpu)
        await app.aclose()

    _run(run)


def measure_drain(figures: Figures, folder: Path, options: argparse.Namespace) -> None:
    for slots in (100, 5):
        figures[f"drain_{slots}_slots"] = _drain(folder / str(slots), options.jobs, slots, options.jobs)


def measure_depth(figures: Figures, folder: Path, options: argparse.Namespace) -> None:
    if not options.deep:
        return
    measured = options.jobs
    # The same number of jobs is drained from a shallow queue, refilled as it goes, and from the front of a deep one.
    figures["drain_shallow"] = _drain(folder / "shallow", 1_000, 100, measured)
    figures["drain_deep"] = _drain(folder / "deep", options.deep, 100, measured)


def measure_latency(figures: Figures, folder: Path, options: argparse.Namespace) -> None:
    if not options.latency:
        return
    app = _app(folder)
    stamps = folder / "stamps"
    environment = _environment(folder) | {"BENCH_STAMPS": str(stamps)}

    async def run() -> None:
        from benchmarks.tasks import stamp

        with worker(environment, "--slots", "5") as process:
            await (await stamp.aenqueue(time.time_ns())).aresult(30)
            stamps.write_text("")
            idle_cpu, idle_began = cpu_seconds(process.pid), time.perf_counter()
            await asyncio.sleep(10)
            idle = (cpu_seconds(process.pid) - idle_cpu) / (time.perf_counter() - idle_began)
            jobs = []
            for _ in range(options.latency):
                jobs.append(await stamp.aenqueue(time.time_ns()))
                await asyncio.sleep(0.02)
            await jobs[-1].aresult(30)
            late = sorted(int(line) / 1e6 for line in stamps.read_text().split())
            figures["latency"] = {
                "submits": len(late),
                "p50_ms": statistics.median(late),
                "p99_ms": late[int(len(late) * 0.99) - 1],
                "max_ms": late[-1],
            }
            figures["idle"] = {"cpu_percent": idle * 100, "pss_mib": pss_mib(process.pid)}
        await app.aclose()

    _run(run)


def measure_the_policy(figures: Figures, folder: Path, options: argparse.Namespace) -> None:
    deep = options.deep or 100_000
    figures["policy"] = asyncio.run(measure_policy(folder, deep=deep, tenants=options.tenants))


TEXT = "x" * 40


def _drain(folder: Path, waiting: int, slots: int, measured: int) -> Figures:
    """Fill a store, start a worker, and time ``measured`` jobs; a queue that would run dry is refilled meanwhile."""
    folder.mkdir()
    app = _app(folder)
    figures: Figures = {}

    async def run() -> None:
        from benchmarks.tasks import noop

        await app.aenqueue_many(noop.call(number, TEXT) for number in range(waiting))
        count = Counter(folder / "bench.db")
        with worker(_environment(folder), "--slots", str(slots)) as process:
            while (done := count.completed()) < min(500, waiting // 4):  # noqa: ASYNC110  (another process counts)
                await asyncio.sleep(0.002)
            first = done
            cpu, began, submitted = cpu_seconds(process.pid), time.perf_counter(), waiting
            target = min(done + measured, waiting) if waiting > 1_000 else done + measured
            while done < target:
                if waiting <= 1_000 and submitted - done < waiting // 2:
                    await app.aenqueue_many(noop.call(number, TEXT) for number in range(waiting // 2))
                    submitted += waiting // 2
                else:
                    await asyncio.sleep(0.005 if waiting <= 1_000 else 0.05)
                done = count.completed()
            seconds = time.perf_counter() - began
            spent = cpu_seconds(process.pid) - cpu
            figures["per_second"] = (done - first) / seconds
            figures["cpu_us_per_job"] = spent / (done - first) * 1e6
        await app.aclose()

    _run(run)
    return figures


def _app(folder: Path) -> Any:
    os.environ["HEADWAY_STORE"] = f"sqlite:///{folder}/bench.db"
    from benchmarks.tasks import app

    app.configure(store=os.environ["HEADWAY_STORE"])
    return app


def _environment(folder: Path) -> dict[str, str]:
    return dict(os.environ) | {"HEADWAY_STORE": f"sqlite:///{folder}/bench.db"}


def _rate(jobs: int, began: float, cpu: float) -> Figures:
    seconds = time.perf_counter() - began
    return {"per_second": jobs / seconds, "cpu_us_per_job": (time.process_time() - cpu) / jobs * 1e6}


def _run(function: Callable[[], Any]) -> None:
    import uvloop

    uvloop.run(function())


def table(figures: Figures) -> str:
    """Lay the figures out with the ratios that matter."""
    if "bare" not in figures:
        return "\n".join(policy_lines(figures["policy"]))
    bare = figures["bare"]
    lines = [
        f"{'bare insert, batches of 100, FULL':<44}{bare['insert']:>12,.0f} /s",
        f"{'bare claim and finish, batches of 100, FULL':<44}{bare['claim_and_finish']:>12,.0f} /s",
    ]
    for name, title, limit in (
        ("enqueue_one_by_one", "enqueue, one by one", None),
        ("enqueue_concurrent", "enqueue, 2,000 callers at once", None),
        ("enqueue_bulk", "bulk enqueue", "insert"),
        ("drain_100_slots", "drain, 100 slots", "claim_and_finish"),
        ("drain_5_slots", "drain, 5 slots", "claim_and_finish"),
        ("drain_shallow", "drain, at most 1,000 waiting", "claim_and_finish"),
        ("drain_deep", "drain, deep queue", "claim_and_finish"),
    ):
        if name in figures:
            row = figures[name]
            ratio = f"   {row['per_second'] / bare[limit]:.0%} of bare" if limit else ""
            lines.append(f"{title:<44}{row['per_second']:>12,.0f} /s {row['cpu_us_per_job']:>8.1f} CPU µs/job{ratio}")
    if "drain_deep" in figures:
        ratio = figures["drain_deep"]["per_second"] / figures["drain_shallow"]["per_second"]
        lines.append(f"{'deep against shallow':<44}{ratio:>12.0%}")
    if "latency" in figures:
        late, idle = figures["latency"], figures["idle"]
        lines.append(
            f"{'start latency, idle worker, p50 / p99 / max':<44}"
            f"{late['p50_ms']:>8.2f} / {late['p99_ms']:.2f} / {late['max_ms']:.2f} ms of {late['submits']}"
        )
        lines.append(f"{'idle worker':<44}{idle['cpu_percent']:>11.2f} % CPU, {idle['pss_mib']:.0f} MiB PSS")
    if "policy" in figures:
        lines += policy_lines(figures["policy"])
    return "\n".join(lines)


if __name__ == "__main__":
    main()
