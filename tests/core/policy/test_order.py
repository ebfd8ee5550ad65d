"""A job's place in its class: tenants share by time, and each tenant is served in order."""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.policy.enforced import SECOND_US, EnforcedRules, RuleIndex
from headway.core.policy.order import order_key

Place = tuple[int, int, str]  # An order key, a number that grows, a tenant.


@dataclass
class Line:
    """A minimal store of one class: its waiting and running jobs, and its clock."""

    steps: dict[str, int] = field(default_factory=dict)
    waiting: list[Place] = field(default_factory=list)
    running: list[Place] = field(default_factory=list)
    clock: int = 0
    number: int = 0

    def submit(self, tenant: str, count: int = 1) -> None:
        last = max((key for key, _, other in self.waiting + self.running if other == tenant), default=None)
        for _ in range(count):
            last = order_key(self.clock, last, self.steps.get(tenant, SECOND_US))
            self.number += 1
            insort(self.waiting, (last, self.number, tenant))

    def take(self) -> Place:
        place = self.waiting.pop(0)
        self.clock = max(self.clock, place[0])
        self.running.append(place)
        return place

    def finish(self) -> None:
        self.running.clear()

    def cancel(self, tenant: str) -> None:
        self.waiting = [place for place in self.waiting if place[2] != tenant]

    def serve(self, count: int = 1) -> list[str]:
        """Take jobs one after the other, and finish each before the next."""
        served = []
        for _ in range(count):
            served.append(self.take()[2])
            self.finish()
        return served

    def waits(self, tenant: str) -> bool:
        return any(place[2] == tenant for place in self.waiting)


@pytest.mark.parametrize(
    "clock, last, step_us, key",
    [
        pytest.param(700, None, 10, 700, id="a tenant with nothing here begins at the clock"),
        pytest.param(700, 900, 10, 910, id="the next comes a step after the last"),
        pytest.param(700, 695, 10, 705, id="also when the last is already served"),
        pytest.param(700, 300, 10, 700, id="but never before the clock: credit is not stored up"),
        pytest.param(0, None, 10, 0, id="an empty class"),
        pytest.param(0, 0, 10, 10, id="a key of zero is a key"),
    ],
)
def test_a_key_is_a_step_after_the_tenants_last_or_the_clock(
    clock: int, last: int | None, step_us: int, key: int
) -> None:
    assert order_key(clock, last, step_us) == key


@pytest.mark.parametrize("served", [0, 1, 57])
def test_one_job_is_not_lost_behind_a_hundred_thousand_of_another_tenant(served: int) -> None:
    # R5.66
    line = Line()
    line.submit("big", 100_000)
    line.serve(served)
    line.submit("small")
    assert "small" in line.serve(2)


def test_an_old_backlog_is_no_claim_on_what_comes_now() -> None:
    # R5.66: age lifts a lane; within it tenants still share.
    line = Line()
    line.submit("big", 1_000)
    line.serve(100)
    line.submit("small", 100)
    assert Counter(line.serve(100)) == {"big": 50, "small": 50}


def test_one_tenant_is_served_in_the_order_it_came() -> None:
    # R5.11
    line = Line()
    line.submit("a", 50)
    numbers = [line.take()[1] for _ in range(50)]
    assert numbers == sorted(numbers)


def test_equals_take_turns_and_the_first_to_come_is_first() -> None:
    line = Line()
    line.submit("b", 3)
    line.submit("a", 3)
    assert line.serve(6) == ["b", "a"] * 3


@pytest.mark.parametrize(
    "rules, expected",
    [
        pytest.param(EnforcedRules(), {"a": 200, "b": 200}, id="equals"),
        pytest.param(EnforcedRules(weights={"a": 3.0}), {"a": 300, "b": 100}, id="three to one"),
        pytest.param(
            EnforcedRules(default_weight=3, weights={"b": 1.0}), {"a": 300, "b": 100}, id="more than the default"
        ),
        pytest.param(EnforcedRules(weights={"b": 0.25}), {"a": 320, "b": 80}, id="a fraction"),
        pytest.param(EnforcedRules(costs_us={"t=a": 3 * SECOND_US}), {"a": 100, "b": 300}, id="by time, not by jobs"),
        pytest.param(
            EnforcedRules(weights={"a": 3.0}, costs_us={"t=a": 3 * SECOND_US}),
            {"a": 200, "b": 200},
            id="weight and cost",
        ),
    ],
)
def test_tenants_get_time_by_their_weights(rules: EnforcedRules, expected: dict[str, int]) -> None:
    rule_index = RuleIndex(rules)
    line = Line(steps={tenant: rule_index.step_us("t", tenant) for tenant in "ab"})
    for tenant in "ab":
        line.submit(tenant, 1_000)
    got = Counter(line.serve(400))
    assert got == pytest.approx(expected, abs=1)


def test_a_tenant_that_was_away_has_stored_up_nothing() -> None:
    line = Line()
    line.submit("b")
    line.submit("a", 1_000)
    line.serve(500)
    line.submit("b", 500)
    assert Counter(line.serve(20))["b"] == 10


def test_a_tenant_whose_jobs_were_cancelled_has_no_debt() -> None:
    line = Line()
    line.submit("a", 100_000)
    line.submit("b", 10)
    line.serve(4)
    line.cancel("a")
    line.submit("a")
    assert "a" in line.serve(2)


def test_what_runs_still_counts_for_its_tenant() -> None:
    # Otherwise a tenant that submits one job at a time would always be next.
    line = Line()
    line.submit("busy", 100)
    got: Counter[str] = Counter()
    for _ in range(40):
        if not line.waits("trickle"):
            line.submit("trickle")
        got[line.take()[2]] += 1
        line.running = line.running[-3:]
    assert got["trickle"] <= 21


events = st.lists(
    st.tuples(st.just("submit"), st.sampled_from("abc"), st.integers(1, 4))
    | st.tuples(st.just("take"), st.just(""), st.integers(1, 4))
    | st.tuples(st.just("finish"), st.just(""), st.just(0)),
    max_size=80,
)


@given(events=events, steps=st.fixed_dictionaries(dict.fromkeys("abc", st.integers(1, 9_999_999))))
def test_two_tenants_that_both_wait_stay_within_a_step_of_each(
    events: list[tuple[str, str, int]], steps: dict[str, int]
) -> None:
    """The bound of start-time fair queueing. A tenant's jobs also keep their order, and the clock never falls."""
    line = Line(steps=steps)
    ahead: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0])
    served: dict[str, int] = {}
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    for verb, tenant, count in events:
        if verb == "submit":
            line.submit(tenant, count)
        elif verb == "finish":
            line.finish()
        for _ in range(count if verb == "take" else 0):
            if not line.waiting:
                break
            clock = line.clock
            both = [pair for pair in pairs if line.waits(pair[0]) and line.waits(pair[1])]
            key, number, taken = line.take()
            assert key >= clock
            assert number > served.get(taken, 0)
            served[taken] = number
            for pair in pairs:
                if pair not in both:
                    ahead.pop(pair, None)
                    continue
                gain = steps[taken] * ((taken == pair[0]) - (taken == pair[1]))
                ahead[pair].append(ahead[pair][-1] + gain)
                assert max(ahead[pair]) - min(ahead[pair]) <= steps[pair[0]] + steps[pair[1]]
