"""Subscriptions of a worker that a server wakes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from headway.core.errors import StoreError, WorkerUnknown
from headway.core.job import JobId
from headway.core.worker import WorkerState
from headway.policy_store.current import CurrentPolicy
from headway.protocol import worker as messages
from headway.protocol.http_client import REPLY_SECONDS, HttpClient
from headway.runtime.bounded_wait import wait_until_set

POLL_SECONDS = 5.0  # Seconds that the server may hold a poll for changes.
BACKOFF_MIN, BACKOFF_MAX = 0.1, 2.0  # Seconds between tries of a poll.


class LocalEvent:
    """A subscription that is notified from this process."""

    call = None

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        if not await wait_until_set(self._event, timeout):
            return None
        self._event.clear()
        return ()

    def close(self) -> None: ...


class HttpNotifications(LocalEvent):
    """Wakes the lease renewer when the server reports cancelled or lost jobs, budgets, a drain or another policy."""

    def __init__(self, caller: HttpClient, worker_id: str, in_force: CurrentPolicy) -> None:
        super().__init__()
        self._caller = caller
        self._path = f"/internal/workers/{worker_id}/poll"
        self._in_force = in_force
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    def close(self) -> None:
        self._listening.cancel()

    async def _listen(self) -> None:
        """Poll the server for changes until the server does not know the worker any more."""
        request = messages.PollRequest(available_capacity=0, wait_seconds=POLL_SECONDS)
        known: tuple[Any, ...] = (set(), WorkerState.ACTIVE, self._in_force.version, {})
        delay = BACKOFF_MIN
        while True:
            try:
                polled = await self._caller.ask(
                    self._path, request, messages.PollReply, timeout=POLL_SECONDS + REPLY_SECONDS
                )
            except WorkerUnknown:
                self.notify()
                return
            except StoreError:  # The lease renewer logs the problem.
                await asyncio.sleep(delay * random.uniform(0.7, 1.3))
                delay = min(delay * 2, BACKOFF_MAX)
                continue
            delay = BACKOFF_MIN
            sent = ({*polled.cancel, *polled.lost}, polled.state, polled.policy_version, polled.budgets)
            if sent != known:
                known = sent
                self.notify()
