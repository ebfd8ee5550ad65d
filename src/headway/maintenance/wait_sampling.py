"""Samples what classes wait for, so that jobs can say later what they had waited for."""

from __future__ import annotations

import time
from collections.abc import Callable

from headway.core.policy.why import class_reasons
from headway.policy_store.current import InForce
from headway.stores.base import Store

FRESH = 1.5  # Seconds for which the word of a runner counts that it saw nothing wait; an idle one looks more often.


class Witness:
    """Looks at what waits. No leader: of any number of workers one takes each sample.

    ``calm`` tells when a runner beside it last saw that nothing waits, on the monotonic clock: then there is no need.
    """

    def __init__(self, store: Store, in_force: InForce, calm: Callable[[], float]) -> None:
        self._store = store
        self._in_force = in_force
        self._calm = calm

    async def __call__(self) -> float | None:
        if time.monotonic() - self._calm() < FRESH:
            return None
        if any(view.waiting for view in (await self._store.snapshot()).classes):
            reasons = class_reasons(await self._store.survey(), self._in_force.policy)
            if reasons:
                await self._store.witness(reasons)
        return None
