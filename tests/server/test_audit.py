"""The audit over HTTP: each action of an operator with actor, before and after."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.core.job import JobId, State
from headway.core.policy.retry import Raised
from headway.security.audit import SEGMENT, read_audit, record
from headway.security.tokens import create_token
from tests.conformance.builders import BOOM, claim_one, end, register
from tests.server.conftest import client_for

API = "/api/v1"
CHANGE = "/api/v1/tasks"


async def token(app: Headway, *scopes: str, tenant: str | None = None) -> tuple[str, dict[str, str]]:
    """Create a token. Return its id and the header to send."""
    made, text = await create_token(await app.client.store(), scopes, tenant=tenant, now_at=1)
    return made.token_id, {"Authorization": f"Bearer {text}"}


async def submitted(http: httpx.AsyncClient, headers: dict[str, str], **body: Any) -> str:
    answer = await http.post(f"{API}/tasks", json={"task_type": "nobody.knows"} | body, headers=headers)
    assert answer.status_code == 201, answer.text
    task_id: str = answer.json()["task_id"]
    return task_id


async def told(app: Headway) -> list[tuple[str, str, str, Any, Any]]:
    """Return the audit, the oldest entry first, without the tokens that the test created."""
    found = (await read_audit(await app.client.store(), limit=1_000))[::-1]
    return [
        (entry.who, entry.what, entry.target, entry.before, entry.after)
        for entry in found
        if entry.what != "token.create"
    ]


async def dead_letter(app: Headway, task_id: str) -> None:
    store = await app.client.store()
    await register(store)
    lease = await claim_one(store, offers=("task:nobody.knows",))
    assert lease.job_id == task_id
    await end(store, lease._replace(attempts=lease.max_retries + 1), Raised(BOOM))


async def test_each_verb_of_an_operator_is_recorded_over_http(app: Headway, api: FastAPI) -> None:
    # S-35
    who, admin = await token(app, "admin")
    _, tenant = await token(app, "submit", "read", tenant="acme")
    async with client_for(api) as http:
        first = await submitted(http, tenant)
        assert (await http.delete(f"{API}/tasks/{first}", headers=admin)).status_code == 200
        assert (await http.delete(f"{API}/tasks/{first}", headers=admin)).status_code == 200
        assert (await http.post(f"{API}/tasks/{first}/retry", headers=admin)).status_code == 200
        await dead_letter(app, first)
        assert (await http.post(f"{API}/dlq/{first}/replay", headers=admin)).status_code == 200
        assert (await http.post(f"{API}/dlq/{first}/replay", headers=admin)).status_code == 200
        await dead_letter(app, first)
        assert (await http.post(f"{API}/dlq/replay", json={"all": True}, headers=admin)).json()["replayed"] == [first]
        for path in ("pause", "pause", "resume"):
            assert (await http.post(f"{API}/{path}", json={"lane": "low"}, headers=admin)).status_code == 200
        for _ in range(2):
            answer = await http.put(f"{API}/policy", json={"crash_limit": 5}, headers=admin)
            assert answer.status_code == 200
        assert (await http.post(f"{API}/workers/w1/drain", json={}, headers=admin)).status_code == 200
        assert (await http.post(f"{API}/workers/none/drain", json={}, headers=admin)).status_code == 404
    found = await told(app)
    assert [(entry[1], entry[2]) for entry in found] == [
        ("task.cancel", first),
        ("task.retry", first),
        ("dlq.replay", first),
        ("dlq.replay", first),
        ("pause", "lane low"),
        ("resume", "lane low"),
        ("policy.put", "version 1"),
        ("worker.drain", "w1"),
    ]
    assert {entry[0] for entry in found} == {who}
    assert found[0][3:] == ({first: "queued"}, {first: "cancelled"})
    assert found[3][3:] == ({first: "dead_letter"}, {first: "queued"})


async def test_what_an_owner_does_to_its_own_task_is_not_recorded(app: Headway, api: FastAPI) -> None:
    # S-35
    _, tenant = await token(app, "submit", "read", tenant="acme")
    async with client_for(api) as http:
        first = await submitted(http, tenant)
        assert (await http.delete(f"{API}/tasks/{first}", headers=tenant)).status_code == 200
        assert (await http.post(f"{API}/tasks/{first}/retry", headers=tenant)).status_code == 200
    job = app.job(first)
    assert await job.acancel() is State.CANCELLED
    assert await told(app) == []


async def test_what_a_python_program_pauses_is_recorded(app: Headway) -> None:
    # S-35
    await app.apause(lane="low")
    await app.aresume()
    assert [entry[:3] for entry in await told(app)] == [
        ("python", "pause", "lane low"),
        ("python", "resume", "lane low"),
    ]


async def test_commands_of_a_lesser_scope_do_not_push_out_what_an_admin_did(app: Headway, api: FastAPI) -> None:
    # S-35
    boss, admin = await token(app, "admin")
    clerk, lesser = await token(app, "submit")
    async with client_for(api) as http:
        assert (await http.put(f"{API}/policy", json={"crash_limit": 5}, headers=admin)).status_code == 200
        ids = [await submitted(http, lesser) for _ in range(3)]
        for task_ids in (["unknown"], ids[:1], ids[:1]):
            answer = await http.post(f"{CHANGE}/cancel", json={"task_ids": task_ids}, headers=lesser)
            assert answer.status_code == 200
        answer = await http.post(f"{CHANGE}/cancel", json={"task_ids": ids[1:2]}, headers=admin)
        assert answer.status_code == 200
    # What changed nothing is not there, and what the clerk did is counted apart.
    assert [entry[:3] for entry in await told(app)] == [
        (boss, "policy.put", "version 1"),
        (clerk, "task.cancel", ids[0]),
        (boss, "task.cancel", ids[1]),
    ]
    store = await app.client.store()
    names = {document.name.partition(".")[0]: document.body for document in await store.read("audit")}
    assert names.keys() == {"operators", "callers"}
    assert clerk.encode() in names["callers"]
    assert clerk.encode() not in names["operators"].replace(b'"target":"%s"' % clerk.encode(), b"")


@pytest.mark.parametrize("store_name", ["memory", "sqlite"])
async def test_the_audit_is_read_page_by_page(app: Headway, http: httpx.AsyncClient) -> None:
    # S-19, S-35
    store = await app.client.store()
    for number in range(SEGMENT + 10):
        group: Any = ("operators", "callers")[number % 3 == 0]
        await record(store, who="local", what="pause", target=f"{number}", now_at=1 + number, group=group)
    for size in (7, 1_000):
        found: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = (await http.get(f"{API}/audit", params={"limit": str(size)} | cursor)).json()
            assert len(page["entries"]) <= size
            found += [entry["target"] for entry in page["entries"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert found == [f"{number}" for number in range(SEGMENT + 9, -1, -1)]
    for wrong in ("!", "eA", "W10", "W1sib3BlcmF0b3JzIl1d"):
        answer = await http.get(f"{API}/audit", params={"cursor": wrong})
        assert answer.status_code in (200, 422), answer.text


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_page_of_the_audit_is_bounded_in_bytes(app: Headway, http: httpx.AsyncClient) -> None:
    # S-19
    store = await app.client.store()
    for _ in range(300):
        await record(store, who="local", what="policy.put", target="x", before="b" * 15_000, after="a" * 15_000)
    answer = await http.get(f"{API}/audit", params={"limit": 1_000})
    assert len(answer.content) <= (4 << 20) + 1_000
    assert 100 < len(answer.json()["entries"]) < 300
    assert answer.json()["next_cursor"] is not None


async def test_a_job_that_does_not_exist_leaves_no_entry(app: Headway, api: FastAPI) -> None:
    # S-35
    _, admin = await token(app, "admin")
    async with client_for(api) as http:
        for verb in ("cancel", "retry"):
            answer = await http.post(f"{CHANGE}/{verb}", json={"task_ids": ["none"]}, headers=admin)
            assert answer.json() == {"tasks": [{"task_id": "none", "status": None}]}
    assert await told(app) == []
    assert (await (await app.client.store()).get([JobId("none")])) == [None]
