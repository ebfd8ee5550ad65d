"""A replay of the records of a real store and job source does the same as they did."""

from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest

from headway.core.errors import JobError
from headway.core.job import JobId, NewJob
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, Policy, reserved_slots
from headway.core.policy.reader import read_policy
from headway.core.policy.retry import Ending, Raised, Returned
from headway.core.worker import ANY_TASK
from headway.dispatch import job_source
from headway.dispatch.job_source import FinishedRun, StoreJobSource
from headway.estimates.costs import TaskCosts
from headway.policy_store.current import CurrentPolicy
from headway.policy_store.rule_documents import change_costs, write_rules
from headway.simulate.recording import Recording
from headway.simulate.replay import replay
from headway.stores.base import Heartbeat, JobQuery, Store
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, a_worker

SLOTS = 3
SEED = 0
FOREVER_MS = 10**12
COSTS = {"a": 1_500_000, "b": 2_000_000, "c": 2_500_000}  # Microseconds.
LIMITED = read_policy(
    {
        "limits": {"one": {"concurrency": 1, "tasks": ["b"]}, "paced": {"rate": "30/min", "tasks": ["c"]}},
        "lanes": {"high": {"level": 0, "weight": 1}, "low": {"level": 1, "weight": 2, "promote_after": [3, 9]}},
        "default_lane": "low",
        "reserve": {"slots": 0},
    },
    "limited",
)


class RealRun:
    """A real job source on a clock that only this class moves. A table holds the lengths of its jobs."""

    def __init__(self, store: Store, clock: ManualClock, policy: Policy) -> None:
        self._store, self._clock, self._policy = store, clock, policy
        self._reserved = reserved_slots(policy, SLOTS, None)
        self.worker = a_worker("w1", slots=SLOTS, reserved=self._reserved, offers=(ANY_TASK,))
        self._running: list[tuple[int, int, Lease]] = []
        self._below = 0
        self._due_at: int | None = None

    async def run(self, coming: list[tuple[int, NewJob]], lengths: dict[JobId, list[int]]) -> None:
        """Submit jobs at their times and run them. All attempts of a job fail but the last one."""
        costs = TaskCosts()
        await costs.publish(self._store)
        source = StoreJobSource(self._store, CurrentPolicy(self._policy, fixed=True), "w1", (ANY_TASK,),
                                durations=costs, offset=random.Random(SEED).random())  # fmt: skip
        await self._store.renew(Heartbeat(self.worker, FOREVER_MS, FOREVER_MS, register=True))
        begin_at = self._clock()
        while coming or self._running or self._due_at is not None:
            moments = [self._running[0][0]] if self._running else []
            moments += [begin_at + coming[0][0]] if coming else []
            moments += [self._due_at] if self._due_at is not None else []
            now_at = max(self._clock(), min(moments))
            self._clock.advance(ms=now_at - self._clock())
            while coming and begin_at + coming[0][0] <= now_at:
                await self._store.submit([coming.pop(0)[1]])
            if self._due_at is not None and self._due_at <= now_at:
                self._due_at = None
            ended: list[FinishedRun] = []
            while self._running and self._running[0][0] <= now_at:
                _, _, lease = heappop(self._running)
                self._below -= lease.lane not in self._policy.reserve.lanes
                ending: Ending = Returned(None)
                if lease.attempts < len(lengths[lease.job_id]):
                    ending = Raised(JobError("Oops", "again"))
                ended.append(FinishedRun(lease, ending, (now_at - lease.started_at) / 1_000))
            await self._claim(source, ended, lengths)

    async def _claim(self, source: StoreJobSource, ended: list[FinishedRun], lengths: dict[JobId, list[int]]) -> None:
        while ended or len(self._running) < SLOTS:
            free, below = SLOTS - len(self._running), SLOTS - self._reserved - self._below
            reply = await source.exchange(ended, (), free=free, free_below=below)
            assert not reply.refused
            ended = []
            for lease in reply.leases:
                self._below += lease.lane not in self._policy.reserve.lanes
                ends_at = self._clock() + lengths[lease.job_id][lease.attempts - 1]
                heappush(self._running, (ends_at, lease.seq, lease))
            if reply.next_due is not None:
                self._due_at = self._clock() + round(1_000 * reply.next_due)
            if not reply.more and not reply.leases:
                return


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("policy", [BUILT_IN, LIMITED], ids=["built in", "limits and promotions"])
async def test_records_of_a_real_store_replay_to_the_same_starts(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, policy: Policy, seed: int
) -> None:
    monkeypatch.setattr(job_source, "SNAPSHOT_AGE", -1.0)  # The clock of this test does not move between exchanges.
    monkeypatch.setattr(job_source, "SNAPSHOT_AGE_ALONE", -1.0)
    chance = random.Random(seed)
    coming: list[tuple[int, NewJob]] = []
    lengths: dict[JobId, list[int]] = {}
    moments = sorted(chance.sample(range(40_000), 60))
    for number, moment in enumerate(moments):
        lane = chance.choice(sorted(policy.lanes))
        # Records keep when a delayed job became eligible, so the order of two that did at once is lost.
        delay_ms = 2_500 if number % 20 == 7 else 0
        tenant = chance.choice([None, "acme", "umbrella"])
        job = a_job(task=chance.choice("abc"), lane=lane, tenant=tenant, delay_ms=delay_ms)
        job = job._replace(max_retries=policy.lanes[lane].max_retries, timeout_ms=policy.lanes[lane].timeout_ms)
        coming.append((moment, job))
        attempts = 1 if delay_ms else chance.choice([1, 1, 1, 2])  # Records do not keep the delay of a job that failed.
        lengths[job.job_id] = [chance.randrange(300, 4_000) for _ in range(attempts)]
    await write_rules(store, policy)
    await change_costs(store, lambda _: COSTS)
    run = RealRun(store, clock, policy)
    await run.run(coming.copy(), lengths)
    recording = Recording("the store", policy)
    for record in await store.find(JobQuery(limit=1_000)):
        recording.add(record)
    trace = recording.trace((await store.stats()).workers)
    assert len(trace.jobs) == 60
    assert trace.capacity is not None
    monkeypatch.setattr(
        "headway.simulate.replay.expected_costs", lambda _: {"a": 1_500_000, "b": 2_000_000, "c": 2_500_000}
    )
    outcome = replay(trace.jobs, policy, trace.capacity, seed=SEED)
    known = [(job.name, job.waited_ms) for job in trace.jobs if job.waited_ms is not None]
    assert len(known) > 35
    outcomes = zip(trace.jobs, outcome.waits, strict=True)
    replayed = [(job.name, wait) for job, wait in outcomes if job.waited_ms is not None]
    assert replayed == known
    assert outcome.busy_ms == sum(map(sum, lengths.values()))
