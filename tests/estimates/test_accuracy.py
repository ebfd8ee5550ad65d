"""The accuracy of estimates: a sample of them is compared with the real waits."""

from __future__ import annotations

import pytest

from headway.core.job import JobId
from headway.core.policy.document import BUILT_IN
from headway.core.policy.estimate import Estimate
from headway.estimates.accuracy import (
    JOBS_PER_READ,
    MISSED_AFTER,
    PENDING_MAX,
    SAMPLED_EVERY,
    AccuracySummary,
    EstimateAccuracy,
    summaries,
)
from headway.metrics.export import counted_families
from headway.metrics.recorder import MetricsRecorder
from headway.metrics.text_format import write_text
from headway.stores.memory import MemoryStore
from headway.testing.clock import ManualClock
from tests.conformance.builders import a_job, claim, register, submit


class SteppingClock:
    """A clock that advances by a fixed step with each read."""

    def __init__(self, by: float = 1.0) -> None:
        self.now, self.by = 0.0, by

    def __call__(self) -> float:
        self.now += self.by
        return self.now


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(clock=clock)


def learned(p50: float, p90: float) -> Estimate:
    return Estimate(p50, p90, 1, "learned")


async def test_what_was_said_is_compared_with_when_the_job_started(store: MemoryStore, clock: ManualClock) -> None:
    # R3.37
    scores, recorder = EstimateAccuracy(SteppingClock()), MetricsRecorder()
    await register(store, slots=10)
    said = [learned(8, 20), learned(12, 20), learned(4, 9), learned(10.5, 12)]
    for estimate in said:
        (job_id,) = await submit(store, a_job())
        scores.record(job_id, "medium", estimate, clock())
    await scores.settle(store, recorder)
    assert not summaries(recorder.counted())
    clock.advance(ms=10_000)
    await claim(store, free=4)
    await scores.settle(store, recorder)
    found = summaries(recorder.counted())["medium"]
    assert (found.scored, found.within_p50, found.within_p90) == (4, 0.5, 0.75)
    assert found.error == pytest.approx(0.2, abs=0.05)  # They were off by 0.05, 0.2, 0.2 and 0.6.


async def test_each_job_counts_once_and_now_is_right_if_it_was_so(store: MemoryStore, clock: ManualClock) -> None:
    scores, recorder = EstimateAccuracy(SteppingClock()), MetricsRecorder()
    await register(store, slots=10)
    now, late = await submit(store, a_job(), a_job())
    scores.record(now, "medium", learned(0, 0), clock())
    scores.record(late, "medium", learned(0, 0), clock())
    scores.record(late, "medium", learned(100, 100), clock())
    await claim(store, free=1)
    clock.advance(ms=2_000)
    await claim(store, free=1)
    for _ in range(2):
        await scores.settle(store, recorder)
    assert summaries(recorder.counted()) == {"medium": AccuracySummary(1, 0.0, 0.0, None)}


async def test_a_job_that_never_starts_is_given_up(store: MemoryStore, clock: ManualClock) -> None:
    scores, recorder = EstimateAccuracy(SteppingClock()), MetricsRecorder()
    cancelled, waiting = await submit(store, a_job(), a_job())
    for job_id in (cancelled, waiting, JobId("gone")):
        scores.record(job_id, "medium", learned(1, 2), clock())
    await store.cancel([cancelled])
    await scores.settle(store, recorder)
    assert not summaries(recorder.counted())
    clock.advance(ms=int(1_000 * (MISSED_AFTER * 2 + 3_601)))
    await scores.settle(store, recorder)
    assert summaries(recorder.counted()) == {"medium": AccuracySummary(1, 0.0, 0.0, None)}
    assert not scores._pending


async def test_the_sample_is_bounded_in_number_and_in_time(store: MemoryStore, clock: ManualClock) -> None:
    scores, recorder = EstimateAccuracy(SteppingClock()), MetricsRecorder()
    for number in range(2 * PENDING_MAX):
        scores.record(JobId(f"a{number}"), "low", learned(1, 2), clock())
    scores.record(JobId("b"), "high", learned(1, 2), clock())
    assert len(scores._pending) == PENDING_MAX + 1
    await scores.settle(store, recorder)
    assert len(scores._pending) == PENDING_MAX + 1 - JOBS_PER_READ
    hurried = EstimateAccuracy(SteppingClock(SAMPLED_EVERY / 10))
    for number in range(100):
        hurried.record(JobId(f"a{number}"), "low", learned(1, 2), clock())
    assert 5 <= len(hurried._pending) <= 20


async def test_metrics_show_coverage_error_and_what_estimates_rest_on(store: MemoryStore, clock: ManualClock) -> None:
    scores, recorder = EstimateAccuracy(SteppingClock()), MetricsRecorder()
    scores.record(JobId("gone"), "low", Estimate(position=3), clock())
    await scores.settle(store, recorder)
    for within in (True, True, False, True):
        recorder.scored("low", within_p50=within, within_p90=True, error=0.12)
    text = write_text(counted_families(recorder.counted(), BUILT_IN))
    assert 'headway_estimate_coverage{estimate="p50",priority="low"} 0.75' in text
    assert 'headway_estimate_coverage{estimate="p90",priority="low"} 1.0' in text
    assert 'headway_estimates_scored_total{priority="low"} 4.0' in text
    assert 'headway_estimates_total{basis="unknown",priority="low"} 1.0' in text
    assert 'headway_estimate_error_ratio_bucket{priority="low",le="0.15"} 4' in text
    assert 'headway_estimate_error_ratio_bucket{priority="low",le="0.1"} 0' in text
