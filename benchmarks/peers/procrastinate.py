"""Procrastinate on PostgreSQL."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks import jobs

PACKAGES = ("procrastinate", "psycopg", "uvloop")
CONFIGURATION = "psycopg async, concurrency 100, LISTEN/NOTIFY, done jobs kept, uvloop"

app = App(connector=PsycopgConnector(conninfo=os.environ["BENCH_STORE"], min_size=1, max_size=20))
noop = app.task(name="noop")(jobs.async_noop)
TASKS: dict[str, Any] = {
    "noop": noop,
    "nap": app.task(name="nap")(jobs.async_nap),
    "stamp": app.task(name="stamp")(jobs.async_stamp),
}
NAMES: dict[str, tuple[str, ...]] = {"noop": ("number", "text"), "nap": (), "stamp": ("sent_ns",)}


def command(test: str) -> list[str]:
    return ["-m", "benchmarks.peers.procrastinate"]


async def setup() -> None:
    await app.open_async()
    await app.schema_manager.apply_schema_async()


async def submit(task: str, *arguments: Any) -> None:
    await TASKS[task].defer_async(**dict(zip(NAMES[task], arguments, strict=True)))


async def submit_many(batch: Sequence[tuple[int, str]]) -> None:
    await noop.batch_defer_async(*({"number": number, "text": text} for number, text in batch))


def work() -> None:
    import uvloop
    from procrastinate.cli import configure_logging

    configure_logging()  # As its command line does.

    async def serve() -> None:
        async with app.open_async():
            await app.run_worker_async(concurrency=100, listen_notify=True)

    uvloop.run(serve())


if __name__ == "__main__":
    work()
