"""How many jobs wait, for policies that allow no more than so many."""

from __future__ import annotations

import math
import time

from headway.core.errors import QueueFull
from headway.stores.base import Store

LOOK_EVERY = 1.0  # Seconds between counts; in between only what this process submits is added.


class Depth:
    """Knows how many jobs wait, to within what other processes submit in a second.

    It may let through a little more than the policy says, never less: a count that held everybody up would cost each
    submit more than a queue that is a second's worth too long.
    """

    def __init__(self) -> None:
        self._waiting = 0
        self._looked = -math.inf

    async def admit(self, store: Store, jobs: int, most: int) -> None:
        """Count these jobs in, if the policy lets them. Raises ``QueueFull``."""
        if time.monotonic() - self._looked > LOOK_EVERY:
            await self._look(store)
        if self._waiting + jobs > most:
            raise QueueFull(
                f"{self._waiting:,} jobs wait, and the policy allows {most:,} (max_depth); try again later",
                waiting=self._waiting,
                most=most,
            )
        self._waiting += jobs

    async def _look(self, store: Store) -> None:
        asked = time.monotonic()
        stats = await store.stats()
        self._waiting = sum(lane.waiting for lane in stats.lanes.values())
        self._looked = asked
