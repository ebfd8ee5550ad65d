"""The policy file: valid keys, errors for invalid ones, and a lossless round trip through text."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core.errors import ConfigError, PolicyError
from headway.core.job import RetryRule
from headway.core.policy.document import (
    BUILT_IN,
    Keep,
    Ladder,
    Lane,
    LimitRule,
    Policy,
    Reserve,
    Rung,
    TaskRule,
    Tenants,
)
from headway.core.policy.reader import read_policy
from headway.core.policy.units import parse_length, parse_rate
from headway.core.policy.writer import policy_data

SPELLED_OUT = """
promotion = "share"
release = "front"
reserve = {lanes = ["high"], slots = 1, scope = "worker"}
max_depth = 0
crash_limit = 3
[lanes.high]
level = 0
weight = 6
max_retries = 5
timeout = 300
[lanes.medium]
level = 1
weight = 3
max_retries = 3
timeout = 600
promote_after = [1200]
[lanes.low]
level = 2
weight = 1
max_retries = 2
timeout = 900
promote_after = [600, 1200]
[retry]
backoff = "exponential"
cap = 60
timeout_growth = 1.5
timeout_growth_cap = 4.0
[ladder]
rungs = []
victim = "least_elapsed"
lower = "needed"
[tenants]
default_weight = 1
[keep]
completed = "1d"
failed = "7d"
cancelled = "1d"
dead_letter = "30d"
idempotency = "24h"
"""

SEED_LADDER = """
[ladder]
rungs = [
  {name = "fast", seconds = 3},
  {name = "medium", seconds = 10, limit = "60%"},
  {name = "slow", seconds = 30, limit = "30%"},
]
"""


def read(text: str) -> Policy:
    return read_policy(tomllib.loads(text), "policy.toml")


def problems(text: str) -> list[str]:
    with pytest.raises(PolicyError) as caught:
        read(text)
    return [str(problem) for problem in caught.value.problems]


unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


# ---------------------------------------------------------------------- what may stand in it


@pytest.mark.parametrize("text", [pytest.param("", id="nothing"), pytest.param(SPELLED_OUT, id="all of it")])
def test_a_file_that_says_nothing_new_is_the_built_in_policy(text: str) -> None:
    assert read(text) == BUILT_IN


def test_parts_that_are_given_stand_beside_those_that_are_not() -> None:
    policy = read(
        """
        crash_limit = 5
        [retry]
        base = "500ms"
        jitter = 0.1
        [tenants]
        weights = {acme = 3, "odd name" = 0.5}
        [keep]
        failed = 3600
        completed_max = 1_000
        """
    )
    assert policy.crash_limit == 5
    assert policy.retry == RetryRule("exponential", base_ms=500, cap_ms=60_000, jitter=0.1)
    assert policy.tenants == Tenants(1, {"acme": 3, "odd name": 0.5})
    assert policy.keep == Keep(failed_ms=3_600_000, completed_max=1_000)
    assert policy.lanes == BUILT_IN.lanes


@pytest.mark.parametrize("value", ["-1", "1.5", "'many'", "true"])
def test_a_bound_on_what_is_kept_is_a_whole_number(value: str) -> None:  # R2.70
    with pytest.raises(PolicyError, match=r"keep\.completed_max"):
        read(f"[keep]\ncompleted_max = {value}")


def test_lanes_that_are_given_replace_the_built_in_ones() -> None:
    policy = read("[lanes.express]\nlevel = 1\n[lanes.bulk]\nlevel = 4\npromote_after = ['10m', 900]\ntimeout = '2h'")
    assert policy.lanes == {
        "express": Lane(1, 1, max_retries=3, timeout_ms=600_000),
        "bulk": Lane(4, 1, max_retries=3, timeout_ms=7_200_000, promote_after_ms=(600_000, 900_000)),
    }


@pytest.mark.parametrize(
    "text, default_lane, reserve",
    [
        pytest.param(
            "[lanes.a]\nlevel=0\n[lanes.b]\nlevel=1", "b", Reserve(frozenset(), 0), id="the worst; no reserve"
        ),
        pytest.param("[lanes.medium]\nlevel=0\n[lanes.z]\nlevel=1", "medium", Reserve(frozenset(), 0), id="medium"),
        pytest.param("[lanes.high]\nlevel=0", "high", Reserve(), id="high keeps its reserve"),
        pytest.param("default_lane='low'", "low", Reserve(), id="as given"),
        pytest.param(
            "reserve={lanes=['medium','high'], slots=2, scope='pool', rule='leave_free'}",
            "medium",
            Reserve(frozenset({"high", "medium"}), 2, "pool", "leave_free"),
            id="R1.47 leave_free",
        ),
    ],
)
def test_the_default_lane_and_the_reserve_follow_the_lanes(text: str, default_lane: str, reserve: Reserve) -> None:
    policy = read(text)
    assert (policy.default_lane, policy.reserve) == (default_lane, reserve)


def test_a_lane_may_rise_two_levels_at_once() -> None:
    assert read("[lanes.a]\nlevel=2\npromote_after=[600, 600]").lanes["a"].promote_after_ms == (600_000, 600_000)


def test_the_ladder_has_numbers_and_parts_for_limits() -> None:
    # R3.1, R3.73
    assert read(SEED_LADDER).ladder.rungs == (
        Rung("fast", 3_000),
        Rung("medium", 10_000, percent=60),
        Rung("slow", 30_000, percent=30),
    )
    four = read("[ladder]\nrungs=[{name='a',seconds=1,limit=8},{name='b',seconds=2,limit=8},{name='c',seconds='1m'}]")
    assert [(rung.length_ms, rung.limit) for rung in four.ladder.rungs] == [(1_000, 8), (2_000, 8), (60_000, None)]


def test_limits_and_task_rules() -> None:
    policy = read(
        """
        [limits.github]
        concurrency = 5
        rate = "100/min"
        burst = 10
        by = "account_id"
        tasks = ["reports.*", "sync"]
        [limits.all]
        concurrency = 2
        [limits.host]
        concurrency = 2
        by = "host"
        scope = "global"
        [tasks."reports.export"]
        priority = "low"
        duration = "default"
        timeout = 60
        max_retries = 0
        [tasks.ping]
        """
    )
    assert policy.limits == {
        "github": LimitRule(5, 100, 60_000, burst=10, by="account_id", tasks=("reports.*", "sync")),
        "host": LimitRule(concurrency=2, by="host", scope="global"),
        "all": LimitRule(concurrency=2),
    }
    assert policy.tasks == {"reports.export": TaskRule("low", "default", 60_000, 0), "ping": TaskRule()}


# ---------------------------------------------------------------------- what may not


@pytest.mark.parametrize(
    "text, problem",
    [
        pytest.param("promotoin='share'", "promotoin: unknown key; did you mean 'promotion'?", id="key"),
        pytest.param("qqq=1", "qqq: unknown key (known are promotion, release, lanes, ", id="key like none"),
        pytest.param("[keep]\nfailde=1", "keep.failde: unknown key; did you mean 'failed'?", id="inner key"),
        pytest.param("promotion='age'", "promotion: expected share or absolute, found 'age'", id="promotion"),
        pytest.param("promotion=1", "promotion: expected share or absolute, found 1", id="no text"),
        pytest.param("max_depth=-1", "max_depth: expected a whole number of at least 0, found -1", id="depth"),
        pytest.param("[limits.a]\nrate='1/s'\nby='x'\nscope='all'", "limits.a.scope: expected tenant", id="scope"),
        pytest.param("[limits.a]\nrate='1/s'\nscope='global'", "expected none without a parameter in by", id="no by"),
        pytest.param("crash_limit=0", "crash_limit: expected a whole number of at least 1, found 0", id="crashes"),
        pytest.param("crash_limit=true", "found true", id="true is no number"),
        pytest.param("crash_limit=3.0", "found 3.0", id="3.0 is not whole"),
        pytest.param("default_lane='hihg'", "expected a lane: high, medium or low, found 'hihg'; did you", id="lane"),
        pytest.param("lanes=3", "lanes: expected a table, found 3", id="no table"),
        pytest.param("[lanes]", "lanes: expected at least one lane", id="no lanes"),
        pytest.param("[lanes.a]", "lanes.a.level: expected a whole number from 0 to 1000, found nothing", id="level"),
        pytest.param("[lanes.a]\nlevel=-1", "lanes.a.level: expected a whole number from 0", id="negative level"),
        pytest.param("[lanes.a]\nlevel=0\nweight=0", "lanes.a.weight: expected a number from 0.001", id="weight"),
        pytest.param("[lanes.a]\nlevel=0\nweight=nan", "found nan", id="not a number"),
        pytest.param("[lanes.a]\nlevel=0\nweight=inf", "found inf", id="infinite"),
        pytest.param("[lanes.a]\nlevel=0\ntimeout=0", "lanes.a.timeout: expected a length from 1ms", id="timeout"),
        pytest.param("[lanes.a]\nlevel=0\ntimeout='5 lunes'", "expected seconds, or a length such as '90s'", id="unit"),
        pytest.param("[lanes.a]\nlevel=0\nmax_retries=-1", "lanes.a.max_retries: expected a whole", id="retries"),
        pytest.param("[lanes.a]\nlevel=0\npromote_after=600", "promote_after: expected a list, found 600", id="list"),
        pytest.param(
            "[lanes.a]\nlevel=2\npromote_after=[600, 300]",
            "lanes.a.promote_after[1]: expected a length of at least 10m, like the one before it, found 300",
            id="falling thresholds",
        ),
        pytest.param("[lanes.'a b']\nlevel=1.5", 'lanes."a b".level: expected a whole number', id="quoted key"),
        pytest.param("[lanes.'']\nlevel=1", 'lanes."": expected a name', id="empty name"),
        pytest.param("reserve={lanes=['hgih']}", "reserve.lanes[0]: expected a lane: high, medium, low", id="reserve"),
        pytest.param("reserve={lanes=[], slots=1}", "reserve.lanes: expected the lanes that may fill", id="for nobody"),
        pytest.param("reserve={slots=-1}", "reserve.slots: expected a whole number of at least 0", id="slots"),
        pytest.param("reserve={scope='host'}", "reserve.scope: expected worker or pool, found 'host'", id="scope"),
        pytest.param("reserve={rule='free'}", "reserve.rule: expected cap or leave_free", id="rule"),
        pytest.param("[retry]\nbackoff='cubic'", "retry.backoff: expected exponential, linear or fixed", id="backoff"),
        pytest.param("[retry]\njitter=2", "retry.jitter: expected a number from 0 to 1, found 2", id="jitter"),
        pytest.param("[retry]\ntimeout_growth=0.5", "retry.timeout_growth: expected a number from 1", id="growth"),
        pytest.param("[retry]\ncap=-1", "retry.cap: expected a length from 0", id="negative length"),
        pytest.param("[ladder]\nvictim='me'", "ladder.victim: expected least_elapsed or random", id="victim"),
        pytest.param("[ladder]\nlower='some'", "ladder.lower: expected needed or all", id="lower"),
        pytest.param("[tenants]\ndefault_weight=-1", "tenants.default_weight: expected a number from", id="tenants"),
        pytest.param("[tenants]\nmax_depth=-1", "tenants.max_depth: expected a whole number", id="a tenant's depth"),
        pytest.param("[tenants]\nmax_depths={a='x'}", "tenants.max_depths.a: expected a whole", id="one's depth"),
        pytest.param("[tenants]\nweights={a=0}", "tenants.weights.a: expected a number from", id="a tenant's weight"),
        pytest.param("[limits.x]", "limits.x: expected concurrency, rate or both, found neither", id="empty limit"),
        pytest.param("[limits.x]\nconcurrency=0", "limits.x.concurrency: expected a whole number of", id="shut limit"),
        pytest.param("[limits.x]\nrate='5/eon'", "limits.x.rate: expected a rate such as '100/min'", id="rate"),
        pytest.param("[limits.x]\nrate='0/s'", "limits.x.rate: expected a rate of 1 to", id="no rate"),
        pytest.param("[limits.x]\nconcurrency=1\nburst=2", "limits.x.burst: expected none without a", id="burst"),
        pytest.param("[limits.x]\nconcurrency=1\nby='a b'", "limits.x.by: expected the name of a parameter", id="by"),
        pytest.param("[limits.x]\nconcurrency=1\ntasks='a'", "limits.x.tasks: expected a list, found 'a'", id="tasks"),
        pytest.param(
            "[limits.x]\nconcurrency=1\ntasks=[1]", "limits.x.tasks[0]: expected a text, found 1", id="a task"
        ),
        pytest.param("[limits.'a=b']\nconcurrency=1", "limits.\"a=b\": expected a name without '='", id="limit name"),
        pytest.param("[tasks.x]\npriority='lwo'", "tasks.x.priority: expected a lane: high, medium or low", id="task"),
        pytest.param("[tasks.x]\nduration='slow'", "tasks.x.duration: expected a rung of the ladder: def", id="rung"),
        pytest.param("[tasks.'a.*']\ntimeout=1", 'tasks."a.*": expected the name of one task', id="pattern"),
    ],
)
def test_what_is_wrong_is_named_with_its_key_what_was_expected_and_what_was_found(text: str, problem: str) -> None:
    (found,) = problems(text)
    assert problem in found


@pytest.mark.parametrize(
    "rungs, problem",
    [
        pytest.param(
            "{name='a',seconds=3,limit=0}", "rungs[0].limit: expected a whole number of at least 1", id="R3.13"
        ),
        pytest.param(
            "{name='a',seconds=3,limit='0%'}", "rungs[0].limit: expected a whole number of at", id="R3.13 part"
        ),
        pytest.param("{name='a',seconds=3,limit='101%'}", "or a part such as '60%', found '101%'", id="more than all"),
        pytest.param("{name='a',seconds=3,limit=true}", "found true", id="true"),
        pytest.param(
            "{name='m',seconds=1,limit=4},{name='s',seconds=2,limit=5}",
            "rungs[1].limit: expected at most 4, the limit of a shorter rung, found 5",
            id="R3.14 slow above medium",
        ),
        pytest.param(
            "{name='f',seconds=1,limit=4},{name='m',seconds=2},{name='s',seconds=3,limit=5}",
            "rungs[2].limit: expected at most 4",
            id="R3.15 over one without a limit",
        ),
        pytest.param(
            "{name='f',seconds=1,limit='30%'},{name='m',seconds=2,limit=9},{name='s',seconds=3,limit='60%'}",
            "rungs[2].limit: expected at most 30",
            id="R3.17 parts among themselves",
        ),
        pytest.param("{name='a',seconds=3},{name='b',seconds=3}", "rungs[1].seconds: expected more than 3", id="order"),
        pytest.param(
            "{name='a',seconds=3},{name='a',seconds=4}", "rungs[1].name: expected a name of its own", id="twice"
        ),
        pytest.param("{name='default',seconds=3}", "rungs[0].name: expected another name", id="default"),
        pytest.param("{name='interactive',seconds=3}", "rungs[0].name: expected another name", id="interactive"),
        pytest.param("{seconds=3}", "rungs[0].name: expected a name, found nothing", id="nameless"),
        pytest.param("{name='a'}", "rungs[0].seconds: expected a length, found nothing", id="endless"),
        pytest.param("3", "rungs[0]: expected a table, found 3", id="no table"),
    ],
)
def test_a_ladder_whose_limits_break_the_order_is_refused(rungs: str, problem: str) -> None:
    # R3.17
    assert problem in problems(f"[ladder]\nrungs=[{rungs}]")[0]


def test_limits_of_numbers_and_parts_do_not_compare() -> None:
    rungs = "{name='f',seconds=1,limit='30%'},{name='m',seconds=2,limit=9},{name='s',seconds=3,limit='30%'}"
    assert len(read(f"[ladder]\nrungs=[{rungs}]").ladder.rungs) == 3


def test_a_task_has_fair_by_and_limits_as_its_decorator_could_have() -> None:
    policy = read(
        """
        [tasks."reports.[x]"]
        fair_by = "account"
        limits = [{ concurrency = 2, by = "account" }, { rate = "10/min", burst = 3 }]
        """
    )
    assert policy.tasks == {"reports.[x]": TaskRule(fair_by="account")}
    assert policy.limits == {
        "reports.[x]:concurrency:account": LimitRule(2, by="account", tasks=("reports.[[]x]",)),
        "reports.[x]:rate/1m": LimitRule(count=10, period_ms=60_000, burst=3, tasks=("reports.[[]x]",)),
    }
    assert read_policy(policy_data(policy), where="test") == policy


@pytest.mark.parametrize(
    "text, problem",
    [
        ("fair_by = 3", "tasks.t.fair_by: expected the name of a parameter, found 3"),
        ("fair_by = 'account id'", "tasks.t.fair_by: expected the name of a parameter, found 'account id'"),
        ("limits = [{ by = 'a' }]", "tasks.t.limits[0]: expected concurrency, rate or both, found neither"),
        ("limits = [{ rate = 'x' }]", "tasks.t.limits[0].rate: expected a rate such as"),
        ("limits = [{ concurrency = 1, tasks = ['u'] }]", "tasks.t.limits[0].tasks: unknown key"),
        ("limits = { concurrency = 1 }", "tasks.t.limits: expected a list"),
        (
            "limits = [{ concurrency = 1 }, { concurrency = 2 }]",
            "tasks.t.limits[1]: expected no second limit named 't:concurrency'",
        ),
    ],
)
def test_what_is_wrong_in_a_task_is_named(text: str, problem: str) -> None:
    with pytest.raises(PolicyError) as refused:
        read(f"[tasks.t]\n{text}\n")
    assert problem in str(refused.value)


def test_all_problems_are_told_at_once_each_with_the_file() -> None:
    with pytest.raises(PolicyError) as caught:
        read("promotion='x'\ncrash_limit=0\n[lanes.a]\nlevel=0\nwieght=1\n[tasks.t]\npriority='b'")
    error = caught.value
    assert [problem.key for problem in error.problems] == [
        "promotion",
        "lanes.a.wieght",
        "crash_limit",
        "tasks.t.priority",
    ]
    lines = str(error).splitlines()
    assert len(lines) == 4
    assert all(line.startswith("policy.toml: ") for line in lines)
    assert (error.code, isinstance(error, ConfigError)) == ("policy", True)


@pytest.mark.parametrize("data", [None, [], "promotion", 3])
def test_a_file_that_holds_no_table_is_refused(data: Any) -> None:
    with pytest.raises(PolicyError, match=r"x\.json: expected a table"):
        read_policy(data, "x.json")


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@unhurried
@given(
    data=st.dictionaries(
        st.sampled_from([*policy_data(BUILT_IN), "other"]),
        json_like
        | st.dictionaries(st.sampled_from(["level", "rate", "rungs", "weights", "slots", "high", "cap"]), json_like),
    )
)
def test_whatever_stands_in_a_file_it_is_read_or_refused_with_reasons(data: dict[str, Any]) -> None:
    try:
        policy = read_policy(data, "x")
    except PolicyError:
        return
    assert read_policy(policy_data(policy), "x") == policy


# ---------------------------------------------------------------------- lengths and rates


@pytest.mark.parametrize(
    "value, length_ms",
    [
        (0, 0), (90, 90_000), (0.25, 250), ("90s", 90_000), ("1.5m", 90_000), ("5m", 300_000), ("24h", 86_400_000),
        ("7d", 604_800_000), (" 2 hours ", 7_200_000), ("250ms", 250), ("1W", 604_800_000),
    ],
)  # fmt: skip
def test_a_length_is_seconds_or_text_with_a_unit(value: object, length_ms: int) -> None:
    assert parse_length(value) == length_ms


@pytest.mark.parametrize(
    "value", [True, None, "", "5", "m", "5 fortnights", "-5s", -1, 10**12, float("nan"), [5], "1e3s"]
)
def test_what_is_no_length_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"expected .* found "):
        parse_length(value)


@pytest.mark.parametrize(
    "value, count, period_ms",
    [
        ("100/min", 100, 60_000), ("10/s", 10, 1_000), ("1000/h", 1_000, 3_600_000), ("5/day", 5, 86_400_000),
        ("20/10s", 20, 10_000), ("100 per minute", 100, 60_000), (" 3 / 2 hours ", 3, 7_200_000),
        ("5 a day", 5, 86_400_000), ("1/0.5s", 1, 500),
    ],
)  # fmt: skip
def test_a_rate_is_a_count_in_a_time(value: str, count: int, period_ms: int) -> None:
    assert parse_rate(value) == (count, period_ms)


@pytest.mark.parametrize(
    "value", ["", "100", "100/", "/min", "100/eon", "0/s", "-1/s", "1.5/s", "1/0s", 100, None, True]
)
def test_what_is_no_rate_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"expected a rate .* found "):
        parse_rate(value)


# ---------------------------------------------------------------------- writing it again

names = st.text("abc.-é =\"'", min_size=1, max_size=6)
lengths = st.integers(1, 10**10)
weights = st.integers(1, 1_000_000) | st.floats(0.001, 1_000_000)
lanes = st.builds(
    Lane,
    level=st.integers(0, 1_000),
    weight=weights,
    max_retries=st.integers(0, 1_000_000),
    timeout_ms=lengths,
    promote_after_ms=st.lists(lengths, max_size=3).map(lambda found: tuple(sorted(found))),
)
rates = st.tuples(st.integers(1, 10**9), lengths, st.integers(1, 100))


@st.composite
def limit_rules(draw: st.DrawFn) -> LimitRule:
    count, period_ms, burst = draw(st.just((None, 0, 1)) | rates)
    concurrency = draw(st.integers(1, 10**9) if count is None else st.none() | st.integers(1, 10**9))
    by = draw(st.sampled_from([None, "tenant", "account_id"]))
    return LimitRule(concurrency, count, period_ms, burst, by, tuple(draw(st.lists(names, max_size=2))))


@st.composite
def ladders(draw: st.DrawFn) -> Ladder:
    seconds = sorted(draw(st.sets(lengths, max_size=4)))
    numbers = sorted(draw(st.lists(st.integers(1, 99), min_size=4, max_size=4)), reverse=True)
    parts = sorted(draw(st.lists(st.floats(0.001, 100), min_size=4, max_size=4)), reverse=True)
    rungs: list[Rung] = []
    for at, length_ms in enumerate(seconds):
        limit = draw(st.sampled_from([(None, None), (numbers[at], None), (None, parts[at])]))
        rungs.append(Rung(f"r{at}", length_ms, *limit))
    return Ladder(tuple(rungs), draw(st.sampled_from(["least_elapsed", "random"])), draw(st.sampled_from(["all"])))


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    named = draw(st.dictionaries(names, lanes, min_size=1, max_size=3))
    reserved = draw(st.frozensets(st.sampled_from(sorted(named))))
    ladder = draw(ladders())
    durations = st.sampled_from([None, "default", "interactive", *(rung.name for rung in ladder.rungs)])
    task_rules = st.builds(
        TaskRule,
        priority=st.sampled_from([None, *sorted(named)]),
        duration=durations,
        timeout_ms=st.none() | lengths,
        max_retries=st.none() | st.integers(0, 9),
    )
    return Policy(
        lanes=named,
        default_lane=draw(st.sampled_from(sorted(named))),
        promotion=draw(st.sampled_from(["share", "absolute"])),
        reserve=Reserve(
            reserved,
            draw(st.integers(0, 9)) if reserved else 0,
            draw(st.sampled_from(["worker", "pool"])),
            draw(st.sampled_from(["cap", "leave_free"])),
        ),
        ladder=ladder,
        tenants=Tenants(
            draw(weights),
            draw(st.dictionaries(names, weights, max_size=2)),
            draw(st.integers(0, 9)),
            draw(st.dictionaries(names, st.integers(0, 9), max_size=2)),
        ),
        limits=draw(st.dictionaries(names.filter(lambda name: "=" not in name), limit_rules(), max_size=2)),
        tasks=draw(st.dictionaries(names, task_rules, max_size=2)),
        crash_limit=draw(st.integers(1, 9)),
        retry=RetryRule(
            draw(st.sampled_from(["exponential", "linear", "fixed"])),
            draw(lengths),
            draw(lengths),
            draw(st.floats(0, 1)),
        ),
        timeout_growth=draw(st.floats(1, 1_000)),
        timeout_growth_cap=draw(st.floats(1, 1_000)),
        keep=Keep(*(draw(st.integers(0, 10**12)) for _ in range(5))),
    )


@unhurried
@given(policy=policies())
def test_a_policy_that_is_written_reads_as_the_same(policy: Policy) -> None:
    data = policy_data(policy)
    assert read_policy(data, "x") == policy
    assert policy_data(read_policy(data, "x")) == data


def test_equal_policies_are_written_alike_in_whatever_order_they_were_given() -> None:
    first = read(
        "[lanes.a]\nlevel=0\nweight=2\n[lanes.b]\nlevel=1\n[limits.y]\nconcurrency=1\n[limits.x]\nrate='60/1m'"
    )
    second = read(
        "[limits.x]\nrate='60/min'\n[limits.y]\nconcurrency=1\n[lanes.b]\nlevel=1\n[lanes.a]\nlevel=0\nweight=2.0"
    )
    assert repr(policy_data(first)) == repr(policy_data(second))


def test_the_written_form_is_that_of_the_file() -> None:
    data = policy_data(read(SPELLED_OUT))
    assert data == tomllib.loads(SPELLED_OUT) | {
        "default_lane": "medium",
        "reserve": {"lanes": ["high"], "slots": 1, "scope": "worker", "rule": "cap"},
        "lanes": data["lanes"],
        "retry": data["retry"],
        "tenants": {"default_weight": 1, "weights": {}, "max_depth": 0, "max_depths": {}},
        "keep": data["keep"] | {"idempotency": "1d"},
        "limits": {},
        "tasks": {},
    }
    assert data["lanes"]["low"] == tomllib.loads(SPELLED_OUT)["lanes"]["low"]
