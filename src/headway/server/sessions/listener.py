"""Where workers dial in to sessions that this process has admitted.

Several processes may serve at one port, and a balancer may stand before many servers: each process needs an address
that leads to it and to no other. Unless one is set (``advertise``), it listens at a free port of this machine, from
its first session on.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from headway.server.guard import UVICORN

HOST = "127.0.0.1"


class SessionListener:
    """Listens for workers of this machine, once the address was asked for."""

    def __init__(self, api: ASGIApp, advertised: str | None) -> None:
        self._api = api
        self._advertised = advertised
        self._server: _Quiet | None = None
        self._serving: asyncio.Task[None] | None = None
        self._address = ""

    async def address(self) -> str:
        """Return the address for workers."""
        if self._advertised is not None:
            return self._advertised.rstrip("/")
        if self._serving is None or self._serving.done():
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listener.bind((HOST, 0))
            self._address = f"http://{HOST}:{listener.getsockname()[1]}"
            self._server = _Quiet(
                uvicorn.Config(self._api, loop="none", lifespan="off", log_config=None, access_log=False, **UVICORN)
            )
            listener.listen()
            self._serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        return self._address

    async def close(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            self._server.force_exit = True
            await asyncio.gather(self._serving, return_exceptions=True)


class _Quiet(uvicorn.Server):
    """Leaves signals to the owner of the loop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
