"""HEAD exists wherever GET does, and ``Allow`` names every method of a path."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.security.tokens import create_token
from headway.server.guard import HEADERS_MAX
from headway.worker.embedded import Worker
from tests.cli.command import Cli
from tests.server.live import asked, read_all, served
from tests.server.test_tasks import ended, submit

API = "/api/v1"


@pytest.mark.parametrize("store_name", ["memory"])
async def test_head_answers_like_get_but_without_a_body(app: Headway, api: FastAPI) -> None:
    async with served(api) as address, httpx.AsyncClient(base_url=address) as http:
        task_id = await submit(http)
        for path in ("/healthz", "/readyz", f"{API}/tasks", f"{API}/policy", f"{API}/tasks/{task_id}", "/docs"):
            got, head = await http.get(path), await http.head(path)
            assert (head.status_code, head.content) == (200, b""), path
            assert head.headers["content-type"] == got.headers["content-type"], path
            if path in ("/healthz", "/readyz", f"{API}/policy", "/docs"):  # Others have times in them.
                assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.content)), path
        assert (await http.head("/metrics")).status_code == 200
        assert (await http.head(f"{API}/tasks/unknown")).status_code == 404
        stream = await http.head(f"{API}/tasks/{task_id}/events")  # It does not wait for the task's end.
        assert (stream.status_code, stream.content) == (200, b"")
        assert stream.headers["content-type"].startswith("text/event-stream")
        before = len((await http.get(f"{API}/tasks")).json()["items"])
        assert (await http.head("/task")).status_code == 405  # Its GET schedules.
        assert len((await http.get(f"{API}/tasks")).json()["items"]) == before == 1


@pytest.mark.parametrize("store_name", ["memory"])
async def test_head_needs_the_scope_that_get_needs(app: Headway, http: httpx.AsyncClient) -> None:
    # S-3
    _, text = await create_token(await app.client.store(), ["worker"], now_at=1)
    assert (await http.head(f"{API}/tasks")).status_code == 401
    assert (await http.head(f"{API}/tasks", headers={"Authorization": f"Bearer {text}"})).status_code == 403
    assert (await http.head("/healthz")).status_code == 200


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize(
    "method, path, allowed",
    [
        ("PATCH", f"{API}/policy", "GET, HEAD, PUT"),
        ("DELETE", f"{API}/tasks", "GET, HEAD, POST"),
        ("POST", f"{API}/tasks/a", "DELETE, GET, HEAD"),
        ("PUT", "/task", "GET, POST"),
        ("HEAD", "/task", "GET, POST"),
        ("GET", f"{API}/pause", "POST"),
        ("POST", "/healthz", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_all_right_ones(
    http: httpx.AsyncClient, method: str, path: str, allowed: str
) -> None:
    answer = await http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allowed)


async def test_a_browser_that_knows_the_end_of_a_task_is_told_not_to_come_back(
    app: Headway, http: httpx.AsyncClient
) -> None:
    task_id = await submit(http)
    async with Worker(app):
        await ended(http, task_id)
    path = f"{API}/tasks/{task_id}/events"
    events = [
        dict(line.split(": ", 1) for line in part.splitlines())
        for part in (await http.get(path)).text.split("\n\n")
        if part.startswith("id")
    ]
    assert events[-1]["event"] == "finished"
    last = await http.get(path, headers={"Last-Event-ID": events[-1]["id"]})
    assert (last.status_code, last.content) == (204, b"")
    for earlier in (events[0]["id"], "nonsense", ""):
        again = await http.get(path, headers={"Last-Event-ID": earlier} if earlier else {})
        assert (again.status_code, "event: finished" in again.text) == (200, True)


async def test_a_task_that_was_retried_since_is_followed_again(app: Headway, http: httpx.AsyncClient) -> None:
    task_id = await submit(http, task_type="fail", parameters={})
    path = f"{API}/tasks/{task_id}/events"
    async with Worker(app):
        await ended(http, task_id)
        last = [line.split(": ")[1] for line in (await http.get(path)).text.splitlines() if line.startswith("id: ")][-1]
        assert (await http.get(path, headers={"Last-Event-ID": last})).status_code == 204
        assert (await http.post(f"{API}/tasks/{task_id}/retry")).status_code == 200
        again = await http.get(path, headers={"Last-Event-ID": last})
    assert (again.status_code, "event: finished" in again.text) == (200, True)


# ---------------------------------------------------------------------- what answers repeat


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize(
    "method, path, body",
    [
        ("POST", f"{API}/tasks", {"task_type": "add", "parameters": {"a": 1, "x" * 200_000: 1}}),
        ("POST", f"{API}/tasks", {"task_type": "add", "parameters": {"a": "y" * 200_000}}),
        ("POST", f"{API}/tasks", {"task_type": "add", "x" * 200_000: 1}),
        ("POST", f"{API}/tasks/bulk", [{"task_type": "add", "parameters": {"x" * 200_000: 1}}]),
        ("PUT", f"{API}/policy", {"x" * 200_000: 1}),
        ("PUT", f"{API}/policy", {"lanes": {"x" * 200_000: {"level": "y" * 200_000}}}),
        ("PUT", f"{API}/policy", {f"key{number}": 1 for number in range(10_000)}),
        ("POST", f"{API}/tasks/cancel", {"task_ids": ["x" * 200_000]}),
        ("POST", f"{API}/policy/rollback", {"x" * 200_000: 1}),
        ("POST", "/internal/workers/register", {"capabilities": [], "tasks": [{"name": "x" * 200_000}]}),
        ("POST", "/internal/workers/register", {"capabilities": [], "limits": {"x" * 200: {}}, "tasks": []}),
        ("POST", "/internal/workers/register", {"capabilities": ["x" * 200_000]}),
    ],
    ids=lambda value: str(value)[:50],
)
async def test_no_answer_repeats_what_is_long(http: httpx.AsyncClient, method: str, path: str, body: Any) -> None:
    # S-19
    answer = await http.request(method, path, json=body)
    assert 400 <= answer.status_code < 500, answer.text[:500]
    assert len(answer.content) < 100_000 if "policy" in path else len(answer.content) < 10_000


@pytest.mark.parametrize("store_name", ["memory"])
async def test_no_answer_repeats_a_long_address(api: FastAPI) -> None:
    # S-19
    long = "x" * 30_000
    async with served(api) as address:
        for path in (f"/{long}", f"{API}/tasks/{long}", f"{API}/tasks?{long}=1", f"{API}/tasks?cursor={long}"):
            with asked(address, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") as reader:
                answer = await asyncio.to_thread(read_all, reader)
            head, _, body = answer.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 4"), head
            assert (len(head) < 2_000, len(body) < 3_000) == (True, True), path
            assert 400 <= json.loads(body)["status"] < 500
    assert HEADERS_MAX == 100


# ---------------------------------------------------------------------- clients that leave


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_client_that_leaves_in_the_middle_of_a_body_is_no_mistake_of_ours(api: FastAPI) -> None:
    # S-21: a traceback for each would fill the log.
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.disconnect"},
    ]
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json"), (b"content-length", b"100")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": f"{API}/tasks", "headers": headers}
    scope |= {"asgi": {"version": "3.0"}, "http_version": "1.1", "scheme": "http", "root_path": "", "query_string": b""}
    await api(scope | {"client": ("127.0.0.1", 5)}, receive, send)  # It does not raise, so nothing is logged.
    assert (sent, messages) == ([], [])


def test_lines_of_the_web_server_are_json_like_ours(cli: Cli) -> None:
    # S-25: a line that is no JSON stops what reads the log.
    server = cli.start("serve", "headway.demo:app", HEADWAY_LOG="json")
    try:
        address = server.wait_for("server.up")["address"]
        with asked(address, "rubbish\r\n\r\n") as reader:
            assert read_all(reader).startswith(b"HTTP/1.1 400")
        head = f"POST {API}/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        with asked(address, head + "Content-Length: 99\r\n\r\n{"):
            pass  # It leaves.
        line = server.wait_for("log.message")
        assert (line["logger"], line["message"]) == ("uvicorn.error", "Invalid HTTP request received.")
        assert server.terminate() == 0
        lines = (cli.folder / "serve.log").read_text().splitlines()
        assert all(isinstance(json.loads(one), dict) for one in lines)
        assert not any("Traceback" in one or "traceback" in one for one in lines)
    finally:
        server.end()


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)
