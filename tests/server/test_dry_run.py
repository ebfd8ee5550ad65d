"""Dry runs: their replies equal those after the submit, and nothing is stored."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway, Limit, Unique
from headway.core.policy.reader import read_policy
from headway.policy_store.versions import apply_policy
from headway.security.tokens import create_token
from headway.stores.base import JobQuery, Store
from tests.conformance.builders import claim, register
from tests.estimates.lanes import learn_lanes
from tests.server.conftest import client_for

TASKS = "/api/v1/tasks"
OFFERS = ("task:*",)


@pytest.fixture
async def store(app: Headway, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return a store with jobs behind two busy slots. The server reads it anew for each request."""
    monkeypatch.setattr("headway.server.service.FORECAST_AGE", 0.0)
    monkeypatch.setattr("headway.estimates.history.READ_EVERY", -1.0)

    @app.task(name="limited", limits=[Limit(concurrency=2)])
    async def limited() -> None: ...

    @app.task(name="unique", unique=Unique())
    async def unique(a: int) -> None: ...

    store = await app.client.store()
    await learn_lanes(store, seconds=4.0, task="add")
    await register(store, slots=2, reserved=0, offers=OFFERS)
    for number in range(2):
        await app.tasks["add"].aenqueue(number)
    assert len(await claim(store, free=2, offers=OFFERS)) == 2
    return store


async def kept(store: Store) -> list[Any]:
    documents = [await store.read(kind) for kind in ("rules", "policy", "task", "audit")]
    stats = await store.stats()
    return [await store.find(JobQuery()), stats.totals, stats.lanes, (await store.snapshot()).classes, documents]


async def ask(http: httpx.AsyncClient, store: Store, body: dict[str, Any], **headers: str) -> httpx.Response:
    """Send a dry run, and check that it changes nothing."""
    before = await kept(store)
    answer = await http.post(TASKS, params={"dry_run": 1}, json=body, headers=headers)
    after = await kept(store)
    # The moments at which jobs were read differ.
    assert [job.job_id for job in after[0]] == [job.job_id for job in before[0]]
    assert after[1:] == before[1:]
    return answer


async def test_what_was_said_holds_after_the_submit(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    for number in range(5):
        await app.tasks["add"].using(tenant="acme" if number % 2 else None, priority="low").aenqueue(number)
    await app.tasks["add"].aenqueue(1)
    for more in (
        {},
        {"priority": "high"},
        {"priority": "low", "tenant": "acme"},
        {"priority": "low", "tenant": "new"},
        {"run_after": "2099-01-01T00:00:00Z"},
        {"task_type": "limited", "parameters": {}},
        {"required_capabilities": ["gpu"]},
    ):
        body = {"task_type": "add", "parameters": {"a": 1}} | more
        said = (await ask(http, store, body)).json()
        made = await http.post(TASKS, json=body)
        assert made.status_code == 201, made.text
        task = (await http.get(f"{TASKS}/{made.json()['task_id']}")).json()
        assert said["valid"] is True, more
        assert (said["deduplicated"], said["task_id"], said["status"]) == (False, None, "queued"), more
        assert said["queue_position"] == made.json()["queue_position"] == task["queue_position"], more
        for name in ("priority", "tenant", "duration", "max_retries", "timeout_seconds"):
            assert said[name] == task[name], more
        codes = [reason["code"] for reason in said["reasons"]]
        assert codes == [reason["code"] for reason in task["why"]], more
        assert said["estimate"]["basis"] == task["estimate"]["basis"], more
        if task["estimate"]["p50"] is not None:
            assert said["estimate"]["p50"] == pytest.approx(task["estimate"]["p50"], rel=0.2, abs=1.0), more


async def test_the_limits_of_a_task_are_named_before_they_are_declared(http: httpx.AsyncClient, store: Store) -> None:
    said = (await ask(http, store, {"task_type": "limited"})).json()
    expected = {"limit": "limited:concurrency", "running": 0, "concurrency": 2, "rate": None, "next_start_at": None}
    assert said["limits"] == [expected]
    await http.post(TASKS, json={"task_type": "limited"})
    assert (await ask(http, store, {"task_type": "limited"})).json()["limits"] == [expected]
    assert (await ask(http, store, {"task_type": "limited", "run_after": "2099-01-01T00:00:00Z"})).json()["limits"]


async def test_a_known_key_names_the_task_that_a_submit_returns(http: httpx.AsyncClient, store: Store) -> None:
    keyed = {"task_type": "add", "parameters": {"a": 1}, "idempotency_key": "once"}
    unique = {"task_type": "unique", "parameters": {"a": 1}}
    for body in (keyed, unique):
        assert (await ask(http, store, body)).json()["deduplicated"] is False
        made = (await http.post(TASKS, json=body)).json()
        said = (await ask(http, store, body)).json()
        again = await http.post(TASKS, json=body)
        assert again.json()["task_id"] == made["task_id"]
        for name in ("task_id", "status", "queue_position", "deduplicated"):
            assert said[name] == again.json()[name], name
    header = {"Idempotency-Key": "once"}
    other = {"task_type": "add", "parameters": {"a": 2}}
    refused, said = await http.post(TASKS, json=other, headers=header), await ask(http, store, other, **header)
    assert (said.status_code, said.json()) == (refused.status_code, refused.json())
    assert said.json()["code"] == "idempotency_conflict"


UNKNOWN = "01999e2f-0000-7000-8000-000000000000"
WRONG: dict[str, dict[str, Any]] = {
    "arguments": {"task_type": "add", "parameters": {"a": "x"}},
    "a missing argument": {"task_type": "add"},
    "an unknown lane": {"task_type": "add", "parameters": {"a": 1}, "priority": "hihg"},
    "an unknown rung": {"task_type": "add", "parameters": {"a": 1}, "duration": "nope"},
    "a field": {"task_type": "add", "parameters": {"a": 1}, "prioritty": "high"},
    "both keys": {"task_type": "add", "parameters": {"a": 1}, "idempotency_key": "x"},
    "an unknown source": {
        "task_type": "add",
        "parameters": {"a": 1},
        "after": [UNKNOWN],
    },
    "an unknown batch": {"task_type": "add", "parameters": {"a": 1}, "batch_id": "batch-nope"},
    "itself": {"task_type": "add", "parameters": {"a": {"$out": {"index": 3}}}},
}


async def test_what_a_submit_refuses_is_the_same_problem(http: httpx.AsyncClient, store: Store) -> None:
    for what, body in WRONG.items():
        headers = {"Idempotency-Key": "y"} if what == "both keys" else {}
        said, refused = await ask(http, store, body, **headers), await http.post(TASKS, json=body, headers=headers)
        assert refused.status_code >= 400, what
        assert (said.status_code, said.json()) == (refused.status_code, refused.json()), what


async def test_what_a_task_waits_for_counts(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    first = await app.tasks["add"].aenqueue(1)
    body: dict[str, Any] = {"task_type": "add", "parameters": {"a": 1}, "after": [first.id]}
    said = (await ask(http, store, body)).json()
    made = (await http.post(TASKS, json=body)).json()
    task = (await http.get(f"{TASKS}/{made['task_id']}")).json()
    assert [one["code"] for one in said["reasons"]] == [one["code"] for one in task["why"]] == ["depends"]
    assert said["reasons"][0]["text"] == task["why"][0]["text"]
    assert said["estimate"]["p50"] == pytest.approx(task["estimate"]["p50"], rel=0.2)
    await store.cancel([first.id])
    said = (await ask(http, store, body)).json()
    assert (said["status"], said["queue_position"], said["estimate"]) == ("cancelled", None, None)
    assert first.id in said["reasons"][0]["text"]
    assert (await http.post(TASKS, json=body)).json()["status"] == "cancelled"
    assert (await ask(http, store, body | {"on_failure": "run"})).json()["status"] == "queued"
    batch = (await http.post("/api/v1/batches", json={"name": "b"})).json()["batch_id"]
    joined = {"task_type": "add", "parameters": {"a": 1}, "batch_id": batch}
    assert (await ask(http, store, joined)).json()["status"] == "queued"
    for wrong in (joined | {"after": [batch]}, joined | {"batch_id": f"{batch[:-4]}0000"}):
        said_so, refused = await ask(http, store, wrong), await http.post(TASKS, json=wrong)
        assert (said_so.status_code, said_so.json()) == (refused.status_code, refused.json())
    await http.post(f"/api/v1/batches/{batch}/cancel")
    said_so, refused = await ask(http, store, joined), await http.post(TASKS, json=joined)
    assert (said_so.status_code, said_so.json()) == (refused.status_code, refused.json())
    assert refused.json()["code"] == "batch_closed"


@pytest.mark.parametrize("store_name", ["memory"])
async def test_dry_runs_do_not_fill_the_queue(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    policy = read_policy({"max_depth": 3}, "the test")
    await apply_policy(store, policy, now_at=1, note="")
    await app.in_force.refresh(store, every=0)
    body = {"task_type": "add", "parameters": {"a": 1}}
    for _ in range(9):  # They take no room.
        assert (await ask(http, store, body)).status_code == 200
    for _ in range(3):
        assert (await http.post(TASKS, json=body)).status_code == 201
    said, refused = await ask(http, store, body), await http.post(TASKS, json=body)
    assert said.json() == refused.json()
    assert refused.json()["code"] == "queue_full"


@pytest.mark.parametrize("store_name", ["memory"])
async def test_the_rights_and_the_rate_of_a_token_hold(api: FastAPI, store: Store) -> None:
    body = {"task_type": "add", "parameters": {"a": 1}, "tenant": "other"}
    tokens = {}
    for name, scopes in (("acme", ["submit"]), ("reader", ["read"]), ("admin", ["admin"])):
        tenant = "acme" if name == "acme" else None
        tokens[name] = (await create_token(store, scopes, tenant=tenant, rate="2/h", now_at=1))[1]
    async with client_for(api, headers={"Authorization": f"Bearer {tokens['acme']}"}) as http:
        for _ in range(5):
            said = await ask(http, store, body)
            assert said.json()["code"] == "tenant_mismatch"
        mine = body | {"tenant": None}
        for _ in range(5):  # They do not count.
            assert (await ask(http, store, mine)).json()["tenant"] == "acme"
        for _ in range(2):
            assert (await http.post(TASKS, json=mine)).status_code == 201
        said, refused = await ask(http, store, mine), await http.post(TASKS, json=mine)
        assert said.json()["code"] == refused.json()["code"] == "rate_exceeded"
    async with client_for(api, headers={"Authorization": f"Bearer {tokens['reader']}"}) as http:
        assert (await ask(http, store, body)).json()["code"] == "forbidden"
