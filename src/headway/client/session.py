"""The task's side of a session: messages in both directions and the size of the client's window."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from headway.core.errors import SessionClosed
from headway.protocol.sessions import INPUT_MAX, MESSAGE_CHARACTERS, OUTPUT_MAX, PIECE, Credit, Resize, Text, write

SIZE = (24, 80)  # Rows and columns until the client reports its own, as terminals assume.
RETURNED = INPUT_MAX // 4  # Bytes; credit is returned in steps of this size, not for every message.

Transmit = Callable[[str | bytes], Awaitable[None]]


class TaskSession:
    """The task's side of a session. Belongs to one event loop.

    ``transmit`` sends a message to the client and raises ``OSError`` if the client is gone. Both directions are
    bounded: ``send`` waits while the client reads too slowly, and the client waits while the task does not receive.
    """

    def __init__(self, transmit: Transmit) -> None:
        self._transmit = transmit
        self._inbox: deque[str | bytes] = deque()
        self._arrived = asyncio.Event()
        self._read = 0  # Bytes received since credit was last returned.
        self._credit = OUTPUT_MAX
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._sending = asyncio.Lock()
        self._resized = asyncio.Event()
        self.size = SIZE
        self.gone = False
        self._when_gone: list[Callable[[], None]] = []

    # ------------------------------------------------------------------ for the task

    async def resized(self) -> tuple[int, int]:
        """Wait for a resize since the last call and return the size."""
        await self._resized.wait()
        self._raise_if_gone()
        self._resized.clear()
        return self.size

    async def receive(self) -> str | bytes:
        """Return the next message. Raises ``SessionClosed`` once all are read and the client has left for good."""
        while not self._inbox:
            self._raise_if_gone()
            self._arrived.clear()
            await self._arrived.wait()
        message = self._inbox.popleft()
        self._read += _cost(message)
        if self._read >= RETURNED and not self.gone:
            returned, self._read = self._read, 0
            with contextlib.suppress(OSError):
                await self._transmit(write(Credit(returned)))
        return message

    async def send(self, data: str | bytes | bytearray | memoryview) -> None:
        """Send data, in pieces if it is long. Waits while the client reads too slowly. Raises ``SessionClosed``."""
        if not isinstance(data, (str, bytes, bytearray, memoryview)):
            raise TypeError(f"a session carries str and bytes, not {type(data).__name__}")
        async with self._sending:  # The pieces of one call stay together.
            for piece in _pieces(data):
                self._raise_if_gone()
                await self._may_send.wait()
                self._raise_if_gone()
                self._spend(_cost(piece))
                try:
                    await self._transmit(write(Text(piece)) if isinstance(piece, str) else piece)
                except OSError:
                    self.hang_up()
                    self._raise_if_gone()

    # ------------------------------------------------------------------ for the transport

    def deliver(self, message: str | bytes | Resize | Credit) -> None:
        """Process a message from the client."""
        match message:
            case Credit(more):
                self._spend(-more)
            case Resize(rows, columns):
                self.size = (rows, columns)
                self._resized.set()
            case _:
                self._inbox.append(message)
                self._arrived.set()

    def hang_up(self) -> None:
        """Record that the client has left for good, and wake all waiting calls."""
        if not self.gone:
            self.gone = True
            for event in (self._arrived, self._may_send, self._resized):
                event.set()
            for call in self._when_gone:
                call()

    def when_gone(self, call: Callable[[], None]) -> None:
        """Register a function to call once the client has left."""
        self._when_gone.append(call)
        if self.gone:
            call()

    def _spend(self, count: int) -> None:
        self._credit -= count
        if self._credit > 0 or self.gone:
            self._may_send.set()
        else:
            self._may_send.clear()

    def _raise_if_gone(self) -> None:
        if self.gone:
            raise SessionClosed


def _pieces(data: str | bytes | bytearray | memoryview) -> Iterator[str | bytes]:
    if isinstance(data, str):
        for start in range(0, len(data), MESSAGE_CHARACTERS):
            yield data[start : start + MESSAGE_CHARACTERS]
    else:
        whole = memoryview(data).cast("B")
        for start in range(0, len(whole), PIECE):
            yield bytes(whole[start : start + PIECE])


def _cost(message: str | bytes) -> int:
    return len(message.encode("utf-8", "replace")) if isinstance(message, str) else len(message)
