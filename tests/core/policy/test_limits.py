"""Rates: the generic cell rate algorithm, one start at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.policy.document import LimitRule
from headway.core.policy.limits import clamp_rate, conforms_at, step_rate

SECOND_US = 1_000_000


def a_rate(count: int, period_ms: int = 1_000, burst: int = 1) -> LimitRule:
    return LimitRule(count=count, period_ms=period_ms, burst=burst)


def start_whenever_it_may(rule: LimitRule, tries_us: Iterable[int]) -> list[int]:
    """Try to start at these moments, as a store does. Return the moments of the starts."""
    started: list[int] = []
    reached_us: int | None = None
    for now_us in tries_us:
        conforms_us, after_us = step_rate(rule, reached_us, now_us)
        if conforms_us <= now_us:
            started.append(now_us)
            reached_us = after_us
    return started


def start_as_soon_as_it_may(rule: LimitRule, count: int, from_us: int = 0) -> list[int]:
    """Start this many jobs, each as early as the rate allows."""
    started: list[int] = []
    reached_us: int | None = None
    now_us = from_us
    for _ in range(count):
        conforms_us, _ = step_rate(rule, reached_us, now_us)
        now_us = max(now_us, conforms_us)
        conforms_us, reached_us = step_rate(rule, reached_us, now_us)
        assert conforms_us <= now_us
        started.append(now_us)
    return started


def most_in_a_period(rule: LimitRule, started: list[int]) -> int:
    period_us = rule.period_ms * 1_000
    return max((sum(first <= at < first + period_us for at in started) for first in started), default=0)


@pytest.mark.parametrize(
    "rule, reached_us, now_us, conforms_us, after_us",
    [
        pytest.param(a_rate(10), None, 5 * SECOND_US, 5_000_000, 5_100_000, id="the first"),
        pytest.param(a_rate(10), 5_100_000, 5_050_000, 5_100_000, 5_200_000, id="too soon"),
        pytest.param(a_rate(10), 5_100_000, 5_100_000, 5_100_000, 5_200_000, id="just in time"),
        pytest.param(a_rate(10), 5_100_000, 9_000_000, 9_000_000, 9_100_000, id="an idle time is not stored up"),
        pytest.param(a_rate(10, burst=3), None, 5_000_000, 4_800_000, 5_100_000, id="a burst: the first"),
        pytest.param(a_rate(10, burst=3), 5_200_000, 5_000_000, 5_000_000, 5_300_000, id="a burst: the third"),
        pytest.param(a_rate(10, burst=3), 5_300_000, 5_000_000, 5_100_000, 5_400_000, id="a burst: the fourth waits"),
        pytest.param(a_rate(3), 0, 0, 0, 333_334, id="rounded up, so that three fit a second and never four"),
        pytest.param(a_rate(100, 60_000), None, 7, 7, 600_007, id="100/min"),
    ],
)
def test_a_start_conforms_from_a_moment_on_and_reaches_an_interval_further(
    rule: LimitRule, reached_us: int | None, now_us: int, conforms_us: int, after_us: int
) -> None:
    assert step_rate(rule, reached_us, now_us) == (conforms_us, after_us)


rates = st.builds(
    a_rate, count=st.integers(1, 40), period_ms=st.integers(1, 5_000), burst=st.integers(1, 50) | st.just(1)
)
tries = st.lists(st.integers(0, 9) | st.integers(0, 400_000), max_size=150)


@given(rule=rates, gaps_us=tries)
def test_no_period_holds_more_starts_than_the_rate_and_its_burst(rule: LimitRule, gaps_us: list[int]) -> None:
    now_us = 0
    moments = [now_us := now_us + gap for gap in gaps_us]
    started = start_whenever_it_may(rule, moments)
    assert rule.count is not None
    assert most_in_a_period(rule, started) <= rule.count + rule.burst - 1
    if rule.burst == 1:
        assert all(later - at >= rule.interval_us for at, later in pairwise(started))


@given(rule=rates)
def test_with_no_pause_between_them_the_bound_is_met_and_not_passed(rule: LimitRule) -> None:
    assert rule.count is not None
    wanted = rule.count + rule.burst - 1
    started = start_as_soon_as_it_may(rule, wanted + 20)
    # Where intervals were rounded up, a period may hold a little less than the rate.
    rounded = -(-rule.count * rule.count // (rule.period_ms * 1_000))
    assert wanted - rounded <= most_in_a_period(rule, started) <= wanted


@pytest.mark.parametrize("count, period_ms", [(1, 1_000), (7, 1_000), (100, 60_000), (900, 1_000), (5_000, 1_000)])
@pytest.mark.parametrize("burst", [1, 10])
def test_a_steady_supply_reaches_the_full_rate(count: int, period_ms: int, burst: int) -> None:
    rule = a_rate(count, period_ms, burst)
    periods = 20
    started = start_as_soon_as_it_may(rule, count * periods + burst)
    took_us = started[-1] - started[0]
    assert took_us <= periods * (period_ms * 1_000 + count)
    assert took_us >= periods * period_ms * 1_000


def test_a_burst_is_there_again_after_a_rest_and_no_more_than_that() -> None:
    rule = a_rate(10, burst=3)
    at_once = start_whenever_it_may(rule, [0] * 9)
    assert at_once == [0, 0, 0]
    later = start_whenever_it_may(rule, [0] * 9 + [50_000_000] * 9)
    assert later == [0] * 3 + [50_000_000] * 3
    half_rested = start_whenever_it_may(rule, [0] * 9 + [200_000] * 9)
    assert half_rested == [0] * 3 + [200_000] * 2


def test_a_try_that_fails_costs_nothing() -> None:
    rule = a_rate(1)
    assert start_whenever_it_may(rule, range(0, 3 * SECOND_US + 1, 1_000)) == [0, 1_000_000, 2_000_000, 3_000_000]


@pytest.mark.parametrize(
    "rule, reached_us, clamped_us",
    [
        pytest.param(a_rate(10), 5_000_000, 5_000_000, id="what was given away stays given away"),
        pytest.param(a_rate(10), 5_100_000, 5_100_000, id="as far as this rule could have gone"),
        pytest.param(a_rate(10), 65_000_000, 5_100_000, id="and no further: the rule before was slower"),
        pytest.param(a_rate(10, burst=3), 65_000_000, 5_300_000, id="a burst may have been used up"),
        pytest.param(a_rate(10), 4_000_000, 4_000_000, id="in the past it matters no more"),
        pytest.param(LimitRule(concurrency=3), 65_000_000, None, id="a rule that counts no starts"),
        pytest.param(None, 65_000_000, None, id="a rule that is no more"),
    ],
)
def test_a_new_rule_holds_at_once(rule: LimitRule | None, reached_us: int, clamped_us: int | None) -> None:
    assert clamp_rate(rule, reached_us, 5_000_000) == clamped_us


@given(before=rates, after=rates, moments=st.lists(st.integers(0, 3_000_000), min_size=1, max_size=40).map(sorted))
def test_after_a_change_of_rule_a_start_is_never_further_away_than_a_new_rate_would_make_it(
    before: LimitRule, after: LimitRule, moments: list[int]
) -> None:
    reached_us: int | None = None
    for now_us in moments:
        conforms_us, then_us = step_rate(before, reached_us, now_us)
        reached_us = then_us if conforms_us <= now_us else reached_us
    assert reached_us is not None
    clamped_us = clamp_rate(after, reached_us, moments[-1])
    assert clamped_us is not None
    assert step_rate(after, clamped_us, moments[-1])[0] <= moments[-1] + after.interval_us
    assert clamp_rate(before, reached_us, moments[-1]) == reached_us


@pytest.mark.parametrize("conforms_us, at", [(0, 0), (1, 0), (999, 0), (1_000, 1), (1_001, 1), (-1, -1)])
def test_the_millisecond_in_which_a_start_conforms(conforms_us: int, at: int) -> None:
    assert conforms_at(conforms_us) == at


@pytest.mark.parametrize("count", [1, 7, 150, 600, 900, 1_500, 3_333])
def test_by_a_clock_of_milliseconds_the_full_rate_is_reached_and_never_exceeded(count: int) -> None:
    rule = LimitRule(count=count, period_ms=1_000)
    reached_us: int | None = None
    starts: Counter[int] = Counter()
    for now_at in range(5_000):
        while True:
            conforms_us, then_us = step_rate(rule, reached_us, now_at * 1_000)
            if conforms_at(conforms_us) > now_at:
                break
            reached_us = then_us
            starts[now_at] += 1
    total = [0]
    for now_at in range(5_000):
        total.append(total[-1] + starts[now_at])
    in_stretches = [total[at + 1_000] - total[at] for at in range(4_000)]
    assert max(in_stretches) <= count
    assert total[-1] == pytest.approx(5 * count, rel=0.01)
