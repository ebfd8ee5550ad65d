"""The routes of fasdis, to schedule and to look up tasks, in one process that serves and works."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.security.tokens import create_token
from headway.server import main
from tests.conftest import ADDRESSES
from tests.server.conftest import client_for

RECORD = {
    "task_id", "priority", "status", "scheduled_by", "scheduled_at", "processed_by", "started_at", "completed_at",
    "latency_ms", "same_worker",
}  # fmt: skip


@pytest.fixture
async def instance(store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FastAPI]:
    """Yield the application of ``uvicorn headway.server.main:app``, with demo tasks."""
    # R1.3, R1.30
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADWAY_APP", raising=False)
    made = Headway(ADDRESSES[store_name](tmp_path))

    @made.task(name="demo.sleep")
    async def sleep(seconds: float = 0) -> None:
        await asyncio.sleep(seconds)

    monkeypatch.setattr(main, "_app", lambda: made)
    api = main.create()
    async with api.router.lifespan_context(api):
        yield api


async def finished(http: httpx.AsyncClient, task_id: str) -> dict[str, object]:
    await http.get(f"/api/v1/tasks/{task_id}/events")
    record: dict[str, object] = (await http.get(f"/task/{task_id}")).json()
    return record


async def test_a_task_is_scheduled_run_and_looked_at_by_its_record(instance: FastAPI) -> None:
    # R1.31, R1.32, R1.33, R1.34, R1.35, R1.36
    async with client_for(instance, base_url="http://localhost") as http:
        answer = await http.post("/task", params={"priority": "high"})
        assert answer.status_code == 200
        scheduled = answer.json()
        assert scheduled.keys() == {"task_id", "status", "priority", "worker", "scheduled_at"}
        assert scheduled["priority"] == "high"
        record = await finished(http, scheduled["task_id"])
    assert record.keys() == RECORD
    assert record["status"] == "completed"
    assert record["scheduled_by"] == record["processed_by"] == scheduled["worker"]
    assert record["same_worker"] is True
    assert isinstance(record["latency_ms"], int)
    assert record["latency_ms"] >= 0


async def test_get_schedules_too_marked_as_old_and_can_be_switched_off(instance: FastAPI) -> None:
    # R1.31
    async with client_for(instance, base_url="http://localhost") as http:
        answer = await http.get("/task")
        assert (answer.status_code, answer.json()["priority"]) == (200, "low")
        assert answer.headers["deprecation"] == "true"
        assert answer.headers["cache-control"] == "no-store"
        instance.state.service.app.configure(task_by_get=False)
        assert (await http.get("/task")).status_code == 405
    assert instance.openapi()["paths"]["/task"]["get"]["deprecated"] is True


async def test_get_schedules_nothing_once_there_are_tokens(instance: FastAPI) -> None:
    service = instance.state.service
    _, text = await create_token(await service.store(), ["admin"], now_at=1)
    service.tokens.every = 0
    async with client_for(instance, base_url="http://localhost") as http:
        answer = await http.get("/task", headers={"Authorization": f"Bearer {text}"})
        assert (answer.status_code, answer.json()["code"]) == (405, "switched_off")
        assert (await http.get("/task")).status_code == 401


@pytest.mark.parametrize("store_name", ["memory"])
async def test_other_lanes_and_unknown_tasks_are_refused(instance: FastAPI) -> None:
    # R1.32, R1.34
    async with client_for(instance, base_url="http://localhost") as http:
        assert (await http.get("/task", params={"priority": "medium"})).status_code == 422
        assert (await http.post("/task", json={"priority": "urgent"})).status_code == 422
        assert (await http.get("/task/0198c1f2-0000-7000-8000-000000000000")).status_code == 404


@pytest.mark.parametrize("store_name", ["memory"])
async def test_an_instance_has_three_slots_unless_told_otherwise(instance: FastAPI, tmp_path: Path) -> None:
    # R1.26, R1.27
    settings = instance.state.service.app.settings
    assert (settings.slots, settings.reserved) == (3, 1)


@pytest.mark.parametrize("store_name", ["memory"])
async def test_the_environment_says_how_many_slots(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store_name: str
) -> None:
    # R1.6, R1.26
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAX_CONCURRENT_TASKS", "7")
    monkeypatch.setenv("HIGH_PRIORITY_RESERVED", "2")
    monkeypatch.setattr(main, "_app", lambda: Headway("memory://"))
    settings = main.create().state.service.app.settings
    assert (settings.slots, settings.reserved) == (7, 2)
