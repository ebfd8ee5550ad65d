"""Detects that the store's clock has jumped forward, by comparing it with this machine's monotonic clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headway.core.log_event import LogEvent
from headway.stores.base import Store

log = logging.getLogger("headway.worker")

JUMP_SECONDS = 5.0  # Seconds between the two clocks that count as a jump.


class ClockJumpDetector:
    """Protects live workers after a jump, when the deadlines of all workers have passed at once.

    Live workers renew within one ``dead_after``. Until then no worker may be declared dead. The reaper and the pruner
    of a process share one detector.
    """

    def __init__(self, dead_after: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._dead_after = dead_after
        self._monotonic = monotonic
        self._seen: tuple[float, int] | None = None
        self._until = 0.0

    @property
    def age(self) -> float:
        """Return the seconds since the store's clock was last read."""
        return float("inf") if self._seen is None else self._monotonic() - self._seen[0]

    @property
    def recent(self) -> bool:
        """Return whether the clock has jumped less than one ``dead_after`` ago."""
        return self._monotonic() < self._until

    async def read(self, store: Store) -> None:
        """Read the store's clock, and compare how far it and this machine's clock have moved since the last read."""
        asked = self._monotonic()
        now_at = (await store.snapshot()).now_at
        answered = self._monotonic()
        before, self._seen = self._seen, (asked, now_at)
        if before is None:
            return
        # The store may have read its clock at any time during each of the two calls, so a slow reply is not a jump.
        jump = (now_at - before[1]) / 1_000 - (answered - before[0])
        if jump > JUMP_SECONDS:
            log.warning(LogEvent("store.clock_jumped", seconds=round(jump, 1), grace=self._dead_after))
            self._until = answered + self._dead_after
