"""The requests of a worker to its store while no job waits."""

from __future__ import annotations

import asyncio
import functools
import inspect
import time
from collections import Counter
from typing import Any

import pytest

from headway import Headway, Worker
from headway.stores.memory import MemoryStore

SECONDS = 4.0
VERBS_A_SECOND = 3


class CountingStore(MemoryStore):
    """A store that counts the calls of its verbs."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: time.time_ns() // 1_000_000)
        self.asked: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or not inspect.iscoroutinefunction(value):
            return value

        @functools.wraps(value)
        async def counted(*args: Any, **kwargs: Any) -> Any:
            self.asked[name] += 1
            return await value(*args, **kwargs)

        return counted


async def test_an_idle_worker_asks_little_of_its_store(monkeypatch: pytest.MonkeyPatch) -> None:
    store = CountingStore()
    monkeypatch.setattr("headway.client.app.open_store", lambda *_, **__: store)
    app = Headway("memory://")

    @app.task
    async def nothing() -> None: ...

    async with Worker(app):
        await asyncio.sleep(1.5)  # Until all that begins with it has been done once.
        store.asked.clear()
        await asyncio.sleep(SECONDS)
        asked = dict(store.asked)
    assert sum(asked.values()) <= VERBS_A_SECOND * SECONDS + 1, asked
    assert asked["exchange"] >= SECONDS - 1.5, asked  # A wake-up that was missed is noticed within about a second.
    assert "snapshot" not in asked, asked  # Nothing waits, so no process need look what for.
