"""Bare Python: the cost of an event loop."""

from __future__ import annotations

import asyncio
import time

from benchmarks.jobs import NAP
from benchmarks.naps import NAPS, SLOTS

ROUNDS = 100_000


async def _nothing() -> None: ...


async def _tasks() -> float:
    began = time.perf_counter()
    for _ in range(0, ROUNDS, 100):
        await asyncio.gather(*(asyncio.create_task(_nothing()) for _ in range(100)))
    return ROUNDS / (time.perf_counter() - began)


async def _switches() -> float:
    began = time.perf_counter()
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    return ROUNDS / (time.perf_counter() - began)


async def _naps() -> float:
    left = iter(range(NAPS))

    async def slot() -> None:
        for _ in left:
            await asyncio.sleep(NAP)

    began = time.perf_counter()
    await asyncio.gather(*(slot() for _ in range(SLOTS)))
    return NAPS / (time.perf_counter() - began)


def bare_python() -> dict[str, float]:
    """Return per second the tasks made and awaited, switches between tasks, and sleeps of tasks, all on uvloop."""
    import uvloop

    return {
        "python, task made and awaited": uvloop.run(_tasks()),
        "python, task switch": uvloop.run(_switches()),
        f"python, naps of {SLOTS} tasks ({SLOTS / NAP:,.0f} at best)": uvloop.run(_naps()),
    }
