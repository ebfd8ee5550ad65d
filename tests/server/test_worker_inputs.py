"""Inputs of an HTTP worker's job in a workflow: filled-in results, its batch, and steps of earlier attempts."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.core.workflow import STEP_BYTES_MAX
from headway.security.tokens import create_token
from headway.server.gateway import handout
from tests.server.conftest import client_for
from tests.server.test_workers import TASKS, Worker, problem, register, submit, task

BATCHES = "/api/v1/batches"


async def chain(http: httpx.AsyncClient, *tasks: dict[str, Any]) -> list[str]:
    answer = await http.post(f"{TASKS}/bulk", json=list(tasks))
    assert answer.status_code == 201, answer.text
    return [one["task_id"] for one in answer.json()["tasks"]]


async def complete(worker: Worker, result: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    """Claim the next task, and report this result and status."""
    given = await worker.claim()
    sent = {"result": result} if status == "completed" else {}
    told = await worker.say("result", task_id=given["task_id"], fence=given["fence"], status=status, **sent, **more)
    assert told.status_code == 200, told.text
    return given


async def test_a_worker_sees_the_results_that_its_task_takes(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    parameters = {"deep": [{"page": {"$out": {"index": 0}}}, 1], "same": {"$out": {"index": 0}}, "plain": None}
    first, second = await chain(http, {"task_type": "fetch"}, {"task_type": "parse", "parameters": parameters})
    page = {"ä": [1, 2.5, None]}
    given = await complete(worker, page)
    assert (given["task_id"], given["parameters"]) == (first, {})
    assert given["batch_id"] == (await task(http, first))["batch_id"]
    taken = await worker.claim()
    assert taken["task_id"] == second
    assert taken["parameters"] == {"deep": [{"page": page}, 1], "same": page, "plain": None}
    assert taken["batch_id"] == given["batch_id"]


async def test_a_missing_result_is_null_and_a_batch_is_its_id(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    batch_id = (await http.post(BATCHES, json={})).json()["batch_id"]
    source = await submit(http, batch_id=batch_id)
    await http.post(f"{BATCHES}/{batch_id}/close")
    await submit(http, parameters={"parts": {"$out": batch_id}, "one": {"$out": source}})
    await complete(worker, None)
    assert (await worker.claim())["parameters"] == {"parts": {"batch_id": batch_id}, "one": None}


async def test_a_plain_task_has_no_batch(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    await submit(http)
    assert (await worker.claim())["batch_id"] is None


async def test_a_task_that_takes_the_result_of_a_failed_one_is_never_handed_out(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    first, second, third = await chain(
        http,
        {"task_type": "fetch", "max_retries": 0},
        {"task_type": "parse", "parameters": {"page": {"$out": {"index": 0}}}, "on_failure": "run"},
        {"task_type": "tidy", "after": [{"index": 0}], "on_failure": "run"},
    )
    await complete(worker, None, "failed", error={"message": "gone", "retriable": False})
    polled = await worker.poll()
    assert [one["task_id"] for one in polled["tasks"]] == [third]
    found = await task(http, second)
    assert (found["status"], found["error"]["type"], found["error"]["retriable"]) == ("failed", "UpstreamFailed", False)
    assert found["error"]["message"] == f"an argument is the result of job {first}, which ended as failed"


async def test_a_reply_holds_a_bounded_number_of_bytes_of_results(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handout, "ANSWER_BYTES", 1_500)
    worker = await register(http)
    takes = {"task_type": "parse", "parameters": {"page": {"$out": {"index": 0}}}}
    _, *dependants = await chain(http, {"task_type": "fetch"}, takes, takes, takes)
    await complete(worker, "x" * 1_000)
    polled = await worker.poll(5)
    assert ([one["task_id"] for one in polled["tasks"]], polled["more"]) == (dependants[:1], True)
    left = [await task(http, one) for one in dependants[1:]]
    assert [(one["status"], one["attempt_count"]) for one in left] == [("queued", 0), ("queued", 0)]
    await worker.say("result", task_id=dependants[0], status="completed")
    assert len((await worker.poll(5))["tasks"]) == 1


async def test_a_repeated_claim_brings_the_same_filled_in_task(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    takes = {"task_type": "parse", "parameters": {"page": {"$out": {"index": 0}}}}
    await chain(http, {"task_type": "fetch"}, takes)
    await complete(worker, 7)
    first = await worker.poll(1, claim_id="claim-0001")
    again = await worker.poll(1, claim_id="claim-0001")
    assert [one["parameters"] for one in first["tasks"]] == [{"page": 7}]
    assert again["tasks"] == first["tasks"]


# ---------------------------------------------------------------------- steps


async def test_steps_are_kept_for_the_next_attempt(http: httpx.AsyncClient) -> None:
    worker = await register(http)
    task_id = await submit(http, max_retries=2)
    given = await worker.claim()
    about = {"task_id": task_id, "fence": given["fence"]}
    assert (await worker.say("steps", **about)).json() == {"steps": {}}
    values = {"fetch": {"ä": [1, None]}, "none": None, "zero": 0}
    for key, value in values.items():
        assert (await worker.say("step", **about, key=key, value=value)).json() == {"acknowledged": True}
    assert (await worker.say("step", **about, key="fetch", value="later")).json() == {"acknowledged": True}
    await worker.say("result", **about, status="released")
    again = await worker.claim()
    assert again["fence"] != given["fence"]
    found = (await worker.say("steps", task_id=task_id)).json()["steps"]
    assert (found, list(found)) == (values, list(values))


async def test_a_stale_attempt_neither_reads_nor_keeps_steps(http: httpx.AsyncClient) -> None:
    worker, other = await register(http), await register(http)
    task_id = await submit(http)
    given = await worker.claim()
    about = {"task_id": task_id, "fence": given["fence"]}
    await worker.say("result", **about, status="released")
    await other.claim()
    for speaker in (worker, other):
        assert (await speaker.say("step", **about, key="a", value=1)).json() == {"acknowledged": False}
        assert problem(await speaker.say("steps", **about)) == (409, "lease_lost")
    assert (await other.say("steps", task_id=task_id)).json() == {"steps": {}}


async def test_a_step_over_the_bounds_is_refused(http: httpx.AsyncClient, app: Headway) -> None:
    worker = await register(http)
    task_id = await submit(http)
    await worker.claim()
    large = await worker.say("step", task_id=task_id, key="a", value="x" * STEP_BYTES_MAX)
    assert problem(large) == (422, "step")
    assert "step 'a'" in large.json()["detail"]
    assert problem(await worker.say("step", task_id=task_id, key="", value=1)) == (422, "invalid")
    assert (await worker.say("steps", task_id=task_id)).json() == {"steps": {}}


async def test_only_the_token_of_a_worker_reaches_its_steps(
    http: httpx.AsyncClient, app: Headway, api: FastAPI
) -> None:
    store = await app.client.store()
    clients = [
        client_for(api, headers={"Authorization": f"Bearer {(await create_token(store, ['worker'], now_at=1))[1]}"})
        for _ in range(2)
    ]
    worker = await register(clients[0])
    stranger = Worker(clients[1], worker.worker_id, [])
    await app.tasks["add"].aenqueue(1)
    given = await worker.claim()
    for verb, more in (("steps", {}), ("step", {"key": "a", "value": 1})):
        answer = await stranger.say(verb, task_id=given["task_id"], fence=given["fence"], **more)
        assert problem(answer) == (409, "worker_unknown")
