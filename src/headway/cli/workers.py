"""``headway workers`` and ``headway drain``."""

from __future__ import annotations

from typing import Annotated

from headway.cli import render, tables
from headway.cli.help import option
from headway.cli.operator import Operator
from headway.cli.store_access import HERE, JsonFlag, TargetOptions, ask, change
from headway.core.errors import WorkerUnknown
from headway.core.suggest import did_you_mean


def workers(*, json: JsonFlag = False, place: TargetOptions = HERE) -> None:
    """List workers: what they offer, how busy they are, and when their last heartbeat was."""
    stats = ask(place, lambda operator: operator.stats())
    if json:
        render.print_json({"items": [render.worker_values(worker) for worker in stats.workers], "next_cursor": None})
    elif stats.workers:
        render.console().print(tables.workers_table(stats))
    else:
        print("No workers. Start one with `headway worker module:app`.")


def drain(
    worker_id: Annotated[str, option("The worker's id, as `headway workers` shows it.", name="WORKER")],
    /,
    *,
    place: TargetOptions = HERE,
) -> None:
    """Ask a worker to claim no more jobs, finish its running jobs and exit."""

    async def drain_it(operator: Operator) -> None:
        alive = [worker.worker_id for worker in (await operator.stats()).live_workers]
        if worker_id not in alive or not await operator.drain(worker_id):
            known = f" (alive: {', '.join(alive)})" if alive else "; no worker is alive"
            raise WorkerUnknown(f"no live worker {worker_id!r}{did_you_mean(worker_id, alive)}{known}")

    change(place, drain_it)
    print(f"{render.clean(worker_id)}  draining")
