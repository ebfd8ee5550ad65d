"""Serving the application: where it listens, and how it leaves."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI

from headway.client.settings import Settings
from headway.core.errors import ConfigError
from headway.security.binding import check_bind
from headway.security.tokens import any_tokens
from headway.server.connection_limits import HandshakeLogFilter
from headway.server.guard import UVICORN
from headway.server.service import Service
from headway.stores.base import Store

log = logging.getLogger("headway.server")

BACKLOG = 2_048
LEAVING_SECONDS = 10  # What requests under way get when the server is told to leave.


def bind(host: str, port: int) -> socket.socket:
    """Take an address. Raises ``ConfigError`` saying what to do if it is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Not any protocol: asyncio switches off Nagle's delay, 40 ms of each answer, only where it is told that it is TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)  # A client that comes before the first process serves waits, and is not turned away.
    except (OSError, OverflowError) as problem:
        listener.close()
        raise ConfigError(
            f"cannot listen at {host}:{port}: {problem}; choose another with --port or HEADWAY_PORT (0: any free one)",
            setting="port",
        ) from None
    listener.set_inheritable(True)
    return listener


def address_of(listener: socket.socket, *, tls: bool = False) -> str:
    """Return the address to tell people."""
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def announce(address: str) -> None:
    """Print where the interface is."""
    log.info("server.up", extra={"headway": {"address": address, "docs": f"{address}/docs"}})


async def check_auth(store: Store, settings: Settings) -> None:
    """Refuse to listen beyond this machine without tokens. Raises ``ConfigError``."""
    check_bind(settings.host, await any_tokens(store))


class UvicornServer(uvicorn.Server):
    """Serves on the running loop. Signals are left to the owner of that loop."""

    def __init__(self, api: FastAPI, listener: socket.socket, **options: Any) -> None:
        super().__init__(
            uvicorn.Config(
                api,
                loop="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                backlog=BACKLOG,
                timeout_graceful_shutdown=LEAVING_SECONDS,
                **UVICORN,
                **options,
            )
        )
        logging.getLogger("uvicorn.error").addFilter(HandshakeLogFilter())
        self._service: Service = api.state.service
        self._listener = listener

    async def run_here(self) -> None:
        """Serve until told to leave."""
        await self.serve(sockets=[self._listener])

    def leave(self) -> None:
        """Take no more requests, end what is held open, and go."""
        self._service.stop()
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
