"""HTTP workers over real connections: clients that disconnect, a server that stops, and its chores for workers."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.core.job import JobId, RetryRule
from headway.core.policy.document import BUILT_IN
from headway.policy_store.catalogue import CronDocument
from headway.security.tokens import create_token, revoke_token
from headway.server.gateway.service import WorkerGateway
from headway.server.uvicorn_server import UvicornServer, address_of, bind
from headway.stores.base import JobQuery, Store
from tests.conformance.builders import a_job, state_of, the_job
from tests.conftest import ADDRESSES
from tests.server.conftest import make_app

WORKERS = "/internal/workers"
SOON = 20.0  # Seconds; a busy machine takes its time. Less than the 30 s that polls may wait.
AT_ONCE = RetryRule("fixed", 0, 0)

pytestmark = pytest.mark.parametrize("store_name", ["memory", "sqlite"])


@pytest.fixture
async def app(store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Headway]:
    """Yield an app whose server checks workers many times per second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headway.server.gateway.chores.TIMEOUTS_EVERY", 0.05)
    monkeypatch.setattr("headway.maintenance.cron.READ_EVERY", 0.1)
    async with make_app(ADDRESSES[store_name](tmp_path), heartbeat=0.3, dead_after=1.0) as made:
        yield made


class LiveServer:
    """A server on a real socket, in this process."""

    def __init__(self, api: FastAPI, address: str, server: UvicornServer) -> None:
        self.api = api
        self.address = address
        self.server = server

    async def gateway(self) -> WorkerGateway:
        gateway: WorkerGateway = await self.api.state.service.gateway()
        return gateway

    async def waiting(self, worker_id: str, polls: int = 1) -> None:
        """Wait until this many polls of a worker wait, and the store knows it."""
        gateway = await self.gateway()
        async with asyncio.timeout(SOON):
            while True:
                session = gateway.sessions.get(worker_id)
                if session is not None and len(session.polls) == polls and (not polls or session.polls[-1].waits):
                    return
                await asyncio.sleep(0.005)


@pytest.fixture
async def served(api: FastAPI) -> AsyncIterator[LiveServer]:
    listener = bind("127.0.0.1", 0)
    server = UvicornServer(api, listener, service=api.state.service)
    running = asyncio.create_task(server.run_here())
    address = address_of(listener)
    async with httpx.AsyncClient(base_url=address) as client, asyncio.timeout(SOON):
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await client.get("/healthz")).status_code == 200:
                    break
            await asyncio.sleep(0.01)
    yield LiveServer(api, address, server)
    server.leave()
    await running


@pytest.fixture
async def client(served: LiveServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=served.address, timeout=60) as client:
        yield client


@pytest.fixture
async def store(app: Headway) -> Store:
    return await app.client.store()


async def register(client: httpx.AsyncClient, **more: Any) -> str:
    pace = {"heartbeat_seconds": 30, "dead_after_seconds": 90}
    answer = await client.post(f"{WORKERS}/register", json={"capabilities": []} | pace | more)
    worker_id: str = answer.json()["worker_id"]
    return worker_id


async def poll(client: httpx.AsyncClient, worker_id: str, **more: Any) -> dict[str, Any]:
    body = {"available_capacity": 1} | more
    answer = await client.post(f"{WORKERS}/{worker_id}/poll", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def hang_up_while_waiting(served: LiveServer, worker_id: str) -> None:
    """Send a long poll by hand, and cut the connection once it waits."""
    host, port = served.address.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    body = json.dumps({"available_capacity": 1, "wait_seconds": 30})
    head = f"POST {WORKERS}/{worker_id}/poll HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    await served.waiting(worker_id)
    writer.close()


async def submit(store: Store, **more: Any) -> JobId:
    [answer] = await store.submit([a_job(payload=b"\x01{}", **more)])
    return answer.job_id


async def test_a_poll_ends_when_its_client_goes_away(
    served: LiveServer, client: httpx.AsyncClient, store: Store
) -> None:
    worker_id = await register(client)
    await hang_up_while_waiting(served, worker_id)
    await served.waiting(worker_id, 0)
    job_id = await submit(store)
    assert (await the_job(store, job_id)).epoch == 0  # No poll claimed it for a client that is gone.
    other = await register(client)
    assert [given["task_id"] for given in (await poll(client, other))["tasks"]] == [job_id]


@pytest.mark.usefixtures("woken_only")
async def test_a_client_that_goes_away_is_not_woken_in_place_of_one_that_waits(
    served: LiveServer, client: httpx.AsyncClient, store: Store
) -> None:
    gone, waits = await register(client), await register(client)
    await hang_up_while_waiting(served, gone)
    await served.waiting(gone, 0)
    waiting = asyncio.create_task(poll(client, waits, wait_seconds=30))
    await served.waiting(waits)
    job_id = await submit(store)
    async with asyncio.timeout(SOON):
        assert [given["task_id"] for given in (await waiting)["tasks"]] == [job_id]


async def test_long_polls_end_when_the_server_stops(served: LiveServer, client: httpx.AsyncClient) -> None:
    # H7
    worker_id = await register(client)
    waiting = asyncio.create_task(poll(client, worker_id, wait_seconds=30))
    await served.waiting(worker_id)
    served.server.leave()
    async with asyncio.timeout(SOON):
        assert (await waiting)["tasks"] == []


async def test_a_long_poll_ends_when_its_token_is_revoked(
    served: LiveServer, client: httpx.AsyncClient, store: Store
) -> None:
    # S-2
    now_at = (await store.snapshot()).now_at
    token, secret = await create_token(store, ["worker"], now_at=now_at)
    await create_token(store, ["admin"], now_at=now_at)
    client.headers["Authorization"] = f"Bearer {secret}"
    worker_id = await register(client)
    waiting = asyncio.create_task(poll(client, worker_id, wait_seconds=30))
    await served.waiting(worker_id)
    await revoke_token(store, token.token_id, now_at=now_at)
    async with asyncio.timeout(SOON):
        assert (await waiting)["tasks"] == []
    job_id = await submit(store)
    assert await state_of(store, job_id) == "queued"


async def test_many_workers_wait_at_once_and_each_task_wakes_one(
    served: LiveServer, client: httpx.AsyncClient, store: Store
) -> None:
    # L3
    workers = [await register(client) for _ in range(20)]
    waiting = [asyncio.create_task(poll(client, worker_id, wait_seconds=30)) for worker_id in workers]
    for worker_id in workers:
        await served.waiting(worker_id)
    ids = {await submit(store) for _ in workers}
    async with asyncio.timeout(SOON):
        got = [given["task_id"] for answer in await asyncio.gather(*waiting) for given in answer["tasks"]]
    assert len(got) == len(set(got)) == len(ids)
    assert len(await store.find(JobQuery())) == len(ids)
    assert await store.prune(BUILT_IN.keep) == 0


async def test_the_server_alone_returns_the_task_of_a_worker_that_died(client: httpx.AsyncClient, store: Store) -> None:
    # R5.16, R5.58, R5.74, R5.75: only the server is there to notice.
    job_id = await submit(store, retry=AT_ONCE)
    dead = await register(client, heartbeat_seconds=0.3, dead_after_seconds=1)
    assert len((await poll(client, dead))["tasks"]) == 1
    lives = await register(client)
    async with asyncio.timeout(20):
        while not (tasks := (await poll(client, lives, wait_seconds=5))["tasks"]):
            pass
    assert (tasks[0]["task_id"], tasks[0]["attempt"], tasks[0]["lease"]["crashes"]) == (job_id, 2, 1)
    answer = await client.post(f"{WORKERS}/{dead}/heartbeat", json={"current_load": 1, "status": "active"})
    assert (answer.status_code, answer.json()["code"]) == (409, "worker_unknown")
    late = await client.post(f"{WORKERS}/{dead}/result", json={"task_id": job_id, "status": "completed"})
    assert (late.status_code, late.json()["code"]) == (409, "lease_lost")


async def test_the_server_alone_ends_a_task_that_runs_past_its_timeout(client: httpx.AsyncClient, store: Store) -> None:
    # R5.17, R5.71, R5.73
    job_id = await submit(store, timeout_ms=300, max_retries=0)
    worker_id = await register(client, grace_seconds=0.1)
    [given] = (await poll(client, worker_id))["tasks"]
    async with asyncio.timeout(SOON):
        told = await poll(client, worker_id, available_capacity=0, wait_seconds=30)
    assert (told["cancel"], told["lost"]) == ([job_id], [job_id])
    job = await the_job(store, job_id)
    assert (job.state, job.reason) == ("dead_letter", "max_retries_exceeded")
    result = {"task_id": job_id, "status": "completed", "fence": given["fence"]}
    assert (await client.post(f"{WORKERS}/{worker_id}/result", json=result)).status_code == 409


async def test_the_server_fires_the_crons_of_workers_that_cannot(client: httpx.AsyncClient) -> None:
    cron = CronDocument(
        task="tick", expression="* * * * * *", tz="UTC", catch_up="last", overlap="skip", lane="low", max_retries=0,
        timeout_ms=60_000, payload=b"\x01{}",
    )  # fmt: skip
    tasks = [{"name": "tick", "lane": "low", "executor": "async"}]
    worker_id = await register(client, tasks=tasks, crons=[json.loads(msgspec.json.encode(cron))])
    async with asyncio.timeout(20):
        while not (given := (await poll(client, worker_id, wait_seconds=10))["tasks"]):
            pass
    assert given[0]["task_type"] == "tick"
