"""Finds the current master through its Sentinels, and follows it during a failover.

A replaced master accepts writes until a Sentinel demotes it, about ten seconds later, and loses all of them. So a
client cannot wait for an error. It stops writing when a Sentinel starts a failover, and continues on the promoted
server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import hiredis

from headway.core.errors import StoreError
from headway.core.log_event import LogEvent
from headway.runtime.bounded_wait import end_tasks
from headway.stores.redis.client import FailoverListener, Words, ask_once
from headway.stores.redis.connection import Endpoint, Login, RedisConnection

log = logging.getLogger("headway.redis")

QUERY_EVERY = 1.0  # Seconds between queries to each Sentinel, in case a published event was lost.
ANSWER_WITHIN = 1.0  # Seconds after which a Sentinel that does not answer counts as away.
AGAIN = (0.1, 0.3, 1.0, 2.0)  # Seconds between attempts to reconnect to a Sentinel; the last one repeats.
HOLD_MAX = 10.0  # Seconds after which a client writes again if a failover does not end. It takes one to three.

_BEGINS = b"+try-failover"
_PROMOTED = b"+promoted-slave"
_SWITCHED = b"+switch-master"
_ENDS = (
    b"+failover-end", b"-failover-abort-not-elected", b"-failover-abort-no-good-slave",
    b"-failover-abort-slave-timeout", b"-failover-abort-master-timeout",
)  # fmt: skip


class SentinelView(NamedTuple):
    """The master as one Sentinel knows it."""

    address: Endpoint
    epoch: int  # Counts failovers. A Sentinel with a lower number does not know of the last one.
    failing_over: bool  # This Sentinel is carrying out a failover.


class Sentinel:
    """The master, as the Sentinel that knows of the latest failover reports it. Belongs to one event loop."""

    replaceable = True

    def __init__(self, sentinels: Sequence[Endpoint], master: str, login: Login) -> None:
        self._sentinels = list(sentinels)
        self._master = master
        self._login = login
        self._epoch = -1
        self._promoted: Endpoint | None = None  # By the last failover. Some Sentinels may still name the old master.
        self._holding: dict[Endpoint, float] = {}  # The Sentinels that carry out a failover, and since when.
        self._promoting: set[Endpoint] = set()  # Sentinels that have promoted a server and now move its replicas.
        self._listeners: set[FailoverListener] = set()
        self._watches: list[asyncio.Task[None]] = []

    async def find(self) -> Endpoint:
        if self._promoted is not None:
            return self._promoted
        seen = await self._ask_all()
        self._epoch = max(self._epoch, seen.epoch)
        return seen.address

    def refused(self, address: Endpoint) -> None:
        """Forget a promoted server that does not accept writes. The Sentinels may have promoted another one since."""
        if address == self._promoted:
            self._promoted = None

    def moved(self, address: Endpoint) -> None:
        raise StoreError("the master is a node of a cluster; write redis+cluster://")

    def keys(self, key: str) -> Words:
        return 1, key

    def add_listener(self, listener: FailoverListener) -> None:
        self._listeners.add(listener)
        if not self._watches:
            self._watches = [asyncio.create_task(self._watch(sentinel)) for sentinel in self._sentinels]
        if self._holding:
            listener.pause()

    async def remove_listener(self, listener: FailoverListener) -> None:
        self._listeners.discard(listener)
        if not self._listeners:
            watches, self._watches = self._watches, []
            await end_tasks(watches)

    async def _ask_all(self) -> SentinelView:
        """Ask all Sentinels at once. Return the latest view as soon as most of them have answered."""
        asked = {asyncio.create_task(self._ask(sentinel)) for sentinel in self._sentinels}
        found: list[SentinelView] = []
        problem: BaseException | None = None
        pending = asked
        try:
            while pending and len(found) <= len(asked) // 2:
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    failed = task.exception()
                    if failed is None:
                        found += task.result()
                    else:
                        problem = failed
        finally:
            for task in asked:
                task.cancel()
        if not found:
            why = problem or "none of them watches it"
            raise ConnectionError(f"no Sentinel knows the master {self._master!r}: {why}")
        return max(found, key=lambda seen: seen.epoch)

    async def _ask(self, sentinel: Endpoint) -> list[SentinelView]:
        try:
            return [_read(await ask_once(sentinel, self._login, "SENTINEL", "MASTER", self._master))]
        except hiredis.ReplyError as problem:
            if "No such master" in str(problem):
                return []
            raise ConnectionError(f"{sentinel}: {problem}") from problem

    async def _watch(self, sentinel: Endpoint) -> None:
        """Listen to one Sentinel until cancelled. Reconnect when the connection is lost."""
        tries = 0
        while True:
            with contextlib.suppress(OSError, hiredis.ReplyError, TimeoutError):
                connection = await RedisConnection.open(
                    sentinel, self._login, partial(self._on_message, sentinel), lambda _: None
                )
                tries = 0
                try:
                    await self._listen(sentinel, connection)
                finally:
                    connection.close()
                    self._ended(sentinel)
            await asyncio.sleep(AGAIN[min(tries, len(AGAIN) - 1)])
            tries += 1

    async def _listen(self, sentinel: Endpoint, connection: RedisConnection) -> None:
        for channel in (_BEGINS, _PROMOTED, _SWITCHED, *_ENDS):
            connection.send("SUBSCRIBE", channel).add_done_callback(_log_refusal)
        while True:
            asked = time.monotonic()
            async with asyncio.timeout(ANSWER_WITHIN):
                seen = _read(await connection.send("SENTINEL", "MASTER", self._master))
            if seen.failing_over:
                if sentinel not in self._promoting:
                    self._begun(sentinel)
            elif seen.epoch > self._epoch:
                self._epoch = seen.epoch
                self._switched(seen.address)
            elif self._holding.get(sentinel, asked) < asked:  # Not a failover that began after the question.
                self._ended(sentinel)
            await asyncio.sleep(QUERY_EVERY)

    def _on_message(self, sentinel: Endpoint, channel: bytes, text: bytes) -> None:
        words = text.decode().split()
        if channel == _SWITCHED:
            if words[0] == self._master:
                self._switched(Endpoint(words[3], int(words[4])))
        elif self._master not in (words[1], words[5:6] and words[5]):  # About another master.
            return
        elif channel == _BEGINS:
            self._promoting.discard(sentinel)
            self._begun(sentinel)
        elif channel == _PROMOTED:
            self._promoting.add(sentinel)
            self._switched(Endpoint(words[2], int(words[3])))
        else:
            self._ended(sentinel)

    def _begun(self, sentinel: Endpoint) -> None:
        since = self._holding.setdefault(sentinel, time.monotonic())
        if time.monotonic() - since > HOLD_MAX:
            self._release()
            return
        for listener in self._listeners:
            listener.pause()

    def _switched(self, address: Endpoint) -> None:
        self._promoted = address
        self._holding.clear()
        for listener in self._listeners:
            listener.switch(address)

    def _ended(self, sentinel: Endpoint) -> None:
        self._promoting.discard(sentinel)
        if self._holding.pop(sentinel, None) is not None and not self._holding:
            self._release()

    def _release(self) -> None:
        for listener in self._listeners:
            listener.resume()


def _read(said: Any) -> SentinelView:
    """Read the reply to SENTINEL MASTER: a map, or a flat list from a server that speaks RESP2."""
    pairs = said if isinstance(said, dict) else dict(zip(said[::2], said[1::2], strict=True))
    flags = pairs[b"flags"].split(b",")
    address = Endpoint(pairs[b"ip"].decode(), int(pairs[b"port"]))
    return SentinelView(address, int(pairs[b"config-epoch"]), b"failover_in_progress" in flags)


def _log_refusal(reply: asyncio.Future[object]) -> None:
    if not reply.cancelled() and isinstance(problem := reply.exception(), hiredis.ReplyError):
        hint = "failovers are noticed up to 1 s late"
        log.warning(LogEvent("sentinel.subscription_refused", hint=hint, error=str(problem)))
