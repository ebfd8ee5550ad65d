"""Forecasts: the state of the store and the learned data, from which any number of estimates are made."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.core.diagnostics import JobDiagnostics, QueueDiagnostics
from headway.core.job import State
from headway.core.policy.document import Policy
from headway.core.policy.estimate import Estimate, Forecast, estimate_request
from headway.estimates.history import HistoryReader
from headway.stores.base import WAITING_COUNTED, Store


class Forecaster:
    """Makes forecasts for one process. It reads the learned data at intervals, not for each forecast."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._lookup = HistoryReader(monotonic)

    async def build(self, store: Store, policy: Policy) -> Forecast:
        """Return a forecast for the whole queue."""
        return await self._forecast(store, await store.diagnose(), policy)

    async def estimate(self, store: Store, diagnosis: JobDiagnostics, policy: Policy) -> Estimate | None:
        """Return when a job will start, or None once it has started or ended."""
        if diagnosis.job.state is not State.QUEUED:
            return None
        forecast = await self._forecast(store, diagnosis.queue, policy)
        return forecast.of(estimate_request(diagnosis, forecast.queue))

    async def _forecast(self, store: Store, queue: QueueDiagnostics, policy: Policy) -> Forecast:
        queue = await _counted(store, queue)
        return Forecast(queue, policy, await self._lookup.known(store, queue.now_at))


async def _counted(store: Store, queue: QueueDiagnostics) -> QueueDiagnostics:
    """Return the diagnostics with lane totals spread over the classes that are longer than a snapshot counts."""
    long = [view for view in queue.snapshot.classes if view.waiting >= WAITING_COUNTED]
    if not long:
        return queue
    lanes = (await store.stats()).lanes
    more: dict[str, int] = {}
    for lane in {view.key.lane for view in long}:
        seen = sum(view.waiting for view in queue.snapshot.classes if view.key.lane == lane)
        beyond = max(0, lanes[lane].waiting - seen) if lane in lanes else 0
        more[lane] = beyond // sum(view.key.lane == lane for view in long)
    classes = tuple(
        view._replace(waiting=view.waiting + more[view.key.lane]) if view.waiting >= WAITING_COUNTED else view
        for view in queue.snapshot.classes
    )
    return queue._replace(snapshot=queue.snapshot._replace(classes=classes))
