"""A worker's token permits only a worker's calls: what it may publish, and which tasks it gets."""

from __future__ import annotations

import base64
import json
import logging
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.core.policy.document import LimitRule
from headway.policy_store.catalogue import CronDocument, TaskEntry, publish_crons, publish_tasks, read_crons, read_tasks
from headway.policy_store.rule_documents import declare_limits
from headway.security.audit import read_audit
from headway.security.tokens import create_token, list_tokens
from tests.server.conftest import client_for
from tests.server.test_workers import ENTRY, WORKERS, Worker, problem, submit, task

NIGHTLY = CronDocument(
    task="nightly", expression="0 3 * * *", tz="UTC", catch_up="last", overlap="skip", lane="low", max_retries=1,
    timeout_ms=60_000, payload=b"\x01{}",
)  # fmt: skip


async def with_token(app: Headway, api: FastAPI, *scopes: str, **more: Any) -> httpx.AsyncClient:
    store = await app.client.store()
    _, secret = await create_token(store, scopes, now_at=1, **more)
    api.state.service.tokens.every = 0.0
    return client_for(api, headers={"Authorization": f"Bearer {secret}"})


def entry(name: str, **more: Any) -> dict[str, Any]:
    return ENTRY | {"name": name} | more


def cron(name: str, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(msgspec.json.encode(msgspec.structs.replace(NIGHTLY, task=name)))
    return found | more


async def furnish(app: Headway) -> Any:
    """Publish the tasks of another worker's app, as a worker with the store does."""
    store = await app.client.store()
    await publish_tasks(store, [TaskEntry(name=name, lane="low", executor="async") for name in ("nightly", "limited")])
    await declare_limits(store, "limited", {"limited:concurrency": LimitRule(concurrency=1, tasks=("limited",))})
    await publish_crons(store, [NIGHTLY], {"nightly"}, 1)
    return store


async def kept(store: Any) -> list[Any]:
    rules = (await store.diagnose()).rules
    return [await read_tasks(store), [one for one, _ in await read_crons(store)], dict(rules.limits)]


async def test_an_unbound_token_works_and_publishes_nothing(
    app: Headway, api: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    # S-4: it cannot submit by a cron, remove crons, lift limits or rewrite the catalogue.
    store = await furnish(app)
    before = await kept(store)
    attacks: list[dict[str, Any]] = [
        {"tasks": [entry("cmd.sh")], "crons": [cron("cmd.sh", lane="high")]},
        {"tasks": [entry("nightly")]},
        {"tasks": [entry("limited")]},
        {"tasks": [entry("limited", persist=False)]},
        {"tasks": [entry("limited", timeout_ms=1, unique=True, needs=["nowhere"])]},
        {"tasks": [entry("new")], "limits": {"new": {"x": {"concurrency": 1}}}},
    ]
    async with await with_token(app, api, "worker") as http:
        for body in attacks:
            with caplog.at_level(logging.WARNING, "headway.server"):
                caplog.clear()
                answer = await http.post(f"{WORKERS}/register", json={"capabilities": []} | body)
            assert answer.status_code == 201, answer.text
            assert [one["task_type"] for one in answer.json()["not_published"]] == [body["tasks"][0]["name"]]
            assert "publish" in answer.json()["not_published"][0]["reason"]
            assert [record.message.split()[0] for record in caplog.records] == ["worker.not_published"]
            assert await kept(store) == before
            left = await Worker(http, answer.json()["worker_id"], []).say("drain", leave=True)
            assert left.status_code == 200
        assert await kept(store) == before
        assert [one.what for one in await read_audit(store)] == ["token.create"]
        # What the catalogue has already is nothing to publish.
        same = {"tasks": [msgspec.to_builtins(before[0][1])], "crons": [cron("nightly")]}
        assert same["tasks"][0]["name"] == "nightly"
        answer = await http.post(f"{WORKERS}/register", json={"capabilities": []} | same)
        assert (answer.status_code, answer.json()["not_published"]) == (201, [])
        async with await with_token(app, api, "submit", "read") as submitter:
            task_id = await submit(submitter, task_type="anything")
            worker = Worker(http, answer.json()["worker_id"], [])
            assert (await worker.claim())["task_id"] == task_id


async def test_a_bound_token_publishes_its_tasks_and_the_audit_tells(app: Headway, api: FastAPI) -> None:
    # S-4, S-35
    store = await furnish(app)
    before = await kept(store)
    body = {
        "capabilities": [],
        "tasks": [entry("reports.build"), entry("resize")],
        "limits": {"resize": {"x": {"concurrency": 2}}},
        "crons": [cron("reports.build", unique_key="cron:reports.build")],  # As one that skips what overlaps has it.
    }
    async with await with_token(app, api, "worker", tasks=["reports.*", "resize"]) as http:
        answer = await http.post(f"{WORKERS}/register", json=body)
        assert (answer.status_code, answer.json()["not_published"]) == (201, [])
        tasks, crons, limits = await kept(store)
        assert [one.name for one in tasks] == ["limited", "nightly", "reports.build", "resize"]
        assert [one.task for one in crons] == ["nightly", "reports.build"]
        assert limits == before[2] | {"resize:concurrency": LimitRule(concurrency=2, tasks=("resize",))}
        token = next(one for one in await list_tokens(store) if one.tasks)
        assert token.tasks == ("reports.*", "resize")
        told = {one.target: one for one in await read_audit(store) if one.what == "catalogue.publish"}
        assert set(told) == {"reports.build", "resize"}
        assert {one.who for one in told.values()} == {token.token_id}
        assert told["resize"].before is None
        assert told["resize"].after["limits"]["resize:concurrency"]["concurrency"] == 2
        assert told["reports.build"].after["cron"]["expression"] == "0 3 * * *"
        # The same again changes nothing, so there is nothing to tell; without its cron, the cron goes, and that is.
        await http.post(f"{WORKERS}/register", json=body)
        assert len([one for one in await read_audit(store) if one.what == "catalogue.publish"]) == 2
        await http.post(f"{WORKERS}/register", json={"capabilities": [], "tasks": [entry("reports.build")]})
        assert [one.task for one in (await kept(store))[1]] == ["nightly"]
        last = (await read_audit(store))[0]
        assert (last.target, last.before["cron"]["expression"], last.after.get("cron")) == (
            "reports.build", "0 3 * * *", None,
        )  # fmt: skip


@pytest.mark.parametrize("name", ["nightly", "limited", "reports", "xreports.a", "Resize", "*", "cmd.sh"])
async def test_a_bound_token_registers_nothing_beyond_its_tasks(app: Headway, api: FastAPI, name: str) -> None:
    # S-4
    store = await furnish(app)
    before = await kept(store)
    async with await with_token(app, api, "worker", tasks=["reports.*", "resize"]) as http:
        for tasks in ([entry(name)], [entry("resize"), entry(name)]):
            answer = await http.post(f"{WORKERS}/register", json={"capabilities": [], "tasks": tasks})
            assert problem(answer) in {(403, "forbidden"), (422, "invalid")}
    assert await kept(store) == before
    assert (await app.client.stats()).workers == ()


async def test_a_bound_worker_is_given_jobs_of_its_tasks_alone(app: Headway, api: FastAPI) -> None:
    # S-4: whatever else waits in the same lane, also when the worker names no tasks.
    await furnish(app)
    submitter = await with_token(app, api, "submit", "read")
    http = await with_token(app, api, "worker", tasks=["resize", "night*"])
    other = await with_token(app, api, "worker")
    async with submitter, http, other:
        names = ("secret", "resize", "nightly", "secret", "resize")
        ids = [await submit(submitter, task_type=name, parameters={}) for name in names]
        for body in ({}, {"tasks": [entry("resize")]}):
            answer = await http.post(
                f"{WORKERS}/register", json={"capabilities": [], "capacity": 9, "reserved": 0} | body
            )
            assert answer.status_code == 201, answer.text
        registered = (await http.post(f"{WORKERS}/register", json={"capabilities": [], "reserved": 0})).json()
        worker = Worker(http, registered["worker_id"], [])
        given: dict[str, str] = {}
        for _ in range(5):
            polled = await worker.poll(5)
            given |= {one["task_id"]: one["task_type"] for one in polled["tasks"]}
            if not polled["more"]:
                break
        assert given == {ids[1]: "resize", ids[2]: "nightly", ids[4]: "resize"}
        # The others wait unharmed for a worker that may.
        rest = await other.post(f"{WORKERS}/register", json={"capabilities": [], "reserved": 0})
        found = [one["task_id"] for one in (await Worker(other, rest.json()["worker_id"], []).poll(5))["tasks"]]
        assert sorted(found) == sorted([ids[0], ids[3]])
        for one in found:
            assert (await task(submitter, one))["retry_count"] == 0


async def test_the_scope_publish_lets_a_worker_publish_any_task(app: Headway, api: FastAPI) -> None:
    store = await furnish(app)
    async with await with_token(app, api, "worker", "publish") as http:
        answer = await http.post(f"{WORKERS}/register", json={"capabilities": [], "tasks": [entry("nightly")]})
        assert (answer.status_code, answer.json()["not_published"]) == (201, [])
    assert (await kept(store))[1] == []


@pytest.mark.parametrize(
    "changed",
    [
        {"tenant": "acme"},
        {"unique_key": "other:" + "0" * 32},
        {"unique_key": "nightly"},
        {"unique_key": "cron:other"},
        {"limits": ["nightly:concurrency:a=acme=7"]},
        {"rung": "interactive"},
        {"payload": base64.b64encode(b'\x01{"headway.server":"http://127.0.0.1:1"}').decode()},
        {"payload": base64.b64encode(b'\x01{"a":1,"headway.server":"http://127.0.0.1:1"}').decode()},
        {"payload": base64.b64encode(b'\x01{"\\u0068eadway.server":5}').decode()},
        {"limits": ["limited:concurrency=7"]},
    ],
)
async def test_a_cron_over_http_takes_no_tenant_and_no_keys_of_other_tasks(
    app: Headway, api: FastAPI, changed: dict[str, Any]
) -> None:
    # S-4, S-32: also of a token that may publish.
    store = await app.client.store()
    limits = {"nightly": {"x": {"concurrency": 1, "by": "a"}}}
    parameters = {"properties": {"a": {"type": "string"}}, "required": []}
    body = {"capabilities": [], "tasks": [entry("nightly", parameters=parameters)], "limits": limits}
    body |= {"crons": [cron("nightly", **changed)]}
    for token in ({"scopes": ("worker",), "tasks": ["nightly"]}, {"scopes": ("admin",)}):
        more = dict(token)
        async with await with_token(app, api, *more.pop("scopes"), **more) as http:
            assert problem(await http.post(f"{WORKERS}/register", json=body)) == (422, "invalid")
    assert await read_crons(store) == []
