"""Removes what need not be kept."""

from __future__ import annotations

from headway.engine.inforce import InForce
from headway.stores.base import Store

LIMIT = 1_000


class Pruner:
    """Prunes a bounded batch at a time; soon again while there is more."""

    def __init__(self, store: Store, in_force: InForce) -> None:
        self._store = store
        self._in_force = in_force

    async def __call__(self) -> float | None:
        touched = await self._store.prune(self._in_force.policy.keep, limit=LIMIT)
        return 0.05 if touched >= LIMIT else None
