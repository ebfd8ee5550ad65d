"""Estimates over HTTP: in the reply to a submit, with a task, on their own, and pushed when they change."""

from __future__ import annotations

import json

import httpx
import pytest
from fastapi import FastAPI
from websockets.asyncio.client import connect

from headway import Estimate, Headway
from headway.client import job_events
from headway.core.lease import Lease
from headway.estimates.history import DurationHistory
from headway.server import service as services
from headway.stores.base import Heartbeat, Store
from tests.conformance.builders import a_worker, claim
from tests.server.live import served

TASKS = "/api/v1/tasks"
SECONDS = 4.0


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "FORECAST_AGE", 0.0)


@pytest.fixture
async def store(app: Headway) -> Store:
    """Return a store that knows jobs of four seconds, with a worker whose two slots are busy."""
    store = await app.client.store()
    lessons = DurationHistory()
    for _ in range(20):
        lessons.note([(a_lease(), SECONDS)])
    await lessons.publish(store)
    worker = a_worker("w1", slots=2, reserved=0, offers=("task:*",))
    await store.renew(Heartbeat(worker, 60_000, 60_000, register=True))
    await app.tasks["add"].aenqueue(1)
    await app.tasks["add"].aenqueue(2)
    assert len(await claim(store, "w1", free=2)) == 2
    return store


def a_lease() -> Lease:
    return Lease("j", 1, b"", "add", b"", "medium", None, None, 1, 1, 0, 0, 1, 1, None, 1)  # type: ignore[arg-type]


async def test_a_submit_says_when_the_task_will_begin(http: httpx.AsyncClient, store: Store) -> None:
    # R3.37, R5.40
    first = (await http.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}})).json()
    for _ in range(8):
        await http.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}})
    last = (await http.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}})).json()
    assert (first["estimate"]["basis"], first["estimate"]["position"]) == ("learned", 0)
    assert last["estimate"]["position"] == last["queue_position"] == 9
    assert 1 < first["estimate"]["p50"] <= first["estimate"]["p90"]
    assert last["estimate"]["p50"] == pytest.approx(SECONDS * (1 + 9 / 2), rel=0.4)
    for path in ("", "/estimate"):
        found = (await http.get(f"{TASKS}/{last['task_id']}{path}")).json()
        found = found["estimate"] if not path else found
        assert found["p50"] == pytest.approx(last["estimate"]["p50"], rel=0.3)
        assert (found["position"], found["basis"]) == (9, "learned")


async def test_a_bulk_says_so_of_each(http: httpx.AsyncClient, store: Store) -> None:
    body = [{"task_type": "add", "parameters": {"a": 1}}] * 30
    tasks = (await http.post(f"{TASKS}/bulk", json=body)).json()["tasks"]
    waits = [task["estimate"]["p50"] for task in tasks]
    assert waits == sorted(waits)
    assert waits[-1] > 5 * waits[0] > 0


async def test_what_is_paused_has_a_place_and_no_seconds(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    await app.apause(lane="medium")
    task = (await http.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}})).json()
    assert task["estimate"] == {"position": 0, "p50": None, "p90": None, "basis": "unknown"}


async def test_a_delayed_task_begins_when_it_is_due(http: httpx.AsyncClient, store: Store) -> None:
    body = {"task_type": "add", "parameters": {"a": 1}, "run_after": "2099-01-01T00:00:00Z"}
    found = (await http.post(TASKS, json=body)).json()["estimate"]
    assert found["p50"] is None or found["p50"] > 1_000_000


async def test_a_handle_says_the_same(app: Headway, store: Store) -> None:
    job = await app.tasks["add"].aenqueue(3)
    found = await job.aestimate()
    assert isinstance(found, Estimate)
    assert found.basis == "learned"
    assert found.p50 is not None
    assert found.p50 > 0
    await store.cancel([job.id])
    assert await job.aestimate() is None


async def test_a_socket_is_told_again_when_it_changes_materially(
    app: Headway, api: FastAPI, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R3.40, R3.45, R3.55
    monkeypatch.setattr(job_events, "ESTIMATE_EVERY", 0.05)
    monkeypatch.setattr(job_events, "ESTIMATE_PART", 0.0)
    before = [await app.tasks["add"].aenqueue(number) for number in range(12)]
    job = await app.tasks["add"].aenqueue(99)
    async with served(api) as address:
        socket_url = f"{address.replace('http', 'ws')}{TASKS}/{job.id}/stream"
        async with connect(socket_url) as socket:
            first = json.loads(await socket.recv())
            assert (first["type"], first["position"]) == ("queue", 12)
            await store.cancel([other.id for other in before])
            again = json.loads(await socket.recv())
            while again["position"]:
                again = json.loads(await socket.recv())
            assert (again["type"], again["position"]) == ("queue", 0)
            assert again["estimate"]["p50"] < first["estimate"]["p50"] / 2
            events = await _first_estimate(address, job.id)
            assert events["basis"] == "learned"


async def _first_estimate(address: str, job_id: str) -> dict[str, object]:
    async with httpx.AsyncClient(base_url=address) as http, http.stream("GET", f"{TASKS}/{job_id}/events") as answer:
        kind = ""
        async for line in answer.aiter_lines():
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            if name == "data" and kind == "estimate":
                found: dict[str, object] = json.loads(value)
                return found
    raise AssertionError("no estimate came")
