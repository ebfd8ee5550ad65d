"""Samples why classes wait, for the wait reasons in a job's history."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.core.policy.why import class_reasons
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Store

FRESH = 1.5  # Seconds for which a runner's view of an empty queue is valid; an idle runner reads the queue more often.


async def sample_waits(store: Store, in_force: CurrentPolicy, idle_since: Callable[[], float]) -> None:
    """Record why classes wait. No leader is needed, because the store accepts one sample of each moment.

    ``idle_since`` returns when a runner of this process last saw an empty queue, on the monotonic clock. An empty queue
    needs no sample.
    """
    if time.monotonic() - idle_since() < FRESH:
        return
    if any(view.waiting for view in (await store.snapshot()).classes):
        reasons = class_reasons(await store.diagnose(), in_force.policy)
        if reasons:
            await store.record_wait_reasons(reasons)
