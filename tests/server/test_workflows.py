"""Workflows over HTTP: tasks that wait for tasks, references to results, and batches."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.client.submit import Submitter
from headway.security.tokens import create_token
from headway.server.routes import batches as batch_routes
from headway.worker.embedded import Worker
from tests.server.conftest import client_for

TASKS = "/api/v1/tasks"
BATCHES = "/api/v1/batches"
ABSENT = "batch-01999e2f-9d1c-7cc0-8a1e-5f1d6c3b2a10"


def call(task_type: str = "add", **more: Any) -> dict[str, Any]:
    parameters = {"a": 1} if task_type == "add" else {}
    return {"task_type": task_type, "parameters": parameters} | more


def out(source: str | int) -> dict[str, Any]:
    return {"$out": {"index": source} if isinstance(source, int) else source}


async def bulk(http: httpx.AsyncClient, *tasks: dict[str, Any], path: str = f"{TASKS}/bulk") -> list[str]:
    answer = await http.post(path, json=list(tasks))
    assert answer.status_code == 201, answer.text
    return [task["task_id"] for task in answer.json()["tasks"]]


async def one(http: httpx.AsyncClient, **body: Any) -> str:
    answer = await http.post(TASKS, json=call() | body)
    assert answer.status_code == 201, answer.text
    task_id: str = answer.json()["task_id"]
    return task_id


async def read(http: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"{TASKS}/{task_id}")).json()
    return found


async def new_batch(http: httpx.AsyncClient, **body: Any) -> str:
    answer = await http.post(BATCHES, json=body)
    assert answer.status_code == 201, answer.text
    batch_id: str = answer.json()["batch_id"]
    return batch_id


async def batch_of(http: httpx.AsyncClient, batch_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"{BATCHES}/{batch_id}")).json()
    return found


def problem(answer: httpx.Response) -> tuple[int, str, int | None]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    return answer.status_code, body["code"], body.get("index")


async def run_all(app: Headway, *task_ids: str) -> None:
    """Run a worker until these tasks have ended."""
    async with Worker(app):
        for task_id in task_ids:
            await app.client.ended(app.job(task_id).id, 10)


async def tokens(app: Headway, api: FastAPI, *tenants: str | None) -> list[httpx.AsyncClient]:
    store = await app.client.store()
    made = [await create_token(store, ["submit", "read"], tenant=tenant, now_at=1) for tenant in tenants]
    return [client_for(api, headers={"Authorization": f"Bearer {token}"}) for _, token in made]


# ---------------------------------------------------------------------- graphs


async def test_a_chain_by_index_hands_each_result_on(http: httpx.AsyncClient, app: Headway) -> None:
    first, second, third = await bulk(
        http,
        call(parameters={"a": 1}),
        call(parameters={"a": out(0), "b": 10}),
        call(parameters={"a": out(1), "b": out(0)}),
    )
    held = await read(http, third)
    assert (held["status"], held["held"], held["after"]) == ("queued", True, [second, first])
    assert (held["queue_position"], held["why"][0]["code"]) == (None, "depends")
    assert held["why"][0]["text"] == f"waits for 2 of 2 sources, first {second}"
    await run_all(app, third)
    assert [(await read(http, task_id))["result"] for task_id in (first, second, third)] == [3, 13, 16]
    batch = await batch_of(http, held["batch_id"])
    assert (batch["status"], batch["name"], batch["counts"]["completed"]) == ("completed", "add", 3)


async def test_a_task_may_name_a_task_that_comes_later_in_the_bulk(http: httpx.AsyncClient, app: Headway) -> None:
    last, first = await bulk(http, call(parameters={"a": out(1)}), call(parameters={"a": 5}))
    assert (await read(http, last))["after"] == [first]
    await run_all(app, last)
    assert (await read(http, last))["result"] == 9


async def test_a_reference_may_be_deep_in_the_parameters_of_an_unknown_task(http: httpx.AsyncClient) -> None:
    parameters = {"deep": [{"value": out(0)}, 1], "b": None}
    first, second = await bulk(http, call("unknown.first"), call("unknown.second", parameters=parameters))
    found = await read(http, second)
    assert (found["held"], found["after"]) == (True, [first])
    assert found["payload"]["parameters"] == {"deep": [{"value": {"$out": 0}}, 1], "b": None}


async def test_an_object_with_out_that_is_no_reference_stays_data(http: httpx.AsyncClient) -> None:
    for value in ({"$out": 5}, {"$out": "x", "b": 1}, {"$out": {"index": True}}, {"$out": None}):
        found = await read(http, await one(http, task_type="unknown", parameters={"v": value}))
        assert (found["payload"]["parameters"], found["after"]) == ({"v": value}, [])
        mixed = await http.post(f"{TASKS}/bulk", json=[call(), call("unknown", parameters={"v": [value, out(0)]})])
        assert problem(mixed) == (422, "payload", 1)


async def test_a_reference_that_is_written_with_an_escape_is_found(http: httpx.AsyncClient) -> None:
    first = await one(http)
    body = json.dumps(call(parameters={"a": out(first)})).replace("$", "\\u0024")
    answer = await http.post(TASKS, content=body, headers={"content-type": "application/json"})
    assert (await read(http, answer.json()["task_id"]))["after"] == [first]


async def test_a_task_waits_for_tasks_and_batches_that_exist(http: httpx.AsyncClient, app: Headway) -> None:
    batch_id = await new_batch(http, name="rows")
    (row,) = await bulk(http, call(), path=f"{BATCHES}/{batch_id}/tasks")
    task_id = await one(http, after=[row, batch_id])
    reason = (await http.get(f"{TASKS}/{task_id}/why")).json()["reasons"][0]
    assert (reason["code"], reason["sources"], reason["left"], reason["of"]) == ("depends", [row, batch_id], 2, 2)
    closed = (await http.post(f"{BATCHES}/{batch_id}/close")).json()
    assert (closed["status"], closed["counts"]["waiting"]) == ("running", 1)
    await run_all(app, task_id)
    assert (await read(http, task_id))["status"] == "completed"


@pytest.mark.parametrize(
    "on_failure, status, reason",
    [(None, "cancelled", True), ("cancel", "cancelled", True), ("run", "completed", False), ("hold", "queued", False)],
)
async def test_on_failure_decides_what_a_task_does_after_a_failure(
    http: httpx.AsyncClient, app: Headway, on_failure: str | None, status: str, reason: bool
) -> None:
    failed, dependant = await bulk(
        http, call("fail"), call(after=[{"index": 0}], **({} if on_failure is None else {"on_failure": on_failure}))
    )
    await run_all(app, failed, *([] if status == "queued" else [dependant]))
    found = await read(http, dependant)
    assert (found["status"], found["reason"]) == (status, f"upstream {failed}" if reason else None)
    late = await http.post(TASKS, json=call(after=[failed]))
    assert (late.status_code, late.json()["status"], late.json()["queue_position"]) == (201, "cancelled", None)


async def test_on_failure_holds_for_references_too(http: httpx.AsyncClient, app: Headway) -> None:
    failed, dependant = await bulk(http, call("fail"), call(parameters={"a": out(0)}, on_failure="run"))
    await run_all(app, failed, dependant)
    found = await read(http, dependant)
    assert (found["status"], found["error"]["type"]) == ("failed", "UpstreamFailed")


@pytest.mark.parametrize(
    "tasks, code, index",
    [
        ([call(after=[{"index": 1}]), call(after=[{"index": 0}])], "cycle", 0),
        ([call(), call(after=[{"index": 1}])], "cycle", 1),
        ([call(after=[{"index": 2}]), call()], "bad_edge", 0),
        ([call(), call(parameters={"a": out(7)})], "bad_edge", 1),
        ([call(after=[{"index": 1}]), call(after=["0199-absent"])], "bad_edge", 1),
        ([call(), call(after=[ABSENT])], "bad_edge", 1),
        ([call(after=[{"index": -1}])], "invalid", 0),
        ([call(after=["#0"])], "invalid", 0),
        ([call(on_failure="ignore")], "invalid", 0),
        ([call(batch_id=ABSENT)], "batch_not_found", None),
        ([call(batch_id=ABSENT), call()], "invalid", None),
    ],
)
async def test_a_bad_graph_is_refused_whole(
    http: httpx.AsyncClient, app: Headway, tasks: list[dict[str, Any]], code: str, index: int | None
) -> None:
    answer = await http.post(f"{TASKS}/bulk", json=tasks)
    assert problem(answer) == (404 if code == "batch_not_found" else 422, code, index)
    assert (await app.client.stats()).totals.get("submitted", 0) == 0
    assert (await http.get(BATCHES)).json() == {"items": [], "next_cursor": None}


async def test_a_bulk_has_a_bound_on_its_edges(http: httpx.AsyncClient, app: Headway) -> None:
    """Without it, one request of 4 MiB keeps the server busy for seconds."""
    first = [call() for _ in range(150)]
    wide = [call(after=[{"index": index} for index in range(150)]) for _ in range(134)]
    answer = await http.post(f"{TASKS}/bulk", json=[*first, *wide])
    assert problem(answer) == (422, "bad_edge", 283)
    assert "20,000" in answer.json()["detail"]
    assert await app.ajobs() == []
    assert (await http.post(f"{TASKS}/bulk", json=[*first, *wide[:-1]])).status_code == 201


async def test_a_single_task_has_no_other_task_to_name_by_index(http: httpx.AsyncClient) -> None:
    assert problem(await http.post(TASKS, json=call(after=[{"index": 1}]))) == (422, "bad_edge", 0)
    assert problem(await http.post(TASKS, json=call(parameters={"a": out(0)}))) == (422, "cycle", 0)


async def test_a_task_waits_for_at_most_a_thousand_others(http: httpx.AsyncClient) -> None:
    assert problem(await http.post(TASKS, json=call(after=[f"x{n}" for n in range(1_001)]))) == (422, "invalid", None)


async def test_a_result_of_another_type_fails_the_task_that_takes_it(http: httpx.AsyncClient, app: Headway) -> None:
    @app.task(name="word", max_retries=0)
    async def word() -> str:
        return "word"

    first, second = await bulk(http, call("word"), call(parameters={"a": out(0)}))
    await run_all(app, first, second)
    found = await read(http, second)
    assert (found["status"], found["error"]["type"].rpartition(".")[2]) == ("failed", "BadArguments")


async def test_a_graph_is_one_submit_to_the_store(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[int] = []
    original = Submitter.submit_graph

    async def counted(self: Submitter, calls: Any, *args: Any, **kwargs: Any) -> Any:
        graphs.append(len(calls))
        return await original(self, calls, *args, **kwargs)

    monkeypatch.setattr(Submitter, "submit_graph", counted)
    await bulk(http, call(), call(after=[{"index": 0}]), call())
    await bulk(http, call(), call())
    assert graphs == [3]


async def test_a_repeated_key_gives_the_same_held_task(http: httpx.AsyncClient) -> None:
    source = await one(http)
    body = call(after=[source], idempotency_key="k")
    first, again = await http.post(TASKS, json=body), await http.post(TASKS, json=body)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.headers["idempotent-replayed"] == "true"
    assert (again.json()["task_id"], again.json()["deduplicated"]) == (first.json()["task_id"], True)


async def test_the_events_of_a_held_task_include_its_release(
    http: httpx.AsyncClient, app: Headway, api: FastAPI
) -> None:
    first, second = await bulk(http, call(), call(after=[{"index": 0}]))
    following = asyncio.create_task(http.get(f"{TASKS}/{second}/events"))
    while not api.state.service.streams:  # noqa: ASYNC110  (the stream says nothing before the release)
        await asyncio.sleep(0.01)
    await run_all(app, first, second)
    kinds = re.findall(r"^event: (\w+)$", (await following).text, re.MULTILINE)
    assert [kind for kind in kinds if kind != "estimate"] == ["queued", "released", "started", "finished"]


# ---------------------------------------------------------------------- batches


async def test_a_batch_is_created_filled_closed_and_read(http: httpx.AsyncClient, app: Headway) -> None:
    answer = await http.post(BATCHES, json={"name": "import-7", "key": "import-7"})
    assert answer.status_code == 201
    batch = answer.json()
    batch_id = batch["batch_id"]
    assert answer.headers["location"] == f"{BATCHES}/{batch_id}"
    assert batch | {"created_at": None} == {
        "batch_id": batch_id,
        "name": "import-7",
        "key": "import-7",
        "tenant": None,
        "status": "open",
        "counts": {
            "total": 0, "held": 0, "waiting": 0, "running": 0, "completed": 0, "failed": 0, "cancelled": 0
        },
        "round": 1,
        "created_at": None,
        "finished_at": None,
        "ends_in_seconds": None,
    }  # fmt: skip
    again = await http.post(BATCHES, json={"name": "other", "key": "import-7"})
    assert (again.status_code, again.json()["batch_id"], again.json()["name"]) == (200, batch_id, "import-7")
    ids = await bulk(
        http, call(), call("fail"), call(parameters={"a": 5}, after=[{"index": 0}]), path=f"{BATCHES}/{batch_id}/tasks"
    )
    single = await one(http, batch_id=batch_id)
    counts = (await batch_of(http, batch_id))["counts"]
    assert (counts["total"], counts["held"], counts["waiting"]) == (4, 1, 3)
    assert (await read(http, single))["batch_id"] == batch_id
    await http.post(f"{BATCHES}/{batch_id}/close")
    await run_all(app, *ids, single)
    ended = await batch_of(http, batch_id)
    assert (ended["status"], ended["counts"]["completed"], ended["counts"]["failed"]) == ("failed", 3, 1)
    assert ended["finished_at"] is not None
    assert ended["ends_in_seconds"] == 0
    late = await http.post(f"{BATCHES}/{batch_id}/tasks", json=[call()])
    assert problem(late) == (409, "batch_closed", None)
    assert problem(await http.post(TASKS, json=call(batch_id=batch_id))) == (409, "batch_closed", None)


async def test_results_come_in_pages_in_the_order_of_adding(http: httpx.AsyncClient, app: Headway) -> None:
    batch_id = await new_batch(http)
    path = f"{BATCHES}/{batch_id}/tasks"
    ids = await bulk(
        http, *(call("fail") if n == 3 else call(parameters={"a": n, "b": 0}) for n in range(7)), path=path
    )
    await http.post(f"{BATCHES}/{batch_id}/close")
    assert (await http.get(f"{BATCHES}/{batch_id}/results")).json() == {"items": [], "next_cursor": None}
    await run_all(app, *ids)
    pages, cursor = [], None
    while True:
        given = {"limit": 3} | ({} if cursor is None else {"cursor": cursor})
        page = (await http.get(f"{BATCHES}/{batch_id}/results", params=given)).json()
        pages.append(page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert [len(page) for page in pages] == [3, 3, 1]
    items = [item for page in pages for item in page]
    assert [item["task_id"] for item in items] == ids
    assert [item["result"] for item in items] == [0, 1, 2, None, 4, 5, 6]
    assert (items[3]["status"], items[3]["error"]["type"]) == ("dead_letter", "RuntimeError")
    failures = (await http.get(f"{BATCHES}/{batch_id}/results", params={"status": "dead_letter"})).json()["items"]
    assert [item["task_id"] for item in failures] == [ids[3]]
    bad = await http.get(f"{BATCHES}/{batch_id}/results", params={"cursor": "x"})
    assert problem(bad) == (422, "invalid", None)


async def test_a_page_of_large_results_ends_at_its_bytes(
    http: httpx.AsyncClient, app: Headway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.pages.PAGE_BYTES", 300)
    batch_id = await new_batch(http)
    ids = await bulk(http, *(call() for _ in range(5)), path=f"{BATCHES}/{batch_id}/tasks")
    await run_all(app, *ids)
    page = (await http.get(f"{BATCHES}/{batch_id}/results")).json()
    assert 0 < len(page["items"]) < 5
    rest = (await http.get(f"{BATCHES}/{batch_id}/results", params={"cursor": page["next_cursor"]})).json()
    assert rest["items"][0]["task_id"] == ids[len(page["items"])]


async def test_a_graph_has_the_members_and_the_edges_into_them(http: httpx.AsyncClient) -> None:
    outside = await one(http)
    first, second = await bulk(http, call(), call("hang", after=[{"index": 0}, outside], on_failure="hold"))
    batch_id = (await read(http, first))["batch_id"]
    assert (await http.get(f"{BATCHES}/{batch_id}/graph")).json() == {
        "nodes": [
            {"task_id": first, "task_type": "add", "status": "queued"},
            {"task_id": second, "task_type": "hang", "status": "queued"},
        ],
        "edges": [
            {"source": first, "target": second, "on_failure": "hold"},
            {"source": outside, "target": second, "on_failure": "hold"},
        ],
        "more": False,
    }


async def test_a_graph_shows_a_bounded_number_of_members(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert batch_routes.GRAPH_NODES == 200
    monkeypatch.setattr(batch_routes, "GRAPH_NODES", 20)
    batch_id = await new_batch(http)
    ids = await bulk(http, *(call() for _ in range(21)), path=f"{BATCHES}/{batch_id}/tasks")
    found = (await http.get(f"{BATCHES}/{batch_id}/graph")).json()
    assert ([node["task_id"] for node in found["nodes"]], found["more"]) == (ids[:20], True)


async def test_cancelling_a_batch_ends_its_members(http: httpx.AsyncClient) -> None:
    batch_id = await new_batch(http)
    ids = await bulk(http, call(), call(after=[{"index": 0}]), path=f"{BATCHES}/{batch_id}/tasks")
    answer = await http.post(f"{BATCHES}/{batch_id}/cancel")
    assert (answer.status_code, answer.json()["status"], answer.json()["counts"]["cancelled"]) == (200, "cancelled", 2)
    assert [(await read(http, one))["reason"] for one in ids] == [f"batch {batch_id}"] * 2


@pytest.mark.parametrize("mode, retried", [("failed", 1), ("failed_and_after", 1), ("all", 2), (None, 1)])
async def test_members_of_a_batch_are_retried_by_mode(
    http: httpx.AsyncClient, app: Headway, mode: str | None, retried: int
) -> None:
    failed, after = await bulk(http, call("fail"), call(after=[{"index": 0}]))
    await run_all(app, failed, after)
    batch_id = (await read(http, failed))["batch_id"]
    answer = await http.post(f"{BATCHES}/{batch_id}/retry", json=None if mode is None else {"mode": mode})
    assert (answer.status_code, answer.json()) == (200, {"batch_id": batch_id, "retried": retried})
    states = [(await read(http, task_id))["status"] for task_id in (failed, after)]
    assert states == ["queued", "cancelled" if mode == "failed" else "queued"]
    assert (await batch_of(http, batch_id))["round"] == 2


@pytest.mark.parametrize("fails", [True, False])
async def test_callbacks_of_a_batch_run_at_its_first_failure_and_at_its_end(
    http: httpx.AsyncClient, app: Headway, fails: bool
) -> None:
    batch_id = await new_batch(http, name="rows", tenant="acme")
    members = await bulk(http, call("fail" if fails else "add"), call(), path=f"{BATCHES}/{batch_id}/tasks")
    callbacks = [
        await http.post(f"{BATCHES}/{batch_id}/on_failure", json=call()),
        await http.post(f"{BATCHES}/{batch_id}/on_done", json=call()),
        await http.post(TASKS, json=call(after=[batch_id], tenant="acme")),
    ]
    assert [answer.status_code for answer in callbacks] == [201] * 3
    on_failure, on_done, then = (answer.json()["task_id"] for answer in callbacks)
    assert callbacks[0].headers["location"] == f"{TASKS}/{on_failure}"
    found = await read(http, on_failure)
    assert (found["held"], found["after"], found["batch_id"], found["tenant"]) == (True, [batch_id], None, "acme")
    assert (await batch_of(http, batch_id))["counts"]["total"] == 2
    await http.post(f"{BATCHES}/{batch_id}/close")
    await run_all(app, *members, on_failure, on_done, then)
    states = [(await read(http, task_id))["status"] for task_id in (on_failure, on_done, then)]
    assert states == (["completed", "completed", "cancelled"] if fails else ["cancelled", "completed", "completed"])
    started = (await read(http, on_done))["started_at"]
    assert started >= (await batch_of(http, batch_id))["finished_at"]
    late = await http.post(f"{BATCHES}/{batch_id}/on_done", json=call())
    assert (late.status_code, late.json()["status"]) == (201, "queued")
    await run_all(app, late.json()["task_id"])


async def test_callbacks_fire_again_in_the_next_round(http: httpx.AsyncClient, app: Headway) -> None:
    batch_id = await new_batch(http)
    (member,) = await bulk(http, call("fail"), path=f"{BATCHES}/{batch_id}/tasks")
    path, body = f"{BATCHES}/{batch_id}/on_done", call(idempotency_key="mail")
    on_done = (await http.post(path, json=body)).json()["task_id"]
    again = await http.post(path, json=body)
    assert (again.status_code, again.json()["task_id"], again.headers["idempotent-replayed"]) == (200, on_done, "true")
    await http.post(f"{BATCHES}/{batch_id}/close")
    await run_all(app, member, on_done)
    first = (await read(http, on_done))["completed_at"]
    await http.post(f"{BATCHES}/{batch_id}/retry", json={})
    assert ((await read(http, on_done))["held"], (await batch_of(http, batch_id))["round"]) == (True, 2)
    await run_all(app, member, on_done)
    assert (await read(http, on_done))["completed_at"] > first


async def test_batches_are_listed_newest_first_by_status(http: httpx.AsyncClient) -> None:
    ids = [await new_batch(http, name=f"b{number}") for number in range(3)]
    await http.post(f"{BATCHES}/{ids[1]}/close")
    page = (await http.get(BATCHES, params={"limit": 2})).json()
    assert [batch["batch_id"] for batch in page["items"]] == [ids[2], ids[1]]
    rest = (await http.get(BATCHES, params={"cursor": page["next_cursor"]})).json()
    assert ([batch["batch_id"] for batch in rest["items"]], rest["next_cursor"]) == ([ids[0]], None)
    completed = (await http.get(BATCHES, params={"status": "completed"})).json()["items"]
    assert [batch["batch_id"] for batch in completed] == [ids[1]]


async def test_a_child_batch_counts_as_one_member(http: httpx.AsyncClient) -> None:
    parent = await new_batch(http, name="outer")
    child = await new_batch(http, name="inner", parent_id=parent)
    await bulk(http, call(), path=f"{BATCHES}/{child}/tasks")
    assert (await batch_of(http, parent))["counts"]["total"] == 1
    assert problem(await http.post(BATCHES, json={"parent_id": ABSENT})) == (404, "batch_not_found", None)


async def test_every_route_of_a_batch_answers_404_for_one_that_does_not_exist(http: httpx.AsyncClient) -> None:
    asked = [
        await http.get(f"{BATCHES}/{ABSENT}"),
        await http.get(f"{BATCHES}/{ABSENT}/results"),
        await http.get(f"{BATCHES}/{ABSENT}/graph"),
        await http.post(f"{BATCHES}/{ABSENT}/tasks", json=[call()]),
        await http.post(f"{BATCHES}/{ABSENT}/on_failure", json=call()),
        await http.post(f"{BATCHES}/{ABSENT}/on_done", json=call()),
        await http.post(f"{BATCHES}/{ABSENT}/close"),
        await http.post(f"{BATCHES}/{ABSENT}/cancel"),
        await http.post(f"{BATCHES}/{ABSENT}/retry", json={"mode": "all"}),
    ]
    assert [problem(answer) for answer in asked] == [(404, "batch_not_found", None)] * 9


# ---------------------------------------------------------------------- tenants


async def test_a_tenant_sees_and_touches_its_own_batches_alone(app: Headway, api: FastAPI) -> None:
    acme, other, everyone = await tokens(app, api, "acme", "other", None)
    batch_id = await new_batch(acme, key="same")
    assert (await batch_of(acme, batch_id))["tenant"] == "acme"
    assert (await batch_of(everyone, batch_id))["batch_id"] == batch_id
    assert await new_batch(other, key="same") != batch_id
    mine = (await acme.get(BATCHES)).json()["items"]
    assert [batch["batch_id"] for batch in mine] == [batch_id]
    for answer in [
        await other.get(f"{BATCHES}/{batch_id}"),
        await other.get(f"{BATCHES}/{batch_id}/results"),
        await other.get(f"{BATCHES}/{batch_id}/graph"),
        await other.post(f"{BATCHES}/{batch_id}/tasks", json=[call()]),
        await other.post(f"{BATCHES}/{batch_id}/on_failure", json=call()),
        await other.post(f"{BATCHES}/{batch_id}/on_done", json=call()),
        await other.post(f"{BATCHES}/{batch_id}/close"),
        await other.post(f"{BATCHES}/{batch_id}/cancel"),
        await other.post(f"{BATCHES}/{batch_id}/retry", json={}),
        await other.post(TASKS, json=call(batch_id=batch_id)),
        await other.post(BATCHES, json={"parent_id": batch_id}),
    ]:
        assert problem(answer) == (404, "batch_not_found", None)
    assert problem(await other.get(BATCHES, params={"tenant": "acme"})) == (403, "tenant_mismatch", None)
    assert problem(await other.post(BATCHES, json={"tenant": "acme"})) == (403, "tenant_mismatch", None)


async def test_a_tenant_learns_nothing_of_a_source_of_another_tenant(app: Headway, api: FastAPI) -> None:
    acme, other = await tokens(app, api, "acme", "other")
    task_id, batch_id = await one(acme), await new_batch(acme)
    for source in (task_id, batch_id, ABSENT, "0199-absent"):
        for body in (call(after=[source]), call(parameters={"a": out(source)})):
            answer = await other.post(TASKS, json=body)
            assert problem(answer) == (422, "bad_edge", 0)
            assert answer.json()["detail"] == f"task 0 waits for {source}, which does not exist"
    assert (await acme.post(TASKS, json=call(after=[task_id, batch_id]))).status_code == 201


async def test_members_take_the_tenant_of_their_batch(http: httpx.AsyncClient) -> None:
    batch_id = await new_batch(http, tenant="acme")
    (task_id,) = await bulk(http, call(), path=f"{BATCHES}/{batch_id}/tasks")
    assert (await read(http, task_id))["tenant"] == "acme"


async def test_a_batch_of_a_tenant_refuses_members_and_children_of_another(
    http: httpx.AsyncClient, app: Headway
) -> None:
    batch_id = await new_batch(http, tenant="acme")
    foreign = call(tenant="globex")
    mixed = await http.post(f"{BATCHES}/{batch_id}/tasks", json=[call(), foreign])
    assert problem(mixed) == (422, "bad_edge", 1)
    assert problem(await http.post(TASKS, json=foreign | {"batch_id": batch_id})) == (422, "bad_edge", 0)
    assert problem(await http.post(TASKS, json=foreign | {"after": [batch_id]})) == (422, "bad_edge", 0)
    assert problem(await http.post(f"{BATCHES}/{batch_id}/on_done", json=foreign)) == (422, "bad_edge", 0)
    child = await http.post(BATCHES, json={"tenant": "globex", "parent_id": batch_id})
    assert problem(child) == (422, "bad_edge", None)
    assert (await app.client.stats()).totals.get("submitted", 0) == 0
    assert [batch["batch_id"] for batch in (await http.get(BATCHES)).json()["items"]] == [batch_id]
    inner = await new_batch(http, parent_id=batch_id)
    assert (await batch_of(http, inner))["tenant"] == "acme"


async def test_a_graph_with_a_transient_task_is_refused_whole(http: httpx.AsyncClient, app: Headway) -> None:
    @app.task(name="passing", persist=False)
    async def passing() -> None: ...

    await app.follow_policy()
    answer = await http.post(f"{TASKS}/bulk", json=[call(), call("passing", after=[{"index": 0}])])
    assert problem(answer) == (409, "not_stored", 1)
    assert (await app.client.stats()).totals.get("submitted", 0) == 0


async def test_a_rate_counts_the_members_of_a_batch(app: Headway, api: FastAPI) -> None:
    store = await app.client.store()
    _, token = await create_token(store, ["submit"], rate="3/hour", now_at=1)
    limited = client_for(api, headers={"Authorization": f"Bearer {token}"})
    batch_id = await new_batch(limited)
    await bulk(limited, call(), call(), path=f"{BATCHES}/{batch_id}/tasks")
    answer = await limited.post(f"{BATCHES}/{batch_id}/tasks", json=[call()])
    assert problem(answer) == (429, "rate_exceeded", None)
