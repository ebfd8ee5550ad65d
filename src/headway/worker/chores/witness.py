"""Samples what classes wait for, so that jobs can say later what they had waited for."""

from __future__ import annotations

from headway.core.policy.why import class_reasons
from headway.engine.inforce import InForce
from headway.stores.base import Store


class Witness:
    """Looks at what waits. No leader: of any number of workers one takes each sample."""

    def __init__(self, store: Store, in_force: InForce) -> None:
        self._store = store
        self._in_force = in_force

    async def __call__(self) -> float | None:
        if any(view.waiting for view in (await self._store.snapshot()).classes):
            reasons = class_reasons(await self._store.survey(), self._in_force.policy)
            if reasons:
                await self._store.witness(reasons)
        return None
