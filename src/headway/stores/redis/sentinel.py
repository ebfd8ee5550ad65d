"""Finds the master of a name through its Sentinels, and follows it while they replace it.

A master that is being replaced goes on taking writes until a Sentinel demotes it, about ten seconds later, and all of
them are lost. So a client must not wait for an error: it stops writing when a Sentinel begins a failover, and goes on
at the server that was promoted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import hiredis

from headway.core.errors import StoreError
from headway.core.log_event import LogEvent
from headway.stores.redis.client import Follower, Words, ask_once
from headway.stores.redis.connection import Endpoint, Login, RedisConnection

log = logging.getLogger("headway.redis")

LOOK_EVERY = 1.0  # Seconds between two questions to each Sentinel. Their events arrive at once; this is for lost ones.
ANSWER_WITHIN = 1.0  # Seconds that a Sentinel may take to answer before it counts as away.
AGAIN = (0.1, 0.3, 1.0, 2.0)  # Seconds between attempts to reach a Sentinel again.
HOLD_MAX = 10.0  # Seconds that a failover without any further news stops us. Sentinels need one to three.

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
    epoch: int  # Counts the failovers. A Sentinel with a lower number has not heard of the last one.
    failing_over: bool  # This Sentinel carries out a failover just now.


class Sentinel:
    """The master of a name, as told by the Sentinel that knows of the latest failover. Belongs to one loop."""

    replaceable = True

    def __init__(self, sentinels: Sequence[Endpoint], master: str, login: Login) -> None:
        self._sentinels = list(sentinels)
        self._master = master
        self._login = login
        self._epoch = -1
        self._promoted: Endpoint | None = None  # Where the last failover led. Sentinels may still name the old master.
        self._holding: dict[Endpoint, float] = {}  # By Sentinel that carries out a failover: since when.
        self._promoting: set[Endpoint] = set()  # Sentinels that have promoted a server and go on to its replicas.
        self._followers: set[Follower] = set()
        self._watches: list[asyncio.Task[None]] = []

    async def find(self) -> Endpoint:
        if self._promoted is not None:
            return self._promoted
        seen = await self._ask_all()
        self._epoch = max(self._epoch, seen.epoch)
        return seen.address

    def refused(self, address: Endpoint) -> None:
        """Forget a promoted server that does not serve: the Sentinels may have chosen another one since."""
        if address == self._promoted:
            self._promoted = None

    def moved(self, address: Endpoint) -> None:
        raise StoreError("the master is a node of a cluster; write redis+cluster://")

    def keys(self, key: str) -> Words:
        return 1, key

    def join(self, follower: Follower) -> None:
        self._followers.add(follower)
        if not self._watches:
            self._watches = [asyncio.create_task(self._watch(sentinel)) for sentinel in self._sentinels]
        if self._holding:
            follower.hold()

    async def leave(self, follower: Follower) -> None:
        self._followers.discard(follower)
        if not self._followers:
            watches, self._watches = self._watches, []
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    # ------------------------------------------------------------------ asking

    async def _ask_all(self) -> SentinelView:
        """Ask all Sentinels at once. Return the latest word as soon as most of them have answered."""
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
            why = problem or "it is watched by none"
            raise ConnectionError(f"no Sentinel knows the master {self._master!r}: {why}")
        return max(found, key=lambda seen: seen.epoch)

    async def _ask(self, sentinel: Endpoint) -> list[SentinelView]:
        try:
            return [_read(await ask_once(sentinel, self._login, "SENTINEL", "MASTER", self._master))]
        except hiredis.ReplyError as problem:
            if "No such master" in str(problem):
                return []
            raise ConnectionError(f"{sentinel}: {problem}") from problem

    # ------------------------------------------------------------------ following

    async def _watch(self, sentinel: Endpoint) -> None:
        """Listen to one Sentinel until cancelled. Connects again when it is lost."""
        tries = 0
        while True:
            with contextlib.suppress(OSError, hiredis.ReplyError, TimeoutError):
                connection = await RedisConnection.open(
                    sentinel, self._login, lambda channel, text: self._hear(sentinel, channel, text), _ignore
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
            connection.send("SUBSCRIBE", channel).add_done_callback(_complain)
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
            elif self._holding.get(sentinel, asked) < asked:  # Not one that began while the answer was under way.
                self._ended(sentinel)
            await asyncio.sleep(LOOK_EVERY)

    def _hear(self, sentinel: Endpoint, channel: bytes, text: bytes) -> None:
        words = text.decode().split()
        if channel == _SWITCHED:
            if words[0] == self._master:
                self._switched(Endpoint(words[3], int(words[4])))
        elif self._master not in (words[1], words[5:6] and words[5]):  # The name of another master.
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
        for follower in self._followers:
            follower.hold()

    def _switched(self, address: Endpoint) -> None:
        self._promoted = address
        self._holding.clear()
        for follower in self._followers:
            follower.switch(address)

    def _ended(self, sentinel: Endpoint) -> None:
        self._promoting.discard(sentinel)
        if self._holding.pop(sentinel, None) is not None and not self._holding:
            self._release()

    def _release(self) -> None:
        for follower in self._followers:
            follower.go_on()


def _read(said: Any) -> SentinelView:
    """Read the reply to SENTINEL MASTER: a map, or a flat list from a server that speaks RESP2."""
    pairs = said if isinstance(said, dict) else dict(zip(said[::2], said[1::2], strict=True))
    flags = pairs[b"flags"].split(b",")
    address = Endpoint(pairs[b"ip"].decode(), int(pairs[b"port"]))
    return SentinelView(address, int(pairs[b"config-epoch"]), b"failover_in_progress" in flags)


def _ignore(_connection: RedisConnection) -> None: ...


def _complain(reply: asyncio.Future[object]) -> None:
    if not reply.cancelled() and isinstance(problem := reply.exception(), hiredis.ReplyError):
        hint = "failovers are noticed up to 1 s late"
        log.warning(LogEvent("sentinel.subscription_refused", hint=hint, error=str(problem)))
