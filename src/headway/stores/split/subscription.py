"""A subscription to two stores, woken by either."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headway.core.job import JobId
from headway.stores.base import Subscription

WAIT_SECONDS = 60.0  # Seconds of one wait at either subscription. The wait is repeated, so any length will do.
SECOND_CHECK_EVERY = 1.0  # Seconds between checks for a second subscription that does not exist yet.


class SplitSubscription:
    """Waits at both subscriptions at once. Until the second one exists, checks for it every second."""

    call = None

    def __init__(self, first: Subscription, find_second: Callable[[], Subscription | None]) -> None:
        self._subscriptions: list[Subscription] = [first]
        self._find_second = find_second
        self._waits: dict[Subscription, asyncio.Task[Sequence[JobId] | None]] = {}
        self._complete()

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        loop = asyncio.get_running_loop()
        until = loop.time() + timeout
        while True:
            self._complete()
            left = max(0.0, until - loop.time())
            for subscription in self._subscriptions:
                if subscription not in self._waits:
                    self._waits[subscription] = loop.create_task(_wait(subscription))
            step = left if len(self._subscriptions) > 1 else min(left, SECOND_CHECK_EVERY)
            # Pending waits are not cancelled, so that a wake-up between two calls is kept for the next one.
            done, _ = await asyncio.wait(
                self._waits.values(), timeout=step, return_when=asyncio.FIRST_COMPLETED
            )  # fmt: skip
            self._waits = {subscription: task for subscription, task in self._waits.items() if task not in done}
            messages = [names for task in done if (names := task.result()) is not None]
            if messages:
                return [name for names in messages for name in names] if all(messages) else ()
            if loop.time() >= until:
                return None

    def close(self) -> None:
        for task in self._waits.values():
            task.cancel()
        for subscription in self._subscriptions:
            subscription.close()

    def _complete(self) -> None:
        if len(self._subscriptions) == 1 and (second := self._find_second()) is not None:
            self._subscriptions.append(second)


async def _wait(subscription: Subscription) -> Sequence[JobId] | None:
    return await subscription.wait(WAIT_SECONDS)
