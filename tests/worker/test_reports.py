"""The lease remains the worker's between the end of a job and the store's receipt."""

from __future__ import annotations

import asyncio
import time

from headway import Headway
from headway.core.worker import WorkerState
from headway.stores.base import Exchange, ExchangeReply, Heartbeat, JobQuery
from headway.stores.memory import MemoryStore
from headway.worker.backend.store import StoreBackend
from headway.worker.runner import Runner
from headway.worker.slot_table import SlotTable


class SlowStore(MemoryStore):
    """A store that accepts no report until the gate is opened."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: time.time_ns() // 1_000_000)
        self.gate = asyncio.Event()
        self.asked = asyncio.Event()

    async def exchange(self, request: Exchange) -> ExchangeReply:
        if request.finished:
            self.asked.set()
            await self.gate.wait()
        return await super().exchange(request)


async def test_a_renewal_that_overtakes_a_report_does_not_give_the_job_away() -> None:
    # S1, R2.55: seen when a store was locked just as a job ended.
    app, store, slot_table = Headway("memory://"), SlowStore(), SlotTable.create(3)

    @app.task(name="quick")
    async def quick() -> int:
        return 7

    post = StoreBackend(store, app.in_force)
    runner = Runner(app, post, slot_table, worker_id="w", host="h", slots=3, reserved=0, app_path=None)
    up = asyncio.Event()

    async def ready() -> None:
        up.set()

    await store.submit([quick.call().new])
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(runner.run(ready=ready))
        await store.asked.wait()
        assert (slot_table.held(), len(slot_table.leases())) == ([], 1)
        answer = await store.renew(Heartbeat(runner.worker, 30_000, confirm_ms=0, held=slot_table.leases()))
        assert (list(answer.lost), answer.state) == ([], WorkerState.ACTIVE)
        store.gate.set()
        while slot_table.leases():  # noqa: ASYNC110  (it depends on the runner)
            await asyncio.sleep(0.002)
        await runner.drain(0)
    (job,) = await store.find(JobQuery())
    assert (job.state, job.epoch, job.attempts) == ("completed", 1, 1)
    slot_table.close()
