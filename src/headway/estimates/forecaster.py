"""Forecasts: the state of the store and the learned data, from which any number of estimates are made."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.core.diagnostics import JobDiagnostics, QueueDiagnostics
from headway.core.job import JobId, State
from headway.core.policy.document import Policy
from headway.core.policy.estimate import Estimate, Forecast, Range, estimate_request
from headway.core.workflow import BatchId, SourceStatus, Upstream, is_batch
from headway.estimates.history import HistoryReader
from headway.stores.base import WAITING_COUNTED, Store

SOURCES_MAX = 50  # Sources that the estimate of one held job looks at; each costs a read.
BATCH_LATE = 1.5  # How much longer than at its pace so far a batch takes in nine of ten cases, as a rough bound.


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
        if diagnosis.job.held:
            return await estimate_held(store, forecast, diagnosis)
        return forecast.of(estimate_request(diagnosis, forecast.queue))

    async def _forecast(self, store: Store, queue: QueueDiagnostics, policy: Policy) -> Forecast:
        queue = await _counted(store, queue)
        return Forecast(queue, policy, await self._lookup.known(store, queue.now_at))


async def estimate_held(store: Store, forecast: Forecast, diagnosis: JobDiagnostics) -> Estimate:
    """Return when a job that waits for other jobs will start. Unknown, if one of them has no estimate."""
    return await _HeldEstimate(store, forecast).of(diagnosis)


class _HeldEstimate:
    """Estimates a job that waits for other jobs: it starts once all of them have ended and a slot is free."""

    def __init__(self, store: Store, forecast: Forecast) -> None:
        self._store = store
        self._forecast = forecast
        self._left = SOURCES_MAX
        self._ends: dict[str, Range | None] = {}

    async def of(self, diagnosis: JobDiagnostics) -> Estimate:
        """Return the estimate of a held job. It is unknown if that of one of its sources is."""
        ready = Range(0.0, 0.0)
        for upstream in diagnosis.upstreams:
            if not upstream.satisfied:
                end = await self._end(upstream)
                if end is None:
                    return Estimate()
                ready = Range(max(ready.p50, end.p50), max(ready.p90, end.p90))
        return self._forecast.released(estimate_request(diagnosis, self._forecast.queue), ready)

    async def _end(self, upstream: Upstream) -> Range | None:
        """Return when a source ends, or None if that is unknown."""
        source = upstream.source
        if source not in self._ends:
            self._left -= 1
            self._ends[source] = None  # Also the answer if the graph is too large.
            if self._left >= 0 and upstream.status is SourceStatus.LIVE:
                self._ends[source] = await self._batch_end(source) if is_batch(source) else await self._job_end(source)
        return self._ends[source]

    async def _batch_end(self, source: str) -> Range | None:
        (batch,) = await self._store.get_batches([BatchId(source)])
        ends_in = None if batch is None else batch.ends_in
        return None if ends_in is None else Range(ends_in, ends_in * BATCH_LATE)

    async def _job_end(self, source: str) -> Range | None:
        diagnosis = await self._store.diagnose_job(JobId(source))
        if diagnosis is None:
            return None
        job = diagnosis.job
        if job.state is not State.QUEUED:
            elapsed = (diagnosis.queue.now_at - (job.started_at or 0)) / 1_000
            return self._forecast.run_time(job.task, job.lane, elapsed)
        start = await self.of(diagnosis) if job.held else self._forecast.of(estimate_request(diagnosis))
        length = self._forecast.run_time(job.task, job.lane, 0.0)
        if start.p50 is None or start.p90 is None or length is None:
            return None
        return Range(start.p50 + length.p50, start.p90 + length.p90)


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
