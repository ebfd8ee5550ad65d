"""A server with scripted replies, to test the requests of workers and their handling of replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

HOST = "127.0.0.1"


class StubRequest(NamedTuple):
    """One request as it arrived."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str]


class StubReply(NamedTuple):
    """A reply. ``raw`` is sent in place of JSON. ``cut`` closes the connection without a reply."""

    body: Any = None
    status: int = 200
    cut: bool = False
    raw: bytes | None = None
    kind: str = "application/json"
    until: asyncio.Event | None = None


Answer = Callable[[StubRequest], StubReply]


class StubServer:
    """A server that replies to each request by a function of the test. Use with ``async with``."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[StubRequest] = []
        self.connections = 0
        self._changed = asyncio.Condition()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        assert self._server is not None
        return f"http://{HOST}:{self._server.sockets[0].getsockname()[1]}"

    def polls(self) -> list[dict[str, Any]]:
        return [asked.body for asked in self.asked if asked.path.endswith("/poll")]

    async def until(self, what: Callable[[], object]) -> None:
        """Wait until a condition is true. It is checked after each request."""
        async with asyncio.timeout(30), self._changed:
            await self._changed.wait_for(what)

    async def __aenter__(self) -> StubServer:
        self._server = await asyncio.start_server(self._serve, HOST, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while asked := await _read(reader):
                async with self._changed:
                    self.asked.append(asked)
                    self._changed.notify_all()
                say = self.answer(asked)
                if say.until is not None:
                    await say.until.wait()
                if say.cut:
                    return
                writer.write(_written(say))
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()


def problem(status: int, code: str, detail: str = "no") -> StubReply:
    """Return a reply with a problem document."""
    return StubReply({"status": status, "code": code, "detail": detail}, status=status, kind="application/problem+json")


def a_task(number: int, **facts: Any) -> dict[str, Any]:
    """Return a job as a server sends it."""
    return {
        "task_id": f"job-{number}",
        "task_type": "echo",
        "parameters": {"value": number},
        "timeout_seconds": 30.0,
        "trace_id": "trace",
        "fence": f"{number:032x}",
        "epoch": 1,
        "attempt": 1,
        "max_retries": 3,
        "priority": "medium",
        "tenant": None,
        **facts,
    }


def _written(say: StubReply) -> bytes:
    if say.raw is not None:
        return say.raw
    body = json.dumps(say.body).encode()
    head = f"HTTP/1.1 {say.status} X\r\nContent-Type: {say.kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _read(reader: asyncio.StreamReader) -> StubRequest | None:
    first = await reader.readline()
    if not first:
        return None
    headers: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = await reader.readexactly(int(headers["content-length"]))
    return StubRequest(first.split()[1].decode(), json.loads(body), headers)
