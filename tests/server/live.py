"""The service on a real socket, on the loop of the test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from fastapi import FastAPI

from headway.server.serving import Server, address_of, bind


@contextlib.asynccontextmanager
async def served(api: FastAPI) -> AsyncIterator[str]:
    """Serve at a free port of this machine. Gives the address."""
    listener = bind("127.0.0.1", 0)
    server = Server(api, listener)
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
