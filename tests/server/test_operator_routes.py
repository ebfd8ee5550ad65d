"""Routes that only operators' commands use."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from headway import Headway
from headway.cli.remote import HttpOperator
from headway.core.job import PAYLOAD_VERSION, JobId, JobRecord, State
from headway.core.policy.document import BUILT_IN
from headway.core.policy.lint import check_policy
from headway.core.policy.reader import read_policy
from headway.core.policy.retry import Raised, Returned
from headway.core.policy.writer import policy_data
from headway.core.timestamps import read_moment
from headway.metrics.documents import METRICS, MetricsDocument, encode
from headway.metrics.recorder import ERRORS, ERRORS_PM, SCORED, WITHIN_ESTIMATE
from headway.observability.job_output import Chunk, write_output
from headway.policy_store.catalogue import publish_crons
from headway.security.audit import read_audit
from headway.version import __version__
from tests.conformance.builders import BOOM, a_job, an_id, claim_one, end, ended_job, register, submit_one
from tests.server.live import served
from tests.server.test_worker_tokens import NIGHTLY

API = "/api/v1"


def a_full_job(**more: Any) -> Any:
    """Return a job with a value for each option of a submit."""
    return a_job(
        task="full", payload=PAYLOAD_VERSION + b'{"a":[1,2.5,"\xc3\xa9"]}', lane="high", needs=("gpu", "task:full"),
        tenant="acme", expires_ms=3_600_000, idempotency_key="key", unique_key="unique", trace_id="trace",
        limits=("disk=sda",), max_retries=2, timeout_ms=1_500, **more,
    )  # fmt: skip


async def test_a_job_read_through_the_server_is_the_one_in_the_store(app: Headway, api: FastAPI) -> None:
    store = await app.client.store()
    retried = await submit_one(store, a_full_job())
    await register(store, offers=("gpu", "task:full"))
    await end(store, await claim_one(store, offers=("gpu", "task:full")), Raised(BOOM))
    completed = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}"))
    await end(store, await claim_one(store), Returned(PAYLOAD_VERSION + b'{"x":1}'))
    failed = await ended_job(store, State.FAILED, a_job(payload=PAYLOAD_VERSION + b"{}"))
    delayed = await submit_one(store, a_job(payload=PAYLOAD_VERSION + b"{}", delay_ms=60_000))
    ids = [retried, completed, failed, delayed]
    async with served(api) as address:
        operator = HttpOperator(address, None)
        await operator.open()
        read, kept = await operator.get(ids), await store.get(ids)
        await operator.close()
    assert [_comparable(job) for job in read] == [_comparable(job) for job in kept]


def _comparable(job: JobRecord | None) -> dict[str, Any]:
    """Return a job's fields, without the fields that only a store needs and the time of the read."""
    assert job is not None
    unknown = {"seq", "retry", "parked", "parked_for", "parked_ms", "seen_at"}
    return {name: getattr(job, name) for name in JobRecord.__dataclass_fields__ if name not in unknown}


async def test_the_numbers_of_the_queue_are_the_stores(app: Headway, api: FastAPI, http: httpx.AsyncClient) -> None:
    store = await app.client.store()
    await submit_one(store, a_job(lane="low", delay_ms=60_000))
    await submit_one(store, a_job(lane="low", needs=("none",)))
    await ended_job(store, State.DEAD_LETTER)
    told, stats = (await http.get(f"{API}/queue/counts")).json(), await store.stats()
    low = told["queues"]["low"]
    assert (low["waiting"], low["delayed"], low["executing"]) == (1, 1, 0)
    assert read_moment(low["oldest_at"]) == stats.lanes["low"].oldest_at
    assert (told["totals"], told["recent"], told["kept"]) == (stats.totals, stats.last_minute, {"dead_letter": 1})
    async with served(api) as address:
        operator = HttpOperator(address, None)
        read = await operator.stats()
        await operator.close()
    assert (read.workers, read.totals, read.kept) == (stats.workers, stats.totals, stats.kept)
    assert read.lanes == stats.lanes


async def test_a_command_learns_the_stores_time_and_the_servers_release(app: Headway, http: httpx.AsyncClient) -> None:
    before = (await (await app.client.store()).snapshot()).now_at
    told = (await http.get(f"{API}/server")).json()
    after = (await (await app.client.store()).snapshot()).now_at
    assert told["version"] == __version__
    assert before <= read_moment(told["time"]) <= after


async def test_tasks_are_found_by_their_ids_in_the_order_given(app: Headway, http: httpx.AsyncClient) -> None:
    store = await app.client.store()
    ids = [await submit_one(store) for _ in range(3)]
    asked = [ids[2], an_id(), ids[0], ids[1]]
    page = (await http.get(f"{API}/tasks", params={"task_id": asked, "limit": 2})).json()
    assert [task["task_id"] for task in page["items"]] == [ids[2], ids[0]]
    params = {"task_id": asked, "limit": 2, "cursor": page["next_cursor"]}
    rest = (await http.get(f"{API}/tasks", params=params)).json()
    assert ([task["task_id"] for task in rest["items"]], rest["next_cursor"]) == ([ids[1]], None)


async def test_several_tasks_are_cancelled_and_retried_in_one_request(app: Headway, http: httpx.AsyncClient) -> None:
    store = await app.client.store()
    waits, done = await submit_one(store, a_job(needs=("none",))), await ended_job(store, State.COMPLETED)
    for verb, state in (("cancel", "cancelled"), ("retry", "queued")):
        answer = (await http.post(f"{API}/tasks/{verb}", json={"task_ids": [waits, "none", done]})).json()
        assert answer["tasks"] == [
            {"task_id": waits, "status": state},
            {"task_id": "none", "status": None},
            {"task_id": done, "status": "completed"},
        ]


async def test_only_dead_letters_are_purged_and_that_is_recorded(app: Headway, http: httpx.AsyncClient) -> None:
    # S-35
    store = await app.client.store()
    dead, done = await ended_job(store, State.DEAD_LETTER), await ended_job(store, State.COMPLETED)
    for removed in (1, 0):
        answer = await http.post(f"{API}/dlq/purge", json={"task_ids": [dead, done]})
        assert answer.json() == {"removed": removed}
    assert [job and job.job_id for job in await store.get([dead, done])] == [None, done]
    assert [(entry.what, entry.after) for entry in await read_audit(store)] == [("dlq.purge", {"removed": 1})]


async def test_why_tells_how_long_a_task_had_waited_for_what(app: Headway, http: httpx.AsyncClient) -> None:
    store = await app.client.store()
    job_id = await ended_job(store, State.COMPLETED)
    found = await store.diagnose_job(job_id)
    assert found is not None
    told = (await http.get(f"{API}/tasks/{job_id}/why")).json()
    assert told["waited_seconds"] == {reason: ms / 1_000 for reason, ms in found.waited_ms.items()}
    assert (told["reasons"], told["passed_over"]) == ([], 0)


async def test_the_latest_output_of_a_program_is_read(app: Headway, http: httpx.AsyncClient) -> None:
    store = await app.client.store()
    job_id = await submit_one(store)
    assert (await http.get(f"{API}/tasks/{job_id}/output")).json() == {"epoch": 0, "chunks": []}
    await write_output(store, job_id, 1, [Chunk(5, "stdout", 0, "hello\n")])
    chunk = {"at": 5, "stream": "stdout", "offset": 0, "text": "hello\n"}
    assert (await http.get(f"{API}/tasks/{job_id}/output")).json() == {"epoch": 1, "chunks": [chunk]}
    assert (await http.get(f"{API}/tasks/none/output")).status_code == 404


async def test_crons_are_listed_with_their_next_and_last_run(app: Headway, http: httpx.AsyncClient) -> None:
    store = await app.client.store()
    await publish_crons(store, [NIGHTLY], {"nightly"}, 1)
    last = await submit_one(store, a_job(task="nightly", idempotency_key="cron:nightly:1"))
    await submit_one(store, a_job(task="nightly"))
    (cron,) = (await http.get(f"{API}/crons")).json()["items"]
    assert (cron["task_type"], cron["expression"], cron["tz"], cron["paused"]) == ("nightly", "0 3 * * *", "UTC", False)
    assert datetime.fromisoformat(cron["next_at"]).hour == 3
    assert (cron["last"]["task_id"], cron["last"]["status"]) == (last, "queued")
    await http.post(f"{API}/pause", json={"lane": NIGHTLY.lane})
    (cron,) = (await http.get(f"{API}/crons")).json()["items"]
    assert cron["paused"] is True


async def test_versions_of_the_policy_are_listed_read_and_rolled_back(app: Headway, http: httpx.AsyncClient) -> None:
    # S-35
    assert (await http.post(f"{API}/policy/rollback", json={})).json()["code"] == "policy"
    for limit in (5, 6, 7):
        await http.put(f"{API}/policy", json={"crash_limit": limit}, params={"note": f"limit {limit}"})
    page = (await http.get(f"{API}/policy/versions", params={"limit": 2})).json()
    assert [(one["version"], one["current"], one["note"]) for one in page["items"]] == [
        (3, True, "limit 7"),
        (2, False, "limit 6"),
    ]
    rest = (await http.get(f"{API}/policy/versions", params={"cursor": page["next_cursor"]})).json()
    assert ([one["version"] for one in rest["items"]], rest["next_cursor"]) == ([1], None)
    assert (await http.get(f"{API}/policy/versions/2")).json()["policy"]["crash_limit"] == 6
    assert (await http.get(f"{API}/policy/versions/0")).json()["policy"] == policy_data(BUILT_IN)
    assert (await http.get(f"{API}/policy/versions/9")).json()["code"] == "policy"
    back = (await http.post(f"{API}/policy/rollback", json={})).json()
    assert (back["version"], back["policy"]["crash_limit"], back["note"]) == (4, 6, "rolled back to version 2")
    first = (await http.post(f"{API}/policy/rollback", json={"to": 1})).json()
    assert (first["version"], first["policy"]["crash_limit"]) == (5, 5)
    assert (await http.get(f"{API}/policy")).json()["version"] == 5
    done = [(entry.what, entry.target) for entry in await read_audit(await app.client.store())]
    assert done == [("policy.put", f"version {number}") for number in (5, 4, 3, 2, 1)]


async def test_findings_on_a_policy_carry_their_codes(http: httpx.AsyncClient) -> None:
    body = {"lanes": {"high": {"level": 0}, "medium": {"level": 1}}}
    expected = [found._asdict() for found in check_policy(read_policy(body, "body"), slots=5).findings]
    assert expected
    for dry_run in (True, False):
        told = (await http.put(f"{API}/policy", json=body, params={"dry_run": dry_run})).json()
        assert told["findings"] == expected
        assert len(told["warnings"]) == len(expected)


@pytest.mark.parametrize("store_name", ["memory"])
async def test_how_estimates_turned_out_is_told_by_lane(app: Headway, http: httpx.AsyncClient) -> None:
    assert (await http.get(f"{API}/queue/estimates")).json() == {"queues": {}}
    counters = {f"{SCORED}|low": 4.0, f"{WITHIN_ESTIMATE}|p50|low": 2.0, f"{WITHIN_ESTIMATE}|p90|low": 3.0}
    rows = {f"{ERRORS}|low": [0.0] * (len(ERRORS_PM) + 2)}
    await (await app.client.store()).write(METRICS, "w", encode(MetricsDocument(counters=counters, rows=rows)))
    told = (await http.get(f"{API}/queue/estimates")).json()
    assert told == {"queues": {"low": {"scored": 4, "within_p50": 0.5, "within_p90": 0.75, "error": None}}}


async def test_an_id_that_no_job_can_have_is_not_asked_for(api: FastAPI, app: Headway) -> None:
    odd = [JobId(text) for text in ("", "\x1b]0;x", "a/b", "x" * 65, "é")]
    async with served(api) as address:
        operator = HttpOperator(address, None)
        try:
            assert await operator.get(odd) == [None] * 5
            assert await operator.cancel(odd) == await operator.retry(odd) == [None] * 5
            assert [await operator.report(job_id) for job_id in odd] == [None] * 5
            assert await operator.purge_dead(odd) == 0
        finally:
            await operator.close()
