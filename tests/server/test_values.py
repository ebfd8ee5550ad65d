"""Values in replies, on a manual clock: ages, counts, capacities, promotions, latencies."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import httpx
import pytest

from headway import Headway
from headway.core.errors import JobError
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Raised, Returned
from headway.core.timestamps import read_moment, write_moment
from headway.maintenance.reaper import Reaper
from headway.metrics.export import render
from headway.metrics.recorder import MetricsRecorder
from headway.policy_store.current import CurrentPolicy
from headway.server.api import headway_api
from headway.stores.base import Heartbeat, Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from headway.worker.lease_renewer import LeaseRenewer
from tests.conformance.builders import BOOM, a_job, a_worker, claim, claim_one, end, register, submit
from tests.server.conftest import client_for
from tests.worker.test_lease_renewer import RecordingListener, UnreachableStore

API = "/api/v1"
ANY = ("task:nobody.knows",)


class AppOnStore(Headway):
    """An app on a given store, whose clock the test controls."""

    def __init__(self, store: Store) -> None:
        self.kept = store
        super().__init__("memory://")

    def make_store(self) -> Store:
        return self.kept


@pytest.fixture
def kept(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
async def http(kept: MemoryStore) -> AsyncIterator[httpx.AsyncClient]:
    app = AppOnStore(kept)
    async with app, client_for(headway_api(app, hosts=["testserver"])) as client:
        yield client


def moment(clock: Callable[[], int]) -> str:
    return datetime.fromtimestamp(clock() / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


async def submitted(http: httpx.AsyncClient, path: str = f"{API}/tasks", **body: Any) -> str:
    answer = await http.post(path, json={"task_type": "nobody.knows"} | body)
    assert answer.status_code in (200, 201), answer.text
    task_id: str = answer.json()["task_id"]
    return task_id


async def look(http: httpx.AsyncClient, task_id: str) -> dict[str, Any]:
    found: dict[str, Any] = (await http.get(f"{API}/tasks/{task_id}")).json()
    return found


async def claimed(kept: Store, task_id: str) -> Lease:
    lease = await claim_one(kept, offers=ANY)
    assert lease.job_id == task_id
    return lease


# ---------------------------------------------------------------------- a task


async def test_a_task_tells_each_moment_and_count_of_its_life(
    http: httpx.AsyncClient, kept: MemoryStore, clock: ManualClock
) -> None:
    # R5.30, R5.41
    await register(kept)
    created = moment(clock)
    task_id = await submitted(
        http,
        parameters={"a": [1]},
        required_capabilities=[],
        priority="high",
        max_retries=2,
        timeout_seconds=7,
        idempotency_key="k-1",
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    )
    clock.advance(2)
    first = await claimed(kept, task_id)
    running = await look(http, task_id)
    assert (running["status"], running["retry_count"], running["started_at"]) == ("executing", 0, moment(clock))
    clock.advance(1)
    await end(kept, first, Raised(BOOM, 0))
    queued = await look(http, task_id)
    assert (queued["status"], queued["retry_count"], queued["assigned_worker_id"]) == ("queued", 1, None)
    clock.advance(3)
    second = await claimed(kept, task_id)
    started = moment(clock)
    again = await look(http, task_id)
    assert (again["status"], again["retry_count"]) == ("executing", 1)
    clock.advance(4)
    await end(kept, second, Returned(b'\x01{"frames":250}'))
    done = await look(http, task_id)
    expected = {
        "task_id": task_id,
        "priority": "high",
        "effective_priority": "high",
        "payload": {"task_type": "nobody.knows", "parameters": {"a": [1]}, "required_capabilities": []},
        "status": "completed",
        "retry_count": 1,
        "max_retries": 2,
        "created_at": created,
        "started_at": started,
        "completed_at": moment(clock),
        "assigned_worker_id": "w1",
        "result": {"frames": 250},
        "error": None,
        "timeout_seconds": 7.0,
        "idempotency_key": "k-1",
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    }
    assert {name: done[name] for name in expected} == expected
    assert UUID(task_id).version == 7  # Ids are in the order of time; the fifth design has random ones.


async def test_the_last_error_of_a_task_is_told_with_whether_it_may_run_again(
    http: httpx.AsyncClient, kept: MemoryStore
) -> None:
    # R5.30
    await register(kept)
    task_id = await submitted(http)
    await end(kept, await claimed(kept, task_id), Raised(JobError("ValueError", "no such account", retriable=False)))
    task = await look(http, task_id)
    assert (task["status"], task["error"]["message"], task["error"]["retriable"]) == (
        "failed",
        "no such account",
        False,
    )


async def test_a_task_that_has_waited_long_is_shown_as_good_as_a_better_lane(
    http: httpx.AsyncClient, clock: ManualClock
) -> None:
    # R5.41: 600 s to medium, 1,200 s to high.
    task_id = await submitted(http, priority="low")
    for seconds, lane in ((0, "low"), (599, "low"), (1, "medium"), (599, "medium"), (1, "high")):
        clock.advance(seconds)
        task = await look(http, task_id)
        assert (task["priority"], task["effective_priority"]) == ("low", lane)


# ---------------------------------------------------------------------- the routes of fasdis


async def test_a_record_has_the_values_of_the_task(
    http: httpx.AsyncClient, kept: MemoryStore, clock: ManualClock
) -> None:
    # R1.35, R1.36
    await register(kept)
    scheduled = moment(clock)
    task_id = await submitted(http, "/task", priority="high")
    record = (await http.get(f"/task/{task_id}")).json()
    assert (record["status"], record["latency_ms"], record["started_at"], record["completed_at"]) == (
        "queued",
        None,
        None,
        None,
    )
    clock.advance(ms=2_345)
    first = await claimed(kept, task_id)
    started = moment(clock)
    record = (await http.get(f"/task/{task_id}")).json()
    assert (record["status"], record["latency_ms"], record["started_at"]) == ("processing", 2_345, started)
    clock.advance(1)
    await end(kept, first, Raised(BOOM, 0))
    clock.advance(5)
    second = await claimed(kept, task_id)  # The attempt that counts is the last one.
    clock.advance(1)
    await end(kept, second, Returned(None))
    record = (await http.get(f"/task/{task_id}")).json()
    assert {name: record[name] for name in ("task_id", "priority", "status", "scheduled_at", "processed_by")} == {
        "task_id": task_id,
        "priority": "high",
        "status": "completed",
        "scheduled_at": scheduled,
        "processed_by": "w1",
    }
    assert (record["latency_ms"], record["completed_at"]) == (8_345, moment(clock))


@pytest.mark.parametrize("retriable", [True, False], ids=["dead letter", "failed"])
async def test_a_record_of_what_failed_says_so(
    http: httpx.AsyncClient, kept: MemoryStore, clock: ManualClock, retriable: bool
) -> None:
    # R1.35
    await register(kept)
    task_id = await submitted(http, "/task")
    lease = (await claimed(kept, task_id))._replace(max_retries=0)
    clock.advance(3)
    await end(kept, lease, Raised(JobError("ValueError", "no", retriable=retriable)))
    record = (await http.get(f"/task/{task_id}")).json()
    assert (record["status"], record["completed_at"]) == ("failed", moment(clock))


async def test_a_record_of_a_cancelled_task_is_failed(http: httpx.AsyncClient) -> None:
    # R1.35
    task_id = await submitted(http, "/task")
    await http.delete(f"{API}/tasks/{task_id}")
    assert (await http.get(f"/task/{task_id}")).json()["status"] == "failed"


async def test_the_same_request_scheduled_twice_makes_one_task(http: httpx.AsyncClient) -> None:
    # R1.46
    first = await submitted(http, "/task", idempotency_key="order-9")
    assert await submitted(http, "/task", idempotency_key="order-9") == first
    assert (await look(http, first))["idempotency_key"] == "order-9"
    assert await submitted(http, "/task", idempotency_key="order-10") != first
    assert len((await http.get(f"{API}/tasks")).json()["items"]) == 2


# ---------------------------------------------------------------------- the queue and its workers


async def test_the_queue_is_told_in_numbers_that_are_right(
    http: httpx.AsyncClient, kept: MemoryStore, clock: ManualClock
) -> None:
    # R5.44
    await register(kept, "w1", slots=5)
    await register(kept, "w2", slots=7)
    await register(kept, "gone", slots=100)
    await kept.mark_dead("gone")
    await kept.drain("w2")
    await submit(kept, *(a_job(lane="high", max_retries=0) for _ in range(5)))
    leases = await claim(kept, "w1")
    await end(kept, leases[0])
    await end(kept, leases[1], Raised(BOOM))
    await end(kept, leases[2], Raised(JobError("ValueError", "no", retriable=False)))
    await submit(kept, a_job(lane="low"))
    clock.advance(30)
    await submit(kept, a_job(lane="low"), a_job(lane="medium"), a_job(lane="low", delay_ms=60_000))
    clock.advance(12)
    assert (await http.get(f"{API}/queue/stats")).json() == {
        "queues": {
            "high": {"depth": 0, "oldest_age_seconds": 0},
            "medium": {"depth": 1, "oldest_age_seconds": 12},
            "low": {"depth": 2, "oldest_age_seconds": 42},
        },
        "workers": {"active": 1, "draining": 1, "dead": 1, "total_capacity": 12, "used_capacity": 2},
        "throughput": {"completed_last_minute": 1, "failed_last_minute": 2},
    }


async def test_a_worker_is_listed_with_all_it_said_of_itself(
    http: httpx.AsyncClient, kept: MemoryStore, clock: ManualClock
) -> None:
    # R5.32
    started = moment(clock)
    worker = a_worker("w1", slots=4, reserved=1, offers=("gpu", "task:resize"), version="2.7.1")
    await kept.renew(Heartbeat(worker, 90_000, 10_000, register=True))
    [job_id] = await submit(kept, a_job(lane="high"))
    lease = await claim_one(kept)
    clock.advance(20)
    await kept.renew(Heartbeat(worker, 90_000, 10_000, [(lease.job_id, lease.token)]))
    [listed] = (await http.get(f"{API}/workers")).json()["workers"]
    assert listed == {
        "worker_id": "w1",
        "status": "active",
        "current_tasks": [job_id],
        "last_heartbeat": moment(clock),
        "capacity": 4,
        "current_load": 1,
        "reserved": 1,
        "capabilities": ["gpu"],
        "task_types": ["resize"],
        "version": "2.7.1",
        "host": "host",
        "pid": 1,
        "started_at": started,
        "lease_ends_at": write_moment(read_moment(moment(clock)) + 90_000),
    }
    await kept.drain("w1")
    assert (await http.get(f"{API}/workers")).json()["workers"][0]["status"] == "draining"
    await kept.mark_dead("w1")
    assert (await http.get(f"{API}/workers")).json()["workers"][0]["status"] == "dead"


# ---------------------------------------------------------------------- heartbeats


async def failures(store: Store, recorder: MetricsRecorder) -> float:
    await recorder.publish(store)
    text = (await render(store, BUILT_IN))[0].decode()
    return float(
        next(line for line in text.splitlines() if line.startswith("worker_heartbeat_failures_total ")).split()[1]
    )


async def test_each_renewal_that_a_store_refuses_is_counted(clock: ManualClock) -> None:
    # R5.92
    store, recorder = UnreachableStore(clock=clock), MetricsRecorder()
    await register(store)
    assert await failures(store, recorder) == 0
    store.refusals = 3
    keeper = LeaseRenewer(
        store,
        lambda: a_worker("w1"),
        list,
        RecordingListener(),
        heartbeat=0.05,
        dead_after=60,
        confirm=10,
        recorder=recorder,
    )
    assert await keeper.renew()
    assert await failures(store, recorder) == 3


async def test_a_worker_that_falls_silent_is_counted_once(clock: ManualClock) -> None:
    # R5.92
    store, recorder = MemoryStore(clock=clock), MetricsRecorder()
    await register(store, "w1")
    await register(store, "w2")
    await submit(store, *(a_job(lane="high") for _ in range(4)))
    assert len([*await claim(store, "w1", free=3), *await claim(store, "w2", free=1)]) == 4
    monotonic = 0.0
    reaper = Reaper(store, CurrentPolicy(), 90, monotonic=lambda: monotonic, recorder=recorder)
    await reaper()
    clock.advance(91)
    monotonic = 91.0
    await reaper()
    assert await failures(store, recorder) == 2
