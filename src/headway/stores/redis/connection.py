"""One connection to a server: commands go out as they come, replies match them in order, wake-ups come in between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import hiredis

CONNECT_TIMEOUT = 5.0
ANSWER_TIMEOUT = 5.0
_PENDING = object()  # What the reader says when a reply is not complete yet.
_CONFIRMED = (b"subscribe", b"unsubscribe")  # Messages that are replies.
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 14_000))


class Endpoint(NamedTuple):
    """Where a server listens: a host and port, or the path of a socket."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None

    def __str__(self) -> str:
        return self.path or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class Login(NamedTuple):
    """Who we say we are, and which of a server's databases we want."""

    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: ssl.SSLContext | None = None


class Unanswered(ConnectionError):
    """No reply came to what was sent: it may have been carried out, or not."""


pack: Callable[[tuple[bytes | str | int, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
Hear = Callable[[bytes, bytes], None]


class RedisConnection(asyncio.Protocol):
    """Speaks RESP3. ``hear`` gets the channel and text of each message that others publish."""

    def __init__(self, address: Endpoint, hear: Hear, lost: Callable[[RedisConnection], None]) -> None:
        self.address = address
        self.role, self.version = "", ""  # As the server says.
        self._hear = hear
        self._lost = lost
        self._reader = hiredis.Reader(notEnoughData=_PENDING)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._gone = asyncio.Event()
        self._guard: asyncio.TimerHandle | None = None
        self._mute = False
        self._heard_at = 0.0  # When the server last said something, or was last asked after it had said all.

    @classmethod
    async def open(
        cls, address: Endpoint, login: Login, hear: Hear, lost: Callable[[RedisConnection], None]
    ) -> RedisConnection:  # fmt: skip
        """Connect and log in. Raises ``OSError``, ``hiredis.ReplyError``."""
        loop = asyncio.get_running_loop()

        def make() -> RedisConnection:
            return cls(address, hear, lost)

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                if address.path is not None:
                    _, made = await loop.create_unix_connection(make, address.path)
                else:
                    _, made = await loop.create_connection(make, address.host, address.port, ssl=login.tls)
                await made._greet(login)
        except TimeoutError as problem:
            raise ConnectionError(f"{address} did not answer within {CONNECT_TIMEOUT:.0f} s") from problem
        return made

    async def _greet(self, login: Login) -> None:
        words: list[str] = ["HELLO", "3"]
        if login.password is not None:
            words += ["AUTH", login.username or "default", login.password]
        try:
            said: dict[bytes, Any] = await self.send(*words, "SETNAME", "headway")
            self.role, self.version = said.get(b"role", b"").decode(), said.get(b"version", b"").decode()
            if login.database:
                await self.send("SELECT", login.database)
        except Unanswered as problem:  # Nothing that matters was asked yet.
            raise ConnectionError(str(problem)) from problem
        except BaseException:
            self.close()
            raise

    @property
    def open_(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def silent(self) -> float:
        """For how many seconds the server has owed us a reply and has said nothing."""
        return self._loop.time() - self._heard_at if self._waiting else 0.0

    def send(self, *words: bytes | str | int) -> asyncio.Future[Any]:
        """Send a command; its reply comes later. A reply that is an error is raised.

        To hear a channel, or no longer, is a command too, if it names only one.
        """
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            reply.set_exception(ConnectionError(f"the connection to {self.address} was lost"))
            return reply
        self._transport.write(pack(words))
        if not self._waiting:
            self._heard_at = self._loop.time()
        self._waiting.append(reply)
        if self._guard is None:
            self._guard = self._loop.call_later(ANSWER_TIMEOUT, self._check)
        return reply

    def _check(self) -> None:
        """Leave a server that owes us a reply and says nothing. One timer does for all that wait.

        Whatever came late would otherwise be taken for the reply to something else.
        """
        self._guard = None
        left = ANSWER_TIMEOUT - self.silent
        if left <= 0:
            self._mute = True
            self.close()
        elif self._waiting:
            self._guard = self._loop.call_later(left, self._check)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Wait until the connection is gone."""
        await self._gone.wait()

    # ------------------------------------------------------------------ what the loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        plug = transport.get_extra_info("socket")
        if plug is not None and self.address.path is None:
            # A peer that is gone without a word is noticed within about 15 s.
            plug.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                with contextlib.suppress(OSError, AttributeError):
                    plug.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        self._heard_at = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _PENDING:
                if isinstance(reply, hiredis.PushNotification) and reply[0] not in _CONFIRMED:
                    if reply[0] == b"message":
                        self._hear(reply[1], reply[2])
                    continue
                future = waiting.popleft()
                if future.done():  # The caller has gone; the command was carried out all the same.
                    continue
                if isinstance(reply, hiredis.ReplyError):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._gone.set()
        if self._guard is not None:
            self._guard.cancel()
        why = f"no answer within {ANSWER_TIMEOUT:.0f} s" if self._mute else exc or "closed"
        lost = Unanswered(f"the connection to {self.address} was lost: {why}")
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(lost)
        self._lost(self)
