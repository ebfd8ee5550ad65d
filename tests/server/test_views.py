"""Views of the dashboard: lanes and slots, tenants, limits and the ladder, reasons to wait, and forecasts."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.core.policy.reader import read_policy
from headway.estimates.costs import TaskCosts
from headway.metrics.series import MINUTE_MS, record_series
from headway.policy_store.versions import apply_policy
from headway.security.tokens import create_token
from headway.server.waiting_rows import ANCHORS_MAX
from headway.stores.base import Store
from tests.conformance.builders import a_job, claim, end, register
from tests.estimates.lanes import learn_lanes
from tests.server.conftest import client_for

TASKS = "/api/v1/tasks"
API = "/api/v1"


@pytest.fixture
async def store(app: Headway, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the store. The server's caches of it are turned off."""
    for name in ("server.service.FORECAST_AGE", "server.views.NOW_AGE", "server.views.SLOW_AGE"):
        monkeypatch.setattr(f"headway.{name}", 0.0)
    monkeypatch.setattr("headway.estimates.history.READ_EVERY", -1.0)
    return await app.client.store()


async def put_policy(app: Headway, **policy: Any) -> None:
    store = await app.client.store()
    now_at = (await store.snapshot()).now_at
    await apply_policy(store, read_policy(policy, "the test"), now_at=now_at, note="")
    await app.in_force.refresh(store, every=0)


async def submit(http: httpx.AsyncClient, count: int = 1, **body: Any) -> list[str]:
    tasks = [{"task_type": "add", "parameters": {"a": number}} | body for number in range(count)]
    answer = await http.post(f"{TASKS}/bulk", json=tasks)
    assert answer.status_code == 201, answer.text
    return [one["task_id"] for one in answer.json()["tasks"]]


async def test_the_overview_cuts_the_slots(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    await register(store, slots=5, reserved=1, offers=("task:*",))
    await submit(http, 1, priority="high")
    await submit(http, 9)
    await submit(http, 2, priority="low", run_after="2099-01-01T00:00:00Z")
    assert len(await claim(store, free=5, free_below=4, offers=("task:*",))) == 5
    told = (await http.get(f"{API}/queue/overview")).json()
    assert (told["waiting"], told["delayed"], told["running"], told["workers"]) == (5, 2, 5, 1)
    assert told["oldest_at"] is not None
    slots = told["slots"]
    assert (slots["total"], slots["used"], slots["free"], slots["reserved"]) == (5, 5, 0, 1)
    assert (slots["reserved_used"], slots["reserved_idle"]) == (1, 0)
    lanes = {lane["name"]: lane for lane in told["lanes"]}
    assert list(lanes) == ["high", "medium", "low"]
    assert (lanes["medium"]["waiting"], lanes["medium"]["running"], lanes["medium"]["why"]) == (5, 4, "slots_full")
    assert (lanes["high"]["why"], lanes["high"]["oldest_at"]) == (None, None)
    # By weight 6:3:1 of five slots, medium has 1.5. It borrows the rest while the other lanes need nothing.
    assert lanes["medium"]["slots"]["guaranteed"] == pytest.approx(1.5)
    assert lanes["medium"]["slots"]["borrowed"] == pytest.approx(2.5)
    assert slots["lent"] == pytest.approx(2.5)
    assert lanes["high"]["slots"]["lent"] == pytest.approx(2.0)
    assert told["waiting_by_reason"] == {"slots_full": 5, "scheduled": 2}


async def test_what_is_paused_or_limited_counts_by_its_reason(
    app: Headway, http: httpx.AsyncClient, store: Store
) -> None:
    await put_policy(
        app, limits={"one": {"concurrency": 1, "tasks": ["add"]}, "slow": {"rate": "1/h", "tasks": ["hang"]}}
    )
    await register(store, slots=9, reserved=0, offers=("task:*",))
    await submit(http, 4, tenant="acme")
    await submit(http, 3, task_type="hang", parameters={})
    await http.post(f"{API}/pause", json={"lane": "low"})
    assert len(await claim(store, free=9, offers=("task:*",))) == 2
    told = (await http.get(f"{API}/queue/overview")).json()
    assert told["waiting_by_reason"] == {"limit": 3, "rate": 2}
    assert told["paused"] == ["lane low"]

    limits = {one["name"]: one for one in (await http.get(f"{API}/limits")).json()["items"]}
    one, slow = limits["one"], limits["slow"]
    assert (one["running"], one["concurrency"], one["waiting"], one["keys_at_cap"]) == (1, 1, 3, 1)
    assert (one["rate"], one["source"], one["next_start_at"]) == (None, "policy", None)
    assert (slow["rate"], slow["waiting"]) == ("1/h", 2)
    assert slow["next_start_at"] > told["at"]

    rows = (await http.get(f"{TASKS}?q=state:queued&explain=true")).json()["items"]
    assert [row["why"][0]["code"] for row in rows] == ["rate", "rate", "limit", "limit", "limit"]
    assert "the next may start in" in rows[0]["why"][0]["text"]
    assert "runs 1 of 1" in rows[2]["why"][0]["text"]
    found = (await http.get(f"{TASKS}?q=why:rate")).json()["items"]
    assert [row["payload"]["task_type"] for row in found] == ["hang", "hang"]


async def test_the_ladder_shows_who_sits_where(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    rungs = [{"name": "fast", "seconds": 60}, {"name": "slow", "seconds": 3_600, "limit": 1}]
    await put_policy(app, ladder={"rungs": rungs})
    await register(store, slots=9, reserved=0, offers=("task:*",))
    ids = await submit(http, 2, duration="slow")
    await submit(http, 1, duration="fast")
    await claim(store, free=9, offers=("task:*",))
    ladder = (await http.get(f"{API}/limits")).json()["ladder"]
    assert [(rung["name"], rung["running"], rung["running_from"], rung["waiting"]) for rung in ladder["rungs"]] == [
        ("fast", 1, 2, 0),
        ("slow", 1, 1, 1),
    ]
    assert [rung["most"] for rung in ladder["rungs"]] == [None, 1]
    assert {(one["rung"], one["asked"]) for one in ladder["tasks"]} == {("fast", "fast"), ("slow", "slow")}
    [slow] = [one for one in ladder["tasks"] if one["rung"] == "slow"]
    assert slow["task_id"] == ids[0]
    assert slow["ends_at"] > slow["started_at"]
    assert not any(one["next_lowered"] for one in ladder["tasks"])  # None of them can be lowered.


async def test_the_ladder_shows_who_is_lowered_first(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    rungs = [{"name": "fast", "seconds": 60}, {"name": "slow", "seconds": 3_600, "limit": 3}]
    await put_policy(app, ladder={"rungs": rungs})
    await register(store, slots=9, reserved=0, offers=("task:*",))
    newest: list[str] = []
    for duration in ("slow", "default", "default"):  # The last one has run for the shortest time.
        newest = await submit(http, 1, duration=duration)
        await asyncio.sleep(0.01)
        assert len(await claim(store, free=1, offers=("task:*",))) == 1
    ladder = (await http.get(f"{API}/limits")).json()["ladder"]
    assert [one["rung"] for one in ladder["tasks"]] == ["slow"] * 3
    assert [one["task_id"] for one in ladder["tasks"] if one["next_lowered"]] == newest


async def test_tenants_show_their_shares_the_one_that_suffers_first(
    app: Headway, http: httpx.AsyncClient, store: Store
) -> None:
    await put_policy(app, tenants={"weights": {"acme": 3}})
    await register(store, slots=9, reserved=0)
    # In the last hour bolt had everything, 30 s. Acme, with three quarters of the weights, waits.
    await store.submit([a_job(tenant="bolt") for _ in range(3)])
    leases = await claim(store, free=3)
    costs = TaskCosts()
    costs.ended([(lease, 10.0) for lease in leases])
    for lease in leases:
        await end(store, lease)
    await costs.publish(store)
    await store.submit([a_job(tenant="acme") for _ in range(4)])
    await store.submit([a_job(tenant="bolt")])
    told = (await http.get(f"{API}/tenants")).json()
    assert told["complete"]
    acme, bolt = told["items"]
    assert (acme["tenant"], acme["weight"], acme["entitled_share"], acme["had_share"]) == ("acme", 3, 0.75, 0.0)
    assert (acme["waiting"], acme["running"], acme["unfairness"]) == (4, 0, 0.75)
    assert (bolt["tenant"], bolt["had_share"], bolt["unfairness"], bolt["waiting"]) == ("bolt", 1.0, 0.0, 1)
    assert bolt["wait_p50"] is not None
    assert acme["wait_p50"] is None
    assert acme["oldest_at"] is not None
    first = (await http.get(f"{API}/tenants?sort=tenant&limit=1")).json()
    assert ([one["tenant"] for one in first["items"]], first["next_cursor"]) == (["acme"], "1")
    rest = (await http.get(f"{API}/tenants?sort=tenant&limit=1&cursor=1")).json()
    assert ([one["tenant"] for one in rest["items"]], rest["next_cursor"]) == (["bolt"], None)


async def test_a_tenants_token_sees_that_tenant_alone(api: FastAPI, store: Store) -> None:
    await store.submit([a_job(tenant="acme"), a_job(tenant="bolt")])
    api.state.service.tokens.every = 0.0
    _, text = await create_token(store, ["read", "admin"], tenant="bolt", now_at=1)
    async with client_for(api, headers={"authorization": f"Bearer {text}"}) as http:
        assert [one["tenant"] for one in (await http.get(f"{API}/tenants")).json()["items"]] == ["bolt"]
        found = (await http.get(f"{TASKS}?q=state:queued&explain=true")).json()["items"]
        assert [row["tenant"] for row in found] == ["bolt"]
        assert (await http.get(f"{TASKS}?q=tenant:acme")).json()["items"] == []
        told = await http.post(f"{API}/bulk", json={"action": "cancel", "filter": "tenant:acme", "dry_run": True})
        assert told.json()["count"] == 0
        told = await http.post(f"{API}/bulk", json={"action": "cancel", "filter": "state:queued", "dry_run": True})
        assert told.json()["count"] == 1
        answer = await http.post(f"{API}/bulk", json={"action": "cancel", "filter": "tenant:acme,bolt"})
        assert (answer.status_code, answer.json()["count"]) == (202, 1)
        for path in ("series", "limits", "queue/overview", "live", "crons", "system"):
            assert (await http.get(f"{API}/{path}")).status_code == 403, path


async def test_rows_say_why_and_when_with_few_reads(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    await register(store, slots=2, reserved=0, offers=("task:*",))
    await submit(http, 2)
    assert len(await claim(store, free=2, offers=("task:*",))) == 2
    costs = TaskCosts()
    leases = await store.leases(worker_id="w1")
    costs.ended([(lease, 10.0) for lease in leases for _ in range(40)])
    await costs.publish(store)
    ids = await submit(http, 300)
    reads = 0
    diagnose_job = store.diagnose_job

    async def counted(job_id: Any) -> Any:
        nonlocal reads
        reads += 1
        return await diagnose_job(job_id)

    store.diagnose_job = counted  # type: ignore[method-assign]
    rows: list[dict[str, Any]] = (await http.get(f"{TASKS}?q=state:queued&explain=true&limit=300")).json()["items"]
    assert reads <= ANCHORS_MAX
    assert [row["task_id"] for row in rows] == ids[::-1]
    assert {row["why"][0]["code"] for row in rows} == {"slots_full"}
    places = [row["queue_position"] for row in rows]
    assert places == sorted(places, reverse=True)
    assert abs(places[0] - 299) <= 1
    assert places[-1] == 0
    newest, oldest = rows[0]["estimate"], rows[-1]["estimate"]
    assert newest["basis"] == "learned"
    assert newest["p50"] == pytest.approx(300 * 10 / 2, rel=0.15)
    assert oldest["p50"] < 15
    alone = (await http.get(f"{TASKS}/{ids[150]}")).json()["estimate"]["p50"]
    assert next(row for row in rows if row["task_id"] == ids[150])["estimate"]["p50"] == pytest.approx(alone, rel=0.1)


async def test_a_forecast_compares_slots_and_policies_quickly(
    app: Headway, http: httpx.AsyncClient, store: Store
) -> None:
    await register(store, slots=4, reserved=1, offers=("task:*",))
    await submit(http, 3)
    await submit(http, 1, priority="low")
    leases = await claim(store, free=4, free_below=4, offers=("task:*",))
    assert {lease.lane for lease in leases} == {"medium", "low"}
    costs = TaskCosts()
    costs.ended([(lease, 8.0) for lease in leases for _ in range(40)])
    await costs.publish(store)
    await submit(http, 200)
    await submit(http, 50, priority="low")
    await http.post(f"{API}/forecast", json={"slots": 4})  # It learns and reads.
    begun = time.perf_counter()
    told = (await http.post(f"{API}/forecast", json={"slots": 40})).json()
    took = time.perf_counter() - begun
    assert told["slots"] == {"before": 4, "after": 40}
    medium = told["lanes"]["medium"]
    assert medium["before"]["p50"] > 5 * medium["after"]["p50"] > 0
    assert took < 0.5  # 50 ms on an idle machine.
    before = (await http.get(f"{API}/policy")).json()["version"]
    swapped = {"lanes": {"medium": {"level": 2}, "low": {"level": 1}}}
    told = (await http.post(f"{API}/forecast", json={"policy": swapped})).json()
    assert told["lanes"]["low"]["after"]["p50"] < told["lanes"]["low"]["before"]["p50"]
    assert (await http.get(f"{API}/policy")).json()["version"] == before
    wrong = await http.post(f"{API}/forecast", json={"policy": {"lanes": {"medium": {"level": "x"}}}})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "policy")


async def test_a_series_is_read_by_lane_and_step(app: Headway, http: httpx.AsyncClient, store: Store) -> None:
    await record_series(store)
    empty = (await http.get(f"{API}/series")).json()
    assert (empty["points"], empty["step_seconds"], empty["lane"]) == ([], 60, None)
    for step, seconds in (("5m", 300), ("hour", 3_600), ("120", 120), ("1d", 86_400)):
        assert (await http.get(f"{API}/series?step={step}")).json()["step_seconds"] == seconds
    assert (await http.get(f"{API}/series?since=7d")).json()["step_seconds"] == 3_600
    for query in ("step=30s", "step=90s", "step=x", "since=later", "step=90m"):
        assert (await http.get(f"{API}/series?{query}")).status_code == 422, query
    assert MINUTE_MS == 60_000


async def test_a_search_pages_through_what_fits(http: httpx.AsyncClient) -> None:
    await submit(http, 40)
    ids = await submit(http, 5, task_type="hang", parameters={})
    await submit(http, 40)
    found: list[str] = []
    cursor = ""
    while True:
        page = (await http.get(f"{TASKS}?q=task:h*&limit=2{cursor}")).json()
        found += [row["task_id"] for row in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert found == ids[::-1]
    assert len((await http.get(f"{TASKS}?q=id:{ids[0]}")).json()["items"]) == 1
    assert [row["task_id"] for row in (await http.get(f"{TASKS}?q=id:{ids[2][-8:]}")).json()["items"]] == [ids[2]]
    wrong = await http.get(f"{TASKS}?q=colour:red")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "config")
    assert (await http.get(f"{TASKS}?q=state:queued&task_type=add")).status_code == 422


async def test_the_system_tells_checks_and_settings_without_secrets(api: FastAPI, http: httpx.AsyncClient) -> None:
    told = (await http.get(f"{API}/system")).json()
    assert {"store", "documents", "workers", "waiting"} <= {check["name"] for check in told["checks"]}
    assert told["store"]["store"]
    assert told["settings"]["slots"] == 5
    assert told["settings"]["token"] is None
    assert told["recovery"]["host_lost_seconds"] > told["recovery"]["runner_crashed_seconds"] > 0
    assert told["namespace"] == "default"


@asynccontextmanager
async def reading(api: FastAPI, path: str) -> AsyncIterator[asyncio.Queue[str]]:
    """Read a stream of events from the application, without a server. Yields a queue of messages."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            for line in message.get("body", b"").decode().splitlines():
                if line.startswith("data: "):
                    lines.put_nowait(line.removeprefix("data: "))

    where, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "path": where,
        "raw_path": where.encode(), "query_string": query.encode(), "headers": [(b"host", b"testserver")],
        "client": ("127.0.0.1", 50_000), "server": ("testserver", 80), "scheme": "http", "root_path": "",
    }  # fmt: skip
    task = asyncio.create_task(api(scope, receive, send))
    try:
        yield lines
    finally:
        gone.set()
        task.cancel()
        await asyncio.wait([task])


async def test_live_views_send_what_changes_to_all_readers(
    api: FastAPI, http: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, reads = api.state.service, 0
    monkeypatch.setattr("headway.server.live_updates.EVERY", 0.05)
    breakdown = store.breakdown

    async def counted(**options: Any) -> Any:
        nonlocal reads
        reads += 1
        return await breakdown(**options)

    store.breakdown = counted  # type: ignore[method-assign]
    async with reading(api, f"{API}/live?views=now") as one, reading(api, f"{API}/live?views=now,workers") as two:
        first = json.loads(await asyncio.wait_for(one.get(), 10))
        assert first["now"]["waiting"] == 0
        assert {"lanes", "slots", "waiting_by_reason"} <= set(first["now"])
        other = json.loads(await asyncio.wait_for(two.get(), 10))
        assert set(other) == {"now", "workers"}
        others = [reading(api, f"{API}/live?views=now") for _ in range(30)]
        queues = [await one_more.__aenter__() for one_more in others]
        for queue in queues:
            assert json.loads(await asyncio.wait_for(queue.get(), 10))["now"]["waiting"] == 0
        before = reads
        await submit(http, 3)
        async with asyncio.timeout(10):
            while True:
                change = json.loads(await one.get())
                if "waiting" in change["now"]:
                    break
        assert change["now"]["waiting"] == 3
        assert "accuracy" not in change["now"]  # It has not changed.
        for queue in queues:
            assert json.loads(await asyncio.wait_for(queue.get(), 10))["now"]["waiting"] == 3
        assert reads - before < 8  # As many as rounds, not as readers.
        for one_more in others:
            await one_more.__aexit__(None, None, None)
        service.stop()  # The server is about to stop, and browsers come back to the next one.
    assert service.live.readers == 0
    assert service.streams == 0


async def test_an_unknown_view_is_refused(http: httpx.AsyncClient) -> None:
    answer = await http.get(f"{API}/live?views=nwo")
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")
    assert "did you mean 'now'?" in answer.json()["detail"]


async def test_a_lane_says_how_many_slots_it_wants(http: httpx.AsyncClient, store: Store) -> None:
    await learn_lanes(store, seconds=10.0, task="add")
    await register(store, slots=5, reserved=1, offers=("task:*",))
    await submit(http, 1, priority="high")
    assert len(await claim(store, free=5, offers=("task:*",))) == 1
    await submit(http, 100, priority="high")
    found = {text: (await http.get(f"{API}/scale", params={"lane": "high", "within": text})) for text in TIMES}
    wanted = [answer.json()["slots_wanted"] for answer in found.values()]
    assert wanted == sorted(wanted, reverse=True)
    assert 16 <= found["50s"].json()["slots_wanted"] <= 24
    assert found["50s"].json() | {"wait_p90": 0, "slots_wanted": 0} == {
        "slots_wanted": 0, "slots": 5, "busy": 1, "waiting": 100, "wait_p90": 0, "basis": "learned",
    }  # fmt: skip
    assert found["1m"].json()["wait_p90"] > 100


TIMES = ("0", "5", "30s", "50s", "1m", "1h")


@pytest.mark.parametrize(
    "query, code, text",
    [
        ("lane=high", "invalid", "within: "),
        ("within=30", "invalid", "lane: "),
        ("lane=high&within=soon", "config", "within: expected seconds, or a length such as '90s'"),
        ("lane=hihg&within=30", "config", "no lane 'hihg'; did you mean 'high'? (lanes: high, medium, low)"),
        ("lane=high&within=-1", "config", "within: expected"),
        ("lane=high&within=30&slots=3", "invalid", "no parameter 'slots' here"),
    ],
)
@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_bad_question_about_slots_is_a_clear_problem(
    http: httpx.AsyncClient, query: str, code: str, text: str
) -> None:
    answer = await http.get(f"{API}/scale?{query}")
    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert text in answer.json()["detail"]


async def test_a_forecast_compares_lanes_tenants_and_limits(
    app: Headway, http: httpx.AsyncClient, store: Store
) -> None:  # fmt: skip
    await learn_lanes(store, seconds=10.0, task="add")
    await put_policy(app, limits={"adds": {"concurrency": 2, "tasks": ["add"]}}, tenants={"weights": {"acme": 1}})
    await register(store, slots=4, reserved=1, offers=("task:*",))
    await submit(http, 12)
    assert len(await claim(store, free=4, offers=("task:*",))) == 2  # The others wait for the limit.
    for tenant in ("acme", "umbrella"):
        await store.submit([a_job(task="other", lane="low", tenant=tenant) for _ in range(20)])
    policy = (await http.get(f"{API}/policy")).json()["policy"]
    same = (await http.post(f"{API}/forecast", json={"policy": policy})).json()
    assert all(lane["before"] == lane["after"] for lane in same["lanes"].values())
    assert all(row["before"] == row["after"] for row in [*same["tenants"], *same["limits"]])
    assert same["findings"] == (await http.post(f"{API}/forecast", json={"policy": policy})).json()["findings"]
    policy["tenants"]["weights"]["acme"] = 10
    policy["limits"]["adds"]["concurrency"] = 4
    changed = (await http.post(f"{API}/forecast", json={"policy": policy})).json()
    tenants = {row["tenant"]: row for row in changed["tenants"]}
    assert {name: (row["lane"], row["waiting"]) for name, row in tenants.items()} == {
        "acme": ("low", 20), "umbrella": ("low", 20),
    }  # fmt: skip
    assert tenants["acme"]["after"]["p50"] < 0.75 * tenants["acme"]["before"]["p50"]
    assert tenants["umbrella"]["after"]["p50"] >= tenants["umbrella"]["before"]["p50"]
    (limit,) = changed["limits"]
    assert (limit["limit"], limit["waiting"]) == ("adds", 10)
    assert limit["before"]["p50"] == pytest.approx(10 * 10 / 2, rel=0.3)
    assert limit["after"]["p50"] == pytest.approx(10 * 10 / 4, rel=0.4)
    policy["limits"]["adds"]["concurrency"] = 1
    fewer = (await http.post(f"{API}/forecast", json={"policy": policy})).json()["limits"][0]
    assert fewer["after"]["p50"] == pytest.approx(10 * 10, rel=0.3)
    more = (await http.post(f"{API}/forecast", json={"slots": 40})).json()
    assert more["slots"] == {"before": 4, "after": 40}
    assert more["lanes"]["low"]["after"]["p50"] < more["lanes"]["low"]["before"]["p50"]


@pytest.mark.parametrize("store_name", ["memory"])
async def test_a_policy_that_fails_its_check_names_the_key(http: httpx.AsyncClient) -> None:
    wrong = {"lanes": {"low": {"level": 2, "weight": 0}}, "lanez": {}}
    for body in ({"policy": wrong}, {"policy": wrong, "slots": 3}):
        answer = await http.post(f"{API}/forecast", json=body)
        assert (answer.status_code, answer.json()["code"]) == (422, "policy")
        assert {one["key"] for one in answer.json()["problems"]} == {"lanes.low.weight", "lanez"}
    answer = await http.post(f"{API}/forecast", json={"slots": -1})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid")


@pytest.mark.proof
async def test_a_forecast_of_100_000_jobs_takes_little(
    http: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headway.server.views.SLOW_AGE", 60.0)  # What a slider does not read again each time.
    await learn_lanes(store, seconds=3.0)
    await register(store, slots=20, reserved=1, offers=("task:*",))
    for _ in range(100):
        jobs = [
            a_job(lane=("high", "medium", "low")[n % 3], tenant=f"t{n % 50}" if n % 2 else None) for n in range(1_000)
        ]
        await store.submit(jobs)
    policy = (await http.get(f"{API}/policy")).json()["policy"]
    policy["lanes"]["low"]["weight"] = 5
    took = []
    for slots in (10, 50, 1_000_000, 30, 20):
        began = time.process_time()
        answer = await http.post(f"{API}/forecast", json={"policy": policy, "slots": slots})
        took.append(time.process_time() - began)
        assert answer.status_code == 200
    assert min(took) < 0.05, took


async def test_a_policy_based_on_an_older_version_is_refused(http: httpx.AsyncClient, store: Store) -> None:
    first = await http.put(f"{API}/policy", json={"max_depth": 10}, params={"if_version": 0})
    assert (first.status_code, first.json()["version"]) == (200, 1)
    late = await http.put(f"{API}/policy", json={"max_depth": 20}, params={"if_version": 0})
    assert (late.status_code, late.json()["code"]) == (409, "policy_conflict")
    assert "version 1 was applied meanwhile, and this policy is based on 0" in late.json()["detail"]
    answers = await asyncio.gather(
        *(http.put(f"{API}/policy", json={"max_depth": depth}, params={"if_version": 1}) for depth in (30, 40, 50))
    )
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409]
    assert (await http.get(f"{API}/policy")).json()["version"] == 2
    versions = (await http.get(f"{API}/policy/versions")).json()["items"]
    assert [one["version"] for one in versions] == [2, 1]  # What was refused is not kept.
    # A process died between writing a version and putting it in force.
    (document,) = await store.read("policy", "000002")
    await store.write("policy", "000003", document.body)
    after = await http.put(f"{API}/policy", json={"max_depth": 60}, params={"if_version": 2})
    assert (after.status_code, after.json()["version"]) == (200, 4)
