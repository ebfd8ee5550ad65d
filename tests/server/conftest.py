"""The service in this process: an app on each store, its application, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Context, Headway
from headway.server.api import headway_api
from headway.server.gateway import long_poll
from tests.conftest import ADDRESSES

HERE = ("127.0.0.1", 50_000)


@pytest.fixture
async def app(store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Headway]:
    """Yield an app with tasks of each kind, on every store."""
    monkeypatch.chdir(tmp_path)
    made = make_app(ADDRESSES[store_name](tmp_path))
    async with made:
        yield made


def make_app(address: str, **settings: Any) -> Headway:
    app = Headway(address, **settings)

    @app.task(name="add")
    async def add(a: int, b: int = 2) -> int:
        return a + b

    @app.task(name="fail", max_retries=0)
    async def fail(message: str = "broken") -> None:
        raise RuntimeError(message)

    @app.task(name="hang")
    async def hang() -> None:
        await asyncio.Event().wait()

    @app.task(name="steps", context=True)
    async def steps(ctx: Context) -> str:
        for number in range(1, 4):
            ctx.progress(number / 4, f"step {number}")
            await asyncio.sleep(0.3)
        return "done"

    return app


@pytest.fixture
def woken_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a poll that waits learn of a change only by a wake-up, because it looks by itself too late."""
    for name in ("SLOW_POLL", "READ_LEASES_EVERY"):
        monkeypatch.setattr(long_poll, name, 60.0)


@pytest.fixture
def api(app: Headway) -> FastAPI:
    return headway_api(app, hosts=["testserver"])


@pytest.fixture
async def http(api: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with client_for(api) as client:
        yield client


def client_for(api: FastAPI, *, base_url: str = "http://testserver", **options: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(api, client=HERE), base_url=base_url, timeout=30, **options)
