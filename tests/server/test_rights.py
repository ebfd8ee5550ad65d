"""Every action of the dashboard with every scope, by token and by cookie. The route itself checks the rights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.policy_store.catalogue import CRONS, CronDocument
from headway.security.tokens import SCOPES, create_token
from headway.stores.base import Store
from tests.conformance.builders import register
from tests.server.conftest import client_for

pytestmark = pytest.mark.parametrize("store_name", ["memory"])

FILTER = "tenant:acme"
MADE = {"task_type": "add", "parameters": {"a": 1}, "tenant": "acme"}


class Action(NamedTuple):
    """An action: all scopes that it needs, and the request."""

    needs: tuple[str, ...]
    method: str
    path: str
    body: Any = None
    whole: bool = True  # It concerns all tenants.


ACTIONS = {
    "cancel": Action(("submit",), "DELETE", "/api/v1/tasks/{task}", whole=False),
    "retry": Action(("submit",), "POST", "/api/v1/tasks/{task}/retry", whole=False),
    "cancel selection": Action(("submit",), "POST", "/api/v1/tasks/cancel", {"task_ids": ["{task}"]}, whole=False),
    "retry selection": Action(("submit",), "POST", "/api/v1/tasks/retry", {"task_ids": ["{task}"]}, whole=False),
    **{
        f"bulk {action}": Action(
            ("read", needed),
            "POST",
            "/api/v1/bulk",
            {"action": action, "filter": FILTER, "dry_run": False}
            | ({"lane": "high"} if action == "change_lane" else {}),
            whole=False,
        )
        for action, needed in {
            "cancel": "submit",
            "retry": "submit",
            "run_now": "admin",
            "change_lane": "admin",
            "replay": "admin",
            "purge": "admin",
        }.items()
    },
    **{
        f"dry run of {action}": Action(
            ("read", needed),
            "POST",
            "/api/v1/bulk",
            {"action": action, "filter": FILTER, "dry_run": True},
            whole=False,
        )
        for action, needed in {"cancel": "submit", "purge": "admin"}.items()
    },
    "pause": Action(("admin",), "POST", "/api/v1/pause", {"lane": "low"}),
    "resume": Action(("admin",), "POST", "/api/v1/resume", {"lane": "low"}),
    "drain": Action(("admin",), "POST", "/api/v1/workers/w1/drain", {}),
    "replay dead letters": Action(("admin",), "POST", "/api/v1/dlq/replay", {"all": True}, whole=False),
    "purge dead letters": Action(("admin",), "POST", "/api/v1/dlq/purge", {"task_ids": ["{task}"]}, whole=False),
    "run a cron": Action(("admin",), "POST", "/api/v1/crons/nightly/run", {}),
    "pause a cron": Action(("admin",), "POST", "/api/v1/crons/nightly/pause", {}),
    "resume a cron": Action(("admin",), "POST", "/api/v1/crons/nightly/resume", {}),
    "apply a policy": Action(("admin",), "PUT", "/api/v1/policy", {}),
    "check a policy": Action(("admin",), "PUT", "/api/v1/policy?dry_run=1", {}),
    "roll back": Action(("admin",), "POST", "/api/v1/policy/rollback", {"to": 0}),
    "forecast": Action(("read",), "POST", "/api/v1/forecast", {"slots": 3}),
    "system": Action(("admin",), "GET", "/api/v1/system"),
    "audit": Action(("admin",), "GET", "/api/v1/audit"),
}


@pytest.fixture
async def store(app: Headway, api: FastAPI) -> Store:
    api.state.service.tokens.every = 0.0  # A new token is known at once.
    return await app.client.store()


@pytest.fixture
async def operator(api: FastAPI, store: Store) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client with all rights, on a store with a worker and a cron."""
    _, text = await create_token(store, ["admin"], now_at=1)
    await register(store)
    cron = CronDocument(
        task="nightly", expression="0 3 * * *", tz="UTC", catch_up="none", overlap="skip", lane="low", max_retries=0,
        timeout_ms=1_000, payload=b"\x01{}",
    )  # fmt: skip
    await store.write(CRONS, "nightly", msgspec.json.encode(cron))
    async with client_for(api, headers={"authorization": f"Bearer {text}"}) as client:
        yield client


async def kept(store: Store) -> list[Any]:
    """Return everything that an action could change."""
    kinds = ("policy", "rules", "bulk", "cron", "cron_pause", "audit")
    documents = [await store.read(kind) for kind in kinds]
    stats = await store.stats()
    return [documents, stats.totals, {name: lane._asdict() for name, lane in stats.lanes.items()}, stats.workers]


def body_of(act: Action, task: str) -> Any:
    return msgspec.json.decode(msgspec.json.encode(act.body).replace(b"{task}", task.encode()))


@pytest.mark.parametrize("cookie", [False, True], ids=["token", "cookie"])
@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("name", ACTIONS)
async def test_an_action_needs_its_scopes(
    api: FastAPI, operator: httpx.AsyncClient, store: Store, name: str, scope: str, cookie: bool
) -> None:
    act = ACTIONS[name]
    task = (await operator.post("/api/v1/tasks", json=MADE)).json()["task_id"]
    scopes = [scope] if scope not in act.needs else [*act.needs]
    allowed = scope == "admin" or set(act.needs) <= set(scopes)
    _, text = await create_token(store, scopes, now_at=1)
    page = {"sec-fetch-site": "same-origin", "origin": "http://testserver"}
    headers = page if cookie else {"authorization": f"Bearer {text}"}
    async with client_for(api, headers=headers) as caller:
        if cookie:
            assert (await caller.post("/api/v1/session", json={"token": text})).status_code == 201
        before = await kept(store)
        answer = await caller.request(act.method, act.path.format(task=task), json=body_of(act, task))
    if allowed:
        # It was let in, though there is nothing to retry and no policy to go back to.
        assert answer.status_code in (200, 201, 202) or answer.json()["code"] in ("illegal_move", "policy"), answer.text
    else:
        missing = answer.json()
        assert (answer.status_code, missing["code"]) == (403, "forbidden"), answer.text
        assert missing["scope"] in act.needs
        assert await kept(store) == before


@pytest.mark.parametrize("scope", ["submit", "admin"])
@pytest.mark.parametrize("name", ACTIONS)
async def test_a_scope_without_the_other_is_not_enough_and_a_tenant_acts_for_itself(
    api: FastAPI, operator: httpx.AsyncClient, store: Store, name: str, scope: str
) -> None:
    # A token of another tenant finds nothing to change, and cannot do what concerns all tenants.
    act = ACTIONS[name]
    task = (await operator.post("/api/v1/tasks", json=MADE)).json()["task_id"]
    _, text = await create_token(store, ["read", scope], tenant="bolt", now_at=1)
    before = [job and job.state for job in await store.get([task])]
    async with client_for(api, headers={"authorization": f"Bearer {text}"}) as caller:
        answer = await caller.request(act.method, act.path.format(task=task), json=body_of(act, task))
    if act.whole:
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), answer.text
    else:
        assert task not in answer.text or answer.json().get("code") == "job_not_found" or '"status":null' in answer.text
        assert answer.json().get("count", 0) == 0
    assert [job and job.state for job in await store.get([task])] == before


async def test_a_bulk_action_needs_to_read_as_well(api: FastAPI, operator: httpx.AsyncClient, store: Store) -> None:
    _, text = await create_token(store, ["submit"], now_at=1)
    async with client_for(api, headers={"authorization": f"Bearer {text}"}) as caller:
        answer = await caller.post("/api/v1/bulk", json={"action": "cancel", "filter": FILTER})
    assert (answer.status_code, answer.json()["scope"]) == (403, "read")
