"""The client of the ledger: replies match requests, sent commands are not lost, and forks and threads work."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.errors import StoreError, StoreUnavailable
from headway.integrations.celery.ledger_client import LedgerClient
from headway.stores.redis.address import read_redis_address
from headway.stores.redis.library import Library
from tests.servers import Sentinels, Valkey, wait_for

TEXT = """#!lua name=test_ledger_client
redis.register_function('test_ledger_client_add', function(keys, args) return redis.call('SADD', keys[1], args[1]) end)
redis.register_function('test_ledger_client_size', function(keys) return redis.call('SCARD', keys[1]) end)
redis.register_function('test_ledger_client_fail', function() return redis.error_reply('ERR as it should') end)
"""
LIBRARY = Library("test_ledger_client", TEXT)
MakeClient = Callable[[str], LedgerClient]


@pytest.fixture
def refused() -> list[str]:
    return []


@pytest.fixture
def make_client(refused: list[str]) -> Iterator[MakeClient]:
    made: list[LedgerClient] = []

    def make(url: str) -> LedgerClient:
        made.append(LedgerClient(read_redis_address(url), LIBRARY, "size", lambda said, _: refused.append(said)))
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_calls_and_sent_commands_share_a_connection_in_order(
    server: Valkey, make_client: MakeClient, refused: list[str]
) -> None:
    client = make_client(server.url)
    for number in range(500):
        client.send("add", "s", number)
        if number % 7 == 0:
            assert client.call("size", "s") == number + 1
    assert client.call("size", "s") == 500
    assert refused == []


def test_sent_commands_survive_a_server_that_is_away(
    make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.integrations.celery.ledger_client.RECONNECT_SECONDS", 0.0)
    server = Valkey(tmp_path / "server", 'save ""', "appendonly yes")
    server.start()
    try:
        client = make_client(server.url)
        assert client.call("size", "s") == 0
        server.kill()
        for number in range(100):
            client.send("add", "s", number)
        server.start()
        assert client.call("size", "s") == 100
    finally:
        server.kill()


def test_functions_that_are_gone_are_loaded_again(server: Valkey, make_client: MakeClient) -> None:
    client = make_client(server.url)
    assert client.call("size", "s") == 0
    server.ask("FUNCTION", "FLUSH")
    client.send("add", "s", 1)
    assert client.call("size", "s") == 1


def test_refused_commands_are_reported(server: Valkey, make_client: MakeClient, refused: list[str]) -> None:
    client = make_client(server.url)
    client.send("fail", "s")
    client.flush()
    assert refused == ["ERR as it should"]
    with pytest.raises(StoreError, match="as it should"):
        client.call("fail", "s")
    assert client.call("size", "s") == 0


def test_commands_for_a_server_that_never_comes_are_dropped_in_the_end(
    make_client: MakeClient, refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.integrations.celery.ledger_client.UNANSWERED_MAX", 10)
    monkeypatch.setattr("headway.integrations.celery.ledger_client.RETRY_SECONDS", 0.1)
    client = make_client("redis://127.0.0.1:1")
    for number in range(15):
        client.send("add", "s", number)
    assert len(refused) == 5
    with pytest.raises(StoreUnavailable):
        client.call("size", "s")


def test_threads_share_it(server: Valkey, make_client: MakeClient) -> None:
    client = make_client(server.url)

    def work(name: int) -> None:
        for number in range(100):
            client.send("add", "s", f"{name}-{number}")
            client.call("size", "s")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.call("size", "s") == 400


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_a_connection_of_its_own(server: Valkey, make_client: MakeClient) -> None:
    # W13
    client = make_client(server.url)
    assert client.call("size", "s") == 0
    child = os.fork()
    if child == 0:
        try:
            client.send("add", "s", "child")
            os._exit(0 if client.call("size", "s") == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert client.call("size", "s") == 1


@pytest.mark.slow
def test_sentinels_lead_to_the_next_master(
    make_client: MakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R4.44
    monkeypatch.setattr("headway.integrations.celery.ledger_client.RETRY_SECONDS", 30.0)
    sentinels = Sentinels(tmp_path)
    try:
        sentinels.start()
        client = make_client(sentinels.url)
        client.send("add", "s", 1)
        assert client.call("size", "s") == 1
        wait_for(lambda: b":1" in sentinels.replica.ask("SCARD", "s"), "replication")
        sentinels.master.kill()
        client.send("add", "s", 2)
        assert client.call("size", "s") == 2
    finally:
        sentinels.stop()
