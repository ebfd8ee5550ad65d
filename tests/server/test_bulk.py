"""Bulk actions: counted first, then done page by page, by this server or by another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httpx
import pytest

from headway import Headway, Worker
from headway.core.job import State
from headway.core.search import parse_search
from headway.maintenance import bulk
from headway.maintenance.bulk import BulkRunner, read_operation, start_operation
from headway.security.audit import read_audit
from headway.stores.base import JobQuery, Stats, Store

BULK = "/api/v1/bulk"
TASKS = "/api/v1/tasks"


@pytest.fixture
async def store(app: Headway) -> Store:
    return await app.client.store()


async def submit(http: httpx.AsyncClient, count: int, **body: Any) -> list[str]:
    tasks = [{"task_type": "add", "parameters": {"a": number}} | body for number in range(count)]
    answer = await http.post(f"{TASKS}/bulk", json=tasks)
    assert answer.status_code == 201, answer.text
    return [one["task_id"] for one in answer.json()["tasks"]]


async def ended(http: httpx.AsyncClient, answer: httpx.Response) -> dict[str, Any]:
    """Read a bulk action until it has ended, and return it."""
    assert answer.status_code == 202, answer.text
    async with asyncio.timeout(30):
        while True:
            found: dict[str, Any] = (await http.get(f"{BULK}/{answer.json()['operation_id']}")).json()
            if found["status"] != "running":
                return found
            await asyncio.sleep(0.02)


async def until(store: Store, holds: Callable[[Stats], bool]) -> None:
    async with asyncio.timeout(30):
        while True:
            if holds(await store.stats()):
                return
            await asyncio.sleep(0.02)


async def states(http: httpx.AsyncClient, ids: list[str]) -> list[str]:
    return [(await http.get(f"{TASKS}/{task_id}")).json()["status"] for task_id in ids]


async def test_a_dry_run_counts_and_changes_nothing(http: httpx.AsyncClient) -> None:
    ids = await submit(http, 25, tenant="acme")
    await submit(http, 3, tenant="bolt")
    body = {"action": "cancel", "filter": "tenant:acme", "dry_run": True}
    answer = await http.post(BULK, json=body)
    assert answer.status_code == 200
    told = answer.json()
    assert (told["count"], told["exact"], told["filter"]) == (25, True, "state:queued,executing tenant:acme")
    assert [one["task_id"] for one in told["examples"]] == ids[::-1][:20]
    assert set(await states(http, ids)) == {"queued"}


async def test_all_that_fit_are_cancelled_and_the_audit_says_so(http: httpx.AsyncClient, store: Store) -> None:
    ids, others = await submit(http, 30, priority="low"), await submit(http, 2)
    done = await ended(http, await http.post(BULK, json={"action": "cancel", "filter": {"lane": "low"}}))
    assert (done["status"], done["count"], done["visited"], done["changed"]) == ("done", 30, 30, 30)
    assert set(await states(http, ids)) == {"cancelled"}
    assert await states(http, others) == ["queued", "queued"]
    last, first = (await read_audit(store, limit=2))[:2]
    assert (first.what, first.target, first.who) == ("bulk.cancel", "state:queued,executing lane:low", "open")
    assert (last.what, last.after["changed"], last.after["status"]) == ("bulk.cancel.end", 30, "done")
    listed = (await http.get(BULK)).json()["items"]
    assert [one["operation_id"] for one in listed] == [done["operation_id"]]


async def test_more_than_a_hundred_need_the_number_and_growth_is_refused(http: httpx.AsyncClient) -> None:
    await submit(http, 101)
    body: dict[str, Any] = {"action": "cancel", "filter": "state:queued"}
    refused = await http.post(BULK, json=body)
    assert (refused.status_code, refused.json()["code"], refused.json()["count"]) == (422, "expect_needed", 101)
    refused = await http.post(BULK, json=body | {"expect": 91})
    assert (refused.status_code, refused.json()["code"], refused.json()["count"]) == (409, "count_grew", 101)
    assert (await http.get(f"{TASKS}?q=state:cancelled")).json()["items"] == []
    done = await ended(http, await http.post(BULK, json=body | {"expect": 92}))  # A tenth more is let pass.
    assert done["changed"] == 101


async def test_failed_tasks_are_retried_by_their_error(http: httpx.AsyncClient, app: Headway) -> None:
    for message in ("no mail", "no mail", "no disk"):
        await http.post(TASKS, json={"task_type": "fail", "parameters": {"message": message}})
    await http.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}})
    store = await app.client.store()
    async with Worker(app, slots=2):
        await until(store, lambda stats: stats.totals.get("dead_letter", 0) == 3)
    done = await ended(http, await http.post(BULK, json={"action": "retry", "filter": 'error:"NO MAIL" task:f*'}))
    assert (done["count"], done["changed"]) == (2, 2)
    left = await store.find(JobQuery(states=(State.DEAD_LETTER,)))
    assert [job.error and job.error.message for job in left] == ["no disk"]
    groups = (await http.get("/api/v1/dlq/groups")).json()
    assert [(one["task_type"], one["error_type"], one["count"], one["last_hour"]) for one in groups["groups"]] == [
        ("fail", "RuntimeError", 1, 1)
    ]
    purged = await http.post(BULK, json={"action": "purge", "filter": groups["groups"][0]["filter"]})
    assert (await ended(http, purged))["changed"] == 1
    assert await store.find(JobQuery(states=(State.DEAD_LETTER,))) == []


async def test_delayed_tasks_run_now_and_tasks_change_lanes(http: httpx.AsyncClient, store: Store) -> None:
    [late] = await submit(http, 1, run_after="2099-01-01T00:00:00Z", priority="low")
    [soon] = await submit(http, 1, priority="low")
    done = await ended(http, await http.post(BULK, json={"action": "run_now", "filter": "why:scheduled"}))
    assert (done["count"], done["changed"]) == (1, 1)
    assert (await http.get(f"{TASKS}/{late}")).json()["run_after"] is None
    body = {"action": "change_lane", "lane": "high", "filter": {"id": [late, soon]}}
    done = await ended(http, await http.post(BULK, json=body))
    assert (done["changed"], done["lane"]) == (2, "high")
    assert {(await http.get(f"{TASKS}/{one}")).json()["priority"] for one in (late, soon)} == {"high"}
    again = await http.post(BULK, json=body | {"dry_run": True})
    assert again.json()["count"] == 0  # They are there already.


@pytest.mark.parametrize(
    "body, code",
    [
        ({"action": "cancel", "filter": ""}, "config"),
        ({"action": "cancel", "filter": {}}, "config"),
        ({"action": "cancel", "filter": "state:completed"}, "config"),
        ({"action": "cancel", "filter": "stat:queued"}, "config"),
        ({"action": "destroy", "filter": "state:queued"}, "invalid"),
        ({"action": "change_lane", "filter": "state:queued"}, "config"),
        ({"action": "change_lane", "filter": "state:queued", "lane": "nowhere"}, "config"),
        ({"action": "cancel", "filter": "state:queued", "lane": "high"}, "config"),
        ({"action": "cancel", "filter": {"lane": "low", "colour": "red"}}, "invalid"),
        ({"action": "cancel", "filter": "state:queued", "expect": -1}, "invalid"),
    ],
)
@pytest.mark.parametrize("store_name", ["memory"])
async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient, body: dict[str, Any], code: str) -> None:
    answer = await http.post(BULK, json=body)
    assert (answer.status_code, answer.json()["code"]) == (422, code), answer.text


async def test_another_server_goes_on_with_an_operation(
    app: Headway, store: Store, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PAGE", 10)
    ids = await submit(http, 35)
    now_at = (await store.snapshot()).now_at
    search = parse_search("state:queued", now_at)
    operation_id = await start_operation(
        store, action="cancel", search=search, who="t1", group="operators", tenant=None, lane=None, expect=35, count=35
    )

    class DyingStore:
        """The store of a server that stops after two pages, before it can record the second one."""

        writes = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        async def write(self, *args: Any, **options: Any) -> Any:
            self.writes += 1
            if self.writes > 2:
                raise asyncio.CancelledError
            return await store.write(*args, **options)

    with pytest.raises(asyncio.CancelledError):
        await BulkRunner(cast("Store", DyingStore()), lambda: app.policy).run(operation_id)
    left = await read_operation(store, operation_id)
    assert left is not None
    assert (left.status, left.visited) == ("running", 10)  # The second page was done, and is not written yet.
    assert sum(state == "cancelled" for state in await states(http, ids)) == 20

    other = BulkRunner(store, lambda: app.policy)
    assert await other.run(operation_id) is None  # The first server may still be at it,
    monkeypatch.setattr(bulk, "OWNED_MS", 0)
    await other()  # and now it is known to be gone.
    done = await read_operation(store, operation_id)
    assert done is not None
    assert (done.status, done.visited, done.changed) == ("done", 10 + 15, 10 + 15)
    assert set(await states(http, ids)) == {"cancelled"}


async def test_an_operation_stops_if_more_tasks_come_than_expected(
    app: Headway, store: Store, http: httpx.AsyncClient
) -> None:
    await submit(http, 12)
    now_at = (await store.snapshot()).now_at
    operation_id = await start_operation(
        store,
        action="cancel",
        search=parse_search("state:queued", now_at),
        who="t1",
        group="operators",
        tenant=None,
        lane=None,
        expect=5,
        count=5,
    )
    stopped = await BulkRunner(store, lambda: app.policy).run(operation_id)
    assert stopped is not None
    assert (stopped.status, stopped.changed) == ("stopped", 0)
    assert len(await store.find(JobQuery(states=(State.QUEUED,)))) == 12


async def test_an_unknown_operation_is_not_found(http: httpx.AsyncClient) -> None:
    answer = await http.get(f"{BULK}/0123456789abcdef")
    assert (answer.status_code, answer.json()["code"]) == (404, "operation_not_found")
