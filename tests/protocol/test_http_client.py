"""The HTTP client: reused connections, replies of every kind, and errors without secrets."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from headway.core.errors import ConfigError, HeadwayError, ServerRefused, ServerUnavailable, WorkerUnknown
from headway.protocol.http_client import HttpClient, read_address
from tests.servers import Proxy, free_port
from tests.worker.stub_server import StubReply, StubRequest, StubServer, problem

SECRET = "hw_0123456789_secret"


def echo(asked: StubRequest) -> StubReply:
    return StubReply({"path": asked.path, "body": asked.body})


async def ask(stub: StubServer, **question: Any) -> dict[str, Any]:
    caller = HttpClient(stub.address, SECRET)
    try:
        return await caller.ask("/there", question, dict)
    finally:
        await caller.close()


async def test_a_connection_is_kept_and_the_token_goes_in_a_header() -> None:
    async with StubServer(echo) as stub:
        caller = HttpClient(stub.address + "/below/", SECRET)
        for number in range(3):
            answer = await caller.ask("/there", {"number": number}, dict)
            assert answer == {"path": "/below/there", "body": {"number": number}}
        await caller.close()
    assert stub.connections == 1
    assert {asked.headers["authorization"] for asked in stub.asked} == {f"Bearer {SECRET}"}
    assert SECRET not in "".join(asked.path for asked in stub.asked)  # S-6


async def test_a_kept_connection_that_the_server_has_closed_is_replaced() -> None:
    # R1.41
    cuts = [False, True, False]
    async with StubServer(lambda _: StubReply({}, cut=cuts.pop(0))) as stub:
        caller = HttpClient(stub.address)
        await caller.ask("/", {}, dict)
        await caller.ask("/", {}, dict)
        await caller.close()
    assert (stub.connections, len(stub.asked)) == (2, 3)


async def test_a_new_connection_that_is_cut_is_an_outage() -> None:
    async with StubServer(lambda _: StubReply(cut=True)) as stub:
        with pytest.raises(ServerUnavailable):
            await ask(stub)
    assert len(stub.asked) == 1


async def test_chunks_and_announcements_are_read() -> None:
    head = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    body = b'8\r\n{"parts"\r\n4;x=y\r\n: 2}\r\n0\r\nTrailer: t\r\n\r\n'
    async with StubServer(lambda _: StubReply(raw=head + body)) as stub:
        assert await ask(stub) == {"parts": 2}


@pytest.mark.parametrize(
    "say",
    [
        StubReply(raw=b"SSH-2.0-OpenSSH\r\n\r\n"),
        StubReply(raw=b"HTTP/1.1 200 OK\r\n\r\n"),
        StubReply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n"),
        StubReply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"),
        StubReply(raw=b"HTTP/1.1 200 OK\r\n" + b"A: " + b"a" * 100_000 + b"\r\n\r\n"),
        StubReply(raw=b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"),
        StubReply([1, 2]),
    ],
    ids=["not HTTP", "no length", "too long", "no number", "a huge head", "not JSON", "another kind"],
)
async def test_whatever_else_comes_is_an_outage_and_not_believed(say: StubReply) -> None:
    # N5, H8
    async with StubServer(lambda _: say) as stub:
        with pytest.raises(ServerUnavailable):
            await ask(stub)


@pytest.mark.parametrize(
    "say, kind, code",
    [
        (problem(409, "worker_unknown"), WorkerUnknown, "worker_unknown"),
        (problem(503, "store_unavailable"), ServerUnavailable, "server_unavailable"),
        (problem(429, "too_many_polls"), ServerUnavailable, "server_unavailable"),
        (problem(404, "worker_not_found"), ServerRefused, "worker_not_found"),
        (problem(401, "unauthenticated"), ServerRefused, "unauthenticated"),
        (StubReply("<html>", status=502, kind="text/html"), ServerUnavailable, "server_unavailable"),
        (StubReply("", status=302, kind="text/html"), ServerRefused, "http_302"),
    ],
)
async def test_a_problem_becomes_an_error_with_its_code(say: StubReply, kind: type[HeadwayError], code: str) -> None:
    async with StubServer(lambda _: say) as stub:
        with pytest.raises(kind) as caught:
            await ask(stub)
    assert caught.value.code == code
    assert SECRET not in f"{caught.value!r} {caught.value.facts}"  # S-25


async def test_nobody_there_is_an_outage() -> None:
    caller = HttpClient(f"http://127.0.0.1:{free_port()}", SECRET)
    with pytest.raises(ServerUnavailable, match="cannot be reached") as caught:
        await caller.ask("/", {}, dict)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("trusted", [True, False])
async def test_tls_needs_a_certificate_we_trust(
    certificate: Path, monkeypatch: pytest.MonkeyPatch, *, trusted: bool
) -> None:
    # S-28, N7
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", f"{certificate}.crt")
    async with StubServer(echo) as stub, Proxy(int(stub.address.rpartition(":")[2]), context) as proxy:
        caller = HttpClient(f"https://127.0.0.1:{proxy.port}", SECRET)
        if trusted:
            assert await caller.ask("/there", {}, dict) == {"path": "/there", "body": {}}
        else:
            with pytest.raises(ServerUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
                await caller.ask("/", {}, dict)
        assert len(stub.asked) == trusted
        await caller.close()


@pytest.mark.parametrize(
    "address", ["localhost:8000", "ftp://host", "http://", "http://host:port", "http://user:secret@host", "http://h/?x"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_address(address)
    assert "secret" not in str(caught.value)


def test_addresses_tell_whether_others_can_read_along() -> None:
    assert [read_address(url).is_private for url in ("http://localhost:1", "https://far", "http://far")] == [
        True,
        True,
        False,
    ]
    assert str(read_address("https://far/there/")) == "https://far:443/there"


@pytest.mark.parametrize("token", ["a b", "a\nb", "ä"])
def test_a_token_that_is_none_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpClient("http://localhost", token)
    assert token not in str(caught.value)
