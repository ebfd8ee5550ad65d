"""Two tenants: no request of one shows anything of the other's tasks, not even that they exist."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.routing import WebSocketRoute

from headway import Headway, Unique
from headway.security.tokens import create_token
from headway.server.api import headway_api
from headway.server.routes.streams import sockets
from tests.conftest import ADDRESSES
from tests.server.conftest import client_for, make_app
from tests.server.guarded_app import call
from tests.server.test_workers import WORKERS, register

TASKS = "/api/v1/tasks"
UNKNOWN = "01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10"
THEIRS, OURS = "tenant-with-secrets", "tenant-next-door"
STATES = ("queued", "executing", "completed", "failed", "dead_letter", "cancelled")

pytestmark = pytest.mark.parametrize("store_name", ["memory", "sqlite", "redis"])


@dataclass
class TenantScene:
    """Tasks of a tenant in every state, one without a tenant, and tokens."""

    api: FastAPI
    operator: str = ""
    theirs: str = ""
    ours: str = ""  # With all scopes, and for another tenant.
    tasks: dict[str, str] = field(default_factory=dict)
    worker_id: str = ""

    def client(self, token: str) -> httpx.AsyncClient:
        return client_for(self.api, headers={"authorization": f"Bearer {token}"})

    @property
    def hidden(self) -> list[str]:
        """Return the texts that no reply may contain."""
        return [*self.tasks.values(), THEIRS, self.worker_id, "canary"]


@pytest.fixture
async def scene(store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TenantScene]:
    monkeypatch.chdir(tmp_path)
    async with make_app(ADDRESSES[store_name](tmp_path)) as app:
        yield await _make_scene(app)


async def _make_scene(app: Headway) -> TenantScene:
    @app.task(name="once", unique=Unique())
    async def once(a: int) -> None: ...

    scene = TenantScene(headway_api(app, hosts=["testserver"]))
    store = await app.client.store()
    _, scene.operator = await create_token(store, ["admin"], now_at=1)
    _, scene.theirs = await create_token(store, ["submit", "read"], tenant=THEIRS, now_at=1)
    _, scene.ours = await create_token(store, ["admin", "submit", "read", "worker"], tenant=OURS, now_at=1)
    async with scene.client(scene.operator) as operator, scene.client(scene.theirs) as theirs:
        worker = await register(operator, capacity=9, reserved=0)
        scene.worker_id = worker.worker_id
        for state in STATES[1:]:
            scene.tasks[state] = await _submitted(theirs, max_retries=0)
            if state == "cancelled":
                await theirs.delete(f"{TASKS}/{scene.tasks[state]}")
                continue
            given = await worker.claim()
            told: dict[str, Any] = {"task_id": given["task_id"], "fence": given["fence"]}
            if state == "completed":
                await worker.say("result", status="completed", result="canary", **told)
            elif state != "executing":
                error = {"message": "canary", "retriable": state != "failed"}
                await worker.say("result", status="failed", error=error, **told)
        scene.tasks["queued"] = await _submitted(theirs, required_capabilities=["canary"], idempotency_key="key")
        scene.tasks["nobody's"] = await _submitted(operator, required_capabilities=["canary"])
        for state in STATES:
            assert (await theirs.get(f"{TASKS}/{scene.tasks[state]}")).json()["status"] == state
    return scene


async def _submitted(http: httpx.AsyncClient, **body: Any) -> str:
    answer = await http.post(TASKS, json={"task_type": "canary", "parameters": {"value": "canary"}} | body)
    assert answer.status_code == 201, answer.text
    task_id: str = answer.json()["task_id"]
    return task_id


def _about_one(api: FastAPI) -> list[tuple[str, str]]:
    """Return every operation on one task, from the schema and the sockets."""
    paths = api.openapi()["paths"]
    found = [(method.upper(), path) for path, methods in paths.items() if "{task_id}" in path for method in methods]
    return [*found, *(("WS", route.path) for route in sockets.routes if isinstance(route, WebSocketRoute))]


async def test_a_task_of_another_tenant_looks_like_one_that_is_not_there(scene: TenantScene) -> None:
    # S-31
    operations = _about_one(scene.api)
    assert len(operations) >= 9
    async with scene.client(scene.operator) as operator:
        before = [(await operator.get(f"{TASKS}/{task_id}")).json() for task_id in scene.tasks.values()]
    for method, path in operations:
        unknown = await call(scene.api, method, path.replace("{task_id}", UNKNOWN), token=scene.ours)
        assert (unknown.status, unknown.code) == (404, "job_not_found"), (method, path)
        for task_id in scene.tasks.values():
            answer = await call(scene.api, method, path.replace("{task_id}", task_id), token=scene.ours)
            told = answer.body.replace(task_id.encode(), UNKNOWN.encode())
            assert (answer.status, answer.headers, told) == (unknown.status, unknown.headers, unknown.body), (
                method,
                path,
            )
    async with scene.client(scene.operator) as operator:
        after = [(await operator.get(f"{TASKS}/{task_id}")).json() for task_id in scene.tasks.values()]
    assert after == before


async def test_no_list_and_no_number_names_what_is_another_tenants(scene: TenantScene) -> None:
    # S-31, S-34
    reads = [
        path
        for path, methods in scene.api.openapi()["paths"].items()
        if "get" in methods and "{" not in path and path != "/task"
    ]
    assert {TASKS, "/api/v1/dlq", "/api/v1/queue/stats", "/metrics", "/api/v1/workers"} <= set(reads)
    filters = [
        "",
        "?limit=1",
        "?task_type=canary",
        f"?worker={scene.worker_id}",
        f"?tenant={OURS}",
        "?age=0",
        "?cursor=999",
        f"?task_id={scene.tasks['queued']}&task_id={scene.tasks['completed']}",
    ]
    filters += [f"?status={state}" for state in STATES]
    async with scene.client(scene.ours) as ours:
        for path in reads:
            for query in filters if path in (TASKS, "/api/v1/dlq") else [""]:
                answer = await ours.get(f"{path}{query}")
                assert answer.status_code in (200, 403, 422), (path, answer.text)  # Not every list has every filter.
                assert not [word for word in scene.hidden if word in answer.text], path
        for path in (TASKS, "/api/v1/dlq"):
            answer = await ours.get(f"{path}?tenant={THEIRS}")
            assert (answer.status_code, answer.json()["code"]) == (403, "tenant_mismatch")


async def test_no_bulk_verb_touches_what_is_another_tenants(scene: TenantScene) -> None:
    # S-31
    ids = list(scene.tasks.values())
    async with scene.client(scene.operator) as operator, scene.client(scene.ours) as ours:
        mine = await _submitted(ours)
        before = [(await operator.get(f"{TASKS}/{task_id}")).json()["status"] for task_id in ids]
        for verb, own in (("cancel", "cancelled"), ("retry", "queued")):
            answer = await ours.post(f"{TASKS}/{verb}", json={"task_ids": [*ids, UNKNOWN, mine]})
            assert [one["status"] for one in answer.json()["tasks"]] == [None] * (len(ids) + 1) + [own]
        answer = await ours.post("/api/v1/dlq/purge", json={"task_ids": ids})
        assert answer.json() == {"removed": 0}
        after = [(await operator.get(f"{TASKS}/{task_id}")).json()["status"] for task_id in ids]
    assert after == before


async def test_nothing_that_is_read_changes_with_what_another_tenant_does(scene: TenantScene) -> None:
    # S-31: every read without a task's id, and numbers above all.
    reads = [
        path
        for path, methods in scene.api.openapi()["paths"].items()
        if "get" in methods and "{" not in path and path not in ("/task", "/metrics")
    ]
    assert "/api/v1/queue/stats" in reads
    async with scene.client(scene.ours) as ours, scene.client(scene.theirs) as theirs:
        body = {"task_type": "mine", "priority": "low", "required_capabilities": ["nothing like it"]}
        for _ in range(2):
            await ours.post(TASKS, json=body)
        before = {path: _timeless((await ours.get(path)).text) for path in reads}
        for priority in ("low", "medium", "high"):
            await _submitted(theirs, priority=priority)
        after = {path: _timeless((await ours.get(path)).text) for path in reads}
        assert after == before
        stats = (await ours.get("/api/v1/queue/stats")).json()
        assert {name: lane["depth"] for name, lane in stats["queues"].items()} == {"high": 0, "medium": 0, "low": 2}
        assert (stats["workers"], stats["throughput"]) == (None, None)
    async with scene.client(scene.operator) as operator:
        stats = (await operator.get("/api/v1/queue/stats")).json()
        assert sum(lane["depth"] for lane in stats["queues"].values()) == 2 + 3 + 2
        assert stats["workers"]["active"] == 1


def _timeless(text: str) -> str:
    """Return a text without values that change during a test: ages in seconds, and estimates."""
    return re.sub(r'"(oldest_age_seconds|p50|p90|wait)\w*":[^,}]*', "", text)


async def test_what_concerns_all_tenants_is_not_for_a_token_of_one(scene: TenantScene) -> None:
    # S-31: also to be given tasks, which are everybody's.
    whole = ["GET /metrics", "GET /api/v1/workers", "GET /api/v1/pauses", "PUT /api/v1/policy", "POST /api/v1/pause"]
    whole += [
        "POST /api/v1/resume",
        f"POST /api/v1/workers/{scene.worker_id}/drain",
        "GET /api/v1/server",
        "GET /api/v1/crons",
        "GET /api/v1/queue/counts",
        "GET /api/v1/queue/estimates",
        "GET /api/v1/policy/versions",
        "GET /api/v1/policy/versions/0",
        "POST /api/v1/policy/rollback",
    ]
    whole += [f"POST {WORKERS}/register"]
    whole += [f"POST {WORKERS}/{scene.worker_id}/{verb}" for verb in ("poll", "result", "heartbeat", "drain")]
    async with scene.client(scene.ours) as ours:
        for one in whole:
            method, path = one.split()
            answer = await ours.request(method, path, json=None if method == "GET" else {"capabilities": []})
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), one


async def test_keys_are_each_tenants_own(scene: TenantScene) -> None:
    # S-32
    body = {"task_type": "canary", "parameters": {"value": "other"}, "idempotency_key": "key"}
    async with scene.client(scene.ours) as ours, scene.client(scene.theirs) as theirs:
        mine = await ours.post(TASKS, json=body)
        assert mine.status_code == 201
        again = await ours.post(TASKS, json=body)
        assert (again.status_code, again.json()["task_id"]) == (200, mine.json()["task_id"])
        assert (await theirs.post(TASKS, json=body)).status_code == 409
        # Of tasks that are unique each tenant has its own one.
        once = {"task_type": "once", "parameters": {"a": 1}}
        first, second = await theirs.post(TASKS, json=once), await ours.post(TASKS, json=once)
        assert (first.status_code, second.status_code) == (201, 201)
        assert (await ours.post(TASKS, json=once)).json()["task_id"] == second.json()["task_id"]


async def test_a_limit_by_a_parameter_holds_back_nobody_elses_tasks(scene: TenantScene) -> None:
    # S-32: the other tenant's account 7 is busy, and nothing tells of it.
    limits = {"export": {"x": {"concurrency": 1, "by": "account"}}}
    parameters = {"properties": {"account": {"type": "integer"}}, "required": ["account"]}
    entry: dict[str, Any] = {"name": "export", "lane": "high", "executor": "async", "parameters": parameters}
    entry["limits"] = [{"concurrency": 1, "by": "account"}]
    body = {"task_type": "export", "parameters": {"account": 7}}
    operator, theirs, ours = (scene.client(token) for token in (scene.operator, scene.theirs, scene.ours))
    async with operator, theirs, ours:
        worker = await register(operator, tasks=[entry], limits=limits, reserved=0)
        assert "export" in (await operator.get("/api/v1/catalogue")).text  # From now on the server knows it.
        first = await theirs.post(TASKS, json=body)
        assert (await worker.claim())["task_id"] == first.json()["task_id"]
        mine, waiting = [(await ours.post(TASKS, json=body)).json()["task_id"] for _ in range(2)]
        assert (await worker.claim())["task_id"] == mine
        assert (await worker.poll(1))["tasks"] == []
        why = (await ours.get(f"{TASKS}/{waiting}/why")).text
        assert "account 7 runs 1 of 1" in why
        assert THEIRS not in why


async def test_dead_letters_of_another_tenant_are_not_replayed(scene: TenantScene) -> None:
    # S-31
    async with scene.client(scene.ours) as ours, scene.client(scene.theirs) as theirs:
        for wanted in (
            {"task_ids": list(scene.tasks.values())},
            {"task_ids": [UNKNOWN]},
            {"task_type": "canary"},
            {"all": True},
            {"tenant": OURS},
        ):
            answer = await ours.post("/api/v1/dlq/replay", json=wanted)
            assert answer.json() == {"replayed": [], "refused": [], "more": False}
        mismatch = await ours.post("/api/v1/dlq/replay", json={"tenant": THEIRS})
        assert (mismatch.status_code, mismatch.json()["code"]) == (403, "tenant_mismatch")
        assert (await theirs.get(f"{TASKS}/{scene.tasks['dead_letter']}")).json()["status"] == "dead_letter"


async def test_reasons_and_streams_of_ones_own_tasks_name_nobody_else(scene: TenantScene) -> None:
    # S-31: those of others are ahead of it, and run.
    async with scene.client(scene.ours) as ours:
        body = {"task_type": "mine", "required_capabilities": ["nothing like it"], "run_after": None}
        task_id = (await ours.post(TASKS, json=body)).json()["task_id"]
        for path in ("", "/why", "/estimate"):
            answer = await ours.get(f"{TASKS}/{task_id}{path}")
            assert answer.status_code == 200
            assert not [word for word in scene.hidden if word in answer.text]
        ticket = (await ours.post(f"{TASKS}/{task_id}/ticket")).json()["ticket"]
    # A ticket opens the one thing it is for.
    other = scene.tasks["queued"]
    async with client_for(scene.api) as anybody:
        answer = await anybody.get(f"{TASKS}/{other}/events?ticket={ticket}")
        assert answer.status_code == 401
        scene.api.state.service.limiter.uncount("127.0.0.1", "")
        async with scene.client(scene.ours) as ours:
            await ours.delete(f"{TASKS}/{task_id}")
        async with asyncio.timeout(30):
            told = await anybody.get(f"{TASKS}/{task_id}/events?ticket={ticket}")
    assert "cancelled" in told.text
    assert not [word for word in scene.hidden if word in told.text]


async def test_a_task_cannot_be_given_to_another_tenant(scene: TenantScene) -> None:
    async with scene.client(scene.ours) as ours:
        for body in ({"task_type": "x", "tenant": THEIRS}, {"task_type": "x", "tenant": "anybody"}):
            for path, sent in ((TASKS, body), (f"{TASKS}/bulk", [{"task_type": "x"}, body])):
                answer = await ours.post(path, json=sent)
                assert (answer.status_code, answer.json()["code"]) == (403, "tenant_mismatch")
        listed = (await ours.get(TASKS)).json()
        assert listed["items"] == []
        made = (await ours.post("/task", json={"task_type": "x"})).json()
        assert (await ours.get(f"{TASKS}/{made['task_id']}")).json()["tenant"] == OURS
        assert re.search(THEIRS, json.dumps(listed)) is None
