"""The chores that only a server with HTTP workers has: timeouts, ended tokens, old registrations."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from headway.core.errors import JobError
from headway.core.lease import Lease
from headway.core.log_event import LogEvent
from headway.core.policy.retry import TimedOut
from headway.core.worker import WorkerState
from headway.estimates.history import PUBLISH_EVERY
from headway.maintenance.loop import Chore
from headway.maintenance.recovery import end_leases
from headway.metrics.recorder import MetricsRecorder
from headway.policy_store.current import CurrentPolicy
from headway.security.tokens import Tokens
from headway.server.gateway.registry import Registration, WorkerRegistry
from headway.server.gateway.service import WorkerGateway
from headway.stores.base import Store

log = logging.getLogger("headway.server")

TIMEOUTS_EVERY = 2.5  # Seconds; a job may run on for this long after its timeout and the worker's grace.
REVOCATION_EVERY = 1.0  # Seconds; tokens are read as often.
REGISTRATIONS_EVERY = 30.0  # Seconds; half of the time for which a dead worker's registration is kept.
DURATIONS_EVERY = 5.0  # Seconds between exchanges of learned durations with other processes.
FORGET_MS = 60_000  # How long a dead worker's registration is kept, so that the worker can repeat its last report.


def gateway_chores(gateway: WorkerGateway, tokens: Tokens) -> list[Chore]:
    """Build the chores for the workers that are registered over HTTP."""
    store, registry = gateway.store, gateway.registry
    timeouts = TimeoutEnforcer(store, gateway.in_force, registry, recorder=gateway.recorder)
    return [
        Chore("timeouts", TIMEOUTS_EVERY, timeouts),
        Chore("revocation", REVOCATION_EVERY, RevocationEnforcer(gateway, tokens)),
        Chore("registrations", REGISTRATIONS_EVERY, partial(prune_registrations, store, registry)),
        Chore("durations", DURATIONS_EVERY, gateway.learn),
        Chore("first_durations", PUBLISH_EVERY, gateway.learn_first, wake=gateway.durations.due),
    ]


class TimeoutEnforcer:
    """Ends jobs that ran past their timeout. Later reports of their worker do not count.

    There is no leader. Any number of servers may run this, and each job is ended once.
    """

    def __init__(
        self,
        store: Store,
        in_force: CurrentPolicy,
        registry: WorkerRegistry,
        *,
        recorder: MetricsRecorder | None = None,
    ) -> None:
        self._store = store
        self._in_force = in_force
        self._registry = registry
        self._recorder = recorder
        self.ended = 0

    async def __call__(self) -> float | None:
        registrations = {one.worker_id: one for one in await self._registry.all()}
        if not registrations:
            return None
        queue = await self._store.diagnose()
        now_at = queue.now_at
        since: dict[str, int] = {}  # By worker: when the oldest of its jobs began.
        for job in queue.executing:
            since[job.worker_id] = min(since.get(job.worker_id, now_at), job.started_at)
        for worker_id, started_at in since.items():
            registration = registrations.get(worker_id)
            if registration is None or started_at + registration.grace_ms > now_at:
                continue  # It is no HTTP worker, or its jobs started too recently for any timeout.
            leases = await self._store.leases(worker_id=worker_id, limit=registration.slots, payloads=False)
            over = [one for one in leases if one.started_at + one.limit_ms + registration.grace_ms <= now_at]
            if over:
                await self._end(registration, over, now_at)
        await self._registry.forget_stops(now_at)
        return None

    async def _end(self, registration: Registration, leases: Sequence[Lease], now_at: int) -> None:
        # Record this first. After a crash in between, the jobs are still the worker's own, and polls leave those out.
        await self._registry.stop(registration.worker_id, [lease.job_id for lease in leases], now_at)
        policy = self._in_force.policy
        count = await end_leases(self._store, leases, policy, _timed_out, expired_only=False, recorder=self._recorder)
        self.ended += count
        for lease in leases:
            facts = {"job": lease.job_id, "task": lease.task, "worker": lease.worker_id, "lane": lease.lane}
            log.warning(LogEvent("job.timed_out", **facts))


async def prune_registrations(store: Store, registry: WorkerRegistry) -> None:
    """Remove registrations of workers that the store no longer knows, or that have been dead for a while."""
    registrations = await registry.all()
    if not registrations:
        return
    queue = await store.diagnose()
    kept = {
        worker.worker_id
        for worker in queue.workers
        if worker.state is not WorkerState.DEAD or worker.running or worker.lease_ends_at + FORGET_MS > queue.now_at
    }
    for registration in registrations:
        # A worker that registers now has a registration before the store knows the worker.
        settled = registration.registered_at + FORGET_MS <= queue.now_at
        if settled and registration.worker_id not in kept:
            await registry.forget(registration.worker_id)


def _timed_out(lease: Lease) -> TimedOut:
    seconds = lease.limit_ms / 1_000
    return TimedOut(JobError("TimeoutError", f"time limit ({seconds:g} s); its worker did not report in time"))


class RevocationEnforcer:
    """Ends workers whose token was revoked or has expired, so that they hold no jobs and count as no capacity.

    There is no leader. Any number of servers may run this, and each worker is ended once.
    """

    def __init__(self, gateway: WorkerGateway, tokens: Tokens) -> None:
        self._gateway = gateway
        self._tokens = tokens
        self._ended: set[str] = set()

    async def __call__(self) -> float | None:
        known = self._gateway.registry.token_of
        if not known:
            return None
        await self._tokens.refresh()
        for worker_id, token_id in list(known.items()):
            if worker_id not in self._ended and not self._tokens.allows(token_id):
                released = await self._gateway.dismiss(worker_id, "token_ended")
                self._ended.add(worker_id)
                log.warning(LogEvent("worker.dismissed", worker=worker_id, token=token_id, released=released))
        self._ended &= self._gateway.registry.token_of.keys()
        return None
