"""Wake-ups: one connection that listens, and the subscriptions it wakes.

A notification that is sent while no process listens is lost, and a dead connection looks like a silent one. So the
listener sends itself a message at intervals. If the message does not return, the listener reconnects and wakes every
subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from headway.core.errors import StoreError
from headway.core.job import JobId
from headway.core.log_event import LogEvent
from headway.stores.base import JOB_CHANNEL, LEASE_CHANNEL
from headway.stores.notifications import LocalSubscription
from headway.stores.postgres.connections import CUT, Connection, connect

log = logging.getLogger("headway.postgres")

CHECK_EVERY = 15.0  # Seconds between two messages of the listener to itself.
ECHO_WITHIN = 5.0
WATCHED_MS = 60_000  # Milliseconds after which a watcher that is not recorded again expires.
BACKOFF_MAX = 5.0
FIRST_WITHIN = 5.0  # Seconds that verbs wait for the first connection; then wake-ups come later.

Watch = Callable[[list[str], bool], Awaitable[object]]


class PostgresNotifier:
    """Wakes the subscriptions of one store. ``watch`` notes in the store which process watches, or no longer does."""

    def __init__(self, url: str | None, channel: str, watch: Watch) -> None:
        self._url = url
        self._channel = channel
        self._watch = watch
        self._subscriptions: dict[str, list[LocalSubscription]] = {}
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._echo: asyncio.Future[None] | None = None
        self._word = ""
        self._changed = asyncio.Event()  # A subscription came or went.
        self._settled = asyncio.Event()
        self._settled.set()
        self._watching: set[str] = set()  # Noted in the store.
        self._late = False  # Whether a notification may have been missed.

    def subscribe(self, name: str) -> LocalSubscription:
        def leave(subscription: LocalSubscription) -> None:
            subscriptions = self._subscriptions.get(name, [])
            if subscription in subscriptions:
                subscriptions.remove(subscription)
            if not subscriptions:
                self._subscriptions.pop(name, None)
            self._changed.set()

        subscription = LocalSubscription(leave)
        self._subscriptions.setdefault(name, []).append(subscription)
        if self._url is not None:
            if self._connection is None or (name.startswith(JOB_CHANNEL) and name not in self._watching):
                self._settled.clear()
            self._changed.set()
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._run(), name="headway-postgres-notifier")
        return subscription

    async def settled(self) -> None:
        """Wait until the listener serves new subscriptions, at most ``FIRST_WITHIN`` seconds."""
        if not self._settled.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WITHIN):
                    await self._settled.wait()
            if not self._settled.is_set():
                self._late = True
                self._settled.set()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None
        if self._watching:
            with contextlib.suppress(Exception):
                await self._watch(list(self._watching), False)
            self._watching = set()

    async def _run(self) -> None:
        """Listens until it is cancelled; ends a connection that went silent and makes another, ever less eagerly."""
        delay, level = 0.1, logging.WARNING  # One warning for each outage, however long it lasts.
        while True:
            try:
                await self._listen()
            except (*CUT, StoreError) as problem:
                if self._connection is not None:
                    delay, level = 0.1, logging.WARNING
                log.log(level, LogEvent("wakeups.interrupted", retry_in=round(delay, 1), error=str(problem)))
                level = logging.DEBUG
            finally:
                if self._connection is not None:
                    self._connection.terminate()
                    self._connection = None
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(BACKOFF_MAX, delay * 2)

    async def _listen(self) -> None:
        connection = await connect(self._url or "")
        try:
            connection.add_termination_listener(lambda _: self._changed.set())
            await connection.add_listener(self._channel, self._hear)
            self._watching = set()
            await self._note_watchers()
        except BaseException:
            connection.terminate()
            raise
        self._connection = connection
        if self._late:
            self._notify_all()  # What was sent meanwhile is gone.
        self._late = True
        self._settled.set()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CHECK_EVERY):
                    await self._changed.wait()
            if connection.is_closed():
                raise ConnectionError("the connection was cut")
            if self._changed.is_set():
                self._changed.clear()
                await self._note_watchers()
                self._settled.set()
            else:
                await self._check(connection)
                self._watching = set()
                await self._note_watchers()

    async def _check(self, connection: Connection) -> None:
        """Send a message to this listener. Raises ``TimeoutError`` if it does not return."""
        self._word = secrets.token_hex(8)
        self._echo = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(ECHO_WITHIN):
            await connection.execute("SELECT pg_notify($1, $2)", self._channel, "p" + self._word)
            await self._echo

    async def _note_watchers(self) -> None:
        wanted = {name for name in self._subscriptions if name.startswith(JOB_CHANNEL)}
        if gone := self._watching - wanted:
            await self._watch(list(gone), False)
        if come := wanted - self._watching:
            await self._watch(list(come), True)
        self._watching = wanted

    def _hear(self, _connection: Any, _pid: int, _channel: str, message: object) -> None:
        text = str(message)
        kind, rest = text[:1], text[1:]
        match kind:
            case "w":
                self._notify(rest)
            case "k":
                self._notify(rest + LEASE_CHANNEL)
            case "j":
                job_ids = [JobId(job_id) for job_id in rest.split(",") if job_id]
                for name in [name for name in self._subscriptions if name.startswith(JOB_CHANNEL)]:
                    self._notify(name, job_ids)
            case "p":
                if rest == self._word and self._echo is not None and not self._echo.done():
                    self._echo.set_result(None)
            case _:
                self._notify_all()

    def _notify(self, name: str, job_ids: Iterable[JobId] = ()) -> None:
        for subscription in self._subscriptions.get(name, ()):
            subscription.notify(job_ids)

    def _notify_all(self) -> None:
        for name in list(self._subscriptions):
            self._notify(name)
