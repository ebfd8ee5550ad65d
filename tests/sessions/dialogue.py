"""A client of sessions for tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

PATIENCE = 15.0


class Dialogue:
    """A connection to a session: JSON messages as objects, data as bytes."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket
        self.task_id = ""
        self.secret = ""

    async def hear(self) -> Any:
        """Return the next message."""
        async with asyncio.timeout(PATIENCE):
            message = await self.socket.recv()
        return json.loads(message) if isinstance(message, str) else message

    async def expect(self, kind: str) -> Any:
        message = await self.hear()
        assert isinstance(message, dict), message
        assert message["type"] == kind, message
        if kind == "started":
            self.task_id, self.secret = message["task_id"], message["resume"]
        return message

    async def until(self, wanted: bytes) -> bytes:
        """Read data until it contains this."""
        read = b""
        while wanted not in read:
            message = await self.hear()
            assert isinstance(message, bytes), message
            read += message
        return read

    async def say(self, text: str) -> None:
        await self.tell("text", data=text)

    async def tell(self, kind: str, **values: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, **values}))

    async def rest(self) -> tuple[list[Any], int | None, str]:
        """Read until the session is closed. Return the messages, the code and the reason."""
        found: list[Any] = []
        while True:
            try:
                found.append(await self.hear())
            except ConnectionClosed as closed:
                end = closed.rcvd
                return found, None if end is None else end.code, "" if end is None else end.reason


@asynccontextmanager
async def knock(address: str, *, headers: dict[str, str] | None = None, **query: Any) -> AsyncIterator[Dialogue]:
    """Connect without expecting a certain reply."""
    if "parameters" in query and not isinstance(query["parameters"], str):
        query["parameters"] = json.dumps(query["parameters"])
    uri = f"{address.replace('http', 'ws', 1)}/api/v1/interactive?{urlencode(query)}"
    socket = await connect(uri, additional_headers=headers, proxy=None)
    try:
        yield Dialogue(socket)
    finally:
        with contextlib.suppress(ConnectionClosed):
            await socket.close()


@asynccontextmanager
async def opened(address: str, task: str, **query: Any) -> AsyncIterator[Dialogue]:
    """Open a session and expect it to be admitted."""
    async with knock(address, task_type=task, **query) as dialogue:
        await dialogue.expect("started")
        yield dialogue


@asynccontextmanager
async def resumed(address: str, task_id: str, secret: str, **query: Any) -> AsyncIterator[Dialogue]:
    """Resume a session."""
    async with knock(address, task_id=task_id, resume=secret, **query) as dialogue:
        await dialogue.expect("started")
        yield dialogue
