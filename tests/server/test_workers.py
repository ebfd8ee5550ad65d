"""The protocol of HTTP workers, on every store."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import msgspec
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.core.policy.retry import Returned
from headway.core.policy.writer import policy_data
from headway.policy_store.catalogue import CronDocument, TaskEntry, read_crons
from headway.protocol.conversion import lease_of, result_of
from headway.protocol.worker import RESULTS_MAX
from headway.protocol.worker import PollReply as PolledMessage
from headway.security.tokens import create_token
from headway.stores.base import Exchange, ExchangeReply
from tests.server.conftest import client_for

WORKERS = "/internal/workers"
TASKS = "/api/v1/tasks"
SOON = 10.0
ENTRY = {"name": "a", "lane": "low", "executor": "async"}


class Worker:
    """A worker that speaks the protocol and uses nothing else of Headway."""

    def __init__(self, http: httpx.AsyncClient, worker_id: str, capabilities: list[str]) -> None:
        self.http = http
        self.worker_id = worker_id
        self.capabilities = capabilities

    async def say(self, verb: str, **body: Any) -> httpx.Response:
        text = json.dumps(body).encode()  # All ASCII, so that odd letters get through as escapes.
        path = f"{WORKERS}/{self.worker_id}/{verb}"
        return await self.http.post(path, content=text, headers={"content-type": "application/json"})

    async def poll(self, room: int = 5, **more: Any) -> dict[str, Any]:
        answer = await self.say("poll", available_capacity=room, capabilities=self.capabilities, **more)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def claim(self) -> dict[str, Any]:
        [task] = (await self.poll(1))["tasks"]
        found: dict[str, Any] = task
        return found


async def register(http: httpx.AsyncClient, *capabilities: str, **more: Any) -> Worker:
    answer = await http.post(f"{WORKERS}/register", json={"capabilities": list(capabilities), "capacity": 5} | more)
    assert answer.status_code == 201, answer.text
    return Worker(http, answer.json()["worker_id"], list(capabilities))


async def submit(http: httpx.AsyncClient, **body: Any) -> str:
    answer = await http.post(TASKS, json={"task_type": "resize", "parameters": {"id": 7}} | body)
    assert answer.status_code == 201, answer.text
    task_id: str = answer.json()["task_id"]
    return task_id


async def task(http: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"{TASKS}/{task_id}")).json()
    return found


def problem(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.status_code, answer.json()["code"]


# ---------------------------------------------------------------------- the seed's own words


async def test_the_literal_protocol_of_the_seed(http: httpx.AsyncClient) -> None:
    # R5.1, R5.14, R5.18, R5.45, R5.46, R5.47, R5.48
    answer = await http.post(f"{WORKERS}/register", json={"capabilities": ["gpu"], "capacity": 5})
    assert answer.status_code == 201
    assert answer.json()["poll_interval_ms"] == 1_000
    path = f"{WORKERS}/{answer.json()['worker_id']}"
    task_id = await submit(
        http,
        task_type="process_video",
        priority="high",
        parameters={"url": "a.mp4", "sizes": [1, 2.5], "deep": {"ä": None}},
        required_capabilities=["gpu"],
        timeout_seconds=600,
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    )
    polled = await http.post(f"{path}/poll", json={"capabilities": ["gpu"], "available_capacity": 3})
    [given] = polled.json()["tasks"]
    assert {name: given[name] for name in ("task_id", "task_type", "parameters", "timeout_seconds", "trace_id")} == {
        "task_id": task_id,
        "task_type": "process_video",
        "parameters": {"url": "a.mp4", "sizes": [1, 2.5], "deep": {"ä": None}},
        "timeout_seconds": 600,
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }
    beat = await http.post(f"{path}/heartbeat", json={"current_load": 1, "status": "active"})
    assert (beat.status_code, beat.json()["acknowledged"]) == (200, True)
    result = {"task_id": task_id, "status": "completed", "result": {"frames": 250}}
    told = await http.post(f"{path}/result", json=result)
    assert (told.status_code, told.json()) == (200, {"acknowledged": True, "status": "completed"})
    found = await task(http, task_id)
    assert (found["status"], found["result"]) == ("completed", {"frames": 250})
    again = await http.post(f"{path}/result", json=result)
    assert (again.status_code, again.json()) == (200, told.json())


async def test_capacity_defaults_to_five(http: httpx.AsyncClient, app: Headway) -> None:
    # R5.18, R5.32
    answer = await http.post(f"{WORKERS}/register", json={"capabilities": []})
    assert (answer.json()["heartbeat_seconds"], answer.json()["dead_after_seconds"]) == (30, 90)  # R5.16
    [known] = (await app.client.stats()).workers
    assert (known.slots, known.state) == (5, "active")


async def test_a_task_that_nobody_can_run_is_reported_so(http: httpx.AsyncClient) -> None:
    # R5.52, R5.53, R5.54, R5.109
    worker = await register(http, "cpu")
    stuck = [await submit(http, required_capabilities=["gpu"]) for _ in range(12)]
    runs = await submit(http)
    assert [given["task_id"] for given in (await worker.poll(2))["tasks"]] == [runs]
    found = await task(http, stuck[0])
    assert (found["status"], found["started_at"], found["assigned_worker_id"]) == ("queued", None, None)
    reasons = (await http.get(f"{TASKS}/{stuck[0]}/why")).json()["reasons"]
    assert [reason["code"] for reason in reasons] == ["unservable"]
    assert (await http.get(f"{TASKS}/{runs}/why")).json()["reasons"] == []


async def test_a_worker_gets_no_more_than_it_says_nor_than_it_registered(http: httpx.AsyncClient) -> None:
    # R5.49, R5.50, R5.51
    ids = [await submit(http, priority=priority) for priority in ("low", "medium", "high", "medium")]
    worker = await register(http, capacity=3, reserved=0)
    first = (await worker.poll(2))["tasks"]
    assert [given["task_id"] for given in first] == [ids[2], ids[1]]
    assert [given["task_id"] for given in (await worker.poll(5))["tasks"]] == [ids[3]]
    assert (await worker.poll(5))["tasks"] == []


@pytest.mark.parametrize("lane", ["low", "medium", "high"])
async def test_the_literal_worker_of_the_seed_fills_its_capacity_from_any_lane(
    http: httpx.AsyncClient, lane: str
) -> None:
    # R5.49, R5.50
    ids = [await submit(http, priority=lane) for _ in range(4)]
    answer = await http.post(f"{WORKERS}/register", json={"capabilities": ["gpu"], "capacity": 3})
    path = f"{WORKERS}/{answer.json()['worker_id']}"
    polled = await http.post(f"{path}/poll", json={"capabilities": ["gpu"], "available_capacity": 3})
    assert [given["task_id"] for given in polled.json()["tasks"]] == ids[:3]
    [known] = (await http.get("/api/v1/workers")).json()["workers"]
    assert (known["capacity"], known["current_load"], known["reserved"]) == (3, 3, 0)


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_worker_keeps_slots_free_if_it_asks_for_it_or_the_policy_does(http: httpx.AsyncClient) -> None:
    # R5.50
    for _ in range(9):
        await submit(http, priority="low")
    asked = await register(http, capacity=3, reserved=1)
    assert len((await asked.poll(3))["tasks"]) == 2
    aware = await register(http, capacity=3, tasks=[ENTRY | {"name": "resize"}])  # As Headway's own workers do.
    assert len((await aware.poll(3))["tasks"]) == 2
    assert (await http.put("/api/v1/policy", json={"reserve": {"slots": 2}})).status_code == 200
    told = await register(http, capacity=3)
    assert len((await told.poll(3))["tasks"]) == 1


# ---------------------------------------------------------------------- results


@pytest.mark.parametrize("fence", ["xyz", "0", "00" * 16, "f" * 32, "ä", "00" * 40, " ", "\\x00", "9" * 5_000])
@pytest.mark.parametrize("store_name", ["memory", "redis", "postgres"])
async def test_a_fence_that_is_no_lease_is_a_lost_lease_however_it_is_written(
    http: httpx.AsyncClient, fence: str
) -> None:
    # R5.57, S-4
    task_id = await submit(http)
    worker = await register(http)
    given = await worker.claim()
    answer = await worker.say("result", task_id=task_id, status="completed", fence=fence)
    assert problem(answer) == (409, "lease_lost")
    answer = await worker.say("result", results=[{"task_id": task_id, "status": "completed", "fence": fence}])
    assert answer.json()["results"] == [{"task_id": task_id, "status": None, "code": "lease_lost"}]
    polled = await worker.poll(0, results=[{"task_id": task_id, "status": "completed", "fence": fence}])
    assert polled["refused"] == [{"task_id": task_id, "code": "lease_lost"}]
    beat = await worker.say("heartbeat", tasks=[{"task_id": task_id, "fence": fence}])
    assert (beat.status_code, beat.json()["lost"]) == (200, [task_id])
    answer = await worker.say("result", task_id=task_id, status="completed", fence=given["fence"])
    assert answer.json() == {"acknowledged": True, "status": "completed"}


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_problem_names_the_fields_that_the_caller_sent(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    answer = await worker.say("result", task_id="a", status="completed", fence=7)
    assert [error["field"] for error in answer.json()["errors"]] == ["fence"]
    answer = await worker.say("result", results=[{"task_id": "a", "status": "done"}])
    assert [error["field"] for error in answer.json()["errors"]] == ["results.0.status"]
    answer = await worker.say("heartbeat", tasks=["a"])
    assert problem(answer) == (422, "invalid")
    assert answer.json()["errors"][0]["field"] == "tasks.0"
    assert '{"task_id": "…", "fence": "…"}' in answer.json()["detail"]


async def test_a_failed_task_runs_again_until_its_retries_are_used(http: httpx.AsyncClient) -> None:
    # R5.57, R5.75, R5.78: the server judges, not the worker.
    task_id = await submit(http, max_retries=1)
    worker = await register(http)
    error = {"message": "no disk", "type": "OSError", "retriable": True}
    for status in ("queued", "dead_letter"):
        given = await worker.claim()
        answer = await worker.say(
            "result", task_id=task_id, status="failed", error=error, fence=given["fence"], retry_after_seconds=0
        )
        assert answer.json() == {"acknowledged": True, "status": status}
    found = await task(http, task_id)
    assert (found["reason"], found["error"]["message"]) == ("max_retries_exceeded", "no disk")
    assert [attempt["number"] for attempt in found["attempts"]] == [1, 2]


async def test_an_error_that_is_not_retriable_ends_the_task(http: httpx.AsyncClient) -> None:
    # R5.79
    task_id = await submit(http)
    worker = await register(http)
    await worker.claim()
    error = {"message": "bad url", "retriable": False}
    answer = await worker.say("result", task_id=task_id, status="failed", error=error)
    assert answer.json()["status"] == "failed"


async def test_a_foreign_or_late_result_changes_nothing(http: httpx.AsyncClient) -> None:
    # R5.57, H2
    task_id = await submit(http)
    worker, other = await register(http), await register(http)
    given = await worker.claim()
    for who, fence in ((other, given["fence"]), (other, None), (worker, "00" * 16), (worker, "")):
        body = {"task_id": task_id, "status": "completed"} | ({} if fence is None else {"fence": fence})
        assert problem(await who.say("result", **body)) == (409, "lease_lost")
    assert (await task(http, task_id))["status"] == "executing"
    await worker.say("result", task_id=task_id, status="completed", fence=given["fence"])
    late = await worker.say("result", task_id=task_id, status="failed", fence=given["fence"])
    assert problem(late) == (409, "lease_lost")
    assert (await task(http, task_id))["status"] == "completed"


async def test_several_results_at_once_are_answered_one_by_one(http: httpx.AsyncClient) -> None:
    one, two = await submit(http), await submit(http)
    worker = await register(http)
    await worker.poll(2)
    results = [
        {"task_id": one, "status": "completed", "result": 1},
        {"task_id": "unknown", "status": "completed"},
        {"task_id": two, "status": "cancelled", "reason": "told to"},
    ]
    answer = await worker.say("result", results=results)
    assert answer.json() == {
        "acknowledged": True,
        "results": [
            {"task_id": one, "status": "completed", "code": None},
            {"task_id": "unknown", "status": None, "code": "lease_lost"},
            {"task_id": two, "status": "cancelled", "code": None},
        ],
    }


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_result_that_cannot_be_kept_does_not_undo_the_work(http: httpx.AsyncClient, app: Headway) -> None:
    worker = await register(http)
    large = "x" * app.settings.payload_max
    odd: list[tuple[dict[str, Any], str]] = [
        ({"result": large}, "more than"),
        ({"result": "\ud800"}, "JSON"),
        ({"result_error": "too dear"}, "too dear"),
    ]
    for body, text in odd:
        task_id = await submit(http)
        await worker.claim()
        answer = await worker.say("result", task_id=task_id, status="completed", **body)
        assert answer.json() == {"acknowledged": True, "status": "completed"}
        [job] = await (await app.client.store()).get([task_id])  # type: ignore[list-item]
        assert job is not None
        assert job.result is None
        assert text in (job.result_error or "")
        shown = (await http.get(f"/api/v1/tasks/{task_id}")).json()
        assert (shown["status"], shown["result"], shown["result_error"]) == ("completed", None, job.result_error)


@pytest.mark.parametrize("store_name", ["memory", "postgres"])
async def test_odd_texts_are_kept_as_far_as_they_can_be(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    task_id = await submit(http, max_retries=0)
    await worker.claim()
    error = {"message": "nul \0 and \ud800 " + "x" * 20_000, "type": "Odd", "traceback": "y" * 100_000}
    answer = await worker.say("result", task_id=task_id, status="failed", error=error)
    assert answer.status_code == 200
    found = await task(http, task_id)
    assert found["error"]["message"].startswith("nul \\x00 and \\ud800 x")
    assert len(found["error"]["message"]) < 10_000
    assert len(found["attempts"][0]["error"]["traceback"] or "") < 40_000


# ---------------------------------------------------------------------- long polls, cancels, drains


async def poll_that_waits(app: Headway, worker: Worker, capacity: int) -> asyncio.Task[Any]:
    """Start a long poll. Return once the store has registered that the worker waits."""
    store, waits = await app.client.store(), asyncio.Event()
    exchange = store.exchange

    async def note(request: Exchange) -> ExchangeReply:
        answer = await exchange(request)
        if request.wait and not answer.leases:
            waits.set()
        return answer

    store.exchange = note  # type: ignore[method-assign]
    try:
        poll = asyncio.create_task(worker.poll(capacity, wait_seconds=30))
        async with asyncio.timeout(SOON):
            await waits.wait()
    finally:
        store.exchange = exchange  # type: ignore[method-assign]
    assert not poll.done()
    return poll


async def test_a_long_poll_brings_a_task_as_soon_as_there_is_one(http: httpx.AsyncClient, app: Headway) -> None:
    worker = await register(http)
    poll = await poll_that_waits(app, worker, 1)
    task_id = await submit(http)
    async with asyncio.timeout(SOON):
        assert [given["task_id"] for given in (await poll)["tasks"]] == [task_id]


async def test_a_cancel_reaches_a_worker_that_waits(http: httpx.AsyncClient, app: Headway) -> None:
    task_id = await submit(http)
    worker = await register(http)
    given = await worker.claim()
    poll = await poll_that_waits(app, worker, 5)
    assert (await http.delete(f"{TASKS}/{task_id}")).status_code == 202
    async with asyncio.timeout(SOON):  # The poll itself would wait for 30 s.
        assert (await poll)["cancel"] == [task_id]
    assert (await worker.say("heartbeat", current_load=1, status="active")).json()["cancel"] == [task_id]
    answer = await worker.say("result", task_id=task_id, status="cancelled", fence=given["fence"])
    assert answer.json()["status"] == "cancelled"


async def test_a_draining_worker_gets_nothing_and_finishes(http: httpx.AsyncClient) -> None:
    # R5.15, R5.19, R5.56
    first = await submit(http)
    worker = await register(http)
    await worker.claim()
    await submit(http)
    assert (await worker.say("drain")).json() == {"acknowledged": True, "state": "draining", "released": 0}
    polled = await worker.poll()
    assert (polled["tasks"], polled["state"]) == ([], "draining")
    assert (await worker.say("result", task_id=first, status="completed")).status_code == 200
    assert (await http.get("/api/v1/queue/stats")).json()["workers"]["draining"] == 1


async def test_a_worker_that_leaves_must_register_anew(http: httpx.AsyncClient) -> None:
    # R5.56, R5.58
    task_id = await submit(http)
    worker = await register(http)
    await worker.claim()
    for released in (1, 0):
        answer = await worker.say("drain", leave=True)
        assert answer.json() == {"acknowledged": True, "state": "dead", "released": released}
    assert problem(await worker.say("poll", available_capacity=1)) == (409, "worker_unknown")
    assert problem(await worker.say("heartbeat", current_load=0, status="active")) == (409, "worker_unknown")
    assert problem(await worker.say("drain")) == (409, "worker_unknown")
    stranger = Worker(http, "nobody", [])
    assert problem(await stranger.say("poll", available_capacity=1)) == (409, "worker_unknown")
    found = await task(http, task_id)
    assert (found["status"], found["retry_count"]) == ("queued", 0)


async def test_a_heartbeat_names_tasks_and_is_told_which_are_lost(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    held = [{"task_id": "gone", "fence": "00" * 16}]
    beat = await worker.say("heartbeat", current_load=1, status="draining", tasks=held, seq=5)
    body = beat.json()
    assert (body["lost"], body["cancel"], body["state"], body["ignored"]) == (["gone"], ["gone"], "draining", False)
    assert (await worker.say("heartbeat", current_load=1, status="active", seq=4)).json()["ignored"] is True


# ---------------------------------------------------------------------- Headway's own worker


async def test_what_is_on_the_wire_makes_the_same_lease_again(http: httpx.AsyncClient, app: Headway) -> None:
    task_id = await submit(http, parameters={"a": 1, "b": "ß"}, tenant="acme", required_capabilities=["gpu"])
    entry = TaskEntry(name="resize", lane="low", executor="async", parameters={"properties": {}, "required": []})
    body = {
        "capabilities": ["gpu"],
        "name": "host-1",
        "pid": 9,
        "version": "1",
        "tasks": [msgspec.to_builtins(entry)],
        "limits": {"resize": {"resize": {"concurrency": 4}}},
        "protocol": 1,
        "heartbeat_seconds": 10,
        "dead_after_seconds": 30,
    }
    answer = await http.post(f"{WORKERS}/register", json=body)
    assert answer.json()["policy"] == json.loads(msgspec.json.encode(policy_data(app.policy)))
    path = f"{WORKERS}/{answer.json()['worker_id']}"
    polled = await http.post(f"{path}/poll", json={"available_capacity": 1, "claim_id": "a" * 32})
    [given] = msgspec.json.decode(polled.content, type=PolledMessage).tasks
    lease = lease_of(given, answer.json()["worker_id"], b"\x01")
    [stored] = await (await app.client.store()).leases(worker_id=answer.json()["worker_id"])
    assert lease._replace(trace_id=None) == stored
    assert lease.payload == b'\x01{"a":1,"b":"\xc3\x9f"}'
    said = msgspec.json.encode(result_of(Returned(b"\x01[1]"), lease.job_id, lease.token, 0.1))
    told = await http.post(f"{path}/result", content=said, headers={"content-type": "application/json"})
    assert told.json()["status"] == "completed"
    assert (await task(http, task_id))["result"] == [1]


async def test_the_limits_that_a_worker_declares_hold_for_its_own_tasks_alone(
    http: httpx.AsyncClient, app: Headway
) -> None:
    rule = {"concurrency": 1, "tasks": ["*"]}
    body = {"capabilities": [], "tasks": [ENTRY], "limits": {"a": {"everything": rule}}, "reserved": 0}
    assert (await http.post(f"{WORKERS}/register", json=body)).status_code == 201
    rules = (await (await app.client.store()).diagnose()).rules
    assert {name: limit.tasks for name, limit in rules.limits.items()} == {"a:concurrency": ("a",)}


async def test_a_worker_brings_its_crons(http: httpx.AsyncClient, app: Headway) -> None:
    entry = msgspec.to_builtins(TaskEntry(name="nightly", lane="low", executor="async"))
    cron = CronDocument(
        task="nightly", expression="0 3 * * *", tz="UTC", catch_up="last", overlap="skip", lane="low", max_retries=1,
        timeout_ms=60_000, payload=b"\x01{}",
    )  # fmt: skip
    body = {"capabilities": [], "tasks": [entry], "crons": [json.loads(msgspec.json.encode(cron))]}
    assert (await http.post(f"{WORKERS}/register", json=body)).status_code == 201
    assert [known.task for known, _ in await read_crons(await app.client.store())] == ["nightly"]
    for changed in ({"expression": "never"}, {"task": "other"}, {"payload": ""}, {"timeout_ms": 0}, {"entry": "a"}):
        wrong = body | {"crons": [body["crons"][0] | changed]}
        assert problem(await http.post(f"{WORKERS}/register", json=wrong)) == (422, "invalid")


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"capabilities": "gpu"},
        {"capabilities": ["task:*"]},
        {"capabilities": ["a" * 101]},
        {"capabilities": [], "capacity": 0},
        {"capabilities": [], "capacity": 10_001},
        {"capabilities": [], "capacity": "5"},
        {"capabilities": [], "protocol": 2},
        {"capabilities": [], "tasks": [{"name": "*", "lane": "low", "executor": "async"}]},
        {"capabilities": [], "tasks": [{"name": 7}]},
        {"capabilities": [], "tasks": [ENTRY | {"timeout_ms": 0}]},
        {"capabilities": [], "tasks": [ENTRY | {"max_retries": 1 << 60}]},
        {"capabilities": [], "tasks": [ENTRY | {"lane": "a\0b"}]},
        {"capabilities": [], "tasks": [ENTRY | {"doc": "x" * 70_000}]},
        {"capabilities": [], "tasks": [ENTRY | {"retry": ["fixed", 0, 0, 2.0]}]},
        {"capabilities": [], "tasks": [ENTRY | {"limits": [{"concurrency": 0}]}]},
        {"capabilities": [], "tasks": [ENTRY | {"parameters": {"properties": {"no name": {}}}}]},
        {"capabilities": [], "tasks": [ENTRY | {"parameters": {"properties": 7}}]},
        {"capabilities": [], "tasks": [ENTRY], "limits": {"a": {"x": {"concurrency": 1 << 60}}}},
        {"capabilities": [], "tasks": [ENTRY], "limits": {"a": {"x": {"count": 5, "period_ms": 0}}}},
        {"capabilities": [], "tasks": [ENTRY], "limits": {"a": {"x": {"count": -5, "period_ms": 10}}}},
        {"capabilities": [], "tasks": [ENTRY], "limits": {"a": {"x": {}}}},
        {"capabilities": [], "limits": {"other": {}}},
        {"capabilities": [], "heartbeat_seconds": 10, "dead_after_seconds": 15},
        {"capabilities": [], "heartbeat_seconds": 0},
        {"capabilities": [], "unknown": 1},
    ],
    ids=lambda body: str(body)[:80],
)
async def test_a_registration_that_does_not_fit_leaves_no_trace(
    http: httpx.AsyncClient, app: Headway, body: dict[str, Any]
) -> None:
    assert problem(await http.post(f"{WORKERS}/register", json=body)) == (422, "invalid")
    assert (await app.client.stats()).workers == ()
    assert await (await app.client.store()).read("http_worker") == []


@pytest.mark.parametrize("store_name", ["memory"])
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"available_capacity": -1},
        {"available_capacity": 10_001},
        {"available_capacity": 1, "wait_seconds": 30.1},
        {"available_capacity": 1, "wait_seconds": "NaN"},
        {"available_capacity": 1, "claim_id": "short"},
        {"available_capacity": 1, "claim_id": "with space"},
        {"available_capacity": 1, "capabilities": ["gpu"]},
        {"available_capacity": 1, "progress": [{"task_id": "a", "fraction": 2}]},
        {"available_capacity": 1, "results": [{"task_id": "a", "status": "done"}]},
        {"available_capacity": 1, "results": [{"task_id": "a", "status": "completed", "fence": 7}]},
        {"available_capacity": 1, "results": [{"task_id": "a", "status": "completed"}] * (RESULTS_MAX + 1)},
    ],
    ids=lambda body: str(body)[:60],
)
async def test_a_poll_that_does_not_fit_claims_nothing(http: httpx.AsyncClient, body: dict[str, Any]) -> None:
    task_id = await submit(http)
    worker = await register(http)
    assert problem(await worker.say("poll", **body)) == (422, "invalid")
    assert (await task(http, task_id))["status"] == "queued"


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_task_whose_arguments_cannot_be_read_fails_and_harms_no_other(
    http: httpx.AsyncClient, app: Headway
) -> None:
    # R5.60
    from tests.conformance.builders import a_job

    store = await app.client.store()
    [bad] = await store.submit([a_job(payload=b"\x03{}")])
    [dangling] = await store.submit([a_job(payload=b'\x02{"a":{"$out":1}}')])
    [worse] = await store.submit([a_job(payload=b"\x01[1]")])
    good = await submit(http)
    worker = await register(http, reserved=0)
    assert [given["task_id"] for given in (await worker.poll(5))["tasks"]] == [good]
    assert {(await task(http, one.job_id))["status"] for one in (bad, dangling, worse)} == {"failed"}


# ---------------------------------------------------------------------- who may


async def test_a_worker_needs_its_scope_and_speaks_only_for_itself(api: FastAPI, app: Headway) -> None:
    # R5.106, S-3, S-4, H4
    store = await app.client.store()
    now_at = (await store.snapshot()).now_at
    scopes = ("worker",), ("worker",), ("submit", "read"), ("admin",)
    secrets = [(await create_token(store, wanted, now_at=now_at))[1] for wanted in scopes]
    one, two, submitter, admin = (client_for(api, headers={"Authorization": f"Bearer {secret}"}) for secret in secrets)
    async with one, two, submitter, admin:
        assert problem(await submitter.post(f"{WORKERS}/register", json={"capabilities": []})) == (403, "forbidden")
        async with client_for(api) as nobody:
            refused = await nobody.post(f"{WORKERS}/register", json={"capabilities": []})
            assert problem(refused) == (401, "unauthenticated")
        task_id = await submit(submitter)
        mine = await register(one)
        given = await mine.claim()
        for thief in (Worker(two, mine.worker_id, []), Worker(admin, mine.worker_id, [])):
            for verb, body in (
                ("poll", {"available_capacity": 1}),
                ("result", {"task_id": task_id, "status": "completed", "fence": given["fence"]}),
                ("heartbeat", {"current_load": 0, "status": "draining"}),
                ("drain", {"leave": True}),
            ):
                # The same answer as for a worker that was never there, so ids cannot be probed.
                foreign = await thief.say(verb, **body)
                unknown = await Worker(thief.http, "never-registered", []).say(verb, **body)
                assert problem(foreign) == (409, "worker_unknown")
                assert foreign.json() == unknown.json()
        assert problem(await (await register(two)).say("result", task_id=task_id, status="completed")) == (
            409,
            "lease_lost",
        )
        assert (await mine.poll())["state"] == "active"
        answer = await mine.say("result", task_id=task_id, status="completed", fence=given["fence"])
        assert answer.status_code == 200
