"""The events of a job as an application sees them: what happened, and estimates of its start while it waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import TypeVar

from headway.core.event import Event
from headway.core.job import JobId
from headway.core.policy.estimate import Estimate, materially_differs
from headway.runtime.bounded_wait import end_tasks

T = TypeVar("T")

ESTIMATE_EVERY = 1.0  # Minimum seconds between estimates of a job that waits: each reads what waits before it.
ESTIMATE_PART = 0.1  # A job with a long wait is read less often: after this part of its expected wait.
ESTIMATE_WAIT_MAX = 5.0  # Maximum seconds for that part, because users watch the place of their job move.
WAITING = frozenset({"queued", "released", "retried"})  # The events after which a job waits for its start.


async def with_estimates(
    events: AsyncGenerator[Event], job_id: JobId, estimate: Callable[[], Awaitable[Estimate | None]]
) -> AsyncGenerator[Event]:
    """Yield events of a job, and an ``estimate`` whenever its expected start has changed while it waits.

    Closes ``events`` at the end.
    """
    reading = next_item(events)
    told: Estimate | None = None
    waits, due = False, 0.0
    try:
        while True:
            await asyncio.wait([reading], timeout=max(0.0, due - time.monotonic()) if waits else None)
            if reading.done():
                event = reading.result()
                if event is None:
                    return
                yield event
                waits = event.kind in WAITING
                reading = next_item(events)
                continue
            found = await estimate()
            due = time.monotonic() + estimate_interval(found)
            if found is not None and materially_differs(told, found):
                told = found
                data = {"position": found.position, "p50": found.p50, "p90": found.p90, "basis": found.basis}
                yield Event("estimate", time.time_ns() // 1_000_000, job_id, data)
    finally:
        await end_tasks([reading])
        await events.aclose()


def estimate_interval(found: Estimate | None) -> float:
    """Return the seconds until the next estimate of a waiting job. The interval falls as the start comes nearer."""
    wait = 0.0 if found is None or found.p50 is None else min(ESTIMATE_WAIT_MAX, ESTIMATE_PART * found.p50)
    return max(ESTIMATE_EVERY, wait)


def next_item(items: AsyncIterator[T]) -> asyncio.Task[T | None]:
    """Start to read the next item, beside other tasks. It is None at the end."""

    async def step() -> T | None:
        return await anext(items, None)

    return asyncio.get_running_loop().create_task(step())
