"""Relay a client that returns to another process than the one with its session."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException

from headway.runtime.bounded_wait import end_tasks

DIAL_SECONDS = 2.0
GOING_AWAY, RESTARTING = 1001, 1012


async def reach(address: str, headers: Mapping[str, str]) -> ClientConnection | None:
    """Connect to the process that has a session. Return None if that process refuses or is gone."""
    try:
        return await connect(
            address.replace("http", "ws", 1),
            additional_headers=headers,
            compression=None,
            proxy=None,
            max_size=None,  # A result may be large, and the process that sends it bounds its size.
            max_queue=4,
            open_timeout=DIAL_SECONDS,
            close_timeout=DIAL_SECONDS,
        )
    except (OSError, TimeoutError, WebSocketException):
        return None


async def forward(client: WebSocket, worker: ClientConnection, *ends: asyncio.Future[None]) -> None:
    """Forward messages both ways until one side closes. At most one message each way is buffered."""
    to_client = asyncio.create_task(_to_client(worker, client))
    to_worker = asyncio.create_task(_to_worker(client, worker))
    try:
        parts: set[asyncio.Future[Any]] = {to_client, to_worker, *ends}
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        code, reason = to_client.result() if to_client.done() else (RESTARTING, "come back")
        if not to_worker.done():
            with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
                async with asyncio.timeout(DIAL_SECONDS):
                    await client.close(code, reason)
    finally:
        await end_tasks((to_client, to_worker))
        await worker.close(GOING_AWAY)


async def _to_client(worker: ClientConnection, client: WebSocket) -> tuple[int, str]:
    try:
        while True:
            message = await worker.recv()
            if isinstance(message, str):
                await client.send_text(message)
            else:
                await client.send_bytes(message)
    except ConnectionClosed as closed:
        end = closed.rcvd
        return (RESTARTING, "come back") if end is None else (end.code, end.reason)
    except (WebSocketDisconnect, RuntimeError):
        return GOING_AWAY, ""


async def _to_worker(client: WebSocket, worker: ClientConnection) -> None:
    with contextlib.suppress(ConnectionClosed):
        while (message := await client.receive())["type"] != "websocket.disconnect":
            data = message.get("bytes")
            await worker.send(message.get("text") or "" if data is None else data)
