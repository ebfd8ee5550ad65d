"""Ends the leases of workers that stopped renewing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headway.core.log_event import LogEvent
from headway.maintenance.clock_jumps import ClockJumpDetector
from headway.maintenance.recovery import overdue, reap
from headway.metrics.recorder import MetricsRecorder
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Store

log = logging.getLogger("headway.worker")

CLOCK_EVERY = 60.0  # Seconds between reads of the store's clock while no lease is overdue.


class Reaper:
    """Reaps a bounded batch at a time. No leader is needed, and any number of reapers may run."""

    def __init__(
        self,
        store: Store,
        in_force: CurrentPolicy,
        dead_after: float,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        recorder: MetricsRecorder | None = None,
        jumps: ClockJumpDetector | None = None,
    ) -> None:
        self._store = store
        self._in_force = in_force
        self._jumps = jumps or ClockJumpDetector(dead_after, monotonic)
        self._recorder = recorder
        self._silent: set[str] = set()  # Workers of the last batch, so that one with many jobs counts once.
        self.reaped = 0

    async def __call__(self) -> float | None:
        leases = await overdue(self._store)
        if leases or self._jumps.age > CLOCK_EVERY:
            await self._jumps.read(self._store)
        if not leases or self._jumps.recent:
            return None
        count = await reap(self._store, leases, self._in_force.policy, recorder=self._recorder)
        if count:
            silent = {lease.worker_id for lease in leases}
            if self._recorder is not None:
                self._recorder.beat_failed(len(silent - self._silent))
            self._silent = silent
            self.reaped += count
            log.warning(LogEvent("jobs.returned", jobs=count, workers=len(silent)))
            return 0.01
        return None
