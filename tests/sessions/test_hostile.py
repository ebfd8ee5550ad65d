"""Hostile or faulty clients and workers of sessions."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headway import Headway, Worker
from headway.client.codec import SESSION, add_server, read_payload, split_server
from headway.core.job import JobId
from headway.protocol.sessions import OUTPUT_MAX, PATH, PIECE, PROOF, proof_of
from headway.security.tokens import create_token, revoke_token
from headway.server.api import headway_api
from headway.stores.base import JobQuery
from tests.server.live import served
from tests.sessions.dialogue import Dialogue, knock, opened, resumed
from tests.sessions.tasks import make_app
from tests.sessions.test_sessions import ended


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Headway:
    monkeypatch.chdir(tmp_path)
    return make_app("memory://", slots=3)


@pytest.fixture
def api(app: Headway) -> FastAPI:
    return headway_api(app)


@pytest.fixture
async def address(app: Headway, api: FastAPI) -> AsyncIterator[str]:
    async with app, served(api) as address, Worker(app):
        yield address


async def refused(address: str, **query: Any) -> int:
    with pytest.raises(InvalidStatus) as problem:
        async with knock(address, **query):
            pass
    return problem.value.response.status_code


# ---------------------------------------------------------------------- what is asked for


@pytest.mark.parametrize(
    "query, status",
    [
        ({}, 422),
        ({"task_type": "work"}, 422),
        ({"task_type": "no such"}, 422),
        ({"task_type": "x" * 300}, 422),
        ({"task_type": "echo", "parameters": "[1]"}, 422),
        ({"task_type": "echo", "parameters": "{"}, 400),
        ({"task_type": "echo", "parameters": '{"prompt": "a", "prompt": "b"}'}, 400),
        ({"task_type": "echo", "parameters": '{"prompt":' + "[" * 200 + "]" * 200 + "}"}, 400),
        ({"task_type": "echo", "parameters": {"nonsense": 1}}, 422),
        ({"task_type": "echo", "parameters": {"prompt": 1}}, 422),
        ({"task_type": "echo", "parameters": {SESSION: "http://evil.example"}}, 422),
        ({"task_type": "echo", "token": "x"}, 400),
    ],
)
async def test_what_makes_no_sense_is_refused_and_leaves_no_trace(
    app: Headway, address: str, query: dict[str, Any], status: int
) -> None:
    assert await refused(address, **query) == status
    assert await (await app.client.store()).find(JobQuery()) == []


async def test_it_is_not_queued_by_any_other_way(app: Headway, address: str) -> None:  # R3.30
    async with httpx.AsyncClient(base_url=address) as http:
        for body in ({"task_type": "echo"}, {"task_type": "work", "duration": "interactive"}):
            answer = await http.post("/api/v1/tasks", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "config")
    assert await (await app.client.store()).find(JobQuery()) == []


async def test_pages_of_other_sites_open_none(address: str) -> None:  # S-17
    uri = f"{address.replace('http', 'ws')}/api/v1/interactive?task_type=echo"
    with pytest.raises(InvalidStatus) as problem:
        async with connect(uri, origin="https://evil.example"):  # type: ignore[arg-type]
            pass
    assert problem.value.response.status_code == 403


# ---------------------------------------------------------------------- what is said


@pytest.mark.parametrize(
    "message",
    [
        "garbage",
        "\0\ufffd",
        "[]",
        "{}",
        '{"type": "credit", "bytes": 1000000000}',
        '{"type": "result", "status": "completed"}',
        '{"type": "resize", "rows": 0, "columns": 1}',
        '{"type": "resize", "rows": 1e99, "columns": 1}',
        '{"type": "resize", "rows": 70000, "columns": 1}',
        '{"type": "text", "data": 5}',
        '{"type": "text"}',
        "[" * 30_000,
    ],
)
async def test_a_message_that_cannot_be_read_ends_the_connection_and_not_the_session(
    address: str, message: str
) -> None:
    async with opened(address, "echo") as client:
        await client.socket.send(message)
        assert (await client.rest())[1] == 1008
    async with resumed(address, client.task_id, client.secret) as again:
        await again.say("still there?")
        assert (await again.expect("text"))["data"] == "still there?"


async def test_a_huge_message_is_not_read(address: str) -> None:  # S-17
    async with opened(address, "echo") as client:
        await client.socket.send(b"x" * 70_000)
        assert (await client.rest())[1] == 1009


async def test_a_task_that_does_not_listen_holds_its_client_up(api: FastAPI, address: str) -> None:
    async with opened(address, "deaf") as client:

        async def shout() -> None:
            while True:
                await client.socket.send(b"x" * 30_000)

        tracemalloc.start()
        try:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(shout(), 1.5)
            assert tracemalloc.get_traced_memory()[0] < 8 << 20
        finally:
            tracemalloc.stop()
        (session,) = api.state.service.sessions._open.values()
        assert session._room > -64_000


async def test_a_client_that_does_not_read_holds_the_task_up(app: Headway, api: FastAPI, address: str) -> None:
    uri = f"{address.replace('http', 'ws')}/api/v1/interactive?task_type=flood&parameters=%7B%22count%22%3A5000%7D"
    async with connect(uri, max_queue=1, proxy=None) as socket:
        client = Dialogue(socket)
        await client.expect("started")
        await asyncio.sleep(1.0)
        (session,) = api.state.service.sessions._open.values()
        assert session._held <= OUTPUT_MAX + 2 * PIECE
        before = (await app.job(client.task_id).arecord()).progress
        await asyncio.sleep(0.5)
        assert (await app.job(client.task_id).arecord()).progress == before
        work = [await app.tasks["work"].aenqueue(1.0) for _ in range(4)]  # R3.12: it is halted all the same.
        assert [await job.aresult(timeout=20) for job in work] == ["done"] * 4
        assert (await ended(app, client.task_id)).reason == "halted"


# ---------------------------------------------------------------------- who dials in


async def dial(address: str, job_id: str, proof: str | None, **options: Any) -> int:
    """Try to connect as a session's worker. Return the status of the refusal."""
    headers = {} if proof is None else {PROOF: proof}
    with pytest.raises(InvalidStatus) as problem:
        async with connect(f"{address.replace('http', 'ws')}{PATH}{job_id}", additional_headers=headers, **options):
            pass
    return problem.value.response.status_code


async def test_nobody_else_is_let_in_as_its_worker(app: Headway, api: FastAPI, address: str) -> None:
    async with opened(address, "echo") as client:
        store = await app.client.store()
        (job,) = await store.get([JobId(client.task_id)])
        assert job is not None
        (lease,) = await store.leases(worker_id=job.worker_id)
        door = (split_server(job.payload)[1] or "").partition(" ")[0]
        right = proof_of(client.task_id, lease.token)
        for place in (address, door):
            for proof in (None, "", "0" * 64, "\u00e9", right, proof_of(client.task_id, lease.token, "server")):
                assert await dial(place, client.task_id, proof) == 404  # The right one is used up.
            assert await dial(place, "nobody", right) == 404
        sessions = api.state.service.sessions
        session = sessions._open[JobId(client.task_id)]
        session.linked.clear()  # As if it still waited for its worker.
        for proof in (None, "", "0" * 64, proof_of(client.task_id, b"\0" * 16), proof_of("other", lease.token)):
            assert await dial(door, client.task_id, proof) == 404
        assert await dial(door, client.task_id, right, origin="http://127.0.0.1") == 404
        session.linked.set()
        await client.say("unharmed")
        assert (await client.expect("text"))["data"] == "unharmed"


async def test_what_a_worker_says_is_checked(app: Headway, api: FastAPI, address: str) -> None:
    """A worker may not send the server's messages, nor send more than its credit allows."""
    sessions = api.state.service.sessions
    for message in ('{"type":"result","status":"completed"}', "garbage", b"x" * 60_000):
        async with opened(address, "deaf") as client:
            session = sessions._open[JobId(client.task_id)]
            taken = [session._take(None, message) if isinstance(message, str) else session._take(message, None)]
            taken += [session._take(message, None) for _ in range(6) if isinstance(message, bytes)]
            assert taken[-1] is False
            session._outbox.clear()
            await client.tell("close")
            await client.rest()


async def test_the_servers_address_is_shown_to_nobody(
    app: Headway, address: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.configure(log_args=True)
    with caplog.at_level("INFO", logger="headway"):
        async with opened(address, "echo", parameters={"prompt": "> "}) as client, httpx.AsyncClient() as http:
            (job,) = await (await app.client.store()).get([JobId(client.task_id)])
            assert job is not None
            signed = split_server(job.payload)[1]
            assert signed is not None
            door, signature = signed.split(" ")
            assert read_payload(job.payload) == {"prompt": "> "}
            for path in (f"/api/v1/tasks/{client.task_id}", "/api/v1/tasks", "/api/v1/workers"):
                answer = await http.get(address + path)
                assert answer.status_code == 200
                assert door not in answer.text
                assert signature not in answer.text
                assert SESSION not in answer.text
                assert client.secret not in answer.text
    lines = json.dumps([[record.getMessage(), str(record.__dict__.get("headway"))] for record in caplog.records])
    assert lines
    assert door not in lines
    assert signature not in lines
    assert client.secret not in lines


@pytest.mark.parametrize("body", [b"\x01{}", b'\x01{"a":1}', b'\x01{"a":{"headway.server":"x"},"b":[1,2]}'])
def test_the_servers_address_goes_into_a_payload_and_out_again(body: bytes) -> None:
    assert split_server(add_server(body, "http://[::1]:80/ü")) == (body, "http://[::1]:80/ü")
    assert split_server(body) == (body, None)


# ---------------------------------------------------------------------- tokens and tenants


async def test_tokens_and_tickets(app: Headway, api: FastAPI, address: str) -> None:
    store = await app.client.store()
    api.state.service.tokens.every = 0.05
    _, reader = await create_token(store, ["read"], now_at=1)
    token, text = await create_token(store, ["submit"], now_at=1)
    await asyncio.sleep(0.1)
    assert await refused(address, task_type="echo") == 401
    assert await refused(address, task_type="echo", headers={"Authorization": f"Bearer {reader}"}) == 403
    async with httpx.AsyncClient(base_url=address, headers={"Authorization": f"Bearer {text}"}) as http:
        answer = await http.post("/api/v1/interactive/ticket")
        assert (answer.status_code, answer.json()["expires_in"]) == (201, 60)
        ticket = answer.json()["ticket"]
    async with opened(address, "echo", ticket=ticket) as client:
        assert await refused(address, task_type="echo", ticket=ticket) == 401
        await revoke_token(store, token.token_id, now_at=2)
        assert (await client.rest())[1] == 1008
    assert (await ended(app, client.task_id)).state == "cancelled"


async def test_a_session_is_its_tenants_alone(app: Headway, api: FastAPI, address: str) -> None:  # S-31
    store = await app.client.store()
    api.state.service.tokens.every = 0.05
    _, ours = await create_token(store, ["submit"], tenant="ours", now_at=1)
    _, theirs = await create_token(store, ["submit"], tenant="theirs", now_at=1)
    await asyncio.sleep(0.1)
    bearer = {"Authorization": f"Bearer {ours}"}
    assert await refused(address, task_type="echo", tenant="theirs", headers=bearer) == 403
    async with opened(address, "echo", headers=bearer) as client:
        assert (await app.job(client.task_id).arecord()).tenant == "ours"
    stranger = {"Authorization": f"Bearer {theirs}"}
    async with knock(address, task_id=client.task_id, resume=client.secret, headers=stranger) as other:
        await other.expect("denied")
        assert (await other.rest())[1] == 4404
    async with resumed(address, client.task_id, client.secret, headers=bearer) as again:
        await again.say("mine")
        assert (await again.expect("text"))["data"] == "mine"


async def test_a_closed_socket_is_closed(address: str) -> None:
    async with opened(address, "echo") as client:
        await client.socket.close()
        with pytest.raises(ConnectionClosed):
            await client.hear()
