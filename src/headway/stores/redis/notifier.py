"""Notifications from other processes, on the same connection as commands."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import hiredis

from headway.core.job import JobId
from headway.core.log_event import LogEvent
from headway.runtime.bounded_wait import end_tasks
from headway.stores.base import JOB_CHANNEL
from headway.stores.notifications import LocalSubscription
from headway.stores.redis.connection import RedisConnection

log = logging.getLogger("headway.redis")

WATCHED_MS = 30_000  # Milliseconds for which the server publishes changed jobs after a watcher's last refresh.
_REFRESH = 10.0  # Seconds between refreshes, so that two may be lost.
_WATCH = b"}:watch"
_AGAIN = (0.1, 0.3, 1.0, 2.0)  # Seconds between attempts to reconnect; the last one repeats.


class RedisNotifier:
    """The subscriptions of one store. After a lost connection it notifies all, since messages may be missing."""

    def __init__(
        self,
        prefix: str,
        reconnect: Callable[[], Awaitable[RedisConnection]],
        on_direct_lease: Callable[[str, bytes], None],
    ) -> None:
        self._prefix = prefix
        self._worker_channel = f"{prefix}ear:".encode()  # The start of the channel of each worker.
        self._subscriptions: dict[bytes, list[LocalSubscription]] = {}
        self._connection: RedisConnection | None = None
        self._reconnect = reconnect
        self._on_direct_lease = on_direct_lease
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._was_connected = False

    def subscribe(self, name: str) -> LocalSubscription:
        watches = name.startswith(JOB_CHANNEL)
        channel = f"{self._prefix}{'watch' if watches else f'ear:{name}'}".encode()
        subscription = LocalSubscription(lambda closed: self._forget(channel, closed))
        subscriptions = self._subscriptions.setdefault(channel, [])
        subscriptions.append(subscription)
        if len(subscriptions) == 1:
            self._subscribe(channel)
        if watches and self._watching is None:
            self._mark_watched()
            self._watching = self._start(self._keep_watching())
        return subscription

    def on_message(self, channel: bytes, text: bytes) -> None:
        """Forward a message to its subscriptions."""
        job_ids: list[JobId] = []
        if text and channel.endswith(_WATCH):
            job_ids = [JobId(job_id.decode()) for job_id in text.split(b"\n")]
        elif text:
            self._on_direct_lease(channel[len(self._worker_channel) :].decode(), text)
        for subscription in self._subscriptions.get(channel, ()):
            subscription.notify(job_ids)

    def on_connect(self, connection: RedisConnection) -> None:
        """Subscribe to all channels on a new connection. Messages before it are lost, so notify all subscriptions."""
        self._connection = connection
        for channel in self._subscriptions:
            self._subscribe(channel)
        if self._watching is not None:
            self._mark_watched()
        if self._was_connected:
            for subscriptions in self._subscriptions.values():
                for subscription in subscriptions:
                    subscription.notify()
        self._was_connected = True

    def on_disconnect(self) -> None:
        """Reconnect for the subscriptions."""
        self._connection = None
        if self._subscriptions:
            self._start(self._reconnect_later())

    async def close(self) -> None:
        await end_tasks(self._tasks)

    async def _reconnect_later(self) -> None:
        tries = 0
        while self._subscriptions and self._connection is None:
            await asyncio.sleep(_AGAIN[min(tries, len(_AGAIN) - 1)])
            tries += 1
            with contextlib.suppress(Exception):
                await self._reconnect()

    def _subscribe(self, channel: bytes) -> None:
        if self._connection is not None:
            self._connection.send("SUBSCRIBE", channel).add_done_callback(_log_refusal)
        elif self._was_connected and len(self._subscriptions) == 1:  # The first since the connection was lost.
            self._start(self._reconnect_later())

    async def _keep_watching(self) -> None:
        while any(channel.endswith(_WATCH) for channel in self._subscriptions):
            await asyncio.sleep(_REFRESH)
            self._mark_watched()
        self._watching = None

    def _mark_watched(self) -> None:
        if self._connection is not None:
            reply = self._connection.send("SET", f"{self._prefix}watched", "1", "PX", WATCHED_MS)
            reply.add_done_callback(_seen)

    def _forget(self, channel: bytes, subscription: LocalSubscription) -> None:
        subscriptions = self._subscriptions.get(channel, [])
        if subscription in subscriptions:
            subscriptions.remove(subscription)
        if not subscriptions and self._subscriptions.pop(channel, None) is not None and self._connection is not None:
            self._connection.send("UNSUBSCRIBE", channel).add_done_callback(_seen)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _log_refusal(reply: asyncio.Future[object]) -> None:
    if not reply.cancelled() and isinstance(problem := reply.exception(), hiredis.ReplyError):
        log.warning(LogEvent("wakeups.refused", error=str(problem)))


def _seen(reply: asyncio.Future[object]) -> None:
    if not reply.cancelled():
        reply.exception()
