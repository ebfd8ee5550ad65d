"""Servers for one test, and functions that read what a store keeps there."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from headway.core.job import JobId, NewJob, State
from headway.stores.base import Clock, JobQuery, Store
from headway.stores.open import open_store
from headway.stores.redis import client, connection
from headway.stores.redis.store import RedisStore
from tests.conformance.builders import a_job, claim, end, register, submit
from tests.servers import Proxy, Valkey

StartServer = Callable[..., Valkey]
OpenStore = Callable[..., Awaitable[RedisStore]]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Yield a function that starts servers with options. By default they store nothing on disk."""
    started: list[Valkey] = []

    def start(*options: str) -> Valkey:
        server = Valkey(tmp_path / f"server-{len(started)}", 'save ""', *options)
        started.append(server)
        server.start()
        return server

    yield start
    for server in started:
        server.kill()


@pytest.fixture
def server(start_server: StartServer) -> Valkey:
    return start_server()


@pytest.fixture
async def open_url() -> AsyncIterator[OpenStore]:
    """Yield a function that opens stores by address. All are closed at the end."""
    async with AsyncExitStack() as stack:

        async def open_one(url: str, namespace: str = "default", clock: Clock | None = None) -> RedisStore:
            store = open_store(url, namespace, clock=clock)
            assert isinstance(store, RedisStore)
            await store.open()
            stack.push_async_callback(store.close)
            return store

        yield open_one


@pytest.fixture
async def store(server: Valkey, open_url: OpenStore) -> RedisStore:
    return await open_url(server.url)


@pytest.fixture
async def proxy(server: Valkey) -> AsyncIterator[Proxy]:
    async with Proxy(server.port) as made:
        yield made


@pytest.fixture
async def behind(proxy: Proxy, open_url: OpenStore) -> RedisStore:
    """Return a store that reaches the server through the proxy."""
    return await open_url(f"redis://127.0.0.1:{proxy.port}")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeouts of calls."""
    monkeypatch.setattr(client, "PATIENCE", 1.0)
    monkeypatch.setattr("headway.stores.redis.connection.ANSWER_TIMEOUT", 0.3)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT", 0.3)


async def until(what: Callable[[], Awaitable[bool]], within: float = 30.0) -> None:
    async with asyncio.timeout(within):
        while not await what():  # noqa: ASYNC110  (it is another process that we wait for)
            await asyncio.sleep(0.01)


async def recount(store: Store) -> Counter[State]:
    """Count the jobs by state, and compare every total of the store with the counts."""
    jobs = await store.find(JobQuery(limit=100_000))
    by_state = Counter(job.state for job in jobs)
    stats, snapshot = await store.stats(), await store.snapshot()
    lanes = stats.lanes.values()
    delayed = sum(1 for job in jobs if job.state is State.QUEUED and job.due_at is not None)
    held = sum(job.held for job in jobs)
    waiting = by_state[State.QUEUED] - delayed - held
    assert sum(lane.delayed for lane in lanes) == delayed
    assert sum(lane.held for lane in lanes) == held
    assert sum(lane.waiting for lane in lanes) == waiting
    assert sum(view.waiting for view in snapshot.classes) <= waiting  # Limits hold some back.
    assert sum(lane.executing for lane in lanes) == by_state[State.EXECUTING]
    leases = [lease for worker in stats.workers for lease in await store.leases(worker_id=worker.worker_id)]
    assert {lease.job_id for lease in leases} == {job.job_id for job in jobs if job.state is State.EXECUTING}
    assert len(leases) == by_state[State.EXECUTING]
    for state in (State.FAILED, State.CANCELLED, State.DEAD_LETTER):
        assert stats.kept.get(state.value, 0) == by_state[state]
    return by_state


READS = {b"+hash": "HGETALL", b"+string": "GET", b"+set": "SMEMBERS", b"+list": "LRANGE 0 -1", b"+zset": "ZRANGE 0 -1"}


def everything(server: Valkey) -> bytes:
    """Return all data of a server, except that of streams."""
    found = b""
    for key in re.findall(rb"\$\d+\r\n(.*?)\r\n", server.ask("KEYS", "*")):
        command, *more = READS[server.ask("TYPE", key.decode()).strip()].split()
        found += key + b"\n" + server.ask(command, key.decode(), *more)
    return found


async def drain(store: Store, worker_id: str = "drain") -> list[JobId]:
    """Run all waiting jobs. Return them in the order in which they were claimed."""
    await register(store, worker_id, slots=1_000, reserved=0)
    ran: list[JobId] = []
    while leases := await claim(store, worker_id, free=1_000):
        for lease in leases:
            await end(store, lease)
        ran += [lease.job_id for lease in leases]
    return ran


async def keep_submitting(store: RedisStore, jobs: list[NewJob]) -> None:
    """Submit one job after another, for ever. The list has the acknowledged jobs."""
    while True:
        job = a_job()
        await submit(store, job)
        jobs.append(job)


@asynccontextmanager
async def submitting(store: RedisStore, count: int = 3) -> AsyncIterator[list[NewJob]]:
    """Submit from several tasks in the background. An exception of a task fails the test at the end."""
    jobs: list[NewJob] = []
    tasks = [asyncio.create_task(keep_submitting(store, jobs)) for _ in range(count)]
    yield jobs
    for task in tasks:
        task.cancel()
    for outcome in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(outcome, asyncio.CancelledError), outcome


async def more(jobs: list[NewJob], by: int = 20) -> None:
    """Wait until this many more jobs have been acknowledged."""
    enough = len(jobs) + by

    async def there() -> bool:
        return len(jobs) >= enough

    await until(there)
