"""Actions of operators over HTTP."""

from __future__ import annotations

import httpx

from headway import Headway
from headway.security.audit import read_audit
from headway.worker.embedded import Worker
from tests.server.test_tasks import started, submit

API = "/api/v1"


async def test_workers_are_listed_with_what_they_run_and_offer(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.15, R5.32
    task_id = await submit(http, task_type="hang", parameters={})
    async with Worker(app, slots=3) as worker:
        await started(app, task_id)
        (listed,) = (await http.get(f"{API}/workers")).json()["workers"]
        assert (listed["worker_id"], listed["status"]) == (worker.worker_id, "active")
        assert (listed["capacity"], listed["current_load"], listed["current_tasks"]) == (3, 1, [task_id])
        assert (listed["capabilities"], set(listed["task_types"])) == ([], set(app.tasks))
        assert listed["last_heartbeat"] >= listed["started_at"]
        await http.delete(f"{API}/tasks/{task_id}")


async def test_a_worker_is_sent_away_once_it_is_there(app: Headway, http: httpx.AsyncClient) -> None:
    # R5.19
    assert (await http.post(f"{API}/workers/nobody/drain")).status_code == 404
    async with Worker(app) as worker:
        answer = await http.post(f"{API}/workers/{worker.worker_id}/drain")
        assert answer.json() == {"worker_id": worker.worker_id, "status": "draining"}
    assert [entry.what for entry in await read_audit(await app.client.store())] == ["worker.drain"]


async def test_a_lane_is_paused_and_resumed(app: Headway, http: httpx.AsyncClient) -> None:
    paused = (await http.post(f"{API}/pause", json={"lane": "low"})).json()
    assert paused == {"everything": False, "lanes": ["low"], "task_types": [], "tenants": []}
    task_id = await submit(http, priority="low")
    async with Worker(app):
        why = (await http.get(f"{API}/tasks/{task_id}/why")).json()["reasons"]
        assert why[0]["code"] == "paused"
        assert (await http.post(f"{API}/resume", json={"lane": "low"})).json()["lanes"] == []
        assert await app.job(task_id).aresult() == 3
    assert (await http.get(f"{API}/pauses")).json()["everything"] is False


async def test_the_catalogue_tells_what_tasks_take(app: Headway, http: httpx.AsyncClient) -> None:
    async with Worker(app):
        pass
    tasks = {task["task_type"]: task for task in (await http.get(f"{API}/catalogue")).json()["tasks"]}
    assert tasks.keys() == {"add", "fail", "hang", "steps"}
    assert tasks["add"]["parameters"]["required"] == ["a"]


async def test_what_operators_did_can_be_read(http: httpx.AsyncClient) -> None:
    await http.post(f"{API}/pause", json={"lane": "low"})
    await http.post(f"{API}/resume", json={"lane": "low"})
    newest, oldest = (await http.get(f"{API}/audit")).json()["entries"]
    assert (newest["what"], oldest["what"], newest["who"], oldest["target"]) == ("resume", "pause", "open", "lane low")
    assert (oldest["before"]["lanes"], oldest["after"]["lanes"]) == ([], ["low"])
    assert newest["at"] >= oldest["at"]
    assert len((await http.get(f"{API}/audit?limit=1")).json()["entries"]) == 1
    assert (await http.get(f"{API}/audit?limit=0")).status_code == 422
