"""Addresses of servers, and the errors for wrong ones."""

from __future__ import annotations

import logging
import shutil
import ssl
import tempfile
from pathlib import Path
from urllib.parse import quote

import pytest

from headway.core.errors import ConfigError, HeadwayError, StoreError, StoreUnavailable
from headway.stores.base import JobQuery, Store
from headway.stores.open import mask, open_store
from tests.conformance.builders import claimed_ids, register, submit_one
from tests.servers import Proxy, Valkey
from tests.stores.redis.conftest import OpenStore, StartServer

SECRET = "s3cret:/?#[@]%"
# What a user needs: names of this prefix, and no command that tells of or changes anything else.
RIGHTS = (
    "on", f">{SECRET}", "resetkeys", "~{headway:*", "resetchannels", "&{headway:*", "-@all", "+hello", "+select",
    "+fcall", "+function|load", "+type", "+info", "+wait", "+subscribe", "+unsubscribe", "+publish", "+time", "+@hash",
    "+@set", "+@sortedset", "+@list", "+@string", "+del", "+exists", "+pexpire", "+rename", "+unlink",
)  # fmt: skip


async def works(store: Store) -> bool:
    job_id = await submit_one(store)
    await register(store)
    return await claimed_ids(store) == [job_id]


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
async def test_a_server_by_host_and_port(server: Valkey, open_url: OpenStore, scheme: str) -> None:
    # R4.44
    assert await works(await open_url(f"{scheme}://127.0.0.1:{server.port}"))


async def test_an_ipv6_host(start_server: StartServer, open_url: OpenStore) -> None:
    server = start_server("bind 127.0.0.1 ::1")
    store = await open_url(f"redis://[::1]:{server.port}/2")
    assert await works(store)
    assert f"[::1]:{server.port}/2" in (await store.describe())["store"]


async def test_a_socket(open_url: OpenStore) -> None:
    folder = Path(tempfile.mkdtemp(prefix="hw-"))  # The path of a socket is short.
    server = Valkey(folder, 'save ""', f"unixsocket {folder}/s", "unixsocketperm 777")
    try:
        server.start()
        assert await works(await open_url(f"unix://{folder}/s"))
        assert await works(await open_url(f"unix://{folder}/s?db=3"))
        assert b"db3:keys=" in server.ask("INFO", "keyspace")
    finally:
        server.kill()
        shutil.rmtree(folder)


async def test_databases_prefixes_and_namespaces_are_apart(server: Valkey, open_url: OpenStore) -> None:
    urls = [server.url, f"{server.url}/1", f"{server.url}?db=2", f"{server.url}?prefix=other"]
    stores = [*[await open_url(url) for url in urls], await open_url(server.url, "second")]
    for store in stores:
        assert await works(store)
    for store in stores:
        assert len(await store.find(JobQuery())) == 1
    assert {line.split(b":")[0] for line in server.ask("INFO", "keyspace").split() if line.startswith(b"db")} == {
        b"db0", b"db1", b"db2"
    }  # fmt: skip


async def test_a_password_with_every_awkward_letter(server: Valkey, open_url: OpenStore) -> None:
    server.ask("CONFIG", "SET", "requirepass", SECRET)
    assert await works(await open_url(f"redis://:{quote(SECRET, safe='')}@127.0.0.1:{server.port}"))


async def test_a_user_with_few_rights_is_enough(server: Valkey, open_url: OpenStore) -> None:
    # S-29
    assert server.ask("ACL", "SETUSER", "worker", *RIGHTS) == b"+OK\r\n"
    url = f"redis://worker:{quote(SECRET, safe='')}@127.0.0.1:{server.port}"
    store = await open_url(url)
    assert await works(store)
    subscription = store.subscribe("watch.x")
    job_id = await submit_one(store)
    assert await subscription.wait(10) == (job_id,)
    facts = await store.describe()
    assert "we may not read" in facts["durability"] or "no append-only file" in facts["durability"]
    with pytest.raises(StoreError, match="NOPERM"):
        await open_url(f"{url}?prefix=foreign")


async def test_rights_to_keys_alone_are_refused_at_once(server: Valkey, open_url: OpenStore) -> None:
    # Without channels every function would fail at its last step, after it has written.
    server.ask("ACL", "SETUSER", "mute", "on", ">pass", "~*", "+@all", "resetchannels")
    with pytest.raises(StoreError, match=r"NOPERM.*channel"):
        await open_url(f"redis://mute:pass@127.0.0.1:{server.port}")


async def test_a_refused_subscription_does_not_mix_up_replies(
    server: Valkey, open_url: OpenStore, caplog: pytest.LogCaptureFixture
) -> None:
    server.ask("ACL", "SETUSER", "deaf", "on", ">pass", "~*", "&*", "+@all", "-subscribe")
    store = await open_url(f"redis://deaf:pass@127.0.0.1:{server.port}")
    subscription = store.subscribe("w1")
    assert await works(store)
    assert [len(await store.find(JobQuery())) for _ in range(3)] == [1, 1, 1]
    assert await subscription.wait(0) is None
    assert "wakeups.refused" in caplog.text
    subscription.close()
    assert await store.read("policies") == []


@pytest.mark.parametrize(
    "login, said",
    [
        ("", "NOAUTH"),
        (":wrong-hunter2@", "WRONGPASS"),
        ("nobody:wrong-hunter2@", "WRONGPASS"),
    ],
    ids=["none", "wrong password", "unknown user"],
)
async def test_whoever_is_not_let_in_is_told_why_and_no_password_is_shown(
    server: Valkey, open_url: OpenStore, caplog: pytest.LogCaptureFixture, login: str, said: str
) -> None:
    # R4.44
    caplog.set_level(logging.DEBUG)
    server.ask("CONFIG", "SET", "requirepass", SECRET)
    with pytest.raises(StoreError, match=said) as caught:
        await open_url(f"redis://{login}127.0.0.1:{server.port}")
    assert not isinstance(caught.value, StoreUnavailable)  # It will not pass by itself.
    problem: BaseException | None = caught.value
    while problem is not None:
        assert "hunter2" not in f"{problem!s}{problem!r}"
        problem = problem.__cause__ or problem.__context__
    assert "hunter2" not in caplog.text


async def test_facts_show_no_password(server: Valkey, open_url: OpenStore) -> None:
    server.ask("CONFIG", "SET", "requirepass", "hunter2")
    store = await open_url(f"redis://:hunter2@127.0.0.1:{server.port}/1?sentinel_password=hunter2")
    facts = await store.describe()
    assert "hunter2" not in repr(facts)
    assert facts["store"].endswith(f"redis://127.0.0.1:{server.port}/1")


@pytest.mark.parametrize(
    "url",
    [
        "redis://[::1]",
        "redis://[::1]:6379/0",
        "redis+cluster://a:1,b:2",
        "sqlite:///a:b.db",
        "sqlite:////tmp/x",
        "memory://",
    ],
)
def test_an_address_without_a_password_is_shown_whole(url: str) -> None:
    assert mask(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@host/1",
        "redis://user:hun/ter2@host",
        "redis://user:hun@ter2@host:1",
        "redis://user:[hunter2@host",
        "redis+sentinel://a,b/main?sentinel_password=hunter2",
        "redis+sentinel://u:hunter2@a,b/main?sentinel_password=hunter2&db=1",
        "redis://127.0.0.1:hunter2",
        "redis://[::1]:hunter2/0",
        "redis+sentinel://a:1,b:hunter2/main",
        "redis://me@host:hunter2?db=1",
    ],
)
def test_an_address_is_shown_without_its_passwords(url: str) -> None:
    assert "ter2" not in mask(url)
    assert mask(url).startswith("redis")


@pytest.mark.parametrize(
    "url, said",
    [
        ("redis://host/first", "the database must be a number, got 'first'"),
        ("redis://host?db=-1", "db must be a number"),
        ("redis://host?colour=red", "unknown option 'colour'; known are ca, db"),
        ("redis://one,two", r"redis\+sentinel://host,host/master or redis\+cluster://"),
        ("redis://host:many", "the port .* must be a number"),
        ("redis+sentinel://one,two", "name the master behind the Sentinels"),
        ("redis+cluster://one/3", "a cluster has only database 0, got 3"),
        ("redis+cluster://one?db=3", "a cluster has only database 0, got 3"),
        ("redis://host?prefix=a{b", "no braces"),
        ("redis://host?replicas=two", "replicas must be a number"),
        ("redis://host?replicas=1&replicas_ms=0", "replicas_ms must be from 1 to"),
        ("rediss://host?ca=/no/such/file.pem", "cannot read the certificates in '/no/such/file.pem'"),
    ],
)
def test_an_address_that_cannot_be_read_says_so(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_store(url)


@pytest.mark.parametrize("url", ["redis://:hunter2", "redis://user:hunter2", "redis://:hun?ter2@host"])
def test_a_mistyped_address_shows_no_password(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert "ter2" not in str(caught.value)


async def test_a_database_the_server_does_not_have(server: Valkey, open_url: OpenStore) -> None:
    with pytest.raises(StoreError, match=f"127.0.0.1:{server.port} refused the login: ERR DB index is out of range"):
        await open_url(f"{server.url}/99")


async def test_something_else_under_our_name(server: Valkey, open_url: OpenStore) -> None:
    server.ask("SET", "{headway:default}:meta", "mine")
    with pytest.raises(HeadwayError, match="a string of another program"):
        await open_url(server.url)


# ---------------------------------------------------------------------- TLS


@pytest.fixture
def served(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
async def test_tls_with_a_certificate_we_know(
    server: Valkey, open_url: OpenStore, certificate: Path, served: ssl.SSLContext, scheme: str
) -> None:
    # R4.44, S-28. Not every server is built with TLS, so it ends before the server here.
    async with Proxy(server.port, served) as proxy:
        store = await open_url(f"{scheme}://127.0.0.1:{proxy.port}?ca={certificate}.crt")
        assert await works(store)
        await store.close()


async def test_tls_with_a_certificate_we_do_not_know(
    server: Valkey, open_url: OpenStore, served: ssl.SSLContext
) -> None:
    # S-28
    async with Proxy(server.port, served) as proxy:
        with pytest.raises(
            StoreError, match=r"cannot verify the certificate .* name the file of its authority with \?ca="
        ):
            await open_url(f"rediss://127.0.0.1:{proxy.port}")
        store = await open_url(f"rediss://127.0.0.1:{proxy.port}?insecure=1")
        assert await works(store)
        await store.close()


async def test_a_certificate_of_another_host_is_refused(
    server: Valkey, open_url: OpenStore, certificate: Path, served: ssl.SSLContext
) -> None:
    # S-28
    async with Proxy(server.port, served) as proxy:
        with pytest.raises(StoreError, match="localhost"):
            await open_url(f"rediss://localhost:{proxy.port}?ca={certificate}.crt")
