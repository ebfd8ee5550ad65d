"""The report of a store on its server: the durability of jobs there, and problems of its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.stores.redis.store import RedisStore
from tests.cli.command import Cli
from tests.servers import Valkey, wait_for
from tests.stores.redis.conftest import OpenStore, StartServer


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"appendonly": "yes", "appendfsync": "always"}, "process, system and power loss (appendfsync always)"),
        ({"appendonly": "yes", "appendfsync": "everysec"}, "once about two seconds have passed (appendfsync everysec)"),
        ({"appendonly": "yes", "appendfsync": "no"}, "takes what was not yet written (appendfsync no)"),
        ({"appendonly": "no", "appendfsync": "always"}, "no restart: the server writes no append-only file"),
    ],
    ids=["always", "everysec", "no", "none"],
)
async def test_facts_tell_what_a_job_survives(
    store: RedisStore, server: Valkey, settings: dict[str, str], said: str
) -> None:
    # R4.44, R5.102
    for name, value in settings.items():
        assert server.ask("CONFIG", "SET", name, value) == b"+OK\r\n"
    facts = await store.describe()
    assert said in facts["durability"]
    assert "warning" not in facts
    assert facts["server"][0].isdigit()


async def test_facts_tell_of_replicas_that_are_waited_for(server: Valkey, open_url: OpenStore) -> None:
    store = await open_url(f"{server.url}?replicas=2")
    facts = await store.describe()
    assert "a submit waits for 2 replica(s)" in facts["durability"]
    assert facts["replicas"] == "0"


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
async def test_facts_warn_of_a_server_that_throws_jobs_away(store: RedisStore, server: Valkey, policy: str) -> None:
    # R9, F6
    server.ask("CONFIG", "SET", "maxmemory-policy", policy)
    assert f"maxmemory-policy is {policy}" in (await store.describe())["warning"]


def test_the_doctor_shows_it_and_no_password(server: Valkey, tmp_path: Path) -> None:
    server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    server.ask("CONFIG", "SET", "requirepass", "hunter2")
    folder = tmp_path / "cli"
    folder.mkdir()
    ran = Cli(folder).run("doctor", "--json", "--store", f"redis://:hunter2@127.0.0.1:{server.port}", code=None)
    assert "hunter2" not in ran.out + ran.err
    assert "no append-only file" in ran.json["store"]["durability"]
    assert "allkeys-lru" in ran.json["store"]["warning"]


async def test_facts_and_doctor_tell_what_a_failover_takes(
    server: Valkey, start_server: StartServer, open_url: OpenStore, tmp_path: Path
) -> None:
    store = await open_url(server.url)
    assert "failover" not in await store.describe()  # Nothing could replace this server.
    start_server(f"replicaof 127.0.0.1 {server.port}", "repl-diskless-sync-delay 0")
    wait_for(lambda: b"connected_slaves:1" in server.ask("INFO", "replication"), "a replica")
    told = (await store.describe())["failover"]
    assert "results and idempotency keys" in told
    assert "min-replicas-to-write is 0" in told
    folder = tmp_path / "cli"
    folder.mkdir()
    ran = Cli(folder).run("doctor", "--json", "--store", server.url, code=None)
    [check] = [check for check in ran.json["checks"] if check["name"] == "failover"]
    assert (check["status"], "min-replicas-to-write 1" in check["advice"]) == ("warning", True)
    server.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    assert (await store.describe())["failover"].startswith("loses at most milliseconds")
    careful = await open_url(f"{server.url}?replicas=1")
    assert (await careful.describe())["failover"].startswith("loses nothing")
