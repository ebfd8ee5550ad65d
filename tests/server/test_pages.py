"""Replies are bounded in bytes: lists, dead letters, polls of workers, and reads of commands."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.cli.remote import HttpOperator
from headway.core.errors import JobError
from headway.core.job import PAYLOAD_VERSION, JobId
from headway.core.policy.retry import Raised, Returned
from headway.server.api import headway_api
from headway.server.pages import LISTED_MAX, PAGE_BYTES
from headway.stores.base import JobQuery
from headway.stores.paging import JOBS_AT_ONCE
from tests.conformance.builders import BOOM, a_job, claim, claim_one, end, register
from tests.server.conftest import client_for, make_app
from tests.server.live import served
from tests.server.test_workers import register as register_over_http

TASKS, DLQ = "/api/v1/tasks", "/api/v1/dlq"
MEGABYTE = b'{"x":"%s"}' % (b"y" * 1_020_000)
NESTED = b'{"x":[%s]}' % b",".join([b"[]"] * 340_000)  # A megabyte, which takes 27 MB as Python objects.
HEAD = 16 << 10  # Bytes of a task beside its parameters and result, and of an answer's head; far more than there are.


async def keep(app: Headway, count: int, body: bytes = MEGABYTE, **more: Any) -> list[str]:
    """Submit jobs with this payload, one by one. Return their ids, the newest first."""
    store = await app.client.store()
    jobs = [a_job(task="large", payload=PAYLOAD_VERSION + body, **more) for _ in range(count)]
    for job in jobs:
        await store.submit([job])
    return [job.job_id for job in reversed(jobs)]


async def walk(http: httpx.AsyncClient, path: str, **query: Any) -> tuple[list[dict[str, Any]], list[int]]:
    """Follow the cursors to the end. Return all items, and the size of each reply."""
    items: list[dict[str, Any]] = []
    sizes: list[int] = []
    cursor: dict[str, str] = {}
    while True:
        answer = await http.get(path, params=query | cursor)
        assert answer.status_code == 200, answer.text
        sizes.append(len(answer.content))
        page = answer.json()
        items += page["items"]
        if page["next_cursor"] is None:
            return items, sizes
        cursor = {"cursor": page["next_cursor"]}


async def test_a_page_ends_at_four_megabytes_and_the_next_one_goes_on(app: Headway, http: httpx.AsyncClient) -> None:
    # S-19
    ids = await keep(app, 9)
    items, sizes = await walk(http, TASKS, limit=500, include="parameters,result")
    assert [task["task_id"] for task in items] == ids
    assert max(sizes) <= PAGE_BYTES + HEAD
    assert len(sizes) == 3  # Four tasks of a megabyte each fit on one.
    assert all(task["payload"]["parameters"] == {"x": "y" * 1_020_000} for task in items)
    assert all(task["omitted"] == [] for task in items)


async def test_a_list_leaves_large_values_out_unless_it_is_asked_for_them(
    app: Headway, http: httpx.AsyncClient
) -> None:
    # S-19
    small = b'{"x":"%s"}' % (b"y" * (LISTED_MAX - 9))
    store = await app.client.store()
    await register(store)
    (shown,) = await keep(app, 1, small)
    (hidden,) = await keep(app, 1, small[:-2] + b'y"}')
    leases = {lease.job_id: lease for lease in await claim(store)}
    await end(store, leases[JobId(shown)], Returned(PAYLOAD_VERSION + b'"%s"' % (b"r" * LISTED_MAX)))
    await end(store, leases[JobId(hidden)], Returned(PAYLOAD_VERSION + b"[1]"))
    first, second = (await walk(http, TASKS))[0]
    assert (first["task_id"], first["omitted"], first["payload"]["parameters"]) == (hidden, ["parameters"], None)
    assert (first["result"], first["payload"]["task_type"]) == ([1], "large")
    assert (second["task_id"], second["omitted"], second["result"]) == (shown, ["result"], None)
    assert second["payload"]["parameters"] == {"x": "y" * (LISTED_MAX - 9)}
    asked = (await walk(http, TASKS, include="parameters"))[0]
    assert [task["omitted"] for task in asked] == [[], ["result"]]
    assert len(asked[0]["payload"]["parameters"]["x"]) == LISTED_MAX - 8
    asked = (await walk(http, TASKS, include="result"))[0]
    assert asked[1]["result"] == "r" * LISTED_MAX
    alone = (await http.get(f"{TASKS}/{shown}")).json()
    assert (alone["result"], "omitted" in alone) == ("r" * LISTED_MAX, False)
    assert (await http.get(TASKS, params={"include": "password"})).status_code == 422


async def test_dead_letters_are_listed_within_the_same_bounds(app: Headway, http: httpx.AsyncClient) -> None:
    # S-19
    store = await app.client.store()
    ids = await keep(app, 9, max_retries=0)
    await register(store)
    while leases := await claim(store):
        for lease in leases:
            await end(store, lease, Raised(BOOM))
    items, sizes = await walk(http, DLQ, limit=500, include="parameters")
    assert [task["task_id"] for task in items] == ids
    assert (max(sizes) <= PAGE_BYTES + HEAD, len(sizes)) == (True, 3)
    items, sizes = await walk(http, DLQ, limit=500)
    assert ([task["task_id"] for task in items], len(sizes)) == (ids, 1)
    assert {tuple(task["omitted"]) for task in items} == {("parameters",)}


@pytest.mark.parametrize("store_name", ["sqlite"])
async def test_one_list_of_many_megabytes_takes_little_memory(api: FastAPI, app: Headway) -> None:
    # S-19
    ids = await keep(app, 25, NESTED)
    async with served(api) as address, httpx.AsyncClient(base_url=address, timeout=60) as http:
        assert (await http.get("/healthz")).status_code == 200
        tracemalloc.start()
        try:
            listed, *healthy = await asyncio.gather(
                http.get(TASKS, params={"limit": 500, "include": "parameters"}),
                *(http.get("/healthz") for _ in range(10)),
            )
            plain = await http.get(TASKS, params={"limit": 500})
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        # As objects the jobs would take 675 MB, as one answer 25 MB more than once. One read brings 16 MB of jobs.
        assert peak < 60 << 20
        assert [answer.status_code for answer in healthy] == [200] * 10
        assert [task["task_id"] for task in listed.json()["items"]] == ids[:4]
        assert [task["task_id"] for task in plain.json()["items"]] == ids
        items, _ = await walk(http, TASKS, limit=500, include="parameters")
        assert [task["task_id"] for task in items] == ids


async def test_a_poll_brings_as_much_as_fits_and_the_rest_stays_queued(app: Headway, http: httpx.AsyncClient) -> None:
    # S-19
    ids = await keep(app, 9, lane="high")
    worker = await register_over_http(http, capacity=10_000)
    taken: list[str] = []
    counts: list[int] = []
    while True:
        answer = await worker.say("poll", available_capacity=10_000 - len(taken))
        assert len(answer.content) <= PAGE_BYTES + HEAD
        tasks = answer.json()["tasks"]
        if not tasks:
            break
        taken += [task["task_id"] for task in tasks]
        counts.append(len(tasks))
        waiting = len((await http.get(TASKS, params={"status": "queued", "limit": 500})).json()["items"])
        assert waiting == 9 - len(taken)
        assert answer.json()["more"] is (waiting > 0)
    assert (sorted(taken), counts) == (sorted(ids), [4, 4, 1])
    shown = [(await http.get(f"{TASKS}/{task_id}")).json() for task_id in ids]
    assert {task["retry_count"] for task in shown} == {0}


@pytest.mark.parametrize("repeatable", [False, True])
async def test_a_poll_for_many_small_tasks_fills_the_capacity(
    app: Headway, http: httpx.AsyncClient, repeatable: bool
) -> None:
    # R5.49, R5.50
    store = await app.client.store()
    await store.submit([a_job(task="small", payload=PAYLOAD_VERSION + b"{}", lane="high") for _ in range(150)])
    worker = await register_over_http(http, capacity=140)
    taken: list[str] = []
    polls = 0
    while len(taken) < 140:
        claim = {"claim_id": f"claim-{polls:08d}"} if repeatable else {}
        polled = await worker.poll(140 - len(taken), **claim)
        if repeatable:  # The same claim again brings the same tasks.
            again = await worker.poll(140 - len(taken), **claim)
            assert [one["task_id"] for one in again["tasks"]] == [one["task_id"] for one in polled["tasks"]]
        assert polled["tasks"], "there are tasks, and slots for them"
        taken += [task["task_id"] for task in polled["tasks"]]
        polls += 1
    assert (len(set(taken)), len(taken)) == (140, 140)
    assert polls == (1 if not repeatable else 4)
    assert (await worker.poll(140))["tasks"] == []


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_task_shows_its_newest_attempts(app: Headway, http: httpx.AsyncClient) -> None:
    # S-19
    store = await app.client.store()
    (task_id,) = await keep(app, 1, b"{}", max_retries=1_000)
    await register(store)
    for number in range(120):
        error = JobError("ValueError", f"no {number}", "t" * 32_000)
        await end(store, await claim_one(store), Raised(error, 0))
    task = (await http.get(f"{TASKS}/{task_id}")).json()
    messages = [attempt["error"]["message"] for attempt in task["attempts"]]
    assert messages == [f"no {number}" for number in range(20, 120)]
    assert [attempt["error"]["traceback"] is None for attempt in task["attempts"]] == [True] * 90 + [False] * 10


@pytest.mark.parametrize("store_name", ["memory"])
async def test_workers_and_the_catalogue_are_listed_page_by_page(api: FastAPI) -> None:
    # S-19
    async with client_for(api) as http:
        long = [f"task.{number:04d}.{'x' * 230}" for number in range(1_000)]
        tasks = [{"name": name, "lane": "low", "executor": "async"} for name in long]
        ids = [(await register_over_http(http, tasks=tasks)).worker_id for _ in range(18)]
        found: list[str] = []
        cursor: dict[str, str] = {}
        pages = 0
        while True:
            answer = await http.get("/api/v1/workers", params=cursor)
            assert len(answer.content) <= PAGE_BYTES + HEAD
            found += [worker["worker_id"] for worker in answer.json()["workers"]]
            pages += 1
            if answer.json()["next_cursor"] is None:
                break
            cursor = {"cursor": answer.json()["next_cursor"]}
        assert (found, pages) == (sorted(ids), 2)
        names: list[str] = []
        cursor = {}
        while True:
            page = (await http.get("/api/v1/catalogue", params={"limit": "700"} | cursor)).json()
            names += [task["task_type"] for task in page["tasks"]]
            if page["next_cursor"] is None:
                break
            cursor = {"cursor": page["next_cursor"]}
        assert names == sorted(long)


async def test_commands_read_large_jobs_in_several_answers(app: Headway, http: httpx.AsyncClient) -> None:
    # S-19
    ids = await keep(app, 9)
    for query in ({"limit": 100}, {"task_id": ids}):
        looked = await http.get(TASKS, params={"include": "parameters,result", **query})
        assert len(looked.content) <= PAGE_BYTES + HEAD
        assert [task["task_id"] for task in looked.json()["items"]] == ids[:4]
        cursor = looked.json()["next_cursor"]
        assert cursor == looked.json()["items"][-1]["cursor"]
        looked = await http.get(TASKS, params={"include": "parameters", "cursor": cursor, **query})
        assert [task["task_id"] for task in looked.json()["items"]] == ids[4:8]


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_command_sees_every_large_job_over_http(api: FastAPI, app: Headway) -> None:
    # S-19
    ids = await keep(app, 9)
    async with served(api) as address:
        store = HttpOperator(address, None)
        try:
            assert [job.job_id for job in await store.find(JobQuery(limit=50))] == ids
            assert [job.job_id for job in await store.find(JobQuery(limit=6))] == ids[:6]
            unknown = JobId("none")
            got = await store.get([JobId(ids[0]), unknown, *map(JobId, ids[1:])])
            assert [None if job is None else job.job_id for job in got] == [ids[0], None, *ids[1:]]
            assert all(job is None or job.payload == PAYLOAD_VERSION + MEGABYTE for job in got)
        finally:
            await store.close()


# ---------------------------------------------------------------------- what comes in


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_task_takes_256_kilobytes_over_http_and_not_a_byte_more(http: httpx.AsyncClient) -> None:
    # S-18, R5.105
    around = len(b'{"x":""}')
    fits = {"task_type": "nobody.knows", "parameters": {"x": "y" * ((256 << 10) - around)}}
    larger = {"task_type": "nobody.knows", "parameters": {"x": "y" * ((256 << 10) - around + 1)}}
    assert (await http.post(TASKS, json=fits)).status_code == 201
    answer = await http.post(TASKS, json=larger)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    assert "http_payload_max" in answer.json()["detail"]
    answer = await http.post(f"{TASKS}/bulk", json=[fits, larger])
    assert (answer.status_code, answer.json()["code"], answer.json()["index"]) == (413, "payload_too_large", 1)
    answer = await http.post("/task", json=larger)
    assert (answer.status_code, answer.json()["code"]) == (413, "payload_too_large")
    answer = await http.post(TASKS, json=fits | {"parameters": {"x": "y" * (400 << 10)}})
    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
    assert len((await http.get(TASKS)).json()["items"]) == 1


async def test_a_setting_allows_more_over_http() -> None:
    # S-18
    app = make_app("memory://", http_payload_max=500_000)
    async with app, client_for(headway_api(app, hosts=["testserver"])) as http:
        body = {"task_type": "nobody.knows", "parameters": {"x": "y" * 499_000}}
        assert (await http.post(TASKS, json=body)).status_code == 201


@pytest.mark.parametrize("store_name", ["memory"])
async def test_no_request_reads_many_jobs_at_once(
    app: Headway, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # S-19: each of them may hold megabytes.
    store = await app.client.store()
    news = [{"task_type": "nobody.knows", "idempotency_key": f"k{number}"} for number in range(40)]
    first = (await http.post(f"{TASKS}/bulk", json=news)).json()["tasks"]
    ids = [one["task_id"] for one in first]
    read: list[int] = []
    get, find = store.get, store.find

    async def counted_get(job_ids: Any) -> Any:
        read.append(len(job_ids))
        return await get(job_ids)

    async def counted_find(query: JobQuery) -> Any:
        read.append(query.limit)
        return await find(query)

    monkeypatch.setattr(store, "get", counted_get)
    monkeypatch.setattr(store, "find", counted_find)
    again = (await http.post(f"{TASKS}/bulk", json=news)).json()["tasks"]
    assert [one["task_id"] for one in again] == ids
    worker = await register_over_http(http, capacity=50)
    results = [{"task_id": task_id, "status": "completed"} for task_id in ids]
    assert (await worker.say("result", results=results)).status_code == 200
    for path in (f"{TASKS}?limit=500", f"{DLQ}?limit=500", "/api/v1/workers"):
        assert (await http.get(path)).status_code == 200
    assert (await http.put("/api/v1/policy?dry_run=1", json={})).status_code == 200
    assert (await http.post(f"{DLQ}/replay", json={"task_ids": ids})).status_code == 200
    assert (await http.post(f"{DLQ}/replay", json={"all": True})).status_code == 200
    assert (await http.get(TASKS, params={"task_id": ids})).status_code == 200
    for path in (f"{TASKS}/cancel", f"{TASKS}/retry", f"{DLQ}/purge"):
        assert (await http.post(path, json={"task_ids": ids})).status_code == 200
    assert (await http.get("/api/v1/crons")).status_code == 200
    assert read
    assert max(read) <= JOBS_AT_ONCE
