"""Lowers elastic jobs and halts sessions when waiting jobs need their slots."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence

from headway.core.log_event import LogEvent
from headway.core.policy.document import HALTED
from headway.core.policy.ladder import Preemption, RunningSession
from headway.core.policy.lanes import make_room
from headway.core.policy.sessions import PlacedSession, crowded_out
from headway.policy_store.current import CurrentPolicy
from headway.stores.base import Store

log = logging.getLogger("headway.worker")

EVERY = 0.4  # Seconds between checks while there is a ladder or a session.
IDLE = 5.0  # Seconds between checks otherwise, since a session may start at any time.


class Preemptor:
    """Decides for all workers. No leader is needed, because a repeated preemption changes nothing.

    ``sessions``: whether this process may run sessions. Without them and without a ladder, it checks nothing.
    """

    def __init__(self, store: Store, in_force: CurrentPolicy, *, sessions: bool = True) -> None:
        self._store = store
        self._in_force = in_force
        self._sessions = sessions

    async def __call__(self) -> float | None:
        policy = self._in_force.policy
        if not policy.ladder.rungs and not self._sessions:
            return None
        queue = await self._store.diagnose()
        running_jobs = queue.snapshot.running_jobs
        if running_jobs is None:
            return IDLE
        if not running_jobs.elastic and not running_jobs.sessions:
            return None if policy.ladder.rungs else IDLE
        offers = frozenset(offer for worker in queue.workers for offer in worker.offers)
        chance = random.random()
        wanted = make_room(queue.snapshot, offers=offers, policy=policy, chance=chance)
        if running_jobs.sessions and all(rung is not None for _, rung in wanted):
            halted = crowded_out(queue, policy, await self._place(running_jobs.sessions), chance=chance)
            wanted = wanted if halted is None else (*wanted, Preemption(halted, None))
        if wanted:
            changed = await self._store.preempt(wanted)
            for (job_id, rung), done in zip(wanted, changed, strict=True):
                if done:
                    log.info(LogEvent("job.amended", job=job_id, duration=rung or HALTED))
        return None

    async def _place(self, sessions: Sequence[RunningSession]) -> list[PlacedSession]:
        """Read where sessions run. They are few, since each holds a slot."""
        jobs = await self._store.get([session.job_id for session in sessions])
        return [
            PlacedSession(job.job_id, job.worker_id or "", job.lane, session.started_at, session.stopping)
            for session, job in zip(sessions, jobs, strict=True)
            if job is not None
        ]
