"""fasdis on Headway: ``uvicorn main:app --port 8000`` starts a server and a worker in one process."""

from __future__ import annotations

import asyncio
import os

from headway import Headway

queue = Headway()


@queue.task(name="resize")
async def resize(width: int = 640) -> str:
    """Pretend to work for a second, as the tasks of fasdis do."""
    await asyncio.sleep(1)
    return f"{width} pixels wide"


os.environ.setdefault("HEADWAY_APP", "main:queue")

from headway.server.main import create  # noqa: E402 - it reads HEADWAY_APP

app = create()
