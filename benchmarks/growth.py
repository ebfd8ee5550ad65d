"""Growth of the CPU per job with queue depth, tenants, workers and kept jobs.

A queue is held at a depth while a worker runs no-op jobs: the benchmark submits as many as are done, so the store's
part includes submits. For worker processes the queue is filled before they start.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.contenders import Contender
from benchmarks.depth import fill, held
from benchmarks.drain import timed
from benchmarks.features.table import DEEP, feature_of
from benchmarks.policy import plan_cost
from benchmarks.run import Figures, Run
from benchmarks.service import Serving, follow, request
from benchmarks.stand import Stand
from tests.servers import free_port

WAITING = 10_000
CHUNK = 1_000_000  # Rows of history that one statement adds.
# The steps of an axis, and those that take minutes each.
STEPS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "waiting": ((1_000, 10_000, 100_000), (1_000_000,)),
    "tenants": ((1, 100, 10_000, 100_000), ()),
    "keys": ((1, 100, 10_000, 100_000), ()),
    "classes": ((1, 10, 50, 200), ()),
    "processes": ((1, 5, 20), (50,)),
    "history": ((0, 100_000, 1_000_000), (10_000_000,)),
    "streams": ((0, 500, 2_000), ()),
}
# Completed jobs with the values of one that a worker has run.
HISTORY = """
WITH made AS (
  INSERT INTO headway.job (seq, namespace_id, class_id, submitted_at, timeout_ms, max_retries, job_id, task, payload)
  SELECT nextval('headway.sequence'), namespace_id, class_id, submitted_at, timeout_ms, max_retries,
         gen_random_uuid()::text, task, payload
    FROM (SELECT * FROM headway.job LIMIT 1) AS job, generate_series(1, {count}) RETURNING seq)
INSERT INTO headway.outcome
  (seq, finished_at, started_at, eligible_at, epoch, attempts, crashes, state, worker_id, token)
SELECT made.seq, finished_at, started_at, eligible_at, epoch, attempts, crashes, state, worker_id, token
  FROM made, (SELECT * FROM headway.outcome LIMIT 1) AS outcome
"""


def measure_growth(run: Run) -> None:
    found = run.others.setdefault("growth", {store: {} for store in run.places})
    for axis in run.axes:
        steps, long_steps = STEPS[axis]
        for store in run.places:
            if axis == "history" and store != "postgres":
                continue
            costs = found[store].setdefault(axis, {})
            for step in (*steps, *(long_steps if run.long else ())):
                for _ in range(1 if run.quick else 2):
                    try:
                        cost = _cost(run, store, axis, step)
                    except Exception as problem:
                        run.say(f"growth, {axis} {step:,} on {store} failed: {problem}")
                        continue
                    spent = f"worker {cost['worker_us']:.1f} µs, store {cost['store_us']:.1f} µs a job"
                    run.say(f"growth, {axis} {step:,} on {store}: {spent}")
                    costs[step] = min(costs.get(step, cost), cost, key=lambda cost: cost["us"])
    if "classes" in run.axes:
        run.others["plan_us"] = {classes: plan_cost(classes) for classes in (1, 10, 50, 200)}


def _cost(run: Run, store: str, axis: str, step: int) -> Figures:
    contender = Contender("growth", "benchmarks.features.app", store, 0, variant=f"{axis}={step}")
    waiting = {"waiting": step, "tenants": DEEP, "keys": DEEP}.get(axis, WAITING)
    needs = [need for task in feature_of(contender.variant).tasks for need in task.get("needs", ())]
    environment = {"HEADWAY_LOG_LEVEL": "warning", "HEADWAY_CAPABILITIES": ",".join(needs)}
    with run.stand(contender) as stand, contextlib.ExitStack() as stack:
        if axis == "processes":
            found = _by_processes(run, stand, step, environment)
        else:
            server = None
            if axis == "history":
                _add_history(stand, step)
            elif axis == "streams":
                server = stack.enter_context(_open_streams(run.folder, stand, step))
            fill(run, stand, waiting)
            stand.start_worker("drain", **environment)
            stand.need(stand.all_at_work, "the worker runs jobs", 60)
            before = server.cpu() if server else 0.0
            found = held(stand, waiting + stand.done(), seconds=2 if run.quick else 5)
            if server:
                found["server_us"] = (server.cpu() - before) / found["jobs"] * 1e6
    return found | {"us": found["worker_us"] + found["store_us"]}


def _by_processes(run: Run, stand: Stand, workers: int, environment: dict[str, str]) -> Figures:
    """Start all workers before the first job may run. Otherwise the first worker ends before the last has started."""
    jobs = 50_000 if run.quick else 100_000
    stand.ask("call", name="pause")
    fill(run, stand, jobs)
    for _ in range(workers):
        stand.start_worker("drain", **environment, HEADWAY_SLOTS="20")
    stand.ask("call", name="release", workers=workers, patience=180)
    stand.need(stand.all_at_work, "the workers run jobs", 60)
    return timed(stand, upto=jobs, seconds=60)


def _add_history(stand: Stand, rows: int) -> None:
    import psycopg

    stand.ask("fill", count=1)
    stand.start_worker("drain")
    stand.need(lambda: stand.done() == 1, "the worker runs a job")
    stand.stop_workers()
    with psycopg.connect(stand.url, autocommit=True) as connection:
        for start in range(0, rows, CHUNK):
            connection.execute(HISTORY.format(count=min(CHUNK, rows - start)).encode())
        connection.execute("VACUUM ANALYZE")


@contextlib.contextmanager
def _open_streams(folder: Path, stand: Stand, count: int) -> Iterator[Serving]:
    """Start a server, and follow this many jobs that no worker can run."""
    port = free_port()
    words = ["headway", "serve", "--port", str(port), "--store", stand.url, "--log-level", "warning"]
    server = Serving(words, folder, port)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(server.ready(), loop).result(30)
        streams = asyncio.run_coroutine_threadsafe(_follow(port, count), loop).result(60)
        yield server
        for stream in streams:
            loop.call_soon_threadsafe(stream.cancel)
    finally:
        server.stop()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _follow(port: int, count: int) -> list[asyncio.Task[bool]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps([{"task_type": "bench.nobody", "required_capabilities": ["nobody"]}] * 500).encode()
    streams: list[asyncio.Task[bool]] = []
    while len(streams) < count:
        _, answer = await request(reader, writer, "POST", "/api/v1/tasks/bulk", body)
        ids = [task["task_id"] for task in json.loads(answer)["tasks"]]
        streams += [asyncio.create_task(follow(port, task, socket=number % 2 == 0)) for number, task in enumerate(ids)]
    writer.close()
    await asyncio.sleep(5)  # The measurement excludes the cost of opening the streams.
    return streams


def lines(figures: dict[str, dict[str, dict[int, Figures]]], plan_us: dict[int, float]) -> Iterator[str]:
    """Return the table: CPU µs per job at each step, and the ratio to the first step."""
    for store, axes in figures.items():
        yield f"{store:<30}{'worker':>8}{'store':>8}{'both':>8}"
        for axis, costs in axes.items():
            first: dict[str, Any] | None = None
            for step, cost in costs.items():
                first = first or cost
                server = f"  server {cost['server_us']:.1f}" if "server_us" in cost else ""
                yield (
                    f"  {f'{step:,} {axis}':<28}{cost['worker_us']:>8.1f}{cost['store_us']:>8.1f}{cost['us']:>8.1f}"
                    f"  {cost['us'] / first['us']:.2f} ×{server}"
                )
    yield from (f"plan, {f'{classes} classes':<24}{cost:>8.1f} µs" for classes, cost in plan_us.items())
