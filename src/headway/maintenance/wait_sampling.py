"""Samples why classes wait, for the wait reasons in a job's history."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.core.policy.why import class_reasons
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Store

FRESH = 1.5  # Seconds for which a runner's view of an empty queue is valid; an idle runner reads the queue more often.


class WaitSampler:
    """Records why classes wait. No leader is needed, because the store accepts one sample of each moment.

    ``idle_since`` returns when a runner of this process last saw an empty queue, on the monotonic clock. An empty queue
    needs no sample.
    """

    def __init__(self, store: Store, in_force: CurrentPolicy, idle_since: Callable[[], float]) -> None:
        self._store = store
        self._in_force = in_force
        self._idle_since = idle_since

    async def __call__(self) -> float | None:
        if time.monotonic() - self._idle_since() < FRESH:
            return None
        if any(view.waiting for view in (await self._store.snapshot()).classes):
            reasons = class_reasons(await self._store.diagnose(), self._in_force.policy)
            if reasons:
                await self._store.record_wait_reasons(reasons)
        return None
