"""Limits that uvicorn lacks: the size and time of a request head, and the time without any read."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from headway.server.guard import ADDED
from headway.server.problems import PROBLEM_JSON, Problem
from headway.server.problems import body as problem_body

HEAD_MAX = 64 << 10  # Bytes of a request head. Common proxies accept 8 to 32 kB.
HEAD_SECONDS = 10.0  # Seconds to receive a request head. Browsers and proxies send it at once.
READ_SECONDS = 30.0  # Seconds without progress after which a peer counts as gone.


class SlowReaderGuard(asyncio.Protocol):
    """Closes connections whose peer reads nothing for ``read_seconds``. Slow peers that make progress are kept."""

    read_seconds = READ_SECONDS
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _unread_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer()

    def resume_writing(self) -> None:
        self._stop_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._unread_timer = self.loop.call_later(self.read_seconds, self._check_progress, unread)

    def _check_progress(self, unread: int) -> None:
        if self.transport.get_write_buffer_size() >= unread:
            self.transport.abort()
        else:
            self._start_timer()

    def _stop_timer(self) -> None:
        if self._unread_timer is not None:
            self._unread_timer.cancel()
            self._unread_timer = None


class WebSocketProtocol(SlowReaderGuard, WebSocketsSansIOProtocol):
    """A WebSocket."""


class HttpProtocol(SlowReaderGuard, HttpToolsProtocol):
    """Closes connections whose request head is incomplete for too long or too large.

    A head that arrives in one piece, as nearly all do, starts no timer. The same limits hold for trailers, which
    uvicorn would collect without bound, and for the rest of a body after its request has been answered.
    """

    head_max = HEAD_MAX
    head_seconds = HEAD_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._in_head = False
        self._in_body = False
        self._moved = False  # The last piece of data ended a head or held part of a body.
        self._head_size = 0  # Bytes since then.
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._moved = False
        super().data_received(data)
        if not (self._in_head or self._in_body) or self.transport.is_closing():
            return
        self._head_size = 0 if self._moved else self._head_size + len(data)
        if self._head_size > self.head_max:
            if self._in_head:
                self.send_400_response("The head of the request is too large.")
            else:
                self.transport.close()  # The request may have been answered already.
        elif self._in_head and self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_size = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # Trailers are ignored: the head was checked before they came.
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._in_body = self._moved = True
        self._end_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        self._end_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        unread = self._in_body and self.cycle.response_complete
        if unread and self._head_timer is None and not self.transport.is_closing():
            self._head_timer = self.loop.call_later(self.head_seconds, self._give_up)

    def send_400_response(self, msg: str) -> None:
        """Reply to what the parser cannot read with a problem and the usual headers."""
        body = problem_body(Problem("malformed", msg))
        added = [(b"content-type", PROBLEM_JSON.encode()), (b"content-length", b"%d" % len(body)), *ADDED]
        head = b"".join(b"%s: %s\r\n" % pair for pair in [*added, (b"connection", b"close")])
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"\r\n" + body)
        self.transport.close()

    def _give_up(self) -> None:
        self._head_timer = None
        self.transport.close()

    def _end_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None


class HandshakeLogFilter(logging.Filter):
    """Drops a message of uvicorn that reports refused WebSockets as errors."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.msg != "ASGI callable returned without completing handshake."
