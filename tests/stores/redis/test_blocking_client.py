"""The link for code without a loop: replies match, what is told is not lost, forks and threads get along."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.core.errors import StoreError, StoreUnavailable
from headway.stores.redis.address import read_redis_address
from headway.stores.redis.blocking_client import BlockingClient
from headway.stores.redis.library import Library
from tests.servers import Sentinels, Valkey, wait_for
from tests.stores.redis.conftest import StartServer

TEXT = """#!lua name=test_blocking
redis.register_function('test_blocking_add', function(keys, args) return redis.call('SADD', keys[1], args[1]) end)
redis.register_function('test_blocking_size', function(keys) return redis.call('SCARD', keys[1]) end)
redis.register_function('test_blocking_fail', function() return redis.error_reply('ERR as it should') end)
"""
LIBRARY = Library("test_blocking", TEXT)
MakeLink = Callable[[str], BlockingClient]


@pytest.fixture
def refused() -> list[str]:
    return []


@pytest.fixture
def make_link(refused: list[str]) -> Iterator[MakeLink]:
    made: list[BlockingClient] = []

    def make(url: str) -> BlockingClient:
        made.append(BlockingClient(read_redis_address(url), LIBRARY, "size", lambda said, _: refused.append(said)))
        return made[-1]

    yield make
    for link in made:
        link.close()


def test_calls_and_what_is_told_share_a_connection_in_order(
    server: Valkey, make_link: MakeLink, refused: list[str]
) -> None:
    link = make_link(server.url)
    for number in range(500):
        link.tell("add", "s", number)
        if number % 7 == 0:
            assert link.call("size", "s") == number + 1
    assert link.call("size", "s") == 500
    assert refused == []


def test_what_is_told_survives_a_server_that_is_away(
    start_server: StartServer, make_link: MakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.stores.redis.blocking_client.PAUSE", 0.0)
    server = start_server("appendonly yes")
    link = make_link(server.url)
    assert link.call("size", "s") == 0
    server.kill()
    for number in range(100):
        link.tell("add", "s", number)
    server.start()
    assert link.call("size", "s") == 100


def test_functions_that_are_gone_are_loaded_again(server: Valkey, make_link: MakeLink) -> None:
    link = make_link(server.url)
    assert link.call("size", "s") == 0
    server.ask("FUNCTION", "FLUSH")
    link.tell("add", "s", 1)
    assert link.call("size", "s") == 1


def test_what_is_refused_is_heard_of(server: Valkey, make_link: MakeLink, refused: list[str]) -> None:
    link = make_link(server.url)
    link.tell("fail", "s")
    link.flush()
    assert refused == ["ERR as it should"]
    with pytest.raises(StoreError, match="as it should"):
        link.call("fail", "s")
    assert link.call("size", "s") == 0


def test_what_is_told_to_nobody_is_given_up_in_the_end(
    make_link: MakeLink, refused: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.stores.redis.blocking_client.TOLD_MAX", 10)
    monkeypatch.setattr("headway.stores.redis.blocking_client.PATIENCE", 0.1)
    link = make_link("redis://127.0.0.1:1")
    for number in range(15):
        link.tell("add", "s", number)
    assert len(refused) == 5
    with pytest.raises(StoreUnavailable):
        link.call("size", "s")


def test_threads_share_it(server: Valkey, make_link: MakeLink) -> None:
    link = make_link(server.url)

    def work(name: int) -> None:
        for number in range(100):
            link.tell("add", "s", f"{name}-{number}")
            link.call("size", "s")

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert link.call("size", "s") == 400


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_fork_has_a_connection_of_its_own(server: Valkey, make_link: MakeLink) -> None:
    # W13
    link = make_link(server.url)
    assert link.call("size", "s") == 0
    child = os.fork()
    if child == 0:
        try:
            link.tell("add", "s", "child")
            os._exit(0 if link.call("size", "s") == 1 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert link.call("size", "s") == 1


@pytest.mark.slow
def test_sentinels_lead_to_the_next_master(
    make_link: MakeLink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R4.44
    monkeypatch.setattr("headway.stores.redis.blocking_client.PATIENCE", 30.0)
    sentinels = Sentinels(tmp_path)
    try:
        sentinels.start()
        link = make_link(sentinels.url)
        link.tell("add", "s", 1)
        assert link.call("size", "s") == 1
        wait_for(lambda: b":1" in sentinels.replica.ask("SCARD", "s"), "replication")
        sentinels.master.kill()
        link.tell("add", "s", 2)
        assert link.call("size", "s") == 2
    finally:
        sentinels.stop()
