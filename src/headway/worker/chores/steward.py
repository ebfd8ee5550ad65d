"""Makes room on the ladder: lowers elastic jobs and halts sessions where what waits needs their room."""

from __future__ import annotations

import logging
import random

from headway.core.policy.lanes import plan
from headway.engine.inforce import InForce
from headway.stores.base import Store

log = logging.getLogger("headway.worker")

EVERY = 0.4  # Seconds between looks, on a ladder or while there are sessions,
IDLE = 5.0  # and otherwise: sessions may begin without a ladder too.


class Steward:
    """Decides for all workers, whether any has a slot free or none. No leader: to amend twice changes nothing."""

    def __init__(self, store: Store, in_force: InForce) -> None:
        self._store = store
        self._in_force = in_force

    async def __call__(self) -> float | None:
        policy = self._in_force.policy
        survey = await self._store.survey()
        floor = survey.snapshot.floor
        if floor is None:
            return IDLE
        if not floor.elastic and not floor.sessions:
            return None if policy.ladder.rungs else IDLE
        offers = frozenset(offer for worker in survey.workers for offer in worker.offers)
        chance = random.random()
        wanted = plan(survey.snapshot, free=0, free_below=0, offers=offers, policy=policy, chance=chance).amendments
        if wanted:
            changed = await self._store.amend(wanted)
            for (job_id, rung), done in zip(wanted, changed, strict=True):
                if done:
                    log.info("job.amended", extra={"headway": {"job": job_id, "duration": rung or "halted"}})
        return None
