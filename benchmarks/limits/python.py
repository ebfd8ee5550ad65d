"""Bare Python: what an event loop costs."""

from __future__ import annotations

import asyncio
import time

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


def bare_python() -> dict[str, float]:
    """Give tasks made and awaited a second, and switches between tasks, on uvloop."""
    import uvloop

    return {"python, task made and awaited": uvloop.run(_tasks()), "python, task switch": uvloop.run(_switches())}
