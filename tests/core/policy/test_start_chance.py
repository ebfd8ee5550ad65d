"""How likely enough jobs have started, compared with random histories."""

from __future__ import annotations

import random
from math import exp, lgamma, log

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
        doubt = StartDoubt(arrivals=variance, third=6 * batch**3 * times * now)
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


def negative_binomial(mean: float, variance: float, most: int) -> list[float]:
    """Return the chances of 0 to ``most`` starts: also Poisson (equal) and binomial (less variance)."""
    if variance == mean:
        return [exp(at * log(mean) - mean - lgamma(at + 1)) for at in range(most + 1)]
    part = mean / variance  # Below 1 for a negative binomial distribution, above 1 for a binomial one.
    size, chances = mean * part / (1.0 - part), []
    chance = part**size
    for at in range(most + 1):
        chances.append(chance)
        chance *= max(0.0, (size + at) * (1.0 - part) / (at + 1))
    return chances


@pytest.mark.parametrize("part, deviations", [(0.5, 0.0), (0.9, 1.28)])
@pytest.mark.parametrize("start", [1, 2, 4, 20])
@pytest.mark.parametrize("times", [0.8, 1.0, 2.0, 3.0])
def test_the_chance_of_a_start_is_that_of_a_random_number_of_starts(
    times: float, start: int, part: float, deviations: float
) -> None:
    # The first start of one job among eight that run is as exact as the twentieth of a mix of short and long ones.
    low, high = 0.01, 100.0
    while high - low > 0.001:
        mean = (low + high) / 2
        enough = surplus(mean, start - 0.5, StartDoubt(times * mean, mean), deviations) >= 0
        low, high = (low, mean) if enough else (mean, high)
    chance = 1.0 - sum(negative_binomial(high, times * high, start - 1))
    assert chance == pytest.approx(part, abs=0.03)


def test_without_doubt_the_expected_starts_decide() -> None:
    assert surplus(5.0, 3.0, StartDoubt(), 1.28) == 2.0
    assert surplus(3.0, 5.0, StartDoubt(), 0.0) == -2.0


def test_what_cannot_start_even_if_nothing_arrives_is_not_likely() -> None:
    assert surplus(0.0, 50.0, StartDoubt(arrivals=100.0, third=5_000.0), 0.0) < 0
