"""Tasks over HTTP, on every store: submit, read, list, cancel, retry."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from headway import Headway
from headway.core.worker import WorkerInfo as Record
from headway.stores.base import Heartbeat
from headway.worker.embedded import Worker

TASKS = "/api/v1/tasks"
ENTITY = {
    "task_id", "priority", "effective_priority", "payload", "status", "retry_count", "max_retries", "created_at",
    "started_at", "completed_at", "assigned_worker_id", "result", "error", "timeout_seconds", "idempotency_key",
    "trace_id",
}  # fmt: skip


async def submit(http: httpx.AsyncClient, **body: Any) -> str:
    answer = await http.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}} | body)
    assert answer.status_code == 201, answer.text
    task_id: str = answer.json()["task_id"]
    return task_id


async def ended(http: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    """Wait until a task has ended, as a client does that only uses the stream of events."""
    assert "event: finished" in (await http.get(f"{TASKS}/{task_id}/events")).text
    found: dict[str, Any] = (await http.get(f"{TASKS}/{task_id}")).json()
    return found


async def started(app: Headway, task_id: str) -> None:
    async for event in app.job(task_id).aevents():
        if event.kind == "started":
            return


async def test_a_submit_is_answered_before_the_task_runs(http: httpx.AsyncClient) -> None:
    # R1.1, R5.1, R5.21, R5.38, R5.39
    answer = await http.post(
        TASKS,
        json={
            "task_type": "process_video",
            "priority": "high",
            "parameters": {"id": 7},
            "required_capabilities": ["gpu"],
            "timeout_seconds": 600,
            "idempotency_key": "optional-key",
        },
    )
    assert answer.status_code == 201
    body = answer.json()
    assert body["status"] == "queued"
    assert body["queue_position"] == 0
    assert body["estimate"] == {"position": 0, "p50": None, "p90": None, "basis": "unknown"}
    assert answer.headers["location"] == f"{TASKS}/{body['task_id']}"
    task = (await http.get(answer.headers["location"])).json()
    assert task["payload"] == {
        "task_type": "process_video",
        "parameters": {"id": 7},
        "required_capabilities": ["gpu"],
    }
    assert (task["timeout_seconds"], task["idempotency_key"]) == (600, "optional-key")


async def test_a_task_has_every_field_of_the_entity(http: httpx.AsyncClient) -> None:
    # R5.20, R5.30, R5.41
    task = (await http.get(f"{TASKS}/{await submit(http)}")).json()
    assert task.keys() >= ENTITY
    assert task["status"] == "queued"
    assert (task["retry_count"], task["started_at"], task["assigned_worker_id"]) == (0, None, None)
    assert len(task["trace_id"]) == 32


@pytest.mark.parametrize(
    "priority, max_retries, timeout",
    [
        pytest.param("high", 5, 300, id="high"),
        pytest.param("medium", 3, 600, id="medium"),
        pytest.param("low", 2, 900, id="low"),
    ],
)
@pytest.mark.parametrize("store_name", ["memory"])
async def test_the_lane_gives_what_the_caller_left_out(
    http: httpx.AsyncClient, priority: str, max_retries: int, timeout: int
) -> None:
    # R5.31, R5.33, R5.34, R5.35, R5.37
    task = (await http.get(f"{TASKS}/{await submit(http, priority=priority)}")).json()
    assert (task["max_retries"], task["timeout_seconds"]) == (max_retries, timeout)
    asked = await submit(http, priority=priority, max_retries=1, timeout_seconds=2.5)
    task = (await http.get(f"{TASKS}/{asked}")).json()
    assert (task["max_retries"], task["timeout_seconds"]) == (1, 2.5)


async def test_a_task_runs_and_gives_its_result(app: Headway, http: httpx.AsyncClient) -> None:
    task_id = await submit(http, parameters={"a": 40})
    async with Worker(app) as worker:
        task = await ended(http, task_id)
        assert (task["status"], task["result"], task["error"]) == ("completed", 42, None)
        assert task["assigned_worker_id"] == worker.worker_id
        assert task["created_at"] <= task["started_at"] <= task["completed_at"]
        failed = await ended(http, await submit(http, task_type="fail", parameters={}))
    assert failed["status"] == "dead_letter"
    assert failed["error"] | {"traceback": ""} == {
        "type": "RuntimeError",
        "message": "broken",
        "traceback": "",
        "retriable": True,
    }
    assert failed["reason"] == "max_retries_exceeded"
    assert [attempt["number"] for attempt in failed["attempts"]] == [1]


async def test_queue_position_counts_what_would_start_before_by_the_policy(http: httpx.AsyncClient) -> None:
    # R5.40
    places = []
    for priority in ("low", "low", "medium", "high", "medium", "low", "high"):
        body = {"task_type": "add", "parameters": {"a": 1}, "priority": priority}
        places.append((await http.post(TASKS, json=body)).json()["queue_position"])
    #         low  low  medium  high  medium      low                high
    assert places == [0, 1, 0, 0, 2, 5, 1]


async def test_a_small_tenant_stands_before_a_large_one_s_backlog(http: httpx.AsyncClient) -> None:
    # R5.40, R5.66
    for _ in range(5):
        await submit(http, tenant="large")
    answer = await http.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}, "tenant": "small"})
    assert answer.json()["queue_position"] <= 1


async def test_a_known_key_gives_the_same_task_and_another_payload_is_refused(http: httpx.AsyncClient) -> None:
    # R5.80, R5.83
    body = {"task_type": "add", "parameters": {"a": 1, "b": 2}, "idempotency_key": "order-9"}
    first = await http.post(TASKS, json=body)
    again = await http.post(TASKS, json=body | {"parameters": {"b": 2, "a": 1}})
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["task_id"] == first.json()["task_id"]
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in first.headers
    by_header = await http.post(
        TASKS, json={"task_type": "add", "parameters": {"a": 1, "b": 2}}, headers={"Idempotency-Key": "order-9"}
    )
    assert by_header.json()["task_id"] == first.json()["task_id"]
    other = await http.post(TASKS, json=body | {"parameters": {"a": 2}})
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_conflict")
    both = await http.post(TASKS, json=body, headers={"Idempotency-Key": "order-8"})
    assert both.status_code == 422


async def test_many_submits_with_one_key_at_once_make_one_task(http: httpx.AsyncClient) -> None:
    # R5.81, R5.82
    body = {"task_type": "add", "parameters": {"a": 1}, "idempotency_key": "k"}
    answers = await asyncio.gather(*(http.post(TASKS, json=body) for _ in range(20)))
    assert len({answer.json()["task_id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 19 + [201]
    assert len((await http.get(TASKS)).json()["items"]) == 1


async def test_keys_of_different_tenants_are_different(http: httpx.AsyncClient) -> None:
    # R5.83
    one = await submit(http, idempotency_key="k", tenant="a")
    other = await submit(http, idempotency_key="k", tenant="b", parameters={"a": 5})
    assert one != other


async def test_a_bulk_is_kept_whole_or_not_at_all(http: httpx.AsyncClient) -> None:
    good = [{"task_type": "add", "parameters": {"a": number}} for number in range(50)]
    answer = await http.post(f"{TASKS}/bulk", json=good)
    assert answer.status_code == 201
    tasks = answer.json()["tasks"]
    assert [task["queue_position"] for task in tasks] == list(range(50))
    keyed = [task | {"idempotency_key": f"k{number}"} for number, task in enumerate(good[:3])]
    tasks = (await http.post(f"{TASKS}/bulk", json=keyed)).json()["tasks"]
    assert [task["queue_position"] for task in tasks] == [50, 51, 52]
    bad = [*good, {"task_type": "add", "parameters": {"a": "three"}}]
    answer = await http.post(f"{TASKS}/bulk", json=bad)
    assert (answer.status_code, answer.json()["code"], answer.json()["index"]) == (422, "bad_arguments", 50)
    clash = [
        {"task_type": "add", "parameters": {"a": 1}, "idempotency_key": "x"},
        {"task_type": "add", "parameters": {"a": 2}, "idempotency_key": "x"},
    ]
    answer = await http.post(f"{TASKS}/bulk", json=clash)
    assert (answer.status_code, answer.json()["index"]) == (409, 1)
    assert len((await http.get(TASKS, params={"limit": 500})).json()["items"]) == 53


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize(
    "wrong, code",
    [
        ({"task_type": "add", "parameters": {"a": 1}, "priority": "urgent"}, "config"),
        ({"task_type": "add", "parameters": {"a": {"$out": {"index": 0}}}, "priority": "urgent"}, "config"),
        ({"task_type": "add", "parameters": {"a": 1}, "duration": "eternal"}, "config"),
        ({"task_type": "add", "parameters": {"a": 1}, "prio": "high"}, "invalid"),
        ({"task_type": "add", "parameters": {"a": 1}, "timeout_seconds": "soon"}, "invalid"),
        (None, "invalid"),
    ],
)
async def test_each_problem_of_a_bulk_names_the_index(http: httpx.AsyncClient, wrong: object, code: str) -> None:
    good = [{"task_type": "add", "parameters": {"a": number}} for number in range(3)]
    answer = await http.post(f"{TASKS}/bulk", json=[*good, wrong, *good])
    assert (answer.status_code, answer.json()["code"], answer.json().get("index")) == (422, code, 3)
    assert (await http.get(TASKS)).json()["items"] == []


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize("count", [0, 1_001])
async def test_a_bulk_has_at_least_one_task_and_at_most_a_thousand(http: httpx.AsyncClient, count: int) -> None:
    answer = await http.post(f"{TASKS}/bulk", json=[{"task_type": "add", "parameters": {"a": 1}}] * count)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


async def test_parameters_are_checked_against_the_catalogue(app: Headway, http: httpx.AsyncClient) -> None:
    from headway.server.api import headway_api
    from tests.server.conftest import client_for

    async with Worker(app):  # It publishes what it knows,
        pass
    elsewhere = Headway(app.settings.store) if (await app.client.store()).abilities.shared else app
    async with (
        client_for(headway_api(elsewhere, hosts=["testserver"])) as other,
        elsewhere,
    ):  # which another process reads.
        for parameters, words in (
            ({"a": "one"}, "argument 'a'"),
            ({"a": 1, "c": 2}, "no parameter 'c'"),
            ({}, "a"),
        ):
            answer = await other.post(TASKS, json={"task_type": "add", "parameters": parameters})
            assert (answer.status_code, answer.json()["code"]) == (422, "bad_arguments")
            assert words in answer.json()["detail"]
        assert (
            await other.post(TASKS, json={"task_type": "nobody.knows", "parameters": {"x": [1]}})
        ).status_code == 201
        assert [task["payload"]["task_type"] for task in (await other.get(TASKS)).json()["items"]] == ["nobody.knows"]


async def test_tasks_are_listed_newest_first_page_by_page(http: httpx.AsyncClient) -> None:
    ids = [await submit(http) for _ in range(7)]
    seen: list[str] = []
    cursor = None
    while True:
        page = (await http.get(TASKS, params={"limit": 3} | ({"cursor": cursor} if cursor else {}))).json()
        seen += [task["task_id"] for task in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert seen == ids[::-1]


async def test_tasks_are_listed_by_what_they_are(app: Headway, http: httpx.AsyncClient) -> None:
    high = await submit(http, priority="high", tenant="acme")
    other = await submit(http, task_type="fail", parameters={})
    async with Worker(app):
        await ended(http, other)
        await ended(http, high)
    done = (await http.get(f"{TASKS}/{high}")).json()
    queued = await submit(http, priority="low")

    async def listed(**query: Any) -> set[str]:
        answer = await http.get(TASKS, params=query)
        assert answer.status_code == 200, answer.text
        return {task["task_id"] for task in answer.json()["items"]}

    assert await listed(priority="high") == {high}
    assert await listed(task_type="fail") == {other}
    assert await listed(tenant="acme") == {high}
    assert await listed(status="queued") == {queued}
    assert await listed(status=["completed", "dead_letter"]) == {high, other}
    assert await listed(worker=done["assigned_worker_id"]) == {high, other}
    assert await listed(age=3600) == set()
    assert await listed(age_max=3600) == {high, other, queued}
    assert await listed(status="failed") == set()


async def test_a_queued_task_is_cancelled_at_once_and_twice_is_once(http: httpx.AsyncClient) -> None:
    # R5.42
    task_id = await submit(http)
    for _ in range(2):
        answer = await http.delete(f"{TASKS}/{task_id}")
        assert (answer.status_code, answer.json()) == (200, {"task_id": task_id, "status": "cancelled"})
    assert (await http.delete(f"{TASKS}/0198c1f2-0000-7000-8000-000000000000")).status_code == 404


async def test_an_executing_task_is_asked_to_stop_and_an_ended_one_stays(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.43
    task_id = await submit(http, task_type="hang", parameters={})
    async with Worker(app):
        await started(app, task_id)
        answer = await http.delete(f"{TASKS}/{task_id}")
        assert answer.status_code == 202
        assert answer.json()["status"] == "executing"
        assert answer.json()["cancel_requested_at"] is not None
        assert (await ended(http, task_id))["status"] == "cancelled"
        done = await submit(http)
        await ended(http, done)
    answer = await http.delete(f"{TASKS}/{done}")
    assert (answer.status_code, answer.json()["code"]) == (409, "illegal_move")


async def test_retry_queues_an_ended_task_again_with_its_counts_reset(app: Headway, http: httpx.AsyncClient) -> None:
    task_id = await submit(http, task_type="fail", parameters={})
    done = await submit(http)
    async with Worker(app):
        await ended(http, task_id)
        await ended(http, done)
    answer = await http.post(f"{TASKS}/{task_id}/retry")
    assert (answer.status_code, answer.json()) == (200, {"task_id": task_id, "status": "queued"})
    assert (await http.get(f"{TASKS}/{task_id}")).json()["retry_count"] == 0
    assert (await http.post(f"{TASKS}/{done}/retry")).status_code == 409


async def test_why_names_what_a_task_waits_for(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.109
    task_id = await submit(http, required_capabilities=["gpu"])
    why = (await http.get(f"{TASKS}/{task_id}/why")).json()
    assert ([reason["code"] for reason in why["reasons"]], why["passed_over"]) == (["no_worker"], 0)
    worker = Record(worker_id="w", host="h", pid=1, slots=1, reserved=0, offers=("task:add",), version="0")
    await (await app.client.store()).renew(Heartbeat(worker, 60_000, 10_000, register=True))
    why = (await http.get(f"{TASKS}/{task_id}")).json()["why"]
    assert [reason["code"] for reason in why] == ["unservable"]
    assert why[0]["missing"] == ["gpu"]


async def test_an_estimate_has_a_place_and_says_what_it_rests_on(http: httpx.AsyncClient) -> None:
    await submit(http)
    task_id = await submit(http)
    answer = await http.get(f"{TASKS}/{task_id}/estimate")
    assert answer.json() == {"position": 1, "p50": None, "p90": None, "basis": "unknown"}
    await http.delete(f"{TASKS}/{task_id}")
    assert (await http.get(f"{TASKS}/{task_id}/estimate")).status_code == 409


async def test_a_task_for_later_is_scheduled(http: httpx.AsyncClient) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    task_id = await submit(http, run_after=moment.isoformat(), expires=7200)
    task = (await http.get(f"{TASKS}/{task_id}")).json()
    assert task["why"][0]["code"] == "scheduled"
    assert task["why"][0]["due_at"] == task["run_after"]
    assert abs(datetime.fromisoformat(task["run_after"]) - moment) < timedelta(milliseconds=1)
    assert task["expires_at"] is not None
    naive = await http.post(
        TASKS, json={"task_type": "add", "parameters": {"a": 1}, "run_after": "2030-01-01T00:00:00"}
    )
    assert naive.status_code == 422


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize(
    "body, status, code",
    [
        pytest.param({}, 422, "invalid", id="nothing"),
        pytest.param({"task_type": ""}, 422, "invalid", id="no-name"),
        pytest.param({"task_type": "x" * 256}, 422, "invalid", id="long-name"),
        pytest.param({"task_type": "add", "parameters": [1]}, 422, "invalid", id="list"),
        pytest.param({"task_type": "x", "priority": "urgent"}, 422, "config", id="lane"),  # R5.3
        pytest.param({"task_type": "add", "prioriti": "high"}, 422, "invalid", id="misspelt"),
        pytest.param({"task_type": "add", "timeout_seconds": -1}, 422, "invalid", id="negative"),
        pytest.param({"task_type": "add", "timeout_seconds": 0}, 422, "invalid", id="zero"),
        pytest.param({"task_type": "add", "max_retries": 1.5}, 422, "invalid", id="half"),
        pytest.param({"task_type": "add", "required_capabilities": "gpu"}, 422, "invalid", id="capability"),
        pytest.param({"task_type": "a\0b"}, 422, "invalid", id="nul"),
        pytest.param({"task_type": "\ud800"}, 422, "invalid", id="surrogate"),
        pytest.param({"task_type": "\x01"}, 422, "invalid", id="control character"),
        pytest.param({"task_type": "echo", "tenant": '\x01"victim"'}, 422, "invalid", id="control in a tenant"),
        pytest.param({"task_type": "echo", "trace_id": "\x1b[2J"}, 422, "invalid", id="control in a trace id"),
        pytest.param({"task_type": "echo", "idempotency_key": "a\nb"}, 422, "invalid", id="control in a key"),
        pytest.param({"task_type": "echo", "priority": "high\x7f"}, 422, "invalid", id="control in a lane"),
        pytest.param({"task_type": "echo", "required_capabilities": ["\x9b"]}, 422, "invalid", id="control in a need"),
        pytest.param(
            {"task_type": "other", "parameters": {"x": "y" * (256 << 10)}}, 413, "payload_too_large", id="large"
        ),
    ],
)
async def test_what_does_not_fit_is_refused_and_leaves_no_trace(
    http: httpx.AsyncClient, body: dict[str, Any], status: int, code: str
) -> None:
    # R5.3, R5.105
    answer = await http.post(TASKS, content=json.dumps(body), headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert (await http.get(TASKS)).json()["items"] == []


async def test_a_full_queue_says_when_to_come_back(app: Headway, http: httpx.AsyncClient) -> None:
    # L7
    policy = (await http.get("/api/v1/policy")).json()["policy"] | {"max_depth": 3}
    assert (await http.put("/api/v1/policy", json=policy)).status_code == 200
    assert (await http.post(f"{TASKS}/bulk", json=[{"task_type": "x"}] * 4)).status_code == 429
    for _ in range(3):
        await submit(http)
    answer = await http.post(TASKS, json={"task_type": "x"})
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (429, "queue_full", "5")
    assert "3" not in answer.json()["detail"]  # S-31: how much waits in all is not for every caller.
    assert len((await http.get(TASKS)).json()["items"]) == 3


async def test_a_filter_with_a_typo_is_refused(http: httpx.AsyncClient) -> None:
    for path, words in (
        (f"{TASKS}?tenent=acme", "'tenent' here; did you mean 'tenant'? (parameters: age, age_max, "),
        (f"{TASKS}?=", "no parameter '' here"),
        (f"{TASKS}/x?full=1", "'full' here (parameters: redact)"),
        (f"{TASKS}?tenant=a&tenant=b", "tenant is given twice"),
    ):
        answer = await http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
        assert words in answer.json()["detail"]
    assert (await http.get(f"{TASKS}?tenant=acme&limit=3&status=queued&status=failed")).status_code == 200
