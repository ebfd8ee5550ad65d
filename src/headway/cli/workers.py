"""``headway workers`` and ``headway drain``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headway.cli import render, tables
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, operating, reading, run
from headway.core.errors import WorkerUnknown
from headway.core.suggest import did_you_mean
from headway.core.worker import WorkerState
from headway.stores.base import Stats


def workers(*, json: JsonFlag = False, place: TargetOptions = HERE) -> int:
    """List workers: what they offer, how busy they are, when they were last heard of."""

    async def read() -> Stats:
        async with reading(place) as operator:
            return await operator.stats()

    stats = run(read())
    if json:
        render.print_json({"items": [render.worker_values(worker) for worker in stats.workers], "next_cursor": None})
    elif stats.workers:
        render.console().print(tables.workers_table(stats))
    else:
        print("No workers. Start one with `headway worker module:app`.")
    return 0


def drain(
    worker_id: Annotated[str, Parameter(name="WORKER", help="The worker's id, as `headway workers` shows it.")],
    /,
    *,
    place: TargetOptions = HERE,
) -> int:
    """Ask a worker to take nothing more, finish what it has, and leave."""

    async def ask() -> None:
        async with operating(place) as operator:
            alive = [w.worker_id for w in (await operator.stats()).workers if w.state is not WorkerState.DEAD]
            if worker_id not in alive or not await operator.drain(worker_id):
                known = f" (alive: {', '.join(alive)})" if alive else "; no worker is alive"
                raise WorkerUnknown(f"no live worker {worker_id!r}{did_you_mean(worker_id, alive)}{known}")

    run(ask())
    print(f"{render.clean(worker_id)}  draining")
    return 0
