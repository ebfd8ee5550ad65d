"""The scope of every route of the service. Callers without it are refused."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, APIWebSocketRoute

from headway import Headway
from headway.security.tokens import SCOPES, create_token
from headway.server.api import headway_api
from headway.server.auth import Scope
from headway.stores.base import JobQuery, Store
from tests.server.guarded_app import call

# S-3: a developer who adds a route adds it here, and thinks about who may call it.
MATRIX = {
    "DELETE /api/v1/tasks/{task_id}": "submit",
    "DELETE /api/v1/session": "public",  # It ends the caller's own session.
    "GET /api/v1/audit": "admin",
    "GET /api/v1/batches": "read",
    "GET /api/v1/batches/{batch_id}": "read",
    "GET /api/v1/batches/{batch_id}/graph": "read",
    "GET /api/v1/batches/{batch_id}/results": "read",
    "GET /api/v1/bulk": "read",
    "GET /api/v1/bulk/{operation_id}": "read",
    "GET /api/v1/catalogue": "read",
    "GET /api/v1/crons": "read",
    "GET /api/v1/dlq": "read",
    "GET /api/v1/dlq/groups": "read",
    "GET /api/v1/limits": "read",
    "GET /api/v1/live": "read",
    "GET /api/v1/pauses": "read",
    "GET /api/v1/policy": "read",
    "GET /api/v1/policy/versions": "read",
    "GET /api/v1/policy/versions/{version}": "read",
    "GET /api/v1/queue/counts": "read",
    "GET /api/v1/queue/estimates": "read",
    "GET /api/v1/queue/overview": "read",
    "GET /api/v1/queue/stats": "read",
    "GET /api/v1/scale": "read",
    "GET /api/v1/series": "read",
    "GET /api/v1/server": "read",
    "GET /api/v1/session": "public",  # It says who the caller is, if anybody.
    "GET /api/v1/system": "admin",
    "GET /api/v1/tasks": "read",
    "GET /api/v1/tasks/{task_id}": "read",
    "GET /api/v1/tasks/{task_id}/estimate": "read",
    "GET /api/v1/tasks/{task_id}/events": "read",
    "GET /api/v1/tasks/{task_id}/output": "read",
    "GET /api/v1/tasks/{task_id}/why": "read",
    "GET /api/v1/tenants": "read",
    "GET /api/v1/workers": "read",
    "GET /docs": "public",
    "GET /docs.css": "public",
    "GET /healthz": "public",
    "GET /metrics": "read",
    "GET /openapi.json": "public",
    "GET /readyz": "public",
    "GET /task": "submit",
    "GET /task/{task_id}": "read",
    "POST /api/v1/batches": "submit",
    "POST /api/v1/batches/{batch_id}/cancel": "submit",
    "POST /api/v1/batches/{batch_id}/close": "submit",
    "POST /api/v1/batches/{batch_id}/on_done": "submit",
    "POST /api/v1/batches/{batch_id}/on_failure": "submit",
    "POST /api/v1/batches/{batch_id}/retry": "submit",
    "POST /api/v1/batches/{batch_id}/tasks": "submit",
    "POST /api/v1/bulk": "read",  # And what the action needs: test_rights.py.
    "POST /api/v1/crons/{name}/pause": "admin",
    "POST /api/v1/crons/{name}/resume": "admin",
    "POST /api/v1/crons/{name}/run": "admin",
    "POST /api/v1/dlq/purge": "admin",
    "POST /api/v1/dlq/replay": "admin",
    "POST /api/v1/dlq/{task_id}/replay": "admin",
    "POST /api/v1/forecast": "read",
    "POST /api/v1/interactive/ticket": "submit",
    "POST /api/v1/pause": "admin",
    "POST /api/v1/policy/rollback": "admin",
    "POST /api/v1/resume": "admin",
    "POST /api/v1/session": "public",  # It takes a token.
    "POST /api/v1/tasks": "submit",
    "POST /api/v1/tasks/bulk": "submit",
    "POST /api/v1/tasks/cancel": "submit",
    "POST /api/v1/tasks/retry": "submit",
    "POST /api/v1/tasks/{task_id}/retry": "submit",
    "POST /api/v1/tasks/{task_id}/ticket": "read",
    "POST /api/v1/workers/{worker_id}/drain": "admin",
    "POST /internal/workers/register": "worker",
    "POST /internal/workers/{worker_id}/drain": "worker",
    "POST /internal/workers/{worker_id}/heartbeat": "worker",
    "POST /internal/workers/{worker_id}/output": "worker",
    "POST /internal/workers/{worker_id}/poll": "worker",
    "POST /internal/workers/{worker_id}/result": "worker",
    "POST /internal/workers/{worker_id}/step": "worker",
    "POST /internal/workers/{worker_id}/steps": "worker",
    "POST /task": "submit",
    "PUT /api/v1/policy": "admin",
    "WS /api/v1/interactive": "submit",
    "WS /api/v1/tasks/{task_id}/stream": "read",
    "WS /internal/sessions/{job_id}": "public",  # Who dials in proves that they hold the job.
    "WS /internal/sessions/{job_id}/client": "public",  # The same, for another process of the service.
}


def routes(found: Iterable[Any]) -> Iterator[str]:
    """Return the method and path of every route, with those of included routers."""
    for route in found:
        if isinstance(route, APIRoute):
            yield from (f"{method} {route.path}" for method in route.methods or ())
        elif isinstance(route, APIWebSocketRoute):
            yield f"WS {route.path}"
        else:
            # What this test does not know it must not pass over.
            yield from routes(route.original_router.routes)


@pytest.fixture
def api(app: Headway) -> FastAPI:
    return headway_api(app, hosts=["testserver"])


@pytest.mark.parametrize("store_name", ["memory"])
async def test_no_route_is_missing_from_the_matrix(api: FastAPI) -> None:
    # S-3
    assert sorted(set(routes(api.routes)) ^ set(MATRIX)) == []


@pytest.fixture
async def app_store(app: Headway) -> Store:
    return await app.client.store()


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize(
    "held, tasks", [(None, None), *((scope, None) for scope in SCOPES), ("worker", ["a"]), ("worker", ["*"])]
)
async def test_a_route_lets_in_who_holds_its_scope_and_nobody_else(
    app_store: Store, api: FastAPI, held: str | None, tasks: list[str] | None
) -> None:
    # I13, S-3, S-4, R5.106: a worker's token reaches a worker's routes alone, be it bound to tasks or not.
    await create_token(app_store, ["admin"], now_at=1)
    token = None if held is None else (await create_token(app_store, [held], tasks=tasks, now_at=1))[1]
    wrong: list[str] = []
    for route, needed in MATRIX.items():
        method, path = route.split()
        answer = await call(api, method, re.sub(r"\{\w+\}", "0", path), token=token)
        code = answer.json.get("code") if answer.status >= 400 else None
        if needed == Scope.PUBLIC or held in (needed, "admin"):
            fits = code not in ("unauthenticated", "forbidden", "too_many_attempts", "internal")
        elif held is None:
            fits = (answer.status, code) == (401, "unauthenticated")
        else:
            fits = (answer.status, code, answer.json.get("scope")) == (403, "forbidden", needed)
        if not fits:
            wrong.append(f"{route} by {held}: {answer.status} {answer.body[:200]!r}")
    assert wrong == []


@pytest.mark.parametrize("store_name", ["memory"])
async def test_no_get_changes_anything(app_store: Store, api: FastAPI) -> None:
    # S-11: but for the one that schedules, which is off once tokens exist.
    async def kept() -> list[Any]:
        documents = [await app_store.read(kind) for kind in ("policy", "token", "rules", "audit", "ticket")]
        return [documents, await app_store.stats(), [job.task for job in await app_store.find(JobQuery())]]

    _, token = await create_token(app_store, ["admin"], now_at=1)
    await call(api, "GET", "/metrics", token=token)  # The first look notes that the token is used.
    before = await kept()
    for route in MATRIX:
        method, path = route.split()
        if method in ("GET", "WS"):
            await call(api, method, re.sub(r"\{\w+\}", "0", path), token=token)
    after = await kept()
    assert before[0] == after[0]
    assert before[1].totals == after[1].totals
    assert before[2] == after[2] == []
