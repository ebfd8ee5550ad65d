"""Tasks that only the history still has: the same routes and client return them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import httpx
import pytest

from headway import Headway
from headway.core.errors import IllegalMove, JobFailed
from headway.core.job import JobId, State
from headway.maintenance.archiver import Archiver
from headway.security.tokens import create_token
from headway.server.api import headway_api
from headway.stores.open import open_archive
from headway.worker.embedded import Worker
from tests.conftest import ADDRESSES, postgres
from tests.server.conftest import client_for, make_app
from tests.server.test_tasks import TASKS, ended, submit

API = "/api/v1"
ENDINGS = [state for state in State if state.ended]

pytestmark = pytest.mark.parametrize("store_name", ["redis"])


@pytest.fixture
async def app(store_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Headway]:
    """Yield an app with a history. The store keeps ended jobs until they are archived."""
    monkeypatch.chdir(tmp_path)
    made = make_app(ADDRESSES[store_name](tmp_path), history=postgres().url)
    async with made:
        await archive(made)
        yield made
    connection = await asyncpg.connect(postgres().url)
    await connection.execute("DROP TABLE IF EXISTS headway_history")
    await connection.close()


async def archive(app: Headway) -> None:
    """Archive ended jobs, as workers do every two seconds."""
    store = await app.client.store()
    source = store.abilities.archive_source
    assert source is not None
    found = open_archive(postgres().url, store.namespace)
    await Archiver(source, found)()
    await found.close()


async def forget(app: Headway, *task_ids: str) -> None:
    """Archive tasks, then remove them from the store, as the policy would."""
    await archive(app)
    store = await app.client.store()
    assert await store.purge(ENDINGS, [JobId(task_id) for task_id in task_ids]) == len(task_ids)


async def run_all(app: Headway, http: httpx.AsyncClient, *task_ids: str) -> None:
    """Run tasks to their end, with a worker that does not archive."""
    async with make_app(app.settings.store) as other, Worker(other, slots=2):
        for task_id in task_ids:
            await ended(http, task_id)


async def listed(http: httpx.AsyncClient, **filters: Any) -> list[str]:
    """Return the ids on all pages of a list."""
    found: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await http.get(TASKS, params={"limit": 2} | filters | cursor)).json()
        found += [task["task_id"] for task in page["items"]]
        if page["next_cursor"] is None:
            return found
        cursor = {"cursor": page["next_cursor"]}


def told(answer: httpx.Response) -> tuple[int, str]:
    """Return the parts of a reply that are equal in store and history. Only the store has the past reasons to wait."""
    return answer.status_code, re.sub(r'"waited_seconds":\{[^}]*\}', '"waited_seconds":{}', answer.text)


async def test_a_finished_task_is_told_alike_by_store_and_history(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.102
    ids = [
        await submit(http, priority="high", tenant="acme", idempotency_key="k", required_capabilities=[]),
        await submit(http, task_type="fail", parameters={"message": "Grüße"}),
        await submit(http, task_type="nobody.knows"),
    ]
    await http.delete(f"{TASKS}/{ids[2]}")
    await run_all(app, http, *ids[:2])
    paths = [f"{start}{task_id}{rest}" for task_id in ids for start, rest in (
        (f"{TASKS}/", ""), ("/task/", ""), (f"{TASKS}/", "/why"), (f"{TASKS}/", "/events"), (f"{TASKS}/", "/estimate"),
    )]  # fmt: skip
    before = [told(await http.get(path)) for path in paths]
    await forget(app, *ids)
    after = [told(await http.get(path)) for path in paths]
    assert after == before
    assert [status for status, _ in after[:5]] == [200, 200, 200, 200, 409]


async def test_lists_go_through_both_places_and_show_each_task_once(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.102
    ids = [
        await submit(http, priority=("high", "low")[number % 2], tenant=("acme", "other")[number // 2 % 2])
        for number in range(7)
    ]
    bad = await submit(http, task_type="fail", parameters={})
    await run_all(app, http, *ids, bad)
    waiting = [await submit(http, priority="low", tenant="acme") for _ in range(2)]
    await forget(app, ids[0], ids[2], ids[3], ids[6], bad)  # Of the others there are two records.
    everything = [*ids, bad, *waiting][::-1]
    assert await listed(http) == everything
    assert await listed(http, limit=500) == everything
    assert await listed(http, status=["completed"]) == ids[::-1]
    assert await listed(http, status=["queued", "dead_letter"]) == [*waiting[::-1], bad]
    assert await listed(http, task_type="fail") == [bad]
    assert await listed(http, priority="high") == ids[::2][::-1]
    assert await listed(http, tenant="acme") == [*waiting[::-1], ids[5], ids[4], ids[1], ids[0]]
    assert await listed(http, age=0) == everything
    assert await listed(http, age_max=3_600) == everything
    assert await listed(http, age=3_600) == []
    worker = (await http.get(f"{TASKS}/{bad}")).json()["assigned_worker_id"]
    assert await listed(http, worker=worker) == [*ids, bad][::-1]


async def test_history_is_neither_retried_nor_cancelled(app: Headway, http: httpx.AsyncClient) -> None:
    task_id = await submit(http, task_type="fail", parameters={})
    await run_all(app, http, task_id)
    await forget(app, task_id)
    for answer in (
        await http.delete(f"{TASKS}/{task_id}"),
        await http.post(f"{TASKS}/{task_id}/retry"),
        await http.post(f"{API}/dlq/{task_id}/replay"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "illegal_move")
        assert "is history: it ended as dead_letter" in answer.json()["detail"]
    for verb in (app.job(task_id).aretry, app.job(task_id).acancel):
        with pytest.raises(IllegalMove, match="is history"):
            await verb()
    assert (await http.delete(f"{TASKS}/unknown")).status_code == 404


async def test_dead_letters_are_those_that_can_be_replayed(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.25
    gone, kept = [await submit(http, task_type="fail", parameters={}) for _ in range(2)]
    await run_all(app, http, gone, kept)
    await forget(app, gone)
    assert [task["task_id"] for task in (await http.get(f"{API}/dlq")).json()["items"]] == [kept]
    answer = (await http.post(f"{API}/dlq/replay", json={"all": True})).json()
    assert answer == {"replayed": [kept], "refused": [], "more": False}
    # One record of it says dead_letter; what counts is that it is queued again.
    assert await listed(http, status=["dead_letter"]) == [gone]
    assert (await http.get(f"{TASKS}/{kept}")).json()["status"] == "queued"


async def test_a_submit_with_a_known_key_tells_how_the_task_ended(app: Headway, http: httpx.AsyncClient) -> None:
    task_id = await submit(http, idempotency_key="once")
    await run_all(app, http, task_id)
    await forget(app, task_id)
    answer = await http.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}, "idempotency_key": "once"})
    assert (answer.status_code, answer.json()["task_id"], answer.json()["status"]) == (200, task_id, "completed")


async def test_a_tenant_sees_no_other_tenants_history(app: Headway, http: httpx.AsyncClient) -> None:
    mine, theirs = await submit(http, tenant="acme"), await submit(http, tenant="other")
    await run_all(app, http, mine, theirs)
    await forget(app, mine, theirs)
    store = await app.client.store()
    _, token = await create_token(store, ["read"], tenant="acme", now_at=1)
    headers = {"Authorization": f"Bearer {token}"}
    async with client_for(headway_api(app, hosts=["testserver"]), headers=headers) as tenant:
        assert await listed(tenant) == [mine]
        assert (await tenant.get(f"{TASKS}/{mine}")).status_code == 200
        assert (await tenant.get(f"{TASKS}/{theirs}")).status_code == 404


async def test_the_client_reads_the_history_too(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.102
    done, bad = await submit(http), await submit(http, task_type="fail", parameters={})
    await run_all(app, http, done, bad)
    await forget(app, done, bad)

    def read() -> None:
        with make_app(app.settings.store, history=app.settings.history) as other:
            job = other.job(done)
            assert (job.status(), job.result(), job.record().attempts) == (State.COMPLETED, 3, 1)
            assert [event.kind for event in job.events()][-1] == "finished"
            with pytest.raises(JobFailed, match="RuntimeError: broken"):
                other.job(bad).result()
            assert [found.id for found in other.jobs()] == [bad, done]
            assert [found.id for found in other.jobs(status="completed", task="add")] == [done]

    await asyncio.to_thread(read)


async def test_without_a_history_what_is_forgotten_is_gone(app: Headway, http: httpx.AsyncClient) -> None:
    task_id = await submit(http)
    await run_all(app, http, task_id)
    await forget(app, task_id)
    async with make_app(app.settings.store) as plain, client_for(headway_api(plain, hosts=["testserver"])) as other:
        assert (await other.get(f"{TASKS}/{task_id}")).status_code == 404
        assert await listed(other) == []


async def test_the_service_lives_while_the_history_is_away(
    app: Headway, http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    gone = await submit(http, idempotency_key="once")
    await run_all(app, http, gone)
    await forget(app, gone)
    lonely = make_app(app.settings.store, history="postgresql://postgres@127.0.0.1:1/none")
    async with lonely, client_for(headway_api(lonely, hosts=["testserver"])) as other:
        alive = await submit(other)
        assert (await other.get(f"{TASKS}/{alive}")).json()["status"] == "queued"
        assert await listed(other) == [alive]
        assert "history.unavailable" in caplog.text
        answer = await other.get(f"{TASKS}/{gone}")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable"), "it may well be there"
        again = await other.post(TASKS, json={"task_type": "add", "parameters": {"a": 1}, "idempotency_key": "once"})
        assert (again.status_code, again.json()["task_id"]) == (200, gone)
        assert (await other.delete(f"{TASKS}/{alive}")).status_code == 200
