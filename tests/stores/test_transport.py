"""The connection to a store: TLS is verified, and plain text to another machine is always reported."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from pathlib import Path

import pytest

from headway.client.health_checks import check_transport
from headway.core.errors import HeadwayError
from headway.stores import transport
from headway.stores.base import JobQuery
from headway.stores.open import open_archive, open_store
from headway.stores.postgres.address import read_address
from headway.stores.redis import address as redis
from headway.stores.transport import Transport
from tests.certificates import make_certificate
from tests.conformance.builders import submit_one
from tests.conftest import postgres


@pytest.mark.parametrize(
    "url, expected",
    [
        ("postgresql://db.internal/app", Transport.PLAIN),
        ("postgresql://db.internal/app?sslmode=prefer", Transport.PLAIN),
        ("postgresql://db.internal/app?sslmode=disable", Transport.PLAIN),
        ("postgresql://me:pw@10.0.0.7:5433/app?sslmode=require", Transport.UNVERIFIED),
        ("postgresql://db.internal/app?sslmode=verify-ca", Transport.VERIFIED),
        ("postgresql://db.internal/app?sslmode=verify-full", Transport.VERIFIED),
        ("postgresql://localhost/app", Transport.LOCAL),
        ("postgresql://127.0.0.1:5433/app", Transport.LOCAL),
        ("postgresql://[::1]/app", Transport.LOCAL),
        ("postgresql://[::1]:5433/app", Transport.LOCAL),
        ("postgresql:///app?host=/var/run/postgresql", Transport.LOCAL),
        ("postgresql://localhost,db.internal/app", Transport.PLAIN),
        ("postgresql://localhost/app?host=db.internal", Transport.PLAIN),
        ("postgresql://127.0.0.1.evil.example/app", Transport.PLAIN),
    ],
)
def test_what_protects_the_way_to_postgresql(url: str, expected: Transport) -> None:  # S-28
    assert read_address(url).transport is expected


@pytest.mark.parametrize(
    "url, expected",
    [
        ("redis://cache.internal", Transport.PLAIN),
        ("valkey://10.0.0.7:6380/1", Transport.PLAIN),
        ("redis+sentinel://a,b/main", Transport.PLAIN),
        ("redis+cluster://a,b", Transport.PLAIN),
        ("rediss://cache.internal", Transport.VERIFIED),
        ("rediss://cache.internal?insecure=1", Transport.UNVERIFIED),
        ("redis://localhost", Transport.LOCAL),
        ("redis://127.0.0.1:7000", Transport.LOCAL),
        ("redis://[::1]:7000", Transport.LOCAL),
        ("unix:///run/valkey.sock", Transport.LOCAL),
    ],
)
def test_what_protects_the_way_to_redis(url: str, expected: Transport) -> None:  # S-28
    assert redis._transport(redis.read_redis_address(url)) is expected


@pytest.mark.parametrize("url", ["redis://192.0.2.1:1", "postgresql://192.0.2.1:1/app?sslmode=require"])
async def test_an_exposed_store_is_logged_once(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S-28. Nothing is sent anywhere: the store is refused right after the warning.
    monkeypatch.setattr(transport, "_warned", set())
    monkeypatch.setattr("headway.stores.redis.store.RedisStore._check", _refuse)
    monkeypatch.setattr("headway.stores.postgres.store.connect", _refuse)
    with caplog.at_level(logging.WARNING, "headway.stores"):
        for _ in range(3):
            with pytest.raises(HeadwayError):
                await open_store(url).open()
    assert [record.getMessage().split()[0] for record in caplog.records] == ["store.exposed"]


async def test_an_exposed_history_is_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S-28. Nothing is sent anywhere: the connection is refused right after the warning.
    monkeypatch.setattr(transport, "_warned", set())
    monkeypatch.setattr("asyncpg.connect", _refuse)
    archive = open_archive("postgresql://me:pw@192.0.2.1:1/history", "default")
    with caplog.at_level(logging.WARNING, "headway.stores"):
        for _ in range(3):
            with pytest.raises(HeadwayError):
                await archive.find(JobQuery())
    [record] = caplog.records
    assert record.getMessage().split()[0] == "store.exposed"
    assert "192.0.2.1" in record.getMessage()
    assert "pw" not in record.getMessage()


async def _refuse(*_: object, **__: object) -> None:
    raise HeadwayError("refused by the test")


def test_doctor_warns_of_an_exposed_store() -> None:  # S-28
    assert [check_transport(way.value).status for way in Transport] == ["ok", "ok", "warning", "warning"]


# ---------------------------------------------------------------------- PostgreSQL with TLS


class TlsProxy:
    """TLS as PostgreSQL offers it, in front of a server without TLS."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self._port = port
        self._context = context
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ssl.SSLError, asyncio.IncompleteReadError):
            assert await reader.readexactly(8) == b"\0\0\0\x08\x04\xd2\x16\x2f"  # A wish for TLS.
            writer.write(b"S")
            await writer.drain()
            await writer.start_tls(self._context)
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
            for source, target in ((reader, inner_writer), (inner_reader, writer)):
                self._tasks.add(asyncio.create_task(self._pass_on(source, target)))

    async def _pass_on(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
            target.close()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two certificates for 127.0.0.1 that vouch for themselves, each with its key."""
    folder = tmp_path_factory.mktemp("tls")
    for name in ("ours", "other"):
        make_certificate(folder, name)
    return {path.name: path for path in folder.iterdir()}


async def test_the_certificate_of_postgresql_is_verified(certificates: dict[str, Path]) -> None:  # S-28, N7
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates["ours.crt"], certificates["ours.key"])
    async with TlsProxy(postgres().port, context) as port:
        base = f"postgresql://postgres@127.0.0.1:{port}/postgres?sslmode=verify-full&sslrootcert="
        known = open_store(f"{base}{certificates['ours.crt']}")
        await known.open()
        await submit_one(known)
        await known.close()
        for wrong in (
            f"{base}{certificates['other.crt']}",  # Of a maker that we do not know.
            f"{base.replace('127.0.0.1', 'localhost')}{certificates['ours.crt']}",  # Of another host.
        ):
            with pytest.raises(HeadwayError, match=r"(?i)certificate"):
                await open_store(wrong).open()
