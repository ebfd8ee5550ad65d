"""The store with the ACL of the documentation: its own keys and channels, and the commands that it needs."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from headway.stores.base import Store
from headway.stores.open import open_store
from headway.testing.clock import ManualClock
from tests.conformance import (
    test_cancel,
    test_claim,
    test_documents,
    test_finish,
    test_limits,
    test_preempt,
    test_prune,
    test_recover,
    test_rungs,
    test_stats,
    test_tenants,
)
from tests.servers import Valkey

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "run-on-redis.md").read_text()
SCRIPTS = ROOT / "src" / "headway" / "stores" / "redis" / "scripts"
# What is sent without a function, and not checked by the tests below.
SENT = {
    "auth", "client|setname", "exists", "fcall", "function|load", "hello", "hget", "hincrby", "hsetnx", "info", "ping",
    "publish", "select", "set", "subscribe", "type", "unsubscribe", "wait", "xadd", "xlen",
}  # fmt: skip


def rights() -> list[str]:
    """Return the words of the ACL on the page."""
    [found] = re.findall(r"```\nACL SETUSER headway (.*?)```", PAGE, re.DOTALL)
    words: list[str] = found.split()
    return words


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    found = Valkey(tmp_path_factory.mktemp("acl"), 'save ""')
    found.start()
    assert found.ask("ACL", "SETUSER", "headway", *rights()) == b"+OK\r\n"
    yield found
    found.kill()


@pytest.fixture
async def store(server: Valkey, clock: ManualClock) -> AsyncIterator[Store]:
    url = server.url.replace("://", "://headway:PASSWORD@")
    found = open_store(url, uuid4().hex, clock=clock)
    await found.open()
    yield found
    await found.close()


def test_the_page_names_each_command_and_no_other() -> None:  # S-29
    called = {
        command.lower().replace("pubsub", "pubsub|numsub")
        for script in SCRIPTS.glob("*.lua")
        for command in re.findall(r"(?:call|bulk|pcall)\('([A-Z]+)'", script.read_text())
    }
    assert {word[1:] for word in rights() if word.startswith("+")} == called | SENT
    assert [word for word in rights() if not word.startswith("+")] == [
        "on", ">PASSWORD", "resetkeys", "~{headway:*", "resetchannels", "&{headway:*", "-@all",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [
        "SCAN 0", "RANDOMKEY", "KEYS *", "EVAL return(1) 0", "FUNCTION FLUSH", "FUNCTION LIST", "FUNCTION DELETE x",
        "SCRIPT FLUSH", "FLUSHALL", "FLUSHDB", "CONFIG SET save x", "CONFIG GET dir", "ACL LIST",
        "SHUTDOWN", "MONITOR", "CLIENT LIST", "CLIENT KILL ID 1", "SWAPDB 0 1", "MIGRATE h 1 k 0 1", "SAVE",
        "GET other", "SET other x", "HGET {other:default}:job x", "PUBLISH other x", "SUBSCRIBE other",
    ],
)  # fmt: skip
def test_nothing_else_is_allowed(server: Valkey, command: str) -> None:  # S-29
    answers = server.ask_all(["AUTH", "headway", "PASSWORD"], command.split())
    assert answers.startswith(b"+OK\r\n-NOPERM"), answers


# What every store does, under that ACL.  S-29
for _module in (test_claim, test_finish, test_cancel, test_documents, test_preempt, test_stats, test_prune,
                test_recover, test_limits, test_rungs, test_tenants):  # fmt: skip
    globals().update(
        {
            name: test
            for name, test in vars(_module).items()
            if name.startswith("test_")
            and callable(test)
            and not {"open_namespace", "listen"} & set(test.__code__.co_varnames)  # They open stores of their own.
        }
    )
