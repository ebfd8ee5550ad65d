"""arq on Redis."""

from __future__ import annotations

import os
import sys
from typing import Any

from arq import create_pool, func
from arq.connections import ArqRedis, RedisSettings

from benchmarks import jobs

PACKAGES = ("arq", "redis", "uvloop")
CONFIGURATION = "max_jobs 100, poll_delay 10 ms, results off, uvloop"

settings = RedisSettings.from_dsn(os.environ["BENCH_STORE"])
pool: ArqRedis


async def noop(_: dict[str, Any], number: int, text: str) -> int:
    return await jobs.async_noop(number, text)


async def nap(_: dict[str, Any]) -> None:
    await jobs.async_nap()


async def stamp(_: dict[str, Any], sent_ns: int) -> None:
    jobs.stamp(sent_ns)


def command(test: str) -> list[str]:
    return ["-m", "benchmarks.peers.arq"]


async def setup() -> None:
    global pool
    pool = await create_pool(settings)


async def submit(task: str, *arguments: Any) -> None:
    await pool.enqueue_job(task, *arguments)


def work() -> None:
    import asyncio
    import logging.config

    import uvloop
    from arq.logs import default_log_config
    from arq.worker import Worker

    logging.config.dictConfig(default_log_config(verbose=False))  # As its command line does.

    asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
    asyncio.set_event_loop(asyncio.new_event_loop())
    functions = [func(function, keep_result=0) for function in (noop, nap, stamp)]
    worker = Worker(functions, redis_settings=settings, max_jobs=100, poll_delay=0.01, keep_result=0)
    worker.run()


if __name__ == "__main__":
    sys.exit(work())
