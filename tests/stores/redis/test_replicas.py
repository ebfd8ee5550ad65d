"""Waiting for replicas: an acknowledged job is also on another server."""

from __future__ import annotations

import asyncio

import pytest

from headway.core.errors import StoreUnavailable
from headway.core.job import State
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import a_job, beat, register, submit
from tests.servers import HOST, Proxy, Valkey, wait_for
from tests.stores.redis.conftest import OpenStore, StartServer, recount, until

# R5.102, and R5 of the faults.


@pytest.fixture
def replica(start_server: StartServer, server: Valkey) -> Valkey:
    server.ask("CONFIG", "SET", "repl-diskless-sync-delay", "0")
    made = start_server(f"replicaof {HOST} {server.port}")
    wait_for(lambda: b"master_link_status:up" in made.ask("INFO", "replication"), "replication", made)
    return made


async def test_what_is_acknowledged_is_on_the_replica(server: Valkey, replica: Valkey, open_url: OpenStore) -> None:
    store = await open_url(f"{server.url}?replicas=1&replicas_ms=4000")
    jobs = [a_job() for _ in range(20)]
    await asyncio.gather(*(submit(store, job) for job in jobs))
    server.kill()
    replica.ask("REPLICAOF", "NO", "ONE")
    heir = await open_url(replica.url)
    assert {job.job_id for job in await heir.get([job.job_id for job in jobs]) if job} == {job.job_id for job in jobs}
    assert await recount(heir) == {State.QUEUED: 20}


async def test_a_submit_that_reached_no_replica_is_not_acknowledged_however_often_it_is_repeated(
    server: Valkey, replica: Valkey, open_url: OpenStore
) -> None:
    # A repeated submit finds its jobs there and writes nothing; it must wait for them all the same.
    url = f"{server.url}?replicas=1&replicas_ms=100"
    store = await open_url(url)
    job = a_job()
    replica.freeze()
    for asked in (store, store, await open_url(url)):
        with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas") as caught:
            await submit(asked, job)
        assert caught.value.facts["replicas"] == 0
    replica.thaw()
    assert await submit(await open_url(f"{server.url}?replicas=1&replicas_ms=4000"), job) == [job.job_id]
    assert await recount(store) == {State.QUEUED: 1}
    assert (await store.stats()).totals["submitted"] == 1


async def test_heartbeats_do_not_wait_for_replicas(server: Valkey, replica: Valkey, open_url: OpenStore) -> None:
    store = await open_url(f"{server.url}?replicas=1&replicas_ms=4000")
    worker = await register(store)
    replica.freeze()
    waiting = asyncio.create_task(submit(store, a_job()))
    for _ in range(3):
        await beat(store, worker)
    assert not waiting.done()
    replica.thaw()
    await waiting


async def test_a_connection_cut_while_replicas_are_waited_for_acknowledges_nothing(
    server: Valkey, replica: Valkey, proxy: Proxy, store: RedisStore, open_url: OpenStore
) -> None:
    # A server counts replicas as of the last write of the connection that asks, so on a new one all of them count.
    waiter = await open_url(f"redis://{HOST}:{proxy.port}?replicas=1&replicas_ms=1000")
    replica.freeze()
    job = a_job()
    submitted = asyncio.create_task(submit(waiter, job))

    async def is_kept() -> bool:
        return await store.get([job.job_id]) != [None]

    await until(is_kept)
    proxy.cut()
    with pytest.raises(StoreUnavailable, match="only 0 of 1 replicas"):
        await submitted
