"""Keeps a worker's leases: renews them, learns what was cancelled or lost, and gives up in time."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from headway.core.errors import StoreError
from headway.core.job import JobId
from headway.core.policy.ladder import Grant
from headway.core.worker import Worker, WorkerState
from headway.engine.tallies import Tallies
from headway.stores.base import KEEPER, Beat, Ear, Renewed

log = logging.getLogger("headway.worker")

LOOK_EVERY = 1.0  # Seconds between looks whether the worker itself has changed.
SETTLE = 0.1  # Seconds from the first listening to the first renewal.
MARGIN = 0.1  # The part of a lease that is left when work is ended for want of a renewal.


class Kept(Protocol):
    """Who must act on what a heartbeat brings."""

    def cancel(self, job_ids: Sequence[JobId]) -> None: ...

    def lost(self, job_ids: Sequence[JobId]) -> None: ...

    def grant(self, grants: Sequence[Grant]) -> None: ...

    def leave(self, state: WorkerState) -> None: ...

    def cut_off(self) -> None: ...

    def heard(self) -> None:
        """The store has rung: beside all this, another policy may be in force."""
        ...


class Keeps(Protocol):
    """Who is asked to keep leases: a post, or a store itself."""

    async def renew(self, beat: Beat) -> Renewed: ...

    def listen(self, name: str) -> Ear: ...


class Keeper:
    """Renews at every heartbeat, at once when the store has news, and soon when the worker has changed.

    Knows by the machine's own clock when the leases end: counted from the moment a renewal was *sent*. If none
    succeeds in time it says so a little before that end, so the work can be stopped before anybody else begins it.
    """

    def __init__(
        self,
        post: Keeps,
        worker: Callable[[], Worker],
        held: Callable[[], Sequence[tuple[JobId, bytes]]],
        kept: Kept,
        *,
        heartbeat: float,
        dead_after: float,
        confirm: float,
        tallies: Tallies | None = None,
    ) -> None:
        self._post = post
        self._tallies = tallies
        self._worker = worker
        self._held = held
        self._kept = kept
        self._heartbeat = heartbeat
        self._dead_after = dead_after
        self._confirm = confirm
        self._told = worker()  # As the store was last told.
        self.renewed = time.monotonic()

    async def run(self) -> None:
        """Woken by the heartbeat or by the store; ends when cancelled, or when the leases cannot be kept."""
        ear = self._post.listen(self._worker().worker_id + KEEPER)
        try:
            due = time.monotonic() + SETTLE  # A job may have begun, and been cancelled, before anybody listened.
            while True:
                news = await ear.wait(max(0.0, min(due - time.monotonic(), LOOK_EVERY)))
                if news is None and time.monotonic() < due and self._worker() == self._told:
                    continue
                if not await self.renew():
                    return
                self._kept.heard()
                due = time.monotonic() + self._heartbeat * random.uniform(0.9, 1.0)
        finally:
            ear.close()

    async def renew(self) -> bool:
        """Renew until it succeeds or the leases are about to end. Gives whether the worker goes on."""
        delay = 0.1
        while True:
            sent = time.monotonic()
            held, self._told = self._held(), self._worker()
            try:
                async with asyncio.timeout(max(1.0, self._heartbeat)):
                    answer = await self._post.renew(
                        Beat(self._told, int(self._dead_after * 1_000), int(self._confirm * 1_000), held)
                    )
            except (StoreError, TimeoutError) as problem:
                if self._tallies is not None:
                    self._tallies.beat_failed()
                left = self.renewed + self._dead_after * (1 - MARGIN) - time.monotonic()
                if left <= 0:
                    log.error(  # noqa: TRY400  (the cause was logged at each try)
                        "the leases of %s could not be renewed; ending its work", self._worker().worker_id
                    )
                    self._kept.cut_off()
                    return False
                log.warning("a renewal failed, trying again (%.0f s left): %s", left, str(problem) or "no answer")
                await asyncio.sleep(min(delay * random.uniform(0.7, 1.3), max(left, 0.01)))
                delay = min(delay * 2, self._heartbeat, 5.0)
                continue
            self.renewed = sent
            if answer.lost:
                self._kept.lost(answer.lost)
            if answer.cancel:
                self._kept.cancel(answer.cancel)
            if answer.grants:
                self._kept.grant(answer.grants)
            if answer.state is not WorkerState.ACTIVE:
                self._kept.leave(answer.state)
                return answer.state is not WorkerState.DEAD
            return True
