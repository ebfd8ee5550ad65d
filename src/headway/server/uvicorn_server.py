"""Serve an ASGI application with uvicorn: bind the socket, serve, and stop."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.types import ASGIApp

from headway.client.settings import Settings
from headway.core.errors import ConfigError
from headway.core.log_event import LogEvent
from headway.security.binding import check_bind
from headway.security.tokens import any_tokens
from headway.server.connection_limits import HandshakeLogFilter
from headway.stores.base import Store

if TYPE_CHECKING:
    from headway.server.service import Service

log = logging.getLogger("headway.server")

BACKLOG = 2_048  # Connections that wait until a process accepts them.
SHUTDOWN_SECONDS = 10  # Seconds that a stopping server waits for its requests to end.
OPTIONS: Mapping[str, Any] = {
    "loop": "none",
    "http": "headway.server.connection_limits:HttpProtocol",
    "ws": "headway.server.connection_limits:WebSocketProtocol",
    "log_config": None,
    "log_level": "warning",
    "access_log": False,  # The address of a stream holds its ticket.
    "server_header": False,
    "proxy_headers": False,  # Any caller could claim another address with such a header.
    "ws_max_size": 64 << 10,
    "ws_per_message_deflate": False,  # A small compressed message can unpack to gigabytes.
    "ws_ping_interval": 20.0,
    "ws_ping_timeout": 20.0,
    "timeout_keep_alive": 30,
}

_HANDSHAKES = HandshakeLogFilter()


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address. Raises ``ConfigError`` if the address is in use."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio disables Nagle's algorithm, which delays each reply by 40 ms, only for sockets that name TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # Now, so that clients wait for the first process instead of being refused.
    except (OSError, OverflowError) as problem:
        listener.close()
        raise ConfigError(
            f"cannot listen at {host}:{port}: {problem}; choose another with --port or HEADWAY_PORT (0: any free one)",
            setting="port",
        ) from None
    return listener


def address_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Return the address to show to users."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def announce(address: str, *, ui: bool) -> None:
    """Log the address of the server, and of the dashboard if it serves that."""
    dashboard = {"dashboard": f"{address}/ui/"} if ui else {}
    log.info(LogEvent("server.up", address=address, docs=f"{address}/docs", **dashboard))


async def check_auth(store: Store, settings: Settings) -> None:
    """Refuse to listen beyond this machine without tokens. Raises ``ConfigError``."""
    check_bind(settings.host, await any_tokens(store))


class UvicornServer(uvicorn.Server):
    """Serves an application on the running loop, whose owner handles signals.

    ``service``: the service of the application, whose streams and polls end when the server leaves.
    ``on_started`` is called once it answers requests.
    """

    def __init__(
        self,
        api: ASGIApp,
        listener: socket.socket,
        *,
        service: Service | None = None,
        on_started: Callable[[], None] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                api,
                lifespan="off" if service is None else "on",
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
                backlog=BACKLOG,
                **OPTIONS,
                **options,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(_HANDSHAKES)
        self._service = service
        self._listener = listener
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        if self.started and self._on_started is not None:
            self._on_started()

    async def run_here(self) -> None:
        """Serve until ``leave``."""
        await self.serve(sockets=[self._listener])

    def leave(self) -> None:
        """Accept no more requests, end what the service holds open, and stop."""
        if self._service is not None:
            self._service.stop()
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
