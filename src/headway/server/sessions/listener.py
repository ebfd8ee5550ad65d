"""Listens for workers that connect to sessions of this process.

Several processes may serve one port, and a load balancer may stand before many servers. Each process therefore needs
an address of its own. Unless ``advertise`` sets one, the process listens at a free port of this machine from its first
session on.
"""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp

from headway.server.uvicorn_server import UvicornServer, address_of, bind

HOST = "127.0.0.1"


class SessionListener:
    """Listens for workers of this machine, from the first call of ``address`` on."""

    def __init__(self, api: ASGIApp, advertised: str | None) -> None:
        self._api = api
        self._advertised = advertised
        self._server: UvicornServer | None = None
        self._serving: asyncio.Task[None] | None = None
        self._address = ""

    async def address(self) -> str:
        if self._advertised is not None:
            return self._advertised.rstrip("/")
        if self._serving is None or self._serving.done():
            listener = bind(HOST, 0)
            self._address = address_of(listener)
            self._server = UvicornServer(self._api, listener)
            self._serving = asyncio.create_task(self._server.run_here())
        return self._address

    async def close(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.leave()
            self._server.force_exit = True  # The sessions have ended already.
            await asyncio.gather(self._serving, return_exceptions=True)
