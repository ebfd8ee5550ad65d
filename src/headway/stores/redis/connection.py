"""One connection to a server. Commands are pipelined, replies match them in order, messages arrive in between."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import hiredis

CONNECT_TIMEOUT = 5.0  # Seconds to connect and log in, also over TLS to another continent.
ANSWER_TIMEOUT = 5.0  # Seconds of silence while a reply is due. Longer than any function runs,
LARGE = 10_000  # except with more words than this, as the largest graphs have.
WORD_SECONDS = 0.0002  # Seconds for each word of such a command, about ten times what a server takes.
_PENDING = object()  # What the reader returns while a reply is not complete.
_CONFIRMED = (b"subscribe", b"unsubscribe")  # Push messages that are replies to a command.
# Settings of TCP that detect a vanished host within about 15 s.
_KEEPALIVE = (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 14_000))


class Endpoint(NamedTuple):
    """Where a server listens: a host and port, or the path of a socket."""

    host: str = "localhost"
    port: int = 6379
    path: str | None = None

    def __str__(self) -> str:
        return self.path or f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


class Login(NamedTuple):
    """The credentials, the number of the database, and the TLS settings."""

    username: str | None = None
    password: str | None = None
    database: int = 0
    tls: ssl.SSLContext | None = None


class Unanswered(ConnectionError):
    """No reply came to a command. The server may have executed it, or not."""


pack: Callable[[tuple[bytes | str | int, ...]], bytes] = hiredis.pack_command  # type: ignore[assignment]
OnMessage = Callable[[bytes, bytes], None]


class RedisConnection(asyncio.Protocol):
    """Speaks RESP3. ``on_message`` gets the channel and text of each published message."""

    def __init__(self, address: Endpoint, on_message: OnMessage, on_lost: Callable[[RedisConnection], None]) -> None:
        self.address = address
        self.role, self.version = "", ""  # As the server reports them.
        self._on_message = on_message
        self._on_lost = on_lost
        self._reader = hiredis.Reader(notEnoughData=_PENDING)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timed_out = False
        self._patient_until = 0.0  # The server may be busy with a large command until then.
        self._last_reply_at = 0.0  # When the server last sent data, or when the first unanswered command was sent.

    @classmethod
    async def open(
        cls, address: Endpoint, login: Login, on_message: OnMessage, on_lost: Callable[[RedisConnection], None]
    ) -> RedisConnection:  # fmt: skip
        """Connect and log in. Raises ``OSError``, ``hiredis.ReplyError``."""
        loop = asyncio.get_running_loop()

        def make() -> RedisConnection:
            return cls(address, on_message, on_lost)

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
        except Unanswered as problem:  # The login has no effect that could be in doubt.
            raise ConnectionError(str(problem)) from problem
        except BaseException:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def silent_seconds(self) -> float:
        """For how many seconds a reply has been due and no data has arrived."""
        return self._loop.time() - self._last_reply_at if self._waiting else 0.0

    def send(self, *words: bytes | str | int) -> asyncio.Future[Any]:
        """Send a command. Return a future of its reply, which raises a reply that is an error.

        SUBSCRIBE and UNSUBSCRIBE are allowed with one channel, since each channel gets a reply.
        """
        reply: asyncio.Future[Any] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            reply.set_exception(ConnectionError(f"the connection to {self.address} was lost"))
            return reply
        self._transport.write(pack(words))
        if not self._waiting:
            self._last_reply_at = self._loop.time()
        self._waiting.append(reply)
        if len(words) > LARGE:
            self._patient_until = self._loop.time() + len(words) * WORD_SECONDS
        if self._timer is None:
            self._timer = self._loop.call_later(ANSWER_TIMEOUT, self._check)
        return reply

    def _check(self) -> None:
        """Disconnect from a server that is silent while replies are due. One timer serves all commands.

        A late reply would otherwise match the wrong command.
        """
        self._timer = None
        left = max(ANSWER_TIMEOUT - self.silent_seconds, self._patient_until - self._loop.time())
        if left <= 0:
            self._timed_out = True
            self.close()
        elif self._waiting:
            self._timer = self._loop.call_later(left, self._check)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def closed(self) -> None:
        """Wait until the connection is closed."""
        await self._closed.wait()

    # ------------------------------------------------------------------ called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        if sock is not None and self.address.path is None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                with contextlib.suppress(OSError, AttributeError):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def data_received(self, data: bytes) -> None:
        reader, waiting = self._reader, self._waiting
        self._last_reply_at = self._loop.time()
        try:
            reader.feed(data)
            while (reply := reader.gets()) is not _PENDING:
                if isinstance(reply, hiredis.PushNotification) and reply[0] not in _CONFIRMED:
                    if reply[0] == b"message":
                        self._on_message(reply[1], reply[2])
                    continue
                future = waiting.popleft()
                if future.done():  # The caller was cancelled. The server has executed the command all the same.
                    continue
                if isinstance(reply, hiredis.ReplyError):
                    future.set_exception(reply)
                else:
                    future.set_result(reply)
        except (hiredis.ProtocolError, IndexError):
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closed.set()
        if self._timer is not None:
            self._timer.cancel()
        why = f"no answer within {ANSWER_TIMEOUT:.0f} s" if self._timed_out else exc or "closed"
        lost = Unanswered(f"the connection to {self.address} was lost: {why}")
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(lost)
        self._on_lost(self)
