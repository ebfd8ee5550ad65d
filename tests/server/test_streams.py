"""Streams: the events of a task by server-sent events and by WebSocket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from headway import Headway
from headway.core.job import JobId, State
from headway.core.policy.document import BUILT_IN, Ladder, Rung
from headway.core.policy.ladder import Preemption
from headway.policy_store.versions import apply_policy
from headway.security.tokens import create_token, revoke_token
from headway.server.connection_limits import SlowReaderGuard
from headway.server.routes import streams
from headway.worker.embedded import Worker
from tests.faults.conftest import wait_until
from tests.server.live import asked, read_all, served

TASKS = "/api/v1/tasks"
LARGE = 900_000


@pytest.fixture
async def address(api: FastAPI) -> AsyncIterator[str]:
    async with served(api) as address:
        yield address


def socket_at(address: str, task_id: str, query: str = "") -> str:
    return f"{address.replace('http', 'ws')}{TASKS}/{task_id}/stream{query}"


async def messages(socket: ClientConnection) -> list[dict[str, Any]]:
    """Read all messages until the socket is closed."""
    found: list[dict[str, Any]] = []
    while True:
        try:
            found.append(json.loads(await socket.recv()))
        except ConnectionClosed as closed:
            return [*found, {"type": "closed", "code": closed.rcvd.code if closed.rcvd else None}]


async def test_a_socket_tells_place_start_progress_and_result_then_closes(app: Headway, address: str) -> None:
    first = await app.tasks["add"].aenqueue(1)
    job = await app.tasks["steps"].aenqueue()
    async with connect(socket_at(address, job.id)) as socket:
        place = json.loads(await socket.recv())
        assert (place["type"], place["position"], place["estimate"]["position"]) == ("queue", 1, 1)
        async with Worker(app):
            told = await messages(socket)
    kinds = [message["type"] for message in told]
    assert kinds[-2:] == ["result", "closed"]
    assert "started" in kinds
    progress = [message for message in told if message["type"] == "progress"]
    assert progress
    assert [message["fraction"] for message in progress] == sorted(message["fraction"] for message in progress)
    assert (told[-2]["status"], told[-2]["result"], told[-1]["code"]) == ("completed", "done", 1000)
    assert await first.aresult() == 3


async def test_a_client_that_comes_back_is_told_what_it_missed_and_nothing_twice(app: Headway, address: str) -> None:
    job = await app.tasks["steps"].aenqueue()
    async with Worker(app):
        async with connect(socket_at(address, job.id)) as socket:
            message: dict[str, Any] = {"type": ""}
            while message["type"] != "started":
                message = json.loads(await socket.recv())
        last = message["id"]
        await job.aresult()
    async with connect(socket_at(address, job.id, f"?after={last}")) as socket:
        told = await messages(socket)
    assert [message["type"] for message in told] == ["progress", "result", "closed"]
    async with connect(socket_at(address, job.id, f"?after={told[-2]['id']}")) as socket:
        assert [message["type"] for message in await messages(socket)] == ["closed"]


async def test_events_are_told_as_they_happen_and_again_from_the_last_one_seen(app: Headway, address: str) -> None:
    job = await app.tasks["steps"].aenqueue()
    async with Worker(app), httpx.AsyncClient(base_url=address) as http:
        kinds, last = [], ""
        async with http.stream("GET", f"{TASKS}/{job.id}/events") as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kinds.append(value)
                if name == "id" and not last and "started" not in kinds:
                    last = value
                if name == "data" and kinds[-1] == "finished":
                    assert json.loads(value)["result"] == "done"
        assert kinds[0] == "queued"
        assert [kind for kind in kinds if kind != "estimate"][-1] == "finished"
        again = await http.get(f"{TASKS}/{job.id}/events", headers={"Last-Event-ID": last})
    assert "event: queued" not in again.text
    assert "event: started" in again.text
    assert again.text.count("event: finished") == 1


async def test_a_stream_of_a_task_that_is_not_there_is_denied(address: str) -> None:
    missing = "0198c1f2-0000-7000-8000-000000000000"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(socket_at(address, missing)):
            pass
    assert refused.value.response.status_code == 404
    async with httpx.AsyncClient(base_url=address) as http:
        assert (await http.get(f"{TASKS}/{missing}/events")).status_code == 404


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_start_and_a_downgrade_are_told_with_their_seconds(app: Headway, address: str) -> None:
    # R3.56, R3.91: what the plan of the protocol calls options {duration}.
    rungs = (Rung("fast", 60_000), Rung("slow", 90_000, limit=1))
    store = await app.client.store()
    await apply_policy(store, replace(BUILT_IN, ladder=Ladder(rungs)), now_at=1)
    job = await app.tasks["steps"].using(duration="default").aenqueue()
    async with connect(socket_at(address, job.id)) as socket, Worker(app):
        while (began := json.loads(await socket.recv()))["type"] != "started":
            pass
        assert (began["duration"], began["seconds"]) == ("slow", 90.0)
        assert await store.preempt([Preemption(JobId(job.id), "fast")]) == [True]
        told = await messages(socket)
    [lowered] = [message for message in told if message["type"] == "duration"]
    assert (lowered["duration"], lowered["from"], lowered["seconds"]) == ("fast", "slow", 60.0)


@pytest.mark.parametrize(
    "query, state", [("?abandon=true", State.CANCELLED), ("", State.QUEUED)], ids=["abandoned", "kept"]
)
async def test_whether_a_task_outlives_its_reader_is_the_readers_choice(
    app: Headway, address: str, query: str, state: State
) -> None:
    # R3.58, R3.64
    job = await app.tasks["add"].aenqueue(1)
    async with connect(socket_at(address, job.id, query)) as socket:
        assert json.loads(await socket.recv())["type"] == "queue"
    async with asyncio.timeout(30):
        while await job.astatus() != state:  # noqa: ASYNC110  (the server moves it)
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert await job.astatus() == state


async def test_pages_of_other_sites_open_no_socket(app: Headway, address: str) -> None:
    job = await app.tasks["add"].aenqueue(1)
    with pytest.raises(InvalidStatus) as refused:
        async with connect(socket_at(address, job.id), origin="https://evil.example"):  # type: ignore[arg-type]
            pass
    assert refused.value.response.status_code == 403


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_ticket_opens_one_stream_once(api: FastAPI, app: Headway, address: str) -> None:
    store = await app.client.store()
    _, text = await create_token(store, ["read"], now_at=1)
    api.state.service.tokens.every = 0
    job, other = await app.tasks["add"].aenqueue(1), await app.tasks["add"].aenqueue(2)
    bearer = {"Authorization": f"Bearer {text}"}
    async with httpx.AsyncClient(base_url=address, headers=bearer) as http:
        answer = await http.post(f"{TASKS}/{job.id}/ticket")
        assert (answer.status_code, answer.json()["expires_in"]) == (201, 60)
    query = f"?ticket={answer.json()['ticket']}"
    with pytest.raises(InvalidStatus):
        async with connect(socket_at(address, other.id, query)):
            pass
    async with connect(socket_at(address, job.id, query)) as socket:
        assert json.loads(await socket.recv())["type"] == "queue"
    with pytest.raises(InvalidStatus) as refused:
        async with connect(socket_at(address, job.id, query)):
            pass
    assert refused.value.response.status_code == 401
    with pytest.raises(InvalidStatus):  # Without anything.
        async with connect(socket_at(address, job.id)):
            pass


@pytest.mark.parametrize("store_name", ["memory"])
async def test_revoking_a_token_ends_what_it_holds_open(api: FastAPI, app: Headway, address: str) -> None:
    store = await app.client.store()
    token, text = await create_token(store, ["read"], now_at=1)
    api.state.service.tokens.every = 0.05
    job = await app.tasks["add"].aenqueue(1)
    bearer = {"Authorization": f"Bearer {text}"}
    async with (
        httpx.AsyncClient(base_url=address, headers=bearer, timeout=10) as http,
        connect(socket_at(address, job.id), additional_headers=bearer) as socket,
        http.stream("GET", f"{TASKS}/{job.id}/events") as events,
    ):
        assert json.loads(await socket.recv())["type"] == "queue"
        await revoke_token(store, token.token_id, now_at=2)
        assert (await messages(socket))[-1]["code"] == 1012
        lines = [line async for line in events.aiter_lines()]  # It ends.
        assert lines[0] == "retry: 1000"


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_server_that_leaves_ends_its_streams_with_a_code_to_come_back(api: FastAPI, app: Headway) -> None:
    job = await app.tasks["add"].aenqueue(1)
    async with served(api) as address, connect(socket_at(address, job.id)) as socket:
        assert json.loads(await socket.recv())["type"] == "queue"
        api.state.service.stop()
        assert (await messages(socket))[-1]["code"] == 1012


class RequestCounter:
    """Counts of requests that came and that ended."""

    def __init__(self, api: FastAPI) -> None:
        self.came = self.over = 0
        api.add_middleware(self._around)

    def _around(self, app: ASGIApp) -> ASGIApp:
        async def counted(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "lifespan":
                return await app(scope, receive, send)
            self.came += 1
            try:
                await app(scope, receive, send)
            finally:
                self.over += 1

        return counted


async def large_result(app: Headway) -> str:
    """Return the id of a job whose result is larger than all buffers between the server and a small reader."""

    @app.task(name="large")
    async def large() -> str:
        return "x" * LARGE

    job = await large.aenqueue()
    async with Worker(app):
        await job.aresult()
    return job.id


def request_for(task_id: str, way: str) -> str:
    upgrade = (
        "Upgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    )
    return f"GET {TASKS}/{task_id}{way} HTTP/1.1\r\nHost: localhost\r\n{upgrade if way == '/stream' else ''}\r\n"


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize("way", ["/stream", "/events"])
async def test_a_stream_whose_reader_does_not_read_ends(
    api: FastAPI, app: Headway, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    # L6
    monkeypatch.setattr(streams, "SEND_SECONDS", 0.2)
    request, requests = request_for(await large_result(app), way), RequestCounter(api)
    async with served(api, small=True) as address:
        with asked(address, request), asked(address, request), asked(address, request):
            await asyncio.to_thread(wait_until, lambda: requests.came == requests.over == 3)
            assert not api.state.service.streams


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize("way", ["/stream", "/events", ""])
async def test_a_connection_whose_reader_does_not_read_is_cut(
    api: FastAPI, app: Headway, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    # L6
    lost: list[SlowReaderGuard] = []
    lose = SlowReaderGuard.connection_lost

    def noted(protocol: SlowReaderGuard, problem: Exception | None) -> None:
        lose(protocol, problem)
        lost.append(protocol)

    monkeypatch.setattr(SlowReaderGuard, "connection_lost", noted)
    monkeypatch.setattr(SlowReaderGuard, "read_seconds", 0.2)
    request = request_for(await large_result(app), way)
    async with served(api, small=True) as address:
        with asked(address, request) as reader:
            await asyncio.to_thread(wait_until, lambda: lost)
            assert len(await asyncio.to_thread(read_all, reader)) < LARGE


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize("way", ["/stream", "/events", ""])
async def test_a_reader_who_reads_slowly_is_told_everything(
    api: FastAPI, app: Headway, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(SlowReaderGuard, "read_seconds", 1.0)
    request = request_for(await large_result(app), way)
    async with served(api, small=True) as address:
        with asked(address, request) as reader:
            assert len(await asyncio.to_thread(read_all, reader, until=LARGE, pause=0.01)) >= LARGE


async def test_the_output_of_a_program_is_streamed_and_told_again_after_a_break(
    app: Headway, address: str, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    script = 'echo one; while [ ! -e "$GATE" ]; do sleep 0.02; done; echo two'
    program = app.command(["sh", "-c", "{script}"], name="sh", env={"GATE": str(gate)}, max_retries=0)
    async with Worker(app), httpx.AsyncClient(base_url=address, timeout=30) as http:
        job = await program.aenqueue(script=script)
        last, said = "", {}
        async with http.stream("GET", f"{TASKS}/{job.id}/events") as answer:
            kind = place = ""
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "id":
                    place = value
                if name == "event":
                    kind = value
                if name == "data" and kind == "output":
                    last, said = place, json.loads(value)
                    break
        assert (said["stream"], said["offset"], said["text"]) == ("stdout", 0, "one\n")
        gate.touch()
        await job.aresult(timeout=30)
        again = await http.get(f"{TASKS}/{job.id}/events", headers={"Last-Event-ID": last})
    told = [json.loads(line.partition(": ")[2]) for line in again.text.splitlines() if line.startswith("data: ")]
    assert [(one["kind"], one.get("text")) for one in told] == [("output", "two\n"), ("finished", None)]
