"""When nothing more can start: every worker of a store in memory is full, or waits to be woken."""

from __future__ import annotations

import asyncio

from headway import Headway
from headway.stores.memory import MemoryStore


async def at_rest(app: Headway) -> None:
    """Wait until each worker knows that no job is left for it, or has no free slot."""
    store = await app.client.store()
    assert isinstance(store, MemoryStore)
    async with asyncio.timeout(30):
        while not await _rests(store):  # noqa: ASYNC110 - it depends on other tasks
            await asyncio.sleep(0.002)


async def _rests(store: MemoryStore) -> bool:
    workers, waiting = (await store.stats()).workers, store.state.waiting
    return all(worker.worker_id in waiting or worker.running >= worker.slots for worker in workers)
