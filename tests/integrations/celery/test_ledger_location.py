"""The location of the ledger: every broker address that Celery accepts leads to the same server."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery  # type: ignore[import-untyped]

from headway.core.errors import ConfigError
from headway.integrations.celery import balancer_of
from headway.integrations.celery.ledger_location import find_ledger
from headway.stores.redis.connection import Endpoint
from tests.integrations.celery.conftest import MakeApp
from tests.servers import HOST, Proxy, Sentinels, Valkey

SECRET = "s3cret:/?#[@]%"


def location(url: str | None, store: str | None = None, **conf: Any) -> Any:
    app = Celery("addresses", broker=url, set_as_current=False)
    app.conf.update(conf)
    return find_ledger(app, store)


def counts(app: Celery) -> bool:
    app.tasks["project.add"].apply_async((1, 1), ignore_result=True)
    return balancer_of(app).get_queue_load("queue_0") == (1, 0)


@pytest.mark.parametrize(
    "url, address, database",
    [
        ("redis://", Endpoint("localhost", 6379), 0),
        ("redis://host/2", Endpoint("host", 6379), 2),
        ("redis://:secret@host:7000/2", Endpoint("host", 7000), 2),
        ("valkey://host:7000", Endpoint("host", 7000), 0),
        ("redis+socket:///run/redis.sock?virtual_host=3", Endpoint(path="/run/redis.sock"), 3),
        ("redis://a;redis://b", Endpoint("a", 6379), 0),
    ],
)
def test_addresses_as_celery_writes_them(url: str, address: Endpoint, database: int) -> None:
    # R4.44
    found = location(url)
    assert (found.place.addresses, found.place.login.database, found.with_broker) == ([address], database, True)


def test_sentinels_as_celery_writes_them() -> None:
    # R4.44
    found = location(
        "sentinel://:pw@s1:26379;sentinel://s2:26380/1",
        broker_transport_options={"master_name": "main", "sentinel_kwargs": {"password": "other"}},
    )
    assert found.place.addresses == [Endpoint("s1", 26379), Endpoint("s2", 26380)]
    assert (found.place.master, found.place.watch.password, found.place.login.password) == ("main", "other", "pw")
    assert found.place.login.database == 1
    with pytest.raises(ConfigError, match="master_name"):
        location("sentinel://s1")


def test_another_broker_needs_an_address_for_the_ledger() -> None:
    with pytest.raises(ConfigError, match="store="):
        location("amqp://guest@rabbit//")
    found = location("amqp://guest@rabbit//", "redis://ledger:7000/1")
    assert (found.place.addresses, found.with_broker) == ([Endpoint("ledger", 7000)], False)
    with pytest.raises(ConfigError, match="cluster"):
        location("amqp://rabbit", "redis+cluster://a,b")


def test_the_same_server_by_another_name_is_the_brokers() -> None:
    assert location("redis://host/1", "redis://host:6379/1").with_broker
    assert not location("redis://host/1", "redis://host:6379/2").with_broker


def test_a_password(make: MakeApp, tmp_path: Path) -> None:
    # R4.44
    server = Valkey(tmp_path / "locked", 'save ""')
    server.start()
    try:
        server.ask("CONFIG", "SET", "requirepass", SECRET)
        assert counts(make(f"redis://:{quote(SECRET, safe='')}@{HOST}:{server.port}/0"))
    finally:
        server.kill()


def test_a_socket(make: MakeApp) -> None:
    # R4.44
    folder = Path(tempfile.mkdtemp(prefix="hw-"))  # The path of a socket is short.
    server = Valkey(folder, 'save ""', f"unixsocket {folder}/s", "unixsocketperm 777")
    try:
        server.start()
        assert counts(make(f"redis+socket://{folder}/s?virtual_host=2", conf={"result_backend": None}))
        assert b"db2:keys=" in server.ask("INFO", "keyspace")
    finally:
        server.kill()
        shutil.rmtree(folder)


@pytest.fixture
def tls(server: Valkey, tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """Yield a TLS proxy of the server: its port and the certificate to trust."""
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-keyout", key, "-out", certificate, "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    port, ready, done = 0, threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def stand() -> None:
        nonlocal port
        async with Proxy(server.port, context) as proxy:
            port = proxy.port
            ready.set()
            await done.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(stand(),))
    thread.start()
    assert ready.wait(10)
    yield port, certificate
    loop.call_soon_threadsafe(done.set)
    thread.join(10)
    loop.close()


def test_tls(make: MakeApp, tls: tuple[int, Path]) -> None:
    # R4.44
    port, certificate = tls
    conf = {
        "result_backend": None,
        "broker_use_ssl": {"ssl_ca_certs": str(certificate), "ssl_cert_reqs": ssl.CERT_REQUIRED},
    }
    assert counts(make(f"rediss://{HOST}:{port}/0", conf=conf))


@pytest.mark.slow
def test_sentinels(make: MakeApp, tmp_path: Path) -> None:
    # R4.44: a failover is in tests/integrations/celery/test_ledger_client.py.
    sentinels = Sentinels(tmp_path)
    try:
        sentinels.start()
        url = ";".join(f"sentinel://{HOST}:{each.port}" for each in sentinels.sentinels)
        conf = {"broker_transport_options": {"master_name": Sentinels.MASTER}, "result_backend": None}
        assert counts(make(url, conf=conf))
    finally:
        sentinels.stop()
