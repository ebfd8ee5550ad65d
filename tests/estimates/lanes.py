"""Lanes with learned run times."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headway.core.distributions import bucket
from headway.core.policy.document import BUILT_IN
from headway.estimates.history import LEARNED, LaneHistory, TaskHistory
from headway.stores.base import Store


async def learn_lanes(
    store: Store, *, seconds: float, lanes: Iterable[str] = BUILT_IN.lanes, task: str = "reports.export"
) -> None:
    """Write a history of 500 jobs of a task, all about this long, into a store."""
    runs = TaskHistory(share=500.0, lengths={bucket(seconds): 500.0})
    for lane in lanes:
        await store.write(LEARNED, lane, msgspec.json.encode(LaneHistory(since_at=1, tasks={task: runs})))
