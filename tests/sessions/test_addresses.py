"""Addresses of session servers: workers and servers connect only to those that a server of their store has signed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway, Worker
from headway.client.codec import add_server
from headway.core.job import JobId, NewJob, State
from headway.protocol.sessions import KEYS, AddressRefused, AddressSigner, plain_address
from headway.protocol.worker import PollRequest
from headway.server.api import headway_api
from headway.server.gateway.service import NewWorker
from headway.stores.base import Store
from tests.conformance.builders import a_job
from tests.server.conftest import client_for
from tests.server.live import served
from tests.sessions.dialogue import knock, opened
from tests.sessions.tasks import make_app
from tests.sessions.test_sessions import ended

GOOD = "http://10.0.0.7:8000"


@pytest.mark.parametrize(
    "address", [GOOD, "https://queue.example.com", "http://[::1]:80", "http://127.0.0.1:8000/", "http://localhost"]
)
def test_a_scheme_a_host_and_a_port_are_an_address(address: str) -> None:
    assert plain_address(address) == address.rstrip("/")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "10.0.0.7:8000",
        "ftp://10.0.0.7",
        "file:///etc/passwd",
        "http://",
        "http://:80",
        "http://10.0.0.7:99999",
        "http://10.0.0.7:x",
        "http://user@10.0.0.7",
        "http://10.0.0.7/latest/meta-data",
        "http://10.0.0.7:80/internal-api?",
        "http://10.0.0.7?",
        "http://10.0.0.7#",
        "http://10.0.0.7\\@evil.example",
        "http://10.0.0.7\r\nX: y",
        "http://10.0.0.7 evil",
        "http://\u0435xample.com",
        "http://" + "a" * 400,
    ],
)
def test_whatever_else_stands_there_is_none(address: str) -> None:
    # S-33
    found = plain_address(address)
    assert found is None or found != address


async def test_what_one_process_has_signed_another_accepts(store: Store) -> None:
    # S-33
    async def opened_store() -> Store:
        return store

    one, two, three = (AddressSigner(opened_store) for _ in range(3))
    signed = await asyncio.gather(*(each.sign(GOOD) for each in (one, two, three)))
    assert len(set(signed)) == 1
    assert len(await store.read(KEYS)) == 1
    assert await AddressSigner(opened_store).check(signed[0]) == GOOD
    signature = signed[0].partition(" ")[2]
    for wrong in (GOOD, f"{GOOD} ", f"{GOOD} {'0' * 64}", f"http://10.0.0.8:8000 {signature}", f"{GOOD}/ {signature}"):
        with pytest.raises(AddressRefused):
            await one.check(wrong)
    with pytest.raises(AddressRefused):
        await AddressSigner(None).check("http://10.0.0.7/path")
    assert await AddressSigner(None).check(signed[0]) == GOOD


# ---------------------------------------------------------------------- who dials


class Listener:
    """A server that counts its connections."""

    def __init__(self) -> None:
        self.connected = 0
        self.port = 0

    async def take(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connected += 1
        writer.close()


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = Listener()
    server = await asyncio.start_server(made.take, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headway:
    monkeypatch.chdir(tmp_path)
    return make_app("memory://", slots=3)


@pytest.fixture
def api(app: Headway) -> FastAPI:
    return headway_api(app, hosts=["testserver", "127.0.0.1"])


async def corpus(app: Headway, port: int) -> list[str]:
    """Return addresses that lead to the listener, unsigned or with the signature of another one."""
    opener = app.client.store
    _, _, signature = (await AddressSigner(opener).sign(GOOD)).partition(" ")
    place = f"127.0.0.1:{port}"
    bare = [
        f"http://{place}",
        f"http://{place}/",
        f"http://{place}/internal-api?",
        f"http://{place}#",
        f"https://{place}",
    ]
    bare += [f"http://localhost:{port}", f"http://10.0.0.7:8000@{place}", f"ws://{place}", f"httphttp://{place}", ""]
    return [*bare, *(f"{one} {signature}" for one in bare), f"{GOOD}@{place} {signature}", f"http://{place} {'0' * 64}"]


def a_session(address: str) -> NewJob:
    return a_job(task="echo", payload=add_server(b"\x01{}", address), rung="interactive", max_retries=0)


async def test_a_worker_dials_no_address_that_was_not_signed(app: Headway, listener: Listener) -> None:
    # S-33
    async with app:
        store = await app.client.store()
        jobs = [a_session(address) for address in await corpus(app, listener.port)]
        submitted = await store.submit(jobs)
        async with Worker(app):
            for one in submitted:
                job = await ended(app, one.job_id)
                assert job.state is State.FAILED
                assert job.error is not None
                assert job.error.type.endswith("ConfigError")
    assert listener.connected == 0


async def test_a_server_dials_no_address_that_was_not_signed(app: Headway, api: FastAPI, listener: Listener) -> None:
    # S-33: nor does it hand such a session to a worker that comes over HTTP.
    async with app, served(api) as address:
        store = await app.client.store()
        gateway = await api.state.service.gateway()
        addresses = await corpus(app, listener.port)
        registration = await gateway.register(NewWorker(slots=len(addresses), reserved=0))
        submitted = await store.submit([a_session(one) for one in addresses])
        held = await gateway.poll(registration.worker_id, PollRequest(available_capacity=len(addresses)))
        assert len(held.leases) == len(addresses)
        for one in submitted:
            async with knock(address, task_id=one.job_id, resume="x") as client:
                assert (await client.rest())[1] == 4404
        async with client_for(api) as http:
            await _refuse_to_hand_out(http, store, addresses)
    assert listener.connected == 0


async def _refuse_to_hand_out(http: httpx.AsyncClient, store: Store, addresses: list[str]) -> None:
    body = {"capabilities": [], "capacity": 100, "reserved": 0}
    worker_id = (await http.post("/internal/workers/register", json=body)).json()["worker_id"]
    submitted = await store.submit([a_session(one) for one in addresses])
    polled = await http.post(f"/internal/workers/{worker_id}/poll", json={"available_capacity": 100})
    assert (polled.status_code, polled.json()["tasks"]) == (200, [])
    jobs = await store.get([JobId(one.job_id) for one in submitted])
    assert {job.state for job in jobs if job is not None} == {State.FAILED}


async def test_a_session_that_a_server_has_admitted_is_dialled(app: Headway, api: FastAPI) -> None:
    async with app, served(api) as address, Worker(app), opened(address, "echo") as client:
        await client.say("bye")
        assert (await client.expect("result"))["result"] == "parted"
