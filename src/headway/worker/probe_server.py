"""A worker's small HTTP server for metrics, liveness and readiness. It listens on loopback only."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from headway.client.settings import LOOPBACK, read_probe_address
from headway.core.errors import ConfigError
from headway.core.log_event import LogEvent
from headway.metrics.text_format import PLAIN

log = logging.getLogger("headway.worker")

TIMEOUT = 5.0  # Seconds for a request to arrive and to be answered.
REQUEST_MAX = 8_192


class ProbeServer:
    """Answers GET /metrics, /healthz and /readyz, one request a connection.

    ``ready`` returns why the worker is not ready, or None. ``metrics`` returns the text of /metrics.
    """

    def __init__(
        self, address: str, *, ready: Callable[[], Awaitable[str | None]], metrics: Callable[[], Awaitable[str]]
    ) -> None:
        self._host, self._port = read_probe_address(address)
        self._ready = ready
        self._metrics = metrics
        self._server: asyncio.Server | None = None

    async def open(self) -> int:
        """Start to listen and return the port. Raises ``ConfigError`` if the address is taken."""
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=REQUEST_MAX)
        except OSError as problem:
            raise ConfigError(
                f"worker_http: cannot listen on {self._host}:{self._port}: {problem.strerror or problem}",
                setting="worker_http",
            ) from None
        port = int(self._server.sockets[0].getsockname()[1])
        log.info(LogEvent("probes.up", address=f"http://{self._host}:{port}"))
        return port

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(TIMEOUT):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                status, body, kind = await self._answer(head)
                writer.write(_response(status, body, kind))
                await writer.drain()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str) -> tuple[str, str, str]:
        request, *lines = head.split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.split(" ")[0].partition("?")[0]
        host = next((line[5:].strip() for line in lines if line[:5].lower() == "host:"), "")
        plain = "text/plain; charset=utf-8"
        if host.rpartition(":")[0].strip("[]") not in LOOPBACK and host.strip("[]") not in LOOPBACK:
            return (
                "403 Forbidden",
                "this address answers only to its own name\n",
                plain,
            )  # The request may come from a web page of another origin.
        if method != "GET":
            return "405 Method Not Allowed", "only GET\n", plain
        match path:
            case "/healthz":
                return "200 OK", "ok\n", plain
            case "/readyz":
                problem = await self._ready()
                return "503 Service Unavailable" if problem else "200 OK", f"{problem or 'ok'}\n", plain
            case "/metrics":
                return await self._measured()
        return "404 Not Found", "here are /metrics, /healthz and /readyz\n", plain

    async def _measured(self) -> tuple[str, str, str]:
        try:
            return "200 OK", await self._metrics(), PLAIN
        except Exception as problem:  # Monitoring should see that the store is unavailable, not an old number.
            log.warning(LogEvent("metrics.failed", error=str(problem)))
            return "503 Service Unavailable", "the metrics could not be gathered\n", "text/plain; charset=utf-8"


def _response(status: str, body: str, kind: str) -> bytes:
    content = body.encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    return head.encode() + content
