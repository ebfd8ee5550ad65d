"""The metrics: every name of the contract, the same numbers from any process, and bounded labels."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.samples import Sample

from headway import Headway
from headway.core.errors import JobError
from headway.core.job import ClassKey, State
from headway.core.policy.document import BUILT_IN, ELASTIC, Ladder, LimitRule, Policy, Reserve, Rung
from headway.core.policy.enforced import pausing
from headway.core.policy.retry import Raised, Returned, judge
from headway.core.policy.why import CLASS_CODES
from headway.core.snapshot import Plan, Take
from headway.core.worker import WorkerState
from headway.metrics.documents import METRICS, MetricRow, MetricsDocument, encode
from headway.metrics.export import collect, idle_reserve, render
from headway.metrics.recorder import MetricsRecorder
from headway.metrics.text_format import OPENMETRICS, PLAIN, content_type_for, write_text
from headway.policy_store.catalogue import TaskEntry, publish_tasks
from headway.policy_store.rule_documents import change_paused, write_rules
from headway.stores.base import Exchange, LaneStats, Store
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import (
    BOOM,
    a_claim_id,
    a_job,
    a_worker,
    claim,
    claim_one,
    end,
    ended_job,
    register,
    submit,
)
from tests.conformance.workflows import node, submit_batch, submit_graph
from tests.conftest import ADDRESSES
from tests.faults.conftest import wait_until

# R5.84 to R5.94: the names and labels of the contract.
CONTRACT = {
    "queue_depth": ("gauge", {"priority"}),
    "queue_age_seconds": ("histogram", {"priority"}),
    "tasks_promoted_total": ("counter", {"from", "to"}),
    "task_duration_seconds": ("histogram", {"priority", "status"}),
    "task_retries_total": ("counter", {"priority", "reason"}),
    "task_state_total": ("gauge", {"status"}),
    "workers_total": ("gauge", {"status"}),
    "worker_capacity_used_ratio": ("gauge", set()),
    "worker_heartbeat_failures_total": ("counter", set()),
    "tasks_failed_total": ("counter", {"reason"}),
    "tasks_dlq_total": ("counter", set()),
}


async def samples(store: Store, policy: Policy = BUILT_IN) -> dict[str, float]:
    """Return each sample by its name and labels, as Prometheus writes them."""
    body, _ = await render(store, policy)
    return read(body.decode())


def read(text: str) -> dict[str, float]:
    found = [sample for family in parser.text_string_to_metric_families(text) for sample in family.samples]
    return {_spelled(sample): sample.value for sample in found}


def _spelled(sample: Sample) -> str:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
    return f"{sample.name}{{{labels}}}" if labels else sample.name


# ---------------------------------------------------------------------- names and formats


async def test_every_metric_of_the_contract_is_there(store: Store) -> None:
    # R5.27, R5.84, R5.85, R5.86, R5.87, R5.88, R5.89, R5.90, R5.91, R5.92, R5.93, R5.94
    await register(store)
    await submit(store, a_job())
    recorder = MetricsRecorder()
    lease = await claim_one(store)
    await end(store, lease)
    recorder.claimed([lease])
    recorder.note([(lease, 0.1)])
    recorder.reported([judge(Returned(None), lease, BUILT_IN)], ())
    await recorder.publish(store)
    text = (await render(store, BUILT_IN))[0].decode()
    for name, (kind, labels) in CONTRACT.items():
        assert f"# TYPE {name} {kind}\n" in text
        sample = name if kind != "histogram" else f"{name}_count"
        line = re.search(rf"^{sample}(\{{.*\}})? ", text, re.MULTILINE)
        assert line is not None, name
        assert set(re.findall(r'([a-z_]+)="', line[1] or "")) == labels, name


async def test_both_formats_can_be_read_and_say_the_same(store: Store) -> None:
    await ended_job(store, State.COMPLETED)
    body, kind = await render(store, BUILT_IN, "text/plain")
    open_body, open_kind = await render(store, BUILT_IN, OPENMETRICS)
    assert kind.startswith("text/plain; version=0.0.4")
    assert open_kind.startswith("application/openmetrics-text")
    families = openmetrics.text_string_to_metric_families(open_body.decode())  # type: ignore[no-untyped-call]
    found = [sample for family in families for sample in family.samples]
    plain = read(body.decode())
    assert {_spelled(sample): sample.value for sample in found} == plain
    assert read(write_text(await collect(store, BUILT_IN))) == plain  # What a worker writes without the library.


@pytest.mark.parametrize(
    "accept, content_type",
    [
        ("", PLAIN),
        ("*/*", PLAIN),
        ("text/plain;version=0.0.4", PLAIN),
        ("application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=0.0.4", PLAIN),
        ("application/openmetrics-text", OPENMETRICS),
        ("text/plain;version=0.0.4;q=0.3, application/openmetrics-text; version=1.0.0", OPENMETRICS),
        ("application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;q=0.4", OPENMETRICS),
    ],
)
def test_openmetrics_is_written_only_on_request(accept: str, content_type: str) -> None:
    assert content_type_for(accept) == content_type


async def test_the_service_shows_them(http: httpx.AsyncClient, app: Headway) -> None:
    await app.tasks["add"].aenqueue(1)
    answer = await http.get("/metrics", headers={"Accept": OPENMETRICS})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert 'queue_depth{priority="medium"} 1.0' in answer.text
    assert read((await http.get("/metrics")).text)["headway_tasks_submitted_total"] == 1


# ---------------------------------------------------------------------- what the store counts


async def test_an_empty_store_shows_every_lane_and_state_at_zero(store: Store) -> None:
    # A counter that appears only with its first event hides that event from a rate.
    found = await samples(store)
    assert [found[f'queue_depth{{priority="{lane}"}}'] for lane in BUILT_IN.lanes] == [0, 0, 0]
    assert {found[f'task_state_total{{status="{state}"}}'] for state in State} == {0}
    assert {found[f'workers_total{{status="{state}"}}'] for state in WorkerState} == {0}
    assert found['tasks_promoted_total{from="low",to="high"}'] == found["tasks_dlq_total"] == 0
    assert found['task_retries_total{priority="high",reason="timeout"}'] == 0
    assert found['tasks_failed_total{reason="crash_limit"}'] == found["worker_capacity_used_ratio"] == 0


async def test_depth_and_age_are_of_what_waits(store: Store, clock: ManualClock) -> None:
    # R5.84, R5.107
    await submit(store, *(a_job(lane="low") for _ in range(3)), a_job(lane="high", delay_ms=60_000))
    clock.advance(ms=2_500)
    await submit(store, a_job(lane="low"))
    await register(store)
    await claim(store, free=1)
    found = await samples(store)
    assert found['queue_depth{priority="low"}'] == 3
    assert found['queue_depth{priority="high"}'] == 0
    assert found['headway_queue_delayed{priority="high"}'] == 1
    assert found['headway_queue_executing{priority="low"}'] == 1
    assert found['headway_queue_oldest_age_seconds{priority="low"}'] == 2.5


async def test_held_tasks_and_batches_are_counted(store: Store, clock: ManualClock) -> None:
    source, held = a_job(lane="low"), a_job(lane="high")
    other = node(held.job_id, job=a_job(lane="gone"))
    await submit_graph(store, node(job=source), node(source.job_id, job=held), other)
    found = await samples(store)
    assert found['headway_queue_held{priority="high"}'] == found['headway_queue_held{priority="other"}'] == 1
    assert found['headway_queue_held{priority="low"}'] == found["headway_tasks_unheld_total"] == 0
    assert (found['task_state_total{status="queued"}'], found['queue_depth{priority="high"}']) == (3, 0)
    assert not [name for name in found if name.startswith("headway_batch_duration_seconds")]
    await register(store)
    await end(store, await claim_one(store))
    found = await samples(store)
    assert found["headway_tasks_unheld_total"] == 1
    assert (found['headway_queue_held{priority="high"}'], found['queue_depth{priority="high"}']) == (0, 1)
    for seconds in (1, 4, 10):
        batch_id, _ = await submit_batch(store, 0, open=True)
        clock.advance(ms=seconds * 1_000)
        await store.close_batch(batch_id)
    found = await samples(store)
    assert found['headway_batch_duration_seconds{quantile="0.5"}'] == 4
    assert found['headway_batch_duration_seconds{quantile="0.9"}'] == 10


async def test_states_dead_letters_and_endings(store: Store) -> None:
    # R5.89, R5.94
    for state in State:
        if state.ended:
            await ended_job(store, state)
    await submit(store, a_job(), a_job(delay_ms=9))
    found = await samples(store)
    states = {state.value: found[f'task_state_total{{status="{state}"}}'] for state in State}
    assert states == {"queued": 2, "executing": 0, "completed": 1, "failed": 1, "cancelled": 1, "dead_letter": 1}
    assert found["tasks_dlq_total"] == found["headway_dead_letters"] == 1
    assert found['headway_tasks_finished_total{status="failed"}'] == 1
    assert (found["headway_tasks_submitted_total"], found["headway_tasks_claimed_total"]) == (6, 3)
    await store.purge([State.DEAD_LETTER], None)
    found = await samples(store)
    assert (found["tasks_dlq_total"], found["headway_dead_letters"]) == (1, 0)


async def test_a_promotion_is_counted_when_it_decides_a_claim(store: Store) -> None:
    # R5.86
    await register(store)
    await submit(store, *(a_job(lane="low") for _ in range(2)))
    aged = Plan((Take(ClassKey("low"), 2, below_reserve=True, over="high"),), 2, 2)
    await store.exchange(Exchange("w1", a_claim_id(), plan=aged))
    assert (await samples(store))['tasks_promoted_total{from="low",to="high"}'] == 2


async def test_workers_and_how_full_they_are(store: Store) -> None:
    # R5.90, R5.91
    await register(store, "w1", slots=4, reserved=1)
    await register(store, "w2", slots=6, reserved=1)
    await register(store, "w3", slots=9)
    await submit(store, *(a_job() for _ in range(5)))
    await claim(store, "w1", free=3)
    await claim(store, "w2", free=2)
    await store.drain("w2")
    await store.mark_dead("w3")
    found = await samples(store)
    assert {state.value: found[f'workers_total{{status="{state}"}}'] for state in WorkerState} == {
        "active": 1, "draining": 1, "dead": 1,
    }  # fmt: skip
    assert found["worker_capacity_used_ratio"] == 0.5
    assert [found[f'headway_slots{{kind="{kind}"}}'] for kind in ("total", "used", "reserved")] == [10, 5, 2]
    assert found['headway_count_drift{counter="running"}'] == 0


async def waits(store: Store, policy: Policy = BUILT_IN) -> dict[tuple[str, str], float]:
    """Return the number of waiting tasks by lane and reason, without zeros."""
    body, _ = await render(store, policy)
    families = {family.name: family for family in parser.text_string_to_metric_families(body.decode())}
    found = [
        (one.labels["priority"], one.labels["reason"], one.value) for one in families["headway_queue_waiting"].samples
    ]
    depth = sum(one.value for one in families["queue_depth"].samples)
    assert sum(value for _, _, value in found) == depth
    return {(lane, reason): value for lane, reason, value in found if value}


async def test_waiting_tasks_are_counted_by_lane_and_reason(store: Store) -> None:
    limits = {
        "one": LimitRule(concurrency=1, tasks=("add",)),
        "slow": LimitRule(count=1, period_ms=3_600_000, tasks=("hang",)),
    }
    policy = replace(BUILT_IN, limits=limits)
    await write_rules(store, policy)
    await submit(store, a_job(lane="gone"), a_job(lane="high", needs=("gpu",)), a_job(delay_ms=60_000))
    assert await waits(store, policy) == {("other", "no_worker"): 1, ("high", "no_worker"): 1}
    await change_paused(store, pausing("gone", None, None))
    await register(store, slots=3)
    await submit(store, *(a_job(task="add", lane="high") for _ in range(3)))
    await submit(store, *(a_job(task="hang") for _ in range(3)), *(a_job(task="add") for _ in range(2)))
    assert len(await claim(store, free=3)) == 2
    found = await waits(store, policy)
    assert found == {
        ("other", "paused"): 1, ("high", "unservable"): 1, ("high", "limit"): 2, ("medium", "rate"): 2,
        ("medium", "limit"): 2,
    }  # fmt: skip
    await submit(store, *(a_job(task="other", lane="low") for _ in range(1_500)))
    await claim(store, free=1)
    assert await waits(store, policy) == found | {("low", "slots_full"): 1_499}


async def test_every_reason_of_every_lane_is_shown_before_a_task_waits_for_it(store: Store) -> None:
    found = await samples(store)
    shown = {name for name in found if name.startswith("headway_queue_waiting{")}
    assert shown == {
        f'headway_queue_waiting{{priority="{lane}",reason="{code}"}}' for lane in BUILT_IN.lanes for code in CLASS_CODES
    }
    assert {found[name] for name in shown} == {0}


async def test_the_slots_that_each_lane_is_guaranteed_are_shown(store: Store) -> None:
    lanes = [f'headway_guaranteed_slots{{priority="{lane}"}}' for lane in ("high", "medium", "low")]
    found = await samples(store)
    assert [found[lane] for lane in lanes] == [0, 0, 0]
    await register(store, "w1", slots=5, reserved=1)
    await register(store, "w2", slots=5, reserved=1)
    await register(store, "w3", slots=5)
    await store.mark_dead("w3")
    found = await samples(store)
    assert [found[lane] for lane in lanes] == [6, 3, 1]  # By weight 6:3:1.


async def test_the_ladder_is_shown_by_duration(store: Store) -> None:
    rungs = (Rung("fast", 60_000), Rung("slow", 3_600_000, limit=1))
    policy = replace(BUILT_IN, ladder=Ladder(rungs))
    assert not [name for name in await samples(store) if name.startswith("headway_ladder_")]
    await write_rules(store, policy)
    await register(store, slots=9)
    await submit(store, *(a_job(rung="slow") for _ in range(3)), a_job(rung="fast"), a_job(lane="low"))
    await claim(store, free=9)
    await submit(store, a_job(rung="gone"), a_job(rung=ELASTIC))
    found = {name: value for name, value in (await samples(store, policy)).items() if "headway_ladder_" in name}
    assert found == {
        'headway_ladder_running{duration="fast"}': 1,
        'headway_ladder_running{duration="slow"}': 1,
        'headway_ladder_waiting{duration="fast"}': 0,
        'headway_ladder_waiting{duration="slow"}': 2,
        'headway_ladder_waiting{duration="default"}': 1,
        'headway_ladder_waiting{duration="other"}': 1,
        'headway_ladder_limit{duration="slow"}': 1,
    }


@pytest.mark.parametrize(
    "reserve, running, waiting, idle",
    [
        pytest.param(Reserve(), [4, 5], {"low": 3}, 1, id="one slot is kept from what waits"),
        pytest.param(Reserve(), [4, 4], {"low": 3}, 2, id="and in each worker one"),
        pytest.param(Reserve(), [4, 4], {"high": 3}, 0, id="what waits may have it"),
        pytest.param(Reserve(), [4, 4], {}, 0, id="nothing waits"),
        pytest.param(Reserve(), [2, 2], {"low": 3}, 0, id="others are free too: they are about to be filled"),
        pytest.param(Reserve(scope="pool", slots=2), [5, 3], {"low": 1}, 2, id="of the whole pool"),
        pytest.param(Reserve(scope="pool", slots=2), [5, 2], {"low": 1}, 0, id="of the whole pool, others free"),
    ],
)
def test_reserved_slots_that_stand_idle_while_others_wait_are_shown(
    reserve: Reserve, running: list[int], waiting: dict[str, int], idle: int
) -> None:
    # R1.47
    workers = [replace(a_worker(), running=count) for count in running]
    if reserve.scope == "pool":
        workers = [replace(worker, reserved=0) for worker in workers]
    lanes = {lane: LaneStats(waiting=count) for lane, count in waiting.items()}
    assert idle_reserve(workers, lanes, replace(BUILT_IN, reserve=reserve)) == idle


# ---------------------------------------------------------------------- labels


async def test_labels_stay_few_whatever_lanes_and_reasons_there_are(store: Store) -> None:
    await register(store)
    await submit(store, a_job(lane="gone"), a_job(lane="forgotten"), a_job(tenant="acme", task="secret.task"))
    recorder = MetricsRecorder()
    found_lease = await claim_one(store)
    for lane in ("gone", "forgotten"):
        lease = found_lease._replace(lane=lane)
        recorder.claimed([lease])
        recorder.ended(lease, judge(Raised(BOOM), lease, BUILT_IN), 0.1)
        failed = judge(Raised(JobError("E", "no", retriable=False)), lease, BUILT_IN)
        recorder.ended(lease, failed._replace(reason=f"because {lane}"), 0.1)
    await recorder.publish(store)
    body = (await render(store, BUILT_IN))[0].decode()
    found = read(body)
    assert found['queue_age_seconds_count{priority="other"}'] == 2
    assert found['task_duration_seconds_count{priority="other",status="failed"}'] == 2
    assert found['task_retries_total{priority="other",reason="failed"}'] == 2
    assert found['tasks_failed_total{reason="other"}'] == 2
    assert found['headway_queue_executing{priority="other"}'] + found['queue_depth{priority="other"}'] == 2
    for word in ("acme", "secret.task", "gone", "forgotten", "because"):
        assert word not in body


# ---------------------------------------------------------------------- several processes

TASKS = """
from headway import Discard, Headway, Retry

app = Headway(heartbeat=0.5, dead_after=3)

@app.task(name="good")
async def good() -> None: ...

@app.task(name="bad", priority="high", max_retries=1, retry=Retry(base=0))
async def bad() -> None:
    raise ValueError("no")

@app.task(name="hopeless", priority="low")
async def hopeless() -> None:
    raise Discard("never")
"""

RENDER = """
import asyncio, sys
from headway.core.policy.document import BUILT_IN
from headway.metrics.export import render
from headway.stores.open import open_store

async def main():
    store = open_store(sys.argv[1], "default")
    await store.open()
    body, _ = await render(store, BUILT_IN)
    await store.close()
    sys.stdout.buffer.write(body)

asyncio.run(main())
"""


@contextmanager
def workers(folder: Path, address: str, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    (folder / "tasks.py").write_text(TASKS)
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "headway", "worker", "tasks:app", "--log-level", "warning"],
            cwd=folder,
            env={**os.environ, "HEADWAY_STORE": address},
        )
        for _ in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()


def rendered(address: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", RENDER, address], capture_output=True, check=True)
    return read(done.stdout.decode())


@pytest.mark.slow
@pytest.mark.parametrize("store_name", ["sqlite", pytest.param("redis", marks=pytest.mark.proof)])
def test_two_servers_and_two_workers_give_the_same_right_numbers(store_name: str, tmp_path: Path) -> None:
    # R5.27, R5.85, R5.87, R5.88, R5.93: and no counter falls when a worker leaves.
    address = ADDRESSES[store_name](tmp_path)
    app = Headway(address)
    names = {"good": "medium", "bad": "high", "hopeless": "low"}
    for name, lane in names.items():
        app.task(name=name, priority=lane, max_retries=1)(lambda: None)
    expected = {
        'queue_age_seconds_count{priority="medium"}': 40,
        'queue_age_seconds_count{priority="high"}': 20,
        'queue_age_seconds_count{priority="low"}': 10,
        'task_duration_seconds_count{priority="medium",status="completed"}': 40,
        'task_duration_seconds_count{priority="high",status="dead_letter"}': 10,
        'task_duration_seconds_count{priority="low",status="failed"}': 10,
        'headway_run_seconds_count{outcome="retried",priority="high"}': 10,
        'task_retries_total{priority="high",reason="failed"}': 10,
        'tasks_failed_total{reason="max_retries_exceeded"}': 10,
        'tasks_failed_total{reason="not_retriable"}': 10,
        'headway_tasks_finished_total{status="completed"}': 40,
        'headway_tasks_claimed_total': 70,
        'tasks_dlq_total': 10,
    }  # fmt: skip
    with workers(tmp_path, address, 2) as (first, second):
        wait_until(lambda: len(app.stats().workers) == 2)
        counts = {"good": 40, "bad": 10, "hopeless": 10}
        app.enqueue_many([app.tasks[name].call() for name, count in counts.items() for _ in range(count)])
        wait_until(lambda: app.stats().totals.get("claimed") == 70)
        wait_until(lambda: expected.items() <= rendered(address).items())  # Published by now, by both.
        assert expected.items() <= rendered(address).items()
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
        assert expected.items() <= rendered(address).items()
        second.send_signal(signal.SIGTERM)
        assert second.wait(30) == 0
    one, other = rendered(address), rendered(address)
    assert expected.items() <= one.items()
    assert one == other
    app.close()


# ---------------------------------------------------------------------- by task


async def test_attempts_are_shown_by_task_of_the_catalogue_and_no_other() -> None:
    store = MemoryStore(clock=ManualClock())
    rows: dict[str, MetricRow] = {
        f"tasks|completed|known-{number}": [number, 1_000.0 * number] for number in range(1, 203)
    }
    rows |= {"tasks|retried|known-7": [2, 500.0], "tasks|completed|stranger|\n": [5, 50.0]}
    await store.write(METRICS, "p", encode(MetricsDocument(rows=rows)))
    await publish_tasks(
        store, [TaskEntry(name=f"known-{number}", lane="medium", executor="thread") for number in range(1, 203)]
    )
    shown = [line for line in write_text(await collect(store, BUILT_IN)).splitlines() if "headway_task_run_sec" in line]
    assert "# TYPE headway_task_run_seconds summary" in shown
    assert 'headway_task_run_seconds_count{outcome="completed",task="known-202"} 202.0' in shown
    assert 'headway_task_run_seconds_sum{outcome="retried",task="known-7"} 0.5' in shown
    # The two known tasks with the fewest attempts, and what no catalogue has.
    assert 'headway_task_run_seconds_count{outcome="completed",task="other"} 8.0' in shown
    assert len({re.findall('task="([^"]*)"', line)[0] for line in shown if "task=" in line}) == 201


async def test_a_worker_counts_by_task(app: Headway) -> None:
    from headway import Worker

    @app.task(name="metered")
    def metered() -> None: ...

    async with Worker(app):
        await (await metered.aenqueue()).aresult(timeout=30)
    store = await app.client.store()
    shown = write_text(await collect(store, BUILT_IN))
    assert 'headway_task_run_seconds_count{outcome="completed",task="metered"} 1.0' in shown


LINTED = re.compile(r"counter|gauge|histogram|summary")


async def test_no_name_holds_a_type_and_no_label_is_reserved() -> None:
    store = MemoryStore(clock=ManualClock())
    for family in await collect(store, BUILT_IN):
        assert not LINTED.search(family.name), family.name
        labels = {label for sample in family.samples for label, _ in sample.labels}
        assert "quantile" not in labels
        assert "le" not in labels or family.kind == "histogram"
