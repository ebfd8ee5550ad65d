"""``uvicorn headway.server.main:app --host 0.0.0.0``: which clients it accepts, and how to admit others."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.security.tokens import create_token
from headway.server import main

NEAR, FAR = ("127.0.0.1", 50_000), ("203.0.113.5", 50_000)


@pytest.fixture
async def api(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FastAPI]:
    monkeypatch.setenv("HEADWAY_STORE", "memory://")
    monkeypatch.setattr(main, "_app", lambda: Headway("memory://"))
    made = main.create()
    async with made.router.lifespan_context(made):
        yield made


async def look(api: FastAPI, client: tuple[str, int], host: str, token: str = "") -> tuple[int, str]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    transport = httpx.ASGITransport(api, client=client)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}", headers=headers) as http:
        answer = await http.get("/api/v1/queue/stats")
        return answer.status_code, answer.json().get("code", "")


async def test_without_a_token_it_answers_this_machine_alone(api: FastAPI) -> None:
    # R1.30, S-7
    assert await look(api, NEAR, "localhost:8000") == (200, "")
    assert await look(api, FAR, "localhost:8000") == (403, "forbidden")
    assert await look(api, FAR, "queue.example.com") == (421, "wrong_host")


async def test_with_a_token_it_answers_whoever_has_it(api: FastAPI) -> None:
    # R1.30
    store = await api.state.service.app.client.store()
    _, token = await create_token(store, ["read"], now_at=1)
    assert await look(api, FAR, "queue.example.com") == (401, "unauthenticated")
    assert await look(api, FAR, "queue.example.com", token) == (200, "")
