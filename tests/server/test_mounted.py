"""The interface inside another application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import Depends, FastAPI

from headway import Headway, Job
from headway.server import client_of, headway_api
from headway.server.uvicorn_server import address_of, bind

WORKERS = "/headway/internal/workers"


@pytest.fixture
async def queue() -> AsyncIterator[Headway]:
    async with Headway("memory://", dead_after=1.0, heartbeat=0.2) as queue:
        yield queue


@asynccontextmanager
async def host(queue: Headway) -> AsyncIterator[tuple[FastAPI, httpx.AsyncClient]]:
    """An application with a route of its own and the interface under a path."""
    app, api = FastAPI(), headway_api(queue)
    app.mount("/headway", api)

    @queue.task(name="double")
    async def double(number: int) -> int:
        return 2 * number

    @app.post("/orders")
    async def order(queue: Any = Depends(client_of(queue))) -> str:  # noqa: B008
        job: Job[int] = await queue.tasks["double"].aenqueue(21)
        return job.id

    listener = bind("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        async with httpx.AsyncClient(base_url=address_of(listener)) as http:
            yield api, http
    finally:
        server.should_exit = True
        await serving
        listener.close()
        if (keeping := api.state.service.keeping) is not None:  # Elsewhere it ends with the loop.
            keeping.cancel()
            await asyncio.gather(keeping, return_exceptions=True)


async def test_tasks_are_submitted_there_and_by_routes_beside_it(queue: Headway) -> None:
    async with host(queue) as (_, http):
        answer = await http.post("/headway/api/v1/tasks", json={"task_type": "double", "parameters": {"number": 1}})
        assert answer.status_code == 201
        assert answer.headers["location"].startswith("/headway/api/v1/tasks/")
        assert (await http.get(answer.headers["location"])).json()["status"] == "queued"
        ordered = (await http.post("/orders")).json()
        assert (await http.get(f"/headway/api/v1/tasks/{ordered}")).json()["payload"]["parameters"] == {"number": 21}


async def test_its_chores_begin_with_its_first_request(queue: Headway) -> None:
    # A worker that comes over HTTP and vanishes: only this server can notice.
    async with host(queue) as (api, http):
        ordered = (await http.post("/orders")).json()
        assert api.state.service.keeping is None
        pace = {"heartbeat_seconds": 0.2, "dead_after_seconds": 1}
        worker = (await http.post(f"{WORKERS}/register", json={"capabilities": []} | pace)).json()["worker_id"]
        given = (await http.post(f"{WORKERS}/{worker}/poll", json={"available_capacity": 1})).json()
        assert given["tasks"][0]["task_id"] == ordered
        async with asyncio.timeout(20):
            while (await http.get(f"/headway/api/v1/tasks/{ordered}")).json()["status"] != "queued":  # noqa: ASYNC110
                await asyncio.sleep(0.05)
