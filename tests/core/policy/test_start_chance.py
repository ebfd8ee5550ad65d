"""How likely enough jobs have started, compared with random histories."""

from __future__ import annotations

import random

import pytest

from headway.core.policy.start_chance import StartDoubt, surplus

RUNS = 2_000
STEP = 0.25  # Seconds.


def when_started(source: random.Random, count: float, served: float, times: float, batch: float) -> float:
    """Return when ``count`` jobs have started of a lane that is served, less the batches that go first, at random."""
    now = reach = 0.0
    comes = source.expovariate(times)
    while reach < count:
        now += STEP
        reach += served * STEP
        while comes < now:
            reach -= source.expovariate(1.0 / batch)
            comes += source.expovariate(times)
    return now


def found(count: float, served: float, times: float, batch: float, deviations: float) -> float:
    """Return when the chance of ``count`` starts is large enough, by bisection."""
    low, high = 0.0, 1e4
    while high - low > 0.01:
        now = (low + high) / 2
        variance = 2 * batch * batch * times * now
        doubt = StartDoubt(variance, variance, 6 * batch**3 * times * now)
        enough = surplus((served - times * batch) * now, count, doubt, deviations) >= 0
        low, high = (low, now) if enough else (now, high)
    return high


@pytest.mark.parametrize("count, batch", [(20, 2.0), (100, 10.0), (400, 25.0)])
def test_half_of_all_jobs_start_by_the_time_found_and_nine_tenths_by_the_later_one(count: float, batch: float) -> None:
    source = random.Random(3)
    served, times = 4.0, 1.6 / batch
    starts = [when_started(source, count, served, times, batch) for _ in range(RUNS)]
    for deviations, part in ((0.0, 0.5), (1.28, 0.9)):
        by = found(count, served, times, batch, deviations)
        assert sum(start <= by for start in starts) / RUNS == pytest.approx(part, abs=0.05)


def test_without_doubt_the_expected_starts_decide() -> None:
    assert surplus(5.0, 3.0, StartDoubt(), 1.28) == 2.0
    assert surplus(3.0, 5.0, StartDoubt(), 0.0) == -2.0


def test_what_cannot_start_even_if_nothing_arrives_is_not_likely() -> None:
    assert surplus(0.0, 50.0, StartDoubt(100.0, 100.0, 5_000.0), 0.0) < 0
