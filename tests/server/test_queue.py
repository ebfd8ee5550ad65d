"""The queue as a whole over HTTP: counts, dead letters, policy, health."""

from __future__ import annotations

import asyncio
import contextlib

import httpx
import pytest

from headway import Headway
from headway.core.errors import JobError
from headway.core.job import JobId
from headway.core.policy.retry import Raised
from headway.security.audit import read_audit
from headway.worker.embedded import Worker
from tests.conformance.builders import claim, end, register, the_job
from tests.server.test_tasks import ended, submit

API = "/api/v1"


async def test_stats_have_exactly_the_known_shape(http: httpx.AsyncClient) -> None:
    # R5.44, R5.107
    await submit(http, priority="high")
    await submit(http, priority="low")
    await submit(http, priority="low")
    stats = (await http.get(f"{API}/queue/stats")).json()
    assert stats.keys() == {"queues", "workers", "throughput"}
    assert stats["queues"].keys() == {"high", "medium", "low"}
    assert {name: queue["depth"] for name, queue in stats["queues"].items()} == {"high": 1, "medium": 0, "low": 2}
    assert all(queue.keys() == {"depth", "oldest_age_seconds"} for queue in stats["queues"].values())
    assert stats["workers"].keys() == {"active", "draining", "dead", "total_capacity", "used_capacity"}
    assert stats["throughput"].keys() == {"completed_last_minute", "failed_last_minute"}


async def test_stats_count_workers_and_what_has_ended(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.44
    done, failed = await submit(http), await submit(http, task_type="fail", parameters={})
    async with Worker(app, slots=4):
        await ended(http, done)
        await ended(http, failed)
        stats = (await http.get(f"{API}/queue/stats")).json()
    assert stats["workers"] == {"active": 1, "draining": 0, "dead": 0, "total_capacity": 4, "used_capacity": 0}
    assert stats["throughput"] == {"completed_last_minute": 1, "failed_last_minute": 1}


async def test_a_dead_letter_is_replayed_with_its_retries_reset(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.26, R5.78
    task_id = await submit(http, task_type="fail", parameters={})
    async with Worker(app):
        await ended(http, task_id)
    assert [task["task_id"] for task in (await http.get(f"{API}/dlq")).json()["items"]] == [task_id]
    for _ in range(2):
        answer = await http.post(f"{API}/dlq/{task_id}/replay")
        assert (answer.status_code, answer.json()) == (200, {"task_id": task_id, "status": "queued"})
    task = (await http.get(f"{API}/tasks/{task_id}")).json()
    assert (task["status"], task["retry_count"]) == ("queued", 0)
    assert (await http.get(f"{API}/dlq")).json()["items"] == []
    assert [entry.what for entry in await read_audit(await app.client.store())] == ["dlq.replay"]


async def test_dead_letters_are_listed_by_the_moment_they_came_there(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.24
    ids = [await submit(http, task_type="fail", parameters={}) for _ in range(5)]
    store = await app.client.store()
    await register(store, slots=10, reserved=0)
    leases = {lease.job_id: lease for lease in await claim(store, free=10, offers=("task:fail",))}
    order = [ids[number] for number in (3, 0, 4, 2, 1)]
    for task_id in order:
        lease = leases[JobId(task_id)]._replace(max_retries=0)
        await end(store, lease, Raised(JobError("ValueError", "no")))
        moment = (await the_job(store, lease.job_id)).finished_at or 0
        while (await store.snapshot()).now_at <= moment:  # The next one ends at a later moment.
            pass
    listed = (await http.get(f"{API}/dlq")).json()["items"]
    assert [task["task_id"] for task in listed] == order[::-1]
    pages: list[str] = []
    cursor = None
    while True:
        params = {"limit": "2"} if cursor is None else {"limit": "2", "cursor": cursor}
        page = (await http.get(f"{API}/dlq", params=params)).json()
        pages += [task["task_id"] for task in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert pages == order[::-1]
    for wrong in ("x", "MQ", "MS4x4"):
        assert (await http.get(f"{API}/dlq", params={"cursor": wrong})).status_code == 422


async def test_dead_letters_are_replayed_by_what_they_are(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.26
    ids = [await submit(http, task_type="fail", parameters={}, priority=lane) for lane in ("high", "low", "low")]
    alive = await submit(http, task_type="nobody.knows", parameters={})
    async with Worker(app):
        for task_id in ids:
            await ended(http, task_id)
    assert (await http.post(f"{API}/dlq/replay", json={})).status_code == 422
    answer = (await http.post(f"{API}/dlq/replay", json={"priority": "low"})).json()
    assert (set(answer["replayed"]), answer["refused"], answer["more"]) == (set(ids[1:]), [], False)
    answer = (await http.post(f"{API}/dlq/replay", json={"task_ids": [ids[0], alive, "none"]})).json()
    assert answer["replayed"] == [ids[0]]
    assert (await http.post(f"{API}/dlq/replay", json={"all": True})).json()["replayed"] == []
    assert (await http.post(f"{API}/dlq/{alive}/replay")).json()["status"] == "queued"


async def test_the_policy_is_shown_tried_and_applied(app: Headway, http: httpx.AsyncClient) -> None:
    shown = (await http.get(f"{API}/policy")).json()
    assert (shown["version"], shown["policy"]["lanes"]["high"]["weight"]) == (0, 6)
    wanted = shown["policy"] | {"crash_limit": 5}
    tried = await http.put(f"{API}/policy", params={"dry_run": 1}, json=wanted)
    assert tried.json()["valid"] is True
    assert (await http.get(f"{API}/policy")).json()["version"] == 0
    applied = (await http.put(f"{API}/policy", params={"note": "calmer"}, json=wanted)).json()
    assert (applied["version"], applied["note"], applied["policy"]["crash_limit"]) == (1, "calmer", 5)
    assert app.policy.crash_limit == 5
    assert [entry.what for entry in await read_audit(await app.client.store())] == ["policy.put"]


@pytest.mark.parametrize("store_name", ["memory"])
async def test_an_applied_policy_is_answered_with_the_warnings_of_a_dry_run(http: httpx.AsyncClient) -> None:
    wanted = {"lanes": {"high": {"level": 0}, "medium": {"level": 1}}}
    tried = (await http.put(f"{API}/policy", params={"dry_run": 1}, json=wanted)).json()
    assert any("can wait for ever" in warning for warning in tried["warnings"])
    applied = (await http.put(f"{API}/policy", json=wanted)).json()
    assert (applied["version"], applied["warnings"]) == (1, tried["warnings"])


@pytest.mark.parametrize("store_name", ["memory"])
async def test_what_is_wrong_in_a_policy_is_told_all_at_once(http: httpx.AsyncClient) -> None:
    answer = await http.put(f"{API}/policy", json={"crash_limit": -1, "promotion": "sideways"})
    assert (answer.status_code, answer.json()["code"]) == (422, "policy")
    assert {problem["key"] for problem in answer.json()["problems"]} == {"crash_limit", "promotion"}


@pytest.mark.parametrize("store_name", ["memory"])
async def test_health_and_readiness(http: httpx.AsyncClient) -> None:
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    assert (await http.get("/readyz")).json() == {"status": "ok"}


@pytest.mark.parametrize("store_name", ["memory"])
async def test_readiness_is_refused_in_time_while_the_store_hangs(
    app: Headway, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = asyncio.Event()

    async def hang() -> None:
        while not over.is_set():
            with contextlib.suppress(asyncio.CancelledError):  # As a driver may that cleans up first.
                await over.wait()

    try:
        with monkeypatch.context() as patched:
            patched.setattr(await app.client.store(), "snapshot", hang)
            async with asyncio.timeout(20):
                answer = await http.get("/readyz")
    finally:
        over.set()
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("store_name", ["memory"])
async def test_what_is_not_there_is_a_problem_too(http: httpx.AsyncClient) -> None:
    for method, path, status in (("GET", "/nowhere", 404), ("PUT", "/healthz", 405), ("GET", f"{API}/tasks/a b", 422)):
        answer = await http.request(method, path, headers={"content-type": "application/json"})
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["status"] == status
