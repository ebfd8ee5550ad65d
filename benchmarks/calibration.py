"""How estimates turn out, end to end: a real server and worker, mixed work in bursts, each job watched by WebSocket.

    python -m benchmarks.calibration                  # on a Valkey of its own, six minutes
    python -m benchmarks.calibration --warm 60 --seconds 120
    python -m benchmarks.calibration --trace jobs.csv # also records the run, for headway simulate

What a stream tells first is compared with when the job began. A job that is told to begin now, and does, counts not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from websockets.asyncio.client import connect

from benchmarks.service import Serving, request, valkey
from headway.estimates.accuracy import is_scored
from tests.servers import free_port

SLOTS = 8
LOAD = 0.8  # Of all slots, on average.
TASKS = """
import asyncio, random
from headway import Headway

app = Headway()


@app.task(name="quick", priority="high")
async def quick() -> None:
    await asyncio.sleep(random.uniform(0.05, 0.4))


@app.task(name="usual", fair_by="tenant")
async def usual(tenant: str) -> None:
    await asyncio.sleep(random.lognormvariate(0.0, 0.6))


@app.task(name="long", priority="low")
async def long() -> None:
    await asyncio.sleep(random.uniform(2.0, 6.0))
"""
# By name: how large a part of the work it is, how long it takes on average, and how many come at once.
MIX = {"quick": (0.15, 0.225, 6), "usual": (0.55, 1.2, 25), "long": (0.30, 4.0, 5)}


class Scored(NamedTuple):
    """What was said of a job, and what came of it, in seconds."""

    task: str
    p50: float
    p90: float
    waited: float


async def watch(port: int, job_id: str, task: str, scores: list[Scored], unknown: list[str]) -> None:
    """Ask when a job will start, and see when it does."""
    told: tuple[float, float, float] | None = None
    async with connect(f"ws://127.0.0.1:{port}/api/v1/tasks/{job_id}/stream", max_queue=4) as socket:
        async for message in socket:
            said = json.loads(message)
            if said["type"] == "queue" and told is None:
                estimate = said["estimate"]
                if estimate["p50"] is None:
                    unknown.append(task)
                    return
                told = (estimate["p50"], estimate["p90"], time.monotonic())
            elif said["type"] == "started":
                if told is not None:
                    waited = time.monotonic() - told[2]
                    if is_scored(told[1], waited):
                        scores.append(Scored(task, told[0], told[1], waited))
                return
            elif said["type"] == "result":
                return


async def submit(server: Serving, task: str, count: int, chance: random.Random) -> list[str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    tenant = f"t{chance.randrange(6)}"
    body = {"task_type": task, "parameters": {"tenant": tenant} if task == "usual" else {}}
    _, answer = await request(reader, writer, "POST", "/api/v1/tasks/bulk", json.dumps([body] * count).encode())
    writer.close()
    return [kept["task_id"] for kept in json.loads(answer)["tasks"]]


async def come(server: Serving, task: str, ends: float, chance: random.Random, watched: list[asyncio.Task[None]],
               scores: list[Scored], unknown: list[str], counts: float) -> None:  # fmt: skip
    """Let bursts of a task come at random, a few of each watched."""
    part, seconds, burst = MIX[task]
    between = burst * seconds / (part * LOAD * SLOTS)
    while time.monotonic() < ends:
        await asyncio.sleep(chance.expovariate(1 / between))
        count = 1 + int(chance.expovariate(1 / burst))
        ids = await submit(server, task, count, chance)
        if time.monotonic() > counts:
            some = chance.sample(ids, min(4, len(ids)))
            watched += [asyncio.create_task(watch(server.port, job_id, task, scores, unknown)) for job_id in some]


async def record(store: str, file: Path) -> None:
    """Wait until all jobs have ended, and write them to a trace."""
    headway = [sys.executable, "-m", "headway"]
    while True:
        run = await asyncio.create_subprocess_exec(
            *headway, "stats", "--json", "--store", store, stdout=asyncio.subprocess.PIPE
        )
        lanes = json.loads((await run.communicate())[0])["lanes"].values()
        if not any(lane["waiting"] or lane["executing"] for lane in lanes):
            break
        await asyncio.sleep(1)
    run = await asyncio.create_subprocess_exec(*headway, "trace", "record", str(file), "--force", "--store", store)
    if await run.wait():
        raise SystemExit("the trace could not be recorded")


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--warm", type=float, default=120.0, help="seconds before anything counts")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--trace", type=Path, help="record all jobs of the run in this file")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    scores: list[Scored] = []
    unknown: list[str] = []
    with tempfile.TemporaryDirectory() as folder, valkey() as store:
        place = Path(folder)
        (place / "mixed.py").write_text(TASKS)
        where = ["--store", store.url, "--log-level", "warning"]
        port = free_port()  # A fixed one may be that of another run, whose store would then get the jobs.
        ours = Serving(["headway", "serve", "--port", str(port), *where], place, port)
        worker = Serving(["headway", "worker", "mixed:app", "--slots", str(SLOTS), *where], place, port)
        try:
            await ours.ready()
            began = time.monotonic()
            watched: list[asyncio.Task[None]] = []
            ends = began + asked.warm + asked.seconds
            await asyncio.gather(
                *(come(ours, task, ends, chance, watched, scores, unknown, began + asked.warm) for task in MIX)
            )
            if watched:
                await asyncio.wait(watched, timeout=120)
            if asked.trace is not None:
                await record(store.url, asked.trace.absolute())
        finally:
            worker.stop()
            ours.stop()
    print(f"{len(scores)} jobs scored over {asked.seconds:g} s; {len(unknown)} told unknown")
    for name in (None, *MIX):
        of = [score for score in scores if name in (None, score.task)]
        if of:
            print("  " + tell(name or "all", of))


def tell(name: str, scores: list[Scored]) -> str:
    within = [sum(score.waited <= bound for score, bound in pairs) / len(scores) for pairs in (
        [(score, score.p50) for score in scores], [(score, score.p90) for score in scores])]  # fmt: skip
    long = [abs(score.p50 - score.waited) / score.waited for score in scores if score.waited > 5]
    error = f"{statistics.median(long):.2f} over {len(long)}" if long else "none over 5 s"
    return f"{name:<6} {len(scores):>4} scored, within p50 {within[0]:.0%}, within p90 {within[1]:.0%}, p50 off {error}"


if __name__ == "__main__":
    asyncio.run(main())
