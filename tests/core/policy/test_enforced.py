"""The part of a policy that stores enforce: the counters in which a job needs room, and the spacing of tenants."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.policy.document import BUILT_IN, Ladder, LimitRule, Policy, Reserve, Rung, TaskRule, Tenants
from headway.core.policy.enforced import (
    EnforcedRules,
    PauseSet,
    RuleIndex,
    applies,
    join,
    limit_key,
    pausing,
    resuming,
    rules_of,
    task_rule,
)

FAST = Rung("fast", 3_000, limit=4)


def a_cap(count: int = 1, *tasks: str, by: str | None = None) -> LimitRule:
    return LimitRule(concurrency=count, tasks=tasks, by=by)


def a_rate(count: int = 1, *tasks: str, by: str | None = None) -> LimitRule:
    return LimitRule(count=count, period_ms=1_000, tasks=tasks, by=by)


def keys(rules: EnforcedRules, task: str = "t", tenant: str | None = None, *bound: str) -> list[str]:
    return [key for key, _ in RuleIndex(rules).keys(task, tenant, bound)]


# ---------------------------------------------------------------------- which counters


@pytest.mark.parametrize(
    "limits, task, tenant, bound, expected",
    [
        pytest.param({}, "t", "acme", (), [], id="no limits"),
        pytest.param({"x": a_cap()}, "t", "acme", (), ["x"], id="a limit on every task"),
        pytest.param({"x": a_cap(1, "a", "t")}, "t", None, (), ["x"], id="on named tasks"),
        pytest.param({"x": a_cap(1, "a", "b")}, "t", None, (), [], id="on others"),
        pytest.param({"x": a_cap(1, "reports.*")}, "reports.export", None, (), ["x"], id="on a pattern"),
        pytest.param({"x": a_cap(1, "reports.*")}, "report", None, (), [], id="the pattern is of the whole name"),
        pytest.param({"x": a_cap(1, "T")}, "t", None, (), [], id="capitals count"),
        pytest.param({"x": a_cap(by="tenant")}, "t", "acme", (), ["x=acme"], id="for each tenant"),
        pytest.param({"x": a_cap(by="tenant")}, "t", None, (), ["x="], id="those without one are one tenant"),
        pytest.param({"x": a_cap(by="account")}, "t", "acme", (), [], id="by an argument that this job has not"),
        pytest.param({"x": a_cap(by="account")}, "t", "acme", ("x=7",), ["x=7"], id="by an argument"),
        pytest.param({}, "t", "acme", ("x=7",), [], id="a limit that is no more"),
        pytest.param({"x": a_cap(by="a")}, "t", None, ("x=a=b", "xy=1"), ["x=a=b"], id="values may hold the sign"),
        pytest.param(
            {"r": a_rate(), "z": a_cap(), "y": a_rate(by="tenant"), "b": a_cap(by="n")},
            "t", "acme", ("b=1",), ["b=1", "z", "r", "y=acme"], id="caps before rates, each by name",
        ),
    ],
)  # fmt: skip
def test_a_job_needs_room_in_the_limits_of_its_task_tenant_and_arguments(
    limits: dict[str, LimitRule], task: str, tenant: str | None, bound: tuple[str, ...], expected: list[str]
) -> None:
    rule_index = RuleIndex(EnforcedRules(limits=limits))
    found = rule_index.keys(task, tenant, bound)
    assert [key for key, _ in found] == expected
    assert all(rule == limits[key.partition("=")[0]] for key, rule in found)
    assert rule_index.may_limit(task, tenant) or not rule_index.keys(task, tenant)


def test_a_pause_comes_before_every_limit_and_leaves_no_room() -> None:
    rules = EnforcedRules(limits={"a": a_cap(9)}, paused=PauseSet(tasks=("t",), tenants=("acme",)))
    found = RuleIndex(rules).keys("t", "acme")
    assert [key for key, _ in found] == ["=paused:task:t", "=paused:tenant:acme", "a"]
    assert [rule.concurrency for _, rule in found] == [0, 0, 9]
    assert keys(rules, "t") == ["=paused:task:t", "a"]
    assert keys(rules, "u", "acme") == ["=paused:tenant:acme", "a"]
    assert keys(rules, "u", "other") == ["a"]


@pytest.mark.parametrize(
    "rules, task, tenant, bound",
    [
        pytest.param(EnforcedRules(), "t", "acme", False, id="nothing binds"),
        pytest.param(EnforcedRules(limits={"x": a_cap(1, "t")}), "t", None, True, id="a limit"),
        pytest.param(EnforcedRules(limits={"x": a_cap(1, "t")}), "u", None, False, id="a limit on others"),
        pytest.param(
            EnforcedRules(limits={"x": a_cap(by="account")}), "t", None, False, id="one that hangs on arguments"
        ),
        pytest.param(EnforcedRules(paused=PauseSet(tasks=("t",))), "t", None, True, id="a paused task"),
        pytest.param(EnforcedRules(paused=PauseSet(tenants=("acme",))), "t", "acme", True, id="a paused tenant"),
        pytest.param(EnforcedRules(paused=PauseSet(tenants=("acme",))), "t", None, False, id="another is paused"),
        pytest.param(
            EnforcedRules(paused=PauseSet(everything=True, lanes=("low",))), "t", None, False, id="lanes are not jobs"
        ),
    ],
)
def test_what_no_rule_can_hold_back_is_known(rules: EnforcedRules, task: str, tenant: str | None, bound: bool) -> None:
    assert RuleIndex(rules).may_limit(task, tenant) is bound


names = st.sampled_from(["a", "b", "c"])
some_names = st.lists(names, max_size=2).map(tuple)
limit_rules = st.builds(
    LimitRule,
    concurrency=st.none() | st.integers(0, 3),
    count=st.none() | st.integers(1, 3),
    period_ms=st.just(1_000),
    by=st.sampled_from([None, "tenant", "account"]),
    tasks=some_names,
)


@given(
    limits=st.dictionaries(st.sampled_from("wxyz"), limit_rules),
    paused=st.builds(PauseSet, tasks=some_names, tenants=some_names),
    task=names,
    tenant=st.none() | names,
    bound=st.lists(st.sampled_from(["w=1", "x=1", "q=1"]), unique=True).map(tuple),
)
def test_counters_are_asked_in_one_order_and_a_job_that_nothing_binds_needs_none(
    limits: dict[str, LimitRule], paused: PauseSet, task: str, tenant: str | None, bound: tuple[str, ...]
) -> None:
    rules = EnforcedRules(limits=limits, paused=paused)
    rule_index = RuleIndex(rules)
    found = rule_index.keys(task, tenant, bound)
    assert found == rule_index.keys(task, tenant, bound) == RuleIndex(rules).keys(task, tenant, bound[::-1])
    assert rule_index.may_limit(task, tenant) == bool(rule_index.keys(task, tenant))
    kinds = [2 if rule.count is not None else 1 for key, rule in found if not key.startswith("=paused:")]
    assert kinds == sorted(kinds)


def test_a_book_answers_alike_for_any_number_of_tasks() -> None:
    rule_index = RuleIndex(EnforcedRules(limits={"x": a_cap(1, "t9*")}))
    for number in range(20_001):
        assert rule_index.may_limit(f"t{number}", None) == str(number).startswith("9")


# ---------------------------------------------------------------------- pauses


def test_a_lane_is_shut_by_its_own_pause_or_that_of_everything() -> None:
    assert not RuleIndex().lane_paused("low")
    rule_index = RuleIndex(EnforcedRules(paused=PauseSet(lanes=("low",))))
    assert (rule_index.lane_paused("low"), rule_index.lane_paused("high")) == (True, False)
    assert RuleIndex(EnforcedRules(paused=PauseSet(everything=True))).lane_paused("high")


def test_pausing_adds_and_resuming_takes_away() -> None:
    paused = pausing("low", None, None)(PauseSet())
    paused = pausing(None, "t", "acme")(paused)
    paused = pausing(None, "a", None)(pausing(None, "t", None)(paused))
    assert paused == PauseSet(lanes=("low",), tasks=("a", "t"), tenants=("acme",))
    assert resuming("high", "t", None)(paused) == PauseSet(lanes=("low",), tasks=("a",), tenants=("acme",))
    assert resuming("low", None, "acme")(paused) == PauseSet(tasks=("a", "t"))


def test_naming_nothing_means_everything() -> None:
    some = PauseSet(lanes=("low",))
    assert pausing(None, None, None)(some) == PauseSet(everything=True, lanes=("low",))
    assert resuming(None, None, None)(replace(some, everything=True)) == PauseSet()
    # What is named is resumed and no more: a pause of everything stays.
    assert resuming("low", None, None)(replace(some, everything=True)) == PauseSet(everything=True)


def test_what_is_paused_is_named_for_people() -> None:
    assert PauseSet().names() == []
    paused = PauseSet(everything=True, lanes=("low",), tasks=("t",), tenants=("acme",))
    assert paused.names() == ["everything", "lane low", "task t", "tenant acme"]


# ---------------------------------------------------------------------- tenants


@pytest.mark.parametrize(
    "rules, step_us",
    [
        pytest.param(EnforcedRules(), 1_000_000, id="a second until something is known"),
        pytest.param(EnforcedRules(costs_us={"t": 40_000}), 40_000, id="what the task is expected to take"),
        pytest.param(EnforcedRules(costs_us={"t": 40_000, "t=acme": 90_000}), 90_000, id="with this tenant"),
        pytest.param(EnforcedRules(costs_us={"t": 40_000, "t=other": 90_000}), 40_000, id="not with another"),
        pytest.param(EnforcedRules(costs_us={"u": 5}), 1_000_000, id="not another task"),
        pytest.param(EnforcedRules(weights={"acme": 4.0}), 250_000, id="by weight"),
        pytest.param(EnforcedRules(weights={"other": 4.0}), 1_000_000, id="not another's weight"),
        pytest.param(EnforcedRules(default_weight=2), 500_000, id="the default weight"),
        pytest.param(
            EnforcedRules(default_weight=2, weights={"acme": 0.5}), 2_000_000, id="its own before the default"
        ),
        pytest.param(EnforcedRules(costs_us={"t": 1}, weights={"acme": 100.0}), 1, id="never nothing"),
        pytest.param(EnforcedRules(costs_us={"t": 0}), 1, id="never nothing, for a task that takes none"),
    ],
)
def test_the_step_of_a_tenant_is_expected_cost_by_weight(rules: EnforcedRules, step_us: int) -> None:
    assert RuleIndex(rules).step_us("t", "acme") == step_us


def test_the_steps_of_any_number_of_tenants_are_right() -> None:
    rule_index = RuleIndex(EnforcedRules(weights={"t3": 2.0}))
    for number in [*range(10_002), 3, 4]:  # More than are cached.
        assert rule_index.step_us("t", f"t{number}") == (500_000 if number == 3 else 1_000_000)


# ---------------------------------------------------------------------- parts and wholes


def test_a_store_is_told_no_more_of_a_policy_than_it_checks() -> None:
    assert rules_of(BUILT_IN) == EnforcedRules()
    reserve = Reserve(scope="pool", slots=2)
    policy = Policy(
        reserve=reserve,
        ladder=Ladder((FAST,)),
        tenants=Tenants(2, {"acme": 3}),
        limits={"x": a_cap(), "y": a_rate()},
    )
    assert rules_of(policy) == EnforcedRules(
        limits={"x": a_cap(), "y": a_rate()},
        rungs=(FAST,),
        pool_reserve=reserve,
        default_weight=2,
        weights={"acme": 3},
    )


def test_a_reserve_in_each_worker_is_no_business_of_the_store() -> None:
    # R1.25
    assert rules_of(replace(BUILT_IN, reserve=Reserve(scope="worker"))).pool_reserve is None


def test_parts_are_joined_and_the_later_stands() -> None:
    paused, reserve = PauseSet(lanes=("low",)), Reserve(scope="pool")
    first = EnforcedRules(
        limits={"x": a_cap(1), "y": a_cap(1)}, weights={"a": 1, "b": 1}, costs_us={"t": 1}, paused=paused
    )
    second = EnforcedRules({"x": a_cap(2)}, (FAST,), reserve, 3, {"a": 2}, {"t": 2, "u": 2})
    assert join([first, second]) == EnforcedRules(
        {"x": a_cap(2), "y": a_cap(1)}, (FAST,), reserve, 3, {"a": 2, "b": 1}, {"t": 2, "u": 2}, paused
    )
    other = replace(FAST, limit=1)
    third = EnforcedRules(
        rungs=(other,), pool_reserve=replace(reserve, slots=9), default_weight=5, paused=PauseSet(tasks=("t",))
    )
    whole = join([first, second, third])
    assert (whole.rungs, whole.default_weight, whole.paused) == ((other,), 5, PauseSet(tasks=("t",)))
    assert whole.pool_reserve == replace(reserve, slots=9)


def test_a_part_that_says_nothing_changes_nothing() -> None:
    part = EnforcedRules(
        {"x": a_cap(2)}, (FAST,), Reserve(scope="pool"), 3, {"a": 2}, {"t": 2}, PauseSet(everything=True)
    )
    assert join([]) == EnforcedRules()
    assert join([part]) == join([EnforcedRules(), part]) == join([part, EnforcedRules()]) == part


def test_what_a_policy_sets_for_a_task_or_nothing() -> None:
    rule = TaskRule(priority="low")
    policy = Policy(tasks={"t": rule})
    assert (task_rule(policy, "t"), task_rule(policy, "u")) == (rule, TaskRule())


def test_counters_are_named_by_limit_and_value() -> None:
    assert limit_key("github", "7") == "github=7"
    assert applies(a_cap(), "anything")
    assert not applies(a_cap(1, "a?"), "a")
