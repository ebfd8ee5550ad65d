"""Deletes old jobs, workers and output."""

from __future__ import annotations

import time

from headway.maintenance.clock_jumps import ClockJumpDetector
from headway.observability.job_output import prune_output
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Store

LIMIT = 1_000  # Rows in one call; bounds how long a write transaction lasts.
OUTPUT_EVERY = 60.0  # Seconds between deletions of the output of finished programs.


class Pruner:
    """Prunes one batch at a time, and the next one soon while there is more."""

    def __init__(self, store: Store, in_force: CurrentPolicy, jumps: ClockJumpDetector | None = None) -> None:
        self._store = store
        self._in_force = in_force
        self._output_due = 0.0
        self._jumps = jumps

    async def __call__(self) -> float | None:
        if self._jumps is not None:  # Pruning marks overdue workers as dead.
            await self._jumps.read(self._store)
            if self._jumps.recent:
                return None
        touched = await self._store.prune(self._in_force.policy.keep, limit=LIMIT)
        if touched >= LIMIT:
            return 0.05
        if time.monotonic() >= self._output_due:
            self._output_due = time.monotonic() + OUTPUT_EVERY
            await prune_output(self._store)
        return None
