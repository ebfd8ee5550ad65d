"""Renews a worker's leases, passes on cancelled and lost jobs, and stops the worker before the leases end."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from headway.core.errors import StoreError
from headway.core.job import JobId
from headway.core.log_event import LogEvent
from headway.core.policy.ladder import RunBudget
from headway.core.worker import WorkerInfo, WorkerState
from headway.metrics.recorder import MetricsRecorder
from headway.runtime.bounded_wait import within
from headway.stores.base import LEASE_CHANNEL, Heartbeat, HeartbeatReply, Subscription

log = logging.getLogger("headway.worker")

CHECK_EVERY = 1.0  # Seconds between checks whether the worker itself has changed.
FIRST_RENEWAL = 0.1  # Seconds from the subscription to the first renewal.


def cut_off_after(dead_after: float) -> float:
    """Return how old, in seconds, the last renewal may get before a worker kills its runner.

    The rest of the lease is for the processes to die. A program gets SIGTERM and half a second before SIGKILL.
    """
    return dead_after - max(0.15 * dead_after, min(1.0, 0.25 * dead_after))


def runner_ends_after(dead_after: float) -> float:
    """Return how old, in seconds, the last renewal may get before a runner kills itself.

    Later than ``cut_off_after``: the runner acts alone only if its parent is frozen.
    """
    return dead_after - max(0.1 * dead_after, min(0.75, 0.2 * dead_after))


class RenewalHandler(Protocol):
    """Acts on the reply to a heartbeat."""

    def cancel(self, job_ids: Sequence[JobId]) -> None: ...

    def lost(self, job_ids: Sequence[JobId]) -> None: ...

    def grant(self, grants: Sequence[RunBudget]) -> None: ...

    def leave(self, state: WorkerState) -> None: ...

    def cut_off(self) -> None: ...

    def policy_may_have_changed(self) -> None:
        """Check for another policy. Called after each renewal, because a policy change also wakes the renewer."""
        ...


class LeaseBackend(Protocol):
    """The backend or store at which a worker renews its leases."""

    def renew(self, beat: Heartbeat) -> Coroutine[Any, Any, HeartbeatReply]: ...

    def subscribe(self, name: str) -> Subscription: ...


class LeaseRenewer:
    """Renews leases at every heartbeat, at once when the store wakes the worker, and soon when the worker has changed.

    It computes the end of the leases on the local clock, from the moment at which a renewal was *sent*. If no renewal
    succeeds, it calls ``cut_off`` before that end, so that jobs stop before another worker starts them.

    ``since``: when the registration was sent, on the monotonic clock. ``on_renewed`` is called with the moment at which
    each successful renewal was sent, beginning with ``since``.
    """

    def __init__(
        self,
        backend: LeaseBackend,
        worker: Callable[[], WorkerInfo],
        held: Callable[[], Sequence[tuple[JobId, bytes]]],
        handler: RenewalHandler,
        *,
        heartbeat: float,
        dead_after: float,
        confirm: float,
        recorder: MetricsRecorder | None = None,
        since: float | None = None,
        on_renewed: Callable[[float], None] | None = None,
    ) -> None:
        self._backend = backend
        self._recorder = recorder
        self._worker = worker
        self._held = held
        self._handler = handler
        self._heartbeat = heartbeat
        self._dead_after = dead_after
        self._confirm = confirm
        self._sent_worker = worker()  # The worker as the last heartbeat described it.
        self._on_renewed = on_renewed
        self._note_renewal(time.monotonic() if since is None else since)

    def _note_renewal(self, sent: float) -> None:
        self.renewed = sent
        if self._on_renewed is not None:
            self._on_renewed(sent)

    async def run(self) -> None:
        """Renew at each heartbeat or wake-up until cancelled, or until the leases are lost."""
        subscription = self._backend.subscribe(self._worker().worker_id + LEASE_CHANNEL)
        try:
            due = time.monotonic() + FIRST_RENEWAL  # A job may have been cancelled before this subscription.
            while True:
                message = await subscription.wait(max(0.0, min(due - time.monotonic(), CHECK_EVERY)))
                if message is None and time.monotonic() < due and self._worker() == self._sent_worker:
                    continue
                if not await self.renew():
                    return
                self._handler.policy_may_have_changed()
                due = time.monotonic() + self._heartbeat * random.uniform(0.9, 1.0)
        finally:
            subscription.close()

    async def renew(self) -> bool:
        """Renew until a renewal succeeds or the leases are about to end. Return whether the worker goes on."""
        delay, failures = 0.1, 0
        while True:
            sent = time.monotonic()
            left = self.renewed + cut_off_after(self._dead_after) - sent
            if left <= 0:
                if failures:
                    log.error(LogEvent("worker.cut_off", worker=self._worker().worker_id))
                    self._handler.cut_off()
                else:  # This process was paused for too long. The store may be reachable.
                    self._handler.leave(WorkerState.DEAD)
                return False
            held, self._sent_worker = self._held(), self._worker()
            beat = Heartbeat(self._sent_worker, int(self._dead_after * 1_000), int(self._confirm * 1_000), held)
            try:
                answer = await within(min(left, max(1.0, self._heartbeat)), self._backend.renew(beat))
            except Exception as problem:  # After any error, the jobs must stop before the leases end.
                failures += 1
                if self._recorder is not None:
                    self._recorder.beat_failed()
                left = max(0.0, self.renewed + cut_off_after(self._dead_after) - time.monotonic())
                pause = min(delay * random.uniform(0.7, 1.3), left)
                known = isinstance(problem, (StoreError, TimeoutError))
                event = LogEvent(
                    "lease.renewal_failed",
                    worker=self._sent_worker.worker_id,
                    retry_in=round(pause, 3),
                    left=round(left, 1),
                    error=str(problem) or "no answer",
                )
                level = logging.WARNING if failures == 1 else logging.DEBUG
                log.log(level, event, exc_info=None if known else problem)
                await asyncio.sleep(pause)
                delay = min(delay * 2, self._heartbeat, 5.0)
                continue
            self._note_renewal(sent)
            if failures:
                log.warning(LogEvent("lease.renewed", worker=self._sent_worker.worker_id, failures=failures))
            if answer.lost:
                self._handler.lost(answer.lost)
            if answer.cancel:
                self._handler.cancel(answer.cancel)
            if answer.grants:
                self._handler.grant(answer.grants)
            if answer.state is not WorkerState.ACTIVE:
                self._handler.leave(answer.state)
                return answer.state is not WorkerState.DEAD
            return True
