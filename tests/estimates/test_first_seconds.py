"""Estimates of a new task from its first run on, with jobs on a virtual clock."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import pytest

from headway.core.job import JobId
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN, Ladder, Policy, Reserve, Rung
from headway.core.policy.estimate import Estimate
from headway.core.policy.retry import Returned, judge
from headway.core.worker import ANY_TASK
from headway.estimates.forecaster import Forecaster
from headway.estimates.history import READ_EVERY, DurationHistory
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import LEASE_MS, a_job, claim, register, report, submit

SLOTS = 4
ASKED_EVERY = 3  # Runs.
SHARED = replace(BUILT_IN, reserve=Reserve(slots=0))
LADDER = replace(SHARED, ladder=Ladder((Rung("fast", 3_000), Rung("slow", 30_000))))
RungName = str | None


class EstimateOutcome(NamedTuple):
    """An estimate of a job after some runs, and its real wait. ``clock``: seconds since the submit."""

    runs: int
    clock: float
    estimate: Estimate
    waited: float

    @property
    def ratio(self) -> float:
        assert self.estimate.p50 is not None, self
        return self.estimate.p50 / self.waited


class Line:
    """Jobs that one worker runs in order. After some runs it estimates the last job and one in the middle."""

    def __init__(self, policy: Policy, length: Callable[[], float]) -> None:
        self._policy = policy
        self._length = length
        self._clock = ManualClock()
        self._store = MemoryStore(clock=self._clock)
        self._lessons = DurationHistory(self._seconds)
        self._forecaster = Forecaster(self._seconds)
        self._running: list[tuple[int, int, Lease, float]] = []
        self._asked: dict[JobId, list[tuple[int, int, Estimate]]] = {}
        self._runs = 0
        self.outcomes: list[EstimateOutcome] = []

    def _seconds(self) -> float:
        return self._clock() / 1_000

    async def run(self, count: int, rung: RungName = None) -> list[EstimateOutcome]:
        """Submit jobs, run all of them, and return the estimates of two of them."""
        await register(self._store, slots=SLOTS, reserved=0, offers=(ANY_TASK,), lease_ms=100 * LEASE_MS)
        submitted_at, self._runs, self.outcomes = self._clock(), 0, []
        ids = await submit(self._store, *(a_job(rung=rung) for _ in range(count)))
        watched = [ids[-1], ids[count // 2]]
        await self._fill(submitted_at)
        await self._ask(watched)
        while self._running:
            ends_at, _, lease, seconds = heappop(self._running)
            self._clock.advance(ms=ends_at - self._clock())
            self._lessons.note([(lease, seconds)])
            self._runs += 1
            await report(self._store, judge(Returned(None), lease, self._policy))
            await self._fill(submitted_at)
            await self._lessons.publish(self._store)
            if self._runs % ASKED_EVERY == 0:
                await self._ask(watched)
        return self.outcomes

    async def _fill(self, submitted_at: int) -> None:
        for lease in await claim(self._store, free=SLOTS - len(self._running), offers=(ANY_TASK,)):
            seconds = self._length()
            heappush(self._running, (self._clock() + round(1_000 * seconds), lease.seq, lease, seconds))
            for runs, at, estimate in self._asked.pop(lease.job_id, ()):
                self.outcomes.append(
                    EstimateOutcome(runs, (at - submitted_at) / 1_000, estimate, (self._clock() - at) / 1_000)
                )

    async def _ask(self, watched: list[JobId]) -> None:
        for job_id in watched:
            diagnosis = await self._store.diagnose_job(job_id)
            assert diagnosis is not None
            found = await self._forecaster.estimate(self._store, diagnosis, self._policy)
            if found is not None:
                self._asked.setdefault(job_id, []).append((self._runs, self._clock(), found))


def near(expected: float) -> Callable[[], float]:
    source = random.Random(1)
    return lambda: source.uniform(0.9, 1.1) * expected


LENGTHS = [pytest.param(lambda: 0.2, id="all equally long"), pytest.param(near(0.2), id="nearly so")]
CASES = [pytest.param(SHARED, None, id="nothing declared"), pytest.param(LADDER, "slow", id="declared far too long")]


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("policy, rung", CASES)
async def test_a_new_task_is_known_after_thirty_runs_and_exactly_after_a_hundred(
    policy: Policy, rung: RungName, length: Callable[[], float]
) -> None:
    # R3.37
    outcomes = await Line(policy, length).run(400, rung)
    first = [one for one in outcomes if one.runs >= 30 and one.clock >= 2 and one.waited > 1]
    assert len(first) > 50
    assert all(1 / 1.5 < one.ratio < 1.5 for one in first), [one for one in first if not 1 / 1.5 < one.ratio < 1.5]
    later = [one for one in outcomes if one.runs >= 100 and one.waited > 2]
    assert len(later) > 50
    assert all(abs(one.ratio - 1) < 0.15 for one in later), [one for one in later if abs(one.ratio - 1) >= 0.15]


async def test_eighty_jobs_on_four_slots_are_estimated_at_four_seconds_and_not_at_forty() -> None:
    outcomes = await Line(LADDER, lambda: 0.2).run(80, "slow")
    assert {one.estimate.basis for one in outcomes if one.runs == 0} == {"declared"}
    assert {one.estimate.basis for one in outcomes if one.clock >= 1.5} == {"learned"}
    soon = [one.ratio for one in outcomes if one.clock >= 1.5 and one.waited > 1]
    assert soon
    assert all(1 / 1.5 < ratio < 1.5 for ratio in soon), soon


async def test_an_estimate_is_unknown_only_until_the_first_job_has_ended() -> None:
    outcomes = await Line(SHARED, lambda: 0.2).run(80)
    unknown = [one.clock for one in outcomes if one.estimate.basis == "unknown"]
    assert 0.0 in unknown
    assert max(unknown) < 0.2 + READ_EVERY  # The first jobs end after 0.2 s.


@pytest.mark.parametrize("seconds", [0.18, 0.2, 0.205, 0.22, 0.25, 1.0, 7.0])
async def test_in_steady_state_p50_has_no_bias(seconds: float) -> None:
    line = Line(SHARED, lambda: seconds)
    await line.run(240)
    outcomes = [one.ratio for one in await line.run(240) if one.waited > 10 * seconds]
    assert len(outcomes) > 30
    assert sum(outcomes) / len(outcomes) == pytest.approx(1.0, abs=0.04)


async def test_after_a_strong_change_the_new_run_times_count_within_seconds() -> None:
    seconds = 2.0
    line = Line(SHARED, lambda: seconds)
    await line.run(400)
    seconds = 0.2
    outcomes = [one for one in await line.run(400) if one.clock >= 3 and one.waited > 2]
    assert outcomes
    assert all(1 / 2 < one.ratio < 2 for one in outcomes), [one for one in outcomes if not 1 / 2 < one.ratio < 2]
