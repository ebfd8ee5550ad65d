"""Wake-ups from other processes: channels heard on the same connection that commands go out on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import hiredis

from headway.core.job import JobId
from headway.core.log_event import LogEvent
from headway.stores.base import JOB_CHANNEL
from headway.stores.notifications import LocalSubscription
from headway.stores.redis.connection import RedisConnection

log = logging.getLogger("headway.redis")

WATCHED_MS = 30_000  # How long servers tell of changes after the last word of a watcher.
_REFRESH = 10.0
_WATCH = b"}:watch"
_AGAIN = (0.1, 0.3, 1.0, 2.0)  # Seconds between tries to connect again.


class RedisNotifier:
    """The subscriptions of one store. After a lost connection all of them are told to look at everything."""

    def __init__(
        self, prefix: str, reconnect: Callable[[], Awaitable[RedisConnection]], handed: Callable[[str, bytes], None]
    ) -> None:
        self._prefix = prefix
        self._subscription = f"{prefix}ear:".encode()  # What the channels of workers begin with.
        self._subscriptions: dict[bytes, list[LocalSubscription]] = {}
        self._connection: RedisConnection | None = None
        self._reconnect = reconnect
        self._handed = handed
        self._chores: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None
        self._was_joined = False

    def subscribe(self, name: str) -> LocalSubscription:
        watches = name.startswith(JOB_CHANNEL)
        channel = f"{self._prefix}{'watch' if watches else f'ear:{name}'}".encode()
        subscription = LocalSubscription(lambda closed: self._forget(channel, closed))
        subscriptions = self._subscriptions.setdefault(channel, [])
        subscriptions.append(subscription)
        if len(subscriptions) == 1:
            self._subscribe(channel)
        if watches and self._watching is None:
            self._say_watched()
            self._watching = self._start(self._keep_watching())
        return subscription

    def hear(self, channel: bytes, text: bytes) -> None:
        """A message has come."""
        job_ids: list[JobId] = []
        if text and channel.endswith(_WATCH):
            job_ids = [JobId(job_id.decode()) for job_id in text.split(b"\n")]
        elif text:
            self._handed(channel[len(self._subscription) :].decode(), text)
        for subscription in self._subscriptions.get(channel, ()):
            subscription.notify(job_ids)

    def joined(self, connection: RedisConnection) -> None:
        """A connection was made: hear all channels on it. What was said before is lost, so look."""
        self._connection = connection
        for channel in self._subscriptions:
            self._subscribe(channel)
        if self._watching is not None:
            self._say_watched()
        if self._was_joined:
            for subscriptions in self._subscriptions.values():
                for subscription in subscriptions:
                    subscription.notify()
        self._was_joined = True

    def lost(self) -> None:
        """The connection is gone: subscriptions need another one."""
        self._connection = None
        if self._subscriptions:
            self._start(self._join_again())

    async def close(self) -> None:
        chores = list(self._chores)
        for chore in chores:
            chore.cancel()
        await asyncio.gather(*chores, return_exceptions=True)

    async def _join_again(self) -> None:
        tries = 0
        while self._subscriptions and self._connection is None:
            await asyncio.sleep(_AGAIN[min(tries, len(_AGAIN) - 1)])
            tries += 1
            with contextlib.suppress(Exception):
                await self._reconnect()

    def _subscribe(self, channel: bytes) -> None:
        if self._connection is not None:
            self._connection.send("SUBSCRIBE", channel).add_done_callback(_complain)
        elif self._was_joined and len(self._subscriptions) == 1:  # No other one waited until now.
            self._start(self._join_again())

    async def _keep_watching(self) -> None:
        while any(channel.endswith(_WATCH) for channel in self._subscriptions):
            await asyncio.sleep(_REFRESH)
            self._say_watched()
        self._watching = None

    def _say_watched(self) -> None:
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
        chore = asyncio.create_task(coroutine)
        self._chores.add(chore)
        chore.add_done_callback(self._chores.discard)
        return chore


def _complain(reply: asyncio.Future[object]) -> None:
    if not reply.cancelled() and isinstance(problem := reply.exception(), hiredis.ReplyError):
        log.warning(LogEvent("wakeups.refused", error=str(problem)))


def _seen(reply: asyncio.Future[object]) -> None:
    if not reply.cancelled():
        reply.exception()
