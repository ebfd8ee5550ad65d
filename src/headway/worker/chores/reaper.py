"""Returns jobs whose workers stopped renewing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headway.engine.inforce import InForce
from headway.engine.recovery import overdue, reap
from headway.engine.tallies import Tallies
from headway.stores.base import Store

log = logging.getLogger("headway.worker")

JUMP = 5.0  # Seconds by which the store's clock may part from ours before we distrust it.
CLOCK_EVERY = 60.0  # Seconds between looks at that clock while nothing is overdue.


class Reaper:
    """Reaps a bounded batch at a time. No leader: any number of reapers may run."""

    def __init__(
        self,
        store: Store,
        in_force: InForce,
        dead_after: float,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        tallies: Tallies | None = None,
    ) -> None:
        self._store = store
        self._in_force = in_force
        self._dead_after = dead_after
        self._monotonic = monotonic
        self._tallies = tallies
        self._silent: set[str] = set()  # The workers of the last batch: one with many jobs is counted once.
        self._seen: tuple[float, int] | None = None
        self._not_before = 0.0
        self.reaped = 0

    async def __call__(self) -> float | None:
        leases = await overdue(self._store)
        known = self._seen is not None and self._monotonic() - self._seen[0] < CLOCK_EVERY
        if (leases or not known) and self._jumped((await self._store.snapshot()).now_at):
            log.warning("the store's clock has jumped; nothing is reaped for %.0f s", self._dead_after)
            self._not_before = self._monotonic() + self._dead_after
        if not leases or self._monotonic() < self._not_before:
            return None
        count = await reap(self._store, leases, self._in_force.policy, tallies=self._tallies)
        if count:
            silent = {lease.worker_id for lease in leases}
            if self._tallies is not None:
                self._tallies.beat_failed(len(silent - self._silent))
            self._silent = silent
            self.reaped += count
            log.warning("%d job(s) of workers that are gone were returned", count)
            return 0.01
        return None

    def _jumped(self, now_at: int) -> bool:
        """Compare how far the store's clock and ours have moved: a jump would end every lease at once."""
        mine = self._monotonic()
        before, self._seen = self._seen, (mine, now_at)
        if before is None:
            return False
        return (now_at - before[1]) / 1_000 - (mine - before[0]) > JUMP
