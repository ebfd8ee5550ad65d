"""Random graphs and batches while workers are killed: no job hangs, no callback fires twice, and counts are right."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headway import Batch, Job
from headway.client.job_info import arguments_of
from headway.client.links import OnFailure
from headway.client.task import Call
from headway.core.job import JobRecord, State
from headway.core.policy.document import BUILT_IN
from headway.core.workflow import ending
from headway.policy_store.versions import apply_policy
from tests.conftest import ADDRESSES
from tests.faults.conftest import WorkerProcess, Yard, alive, children, tree, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PATIENT = replace(BUILT_IN, crash_limit=1_000)  # A worker dies often, and no job is to blame.
FOREVER = 1 << 62
DURABLE = ["sqlite", "redis", "postgres"]


class Part(NamedTuple):
    """A member of a batch: how it ends if it runs, and the members that it waits for."""

    label: str
    fails: bool
    sources: list[int]
    runs_anyway: bool  # Its edges say ``run``.


class Flow(NamedTuple):
    """A batch, the expected ends of its members, and its callbacks."""

    batch: Batch[Any]
    parts: list[Part]
    then: Job[Any]
    on_failure: Job[Any]
    on_done: Job[Any]


class Storm(NamedTuple):
    """Counts of killed processes and of their effects on jobs."""

    killed: int  # Processes.
    interrupted: int  # Members whose worker died while they ran.
    completed: int
    members: int
    again: int  # Batches that failed and were retried.


@pytest.fixture
def yard(store_name: str, tmp_path: Path) -> Iterator[Yard]:
    found = Yard(tmp_path, ADDRESSES[store_name](tmp_path))

    async def apply() -> None:
        await apply_policy(await found.app.client.store(), PATIENT, now_at=1)

    found.app.portal.run(apply())
    yield found
    found.close()


@pytest.mark.parametrize("store_name", DURABLE)
def test_random_graphs_come_to_their_end_while_workers_die(yard: Yard, seed: int) -> None:
    _storm(yard, random.Random(seed), flows=4, kills=3, pause=0.6)


@pytest.mark.proof
@pytest.mark.parametrize("store_name", DURABLE)
@pytest.mark.parametrize("part", range(3))
def test_many_random_graphs_come_to_their_end_in_a_long_storm(
    yard: Yard, seed: int, part: int, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = float(os.environ.get("SOAK_SECONDS", "60"))
    kills = max(10, int(seconds))
    storm = _storm(yard, random.Random(seed * 10 + part), flows=40, kills=kills, pause=seconds / kills)
    with capsys.disabled():
        print(f"\nstorm {part}: {storm}")
    assert storm.killed > kills, "fewer processes died than were to be killed"
    assert storm.interrupted > 0, "no kill met a running job, so nothing was recovered"
    assert storm.completed > 40, "hardly any job completed"


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("store_name", DURABLE)
def test_a_runner_killed_at_an_exchange_leaves_no_graph_behind(yard: Yard, side: str, seed: int) -> None:
    _kill_at_exchanges(yard, side, random.Random(seed), passages=range(2, 3))


@pytest.mark.proof
@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("store_name", DURABLE)
def test_a_runner_killed_at_any_exchange_leaves_no_graph_behind(yard: Yard, side: str, seed: int) -> None:
    _kill_at_exchanges(yard, side, random.Random(seed), passages=range(1, 16))


def _storm(yard: Yard, chance: random.Random, *, flows: int, kills: int, pause: float) -> Storm:
    workers = [yard.start("--slots", "4") for _ in range(2)]
    played: list[Flow] = []
    killed = 0
    for number in range(kills):  # New graphs come all the time, so that every kill meets some that are under way.
        more = flows * (number + 1) // kills - len(played)
        played += [_begin(yard, chance, f"flow-{len(played) + one}") for one in range(more)]
        time.sleep(chance.uniform(0, 2 * pause))
        killed += _kill(yard, workers, chance)
    _finish(yard, played)
    for flow in played:
        _check(yard, flow, rounds=1)
    again = [flow for flow in played if flow.batch.record().failed]
    for flow in again:
        flow.batch.retry("failed_and_after")
    killed += _kill(yard, workers, chance)
    _finish(yard, again)
    for flow in again:
        _check(yard, flow, rounds=2)
    assert again, "no batch failed, so no second round was played"
    assert killed > 0, "no process was killed"
    members = [job for flow in played for job in yard.app.portal.run(_members(yard, flow.batch))]
    return Storm(
        killed,
        sum(len(job.history) > 0 and job.crashes > 0 for job in members),
        sum(job.state is State.COMPLETED for job in members),
        len(members),
        len(again),
    )


def _kill_at_exchanges(yard: Yard, side: str, chance: random.Random, passages: range) -> None:
    """Kill the runner before or after the store has answered its n-th exchange."""
    for passage in passages:
        flow = _begin(yard, chance, f"flow-{passage}")
        struck = yard.folder / f"struck-{passage}"
        failpoint = {"HEADWAY_FAILPOINT": f"exchange.{side}:kill:{passage}:{struck}"}
        worker = yard.start("--slots", "2", environment=failpoint)
        _finish(yard, [flow])
        wait_until(struck.exists)
        worker.send(signal.SIGKILL, whole_tree=True)
        _check(yard, flow, rounds=1)


def _kill(yard: Yard, workers: list[WorkerProcess], chance: random.Random) -> int:
    """Kill a worker and start another one, or kill a runner, which its parent starts again. Return how many died."""
    which = chance.randrange(len(workers))
    if chance.random() < 0.5:
        pids = tree(workers[which].pid)
        workers[which].send(signal.SIGKILL, whole_tree=True)
        assert workers[which].wait() == -signal.SIGKILL
        workers[which] = yard.start("--slots", "4")
    else:
        pids = children(workers[which].pid)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not any(alive(pid) for pid in pids))
    return len(pids)


def _begin(yard: Yard, chance: random.Random, name: str) -> Flow:
    """Submit a batch with a random graph: each member waits for some of those before it."""
    task = yard.app.tasks["part"]
    parts: list[Part] = []
    calls: list[Call[Any]] = []
    for number in range(chance.randint(4, 12)):
        sources = sorted(chance.sample(range(number), min(number, chance.choice((0, 1, 1, 2, 3)))))
        part = Part(f"{name}.{number}", chance.random() < 0.15, sources, chance.random() < 0.3)
        call = task.call(part.label, chance.choice((0.0, 0.0, 0.05, 0.3)), part.fails)
        on_failure: OnFailure = "run" if part.runs_anyway else "cancel"
        calls.append(call.after(*(calls[source] for source in sources), on_failure=on_failure) if sources else call)
        parts.append(part)
    with yard.app.batch(name) as batch:
        batch.add(calls)
        then = task.using(after=[batch]).enqueue(f"{name}.then")
        on_failure_job = batch.on_failure(task, f"{name}.on_failure")
        on_done = batch.on_done(task, f"{name}.on_done")
    return Flow(batch, parts, then, on_failure_job, on_done)


def _finish(yard: Yard, flows: list[Flow]) -> None:
    """Wait until all jobs and callbacks of the flows have ended."""
    for flow in flows:
        flow.batch.join(timeout=120)
    callbacks = [job for flow in flows for job in (flow.then, flow.on_failure, flow.on_done)]
    wait_until(lambda: all(State(job.status()).ended for job in callbacks), within=120)


def _check(yard: Yard, flow: Flow, *, rounds: int) -> None:
    """Compare an ended flow with its expected result, and its counts with a recount."""
    expected = _expected(flow.parts)
    jobs = {_label(job): job for job in yard.app.portal.run(_members(yard, flow.batch))}
    assert {label: job.state for label, job in jobs.items()} == expected
    batch = flow.batch.record()
    counted = Counter(ending(job.state) for job in jobs.values())
    assert (batch.total, batch.live, batch.held, batch.running) == (len(flow.parts), 0, 0, 0)
    assert (batch.completed, batch.failed, batch.cancelled) == tuple(
        counted[state] for state in ("completed", "failed", "cancelled")
    )
    for part in flow.parts:
        job = jobs[part.label]
        for source in (jobs[flow.parts[number].label] for number in part.sources):
            if job.started_at is not None and (rounds == 1 or not part.runs_anyway):
                assert (source.finished_at or FOREVER) <= job.started_at
    failed = set(expected.values()) != {State.COMPLETED}
    assert batch.round == (rounds if failed else 1)
    _check_callback(yard, flow.then, 0 if failed else 1)
    _check_callback(yard, flow.on_failure, rounds if failed else 0)
    _check_callback(yard, flow.on_done, batch.round)
    for callback in (flow.then, flow.on_done):
        assert (callback.record().started_at or FOREVER) >= (batch.finished_at or FOREVER)


def _check_callback(yard: Yard, job: Job[Any], fires: int) -> None:
    """Check that a callback ran once for each round in which it fired, and more often only if it was interrupted.

    A runner may be killed after a job has ended in it and before the store knows. Its parent then returns the job
    without an attempt in its history. The store counts how many jobs of all flows were returned.
    """
    record = job.record()
    assert record.state is (State.COMPLETED if fires else State.CANCELLED)
    ends = yard.marks(f"part ends {_label(record)}")
    assert fires <= len(ends) <= fires + len(record.history) + yard.app.portal.run(_given_back(yard))
    assert record.epoch >= len(ends)


def _label(job: JobRecord) -> str:
    return str((arguments_of(job) or {})["label"])


async def _given_back(yard: Yard) -> int:
    return (await (await yard.app.client.store()).stats()).totals.get("released", 0)


async def _members(yard: Yard, batch: Batch[Any]) -> list[JobRecord]:
    return await (await yard.app.client.store()).members(batch.id)


def _expected(parts: list[Part]) -> dict[str, State]:
    """Return how each member ends, whichever processes are killed."""
    states: list[State] = []
    for part in parts:
        bad = any(states[source] is not State.COMPLETED for source in part.sources)
        if bad and not part.runs_anyway:
            states.append(State.CANCELLED)
        else:
            states.append(State.FAILED if part.fails else State.COMPLETED)
    return {part.label: state for part, state in zip(parts, states, strict=True)}
