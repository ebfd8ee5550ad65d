"""Odd and slow requests, byte by byte, against a server that listens."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from headway.server.connection_limits import HandshakeLogFilter, HttpProtocol
from headway.server.guard import CSP
from headway.server.uvicorn_server import OPTIONS
from tests.server.guarded_app import GuardedApp

GOOD = b"GET /read HTTP/1.1\r\nHost: localhost\r\n\r\n"


class ImpatientProtocol(HttpProtocol):
    """A protocol that waits only a short time for the head of a request."""

    head_seconds = 0.2


@asynccontextmanager
async def listening(guarded_app: GuardedApp, protocol: type[HttpProtocol] = HttpProtocol) -> AsyncIterator[int]:
    """Serve on a free port. Yields the port."""
    options: dict[str, Any] = {**OPTIONS, "http": protocol}
    config = uvicorn.Config(guarded_app.guard, port=0, lifespan="off", **options)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        await server.shutdown()


async def talk(port: int, *parts: bytes) -> bytes:
    """Send bytes, part by part, and return the first line of the reply, or nothing if the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
        async with asyncio.timeout(10):
            return await reader.readline()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_good_request_is_answered_without_a_word_on_what_runs() -> None:
    async with listening(GuardedApp()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GOOD)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"server:" not in head.lower()
        assert b"content-security-policy:" in head
        writer.close()


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param((), id="nothing"),
        pytest.param((GOOD[:-4],), id="a head that never ends"),
        pytest.param((GOOD[:5],), id="half a line"),
        pytest.param((GOOD[:-4], b"\r\nX: y", b"\r\nX: y"), id="header after header"),
    ],
)
async def test_a_head_that_does_not_come_is_not_waited_for(parts: tuple[bytes, ...]) -> None:
    # S-21, H8
    async with listening(GuardedApp(), ImpatientProtocol) as port:
        assert await talk(port, *parts) == b""


async def test_the_second_head_on_a_connection_is_not_waited_for_either() -> None:
    # S-21
    async with listening(GuardedApp(), ImpatientProtocol) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GOOD)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.splitlines() if line.startswith(b"content-length"))
        await reader.readexactly(length)
        writer.write(GOOD[:20])
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(b"GET /read HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 10_000_000, id="a huge header"),
        pytest.param(b"GET /" + b"y" * 10_000_000, id="a huge address"),
        pytest.param(GOOD[:-2] + b"".join(b"X%d: y\r\n" % n for n in range(10_000)) + b"\r\n", id="10,000 headers"),
        pytest.param(GOOD[:-2] + b"Host: evil.example\r\n\r\n", id="two hosts"),
        pytest.param(b"rubbish\r\n\r\n", id="rubbish"),
        pytest.param(
            b"POST /submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
            id="two lengths",
        ),
        pytest.param(
            b"POST /submit HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n{}",
            id="a length and chunks",
        ),
    ],
)
async def test_odd_heads_are_refused(request_: bytes) -> None:
    # S-21, H8
    async with listening(GuardedApp()) as port:
        assert (await talk(port, request_))[:12] in (b"HTTP/1.1 400", b"")


async def test_a_body_beyond_the_bound_ends_the_connection() -> None:
    # S-18
    async with listening(GuardedApp()) as port:
        head = b"POST /submit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        chunk = b"10000\r\n" + b" " * 65_536 + b"\r\n"
        assert (await talk(port, head + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 100))[:12] in (
            b"HTTP/1.1 413",
            b"",
        )
        assert (await talk(port, head + b"Content-Length: 99999999\r\n\r\n")).startswith(b"HTTP/1.1 413")


def test_only_the_false_alarm_is_dropped() -> None:
    def record(text: str) -> logging.LogRecord:
        return logging.LogRecord("uvicorn.error", logging.ERROR, "file", 1, text, (), None)

    assert not HandshakeLogFilter().filter(record("ASGI callable returned without completing handshake."))
    assert HandshakeLogFilter().filter(record("Exception in ASGI application\n"))


@pytest.mark.parametrize(
    "request_",
    [b"rubbish\r\n\r\n", b"GET /read HTTP/1.1\r\nHost: localhost\r\nX: " + b"y" * 100_000],
    ids=["rubbish", "a huge head"],
)
async def test_what_the_parser_refuses_is_a_problem_like_any_other(request_: bytes) -> None:
    # S-13
    async with listening(GuardedApp()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request_)
        async with asyncio.timeout(10):
            answer = await reader.read()
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 400 Bad Request"
    headers = dict(line.split(b": ", 1) for line in lines[1:])
    assert headers[b"content-type"] == b"application/problem+json"
    assert headers[b"content-security-policy"] == CSP.encode()
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert headers[b"referrer-policy"] == b"no-referrer"
    assert headers[b"cache-control"] == b"no-store"
    assert (headers[b"connection"], int(headers[b"content-length"])) == (b"close", len(body))
    assert json.loads(body)["code"] == "malformed"
