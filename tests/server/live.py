"""The service on a real socket, on the event loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Iterator

from fastapi import FastAPI

from headway.server.uvicorn_server import UvicornServer, address_of, bind

SMALL = 4_096  # Bytes that a system keeps for a client that does not read; it may make that twice as many.


@contextlib.asynccontextmanager
async def served(api: FastAPI, *, small: bool = False) -> AsyncIterator[str]:
    """Serve on a free port of this machine. Yields the address. ``small``: the socket buffers little."""
    listener = bind("127.0.0.1", 0)
    if small:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL)
    server = UvicornServer(api, listener, service=api.state.service)
    serving = asyncio.create_task(server.run_here())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
            if serving.done():
                await serving
        yield address_of(listener)
    finally:
        server.leave()
        await serving
        listener.close()


@contextlib.contextmanager
def asked(address: str, request: str) -> Iterator[socket.socket]:
    """Send a request to an address. Yields a connection that buffers little of the reply."""
    host, _, port = address.removeprefix("http://").partition(":")
    with socket.socket() as reader:
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        reader.connect((host, int(port)))
        reader.sendall(request.encode())
        yield reader


def read_all(reader: socket.socket, *, until: int | None = None, pause: float = 0.0) -> bytes:
    """Read until the end or until this many bytes, with a pause after each piece."""
    found = bytearray()
    reader.settimeout(10)
    with contextlib.suppress(ConnectionError):
        while (until is None or len(found) < until) and (piece := reader.recv(100_000)):
            found += piece
            time.sleep(pause)
    return bytes(found)
