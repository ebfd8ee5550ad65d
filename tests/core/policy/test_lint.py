"""The guarantees of a policy for its lanes, and the warnings for its author."""

from __future__ import annotations

import tomllib
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headway.core.policy.document import BUILT_IN, Lane, Policy, Reserve
from headway.core.policy.lint import OfferedLoad, PolicyReport, check_policy
from headway.core.policy.reader import read_policy

TWO = "[lanes.a]\nlevel=0\n[lanes.b]\nlevel=1\n"
LADDER = """
[ladder]
rungs=[{name='fast',seconds=3,limit=8},{name='medium',seconds=10,limit=4},{name='slow',seconds=30,limit=2}]
"""


def check(text: str, *, slots: int = 8, workers: int = 1, load: OfferedLoad | None = None) -> PolicyReport:
    return check_policy(read_policy(tomllib.loads(text), "x"), slots=slots, workers=workers, load=load)


def codes(checked: PolicyReport) -> list[tuple[str, str]]:
    return [(finding.code, finding.key) for finding in checked.findings]


# ---------------------------------------------------------------------- what is promised


def test_the_built_in_policy_promises_every_lane_a_share_and_surprises_nobody() -> None:
    # R1.44, R5.12
    checked = check_policy(BUILT_IN, slots=5, workers=2)
    assert checked.findings == ()
    assert [(sure.lane, round(sure.share, 9), round(sure.slots, 9), sure.after_ms) for sure in checked.guarantees] == [
        ("high", 0.6, 6, 0),
        ("medium", 0.3, 3, 1_200_000),
        ("low", 0.1, 1, 1_200_000),
    ]
    assert [sure.bound for sure in checked.guarantees] == [
        "100 s behind 10 min of work in its lane",
        "23 min behind 10 min of work in its lane",
        "30 min behind 10 min of work in its lane",
    ]


def test_the_bound_on_a_wait_follows_from_the_work_before_a_job() -> None:
    # a + B * W / (w * C): 20 minutes and 100 s of work on a tenth of 5 slots.
    low = check_policy(BUILT_IN, slots=5).guarantees[2]
    assert low.wait_ms(100_000) == 1_200_000 + 200_000


SHARES = [
    pytest.param("[lanes.a]\nlevel=3", {"a": (1, 0)}, id="a lane alone has everything"),
    pytest.param("[lanes.a]\nlevel=0\n[lanes.b]\nlevel=0\nweight=3", {"a": (0.25, 0), "b": (0.75, 0)}, id="one level"),
    pytest.param(TWO, {"a": (1, 0), "b": (0, None)}, id="a lane that never rises is sure of nothing and takes nothing"),
    pytest.param(TWO + "promote_after=[60]", {"a": (0.5, 0), "b": (0.5, 60_000)}, id="one that does shares"),
    pytest.param(
        "[lanes.a]\nlevel=0\n[lanes.b]\nlevel=2\npromote_after=[60]",
        {"a": (1, 0), "b": (0, None)},
        id="one that rises too little",
    ),
    pytest.param(
        "[lanes.a]\nlevel=5\n[lanes.b]\nlevel=7\npromote_after=[60, 90]",
        {"a": (0.5, 0), "b": (0.5, 90_000)},
        id="levels need not begin at 0",
    ),
    pytest.param(
        TWO + "weight=9\npromote_after=[60]\n[reserve]\nlanes=['a']\nslots=4",
        {"a": (0.5, 0), "b": (0.5, 60_000)},
        id="a reserve larger than the share",
    ),
    pytest.param(
        TWO + "promote_after=[60]\n[reserve]\nlanes=['b']\nslots=2",
        {"a": (0.5, 0), "b": (0.5, 60_000)},
        id="a reserve smaller than the share",
    ),
    pytest.param(
        TWO + "[reserve]\nlanes=['b']\nslots=2",
        {"a": (0.75, 0), "b": (0.25, 0)},
        id="a reserve for one that never rises",
    ),
    pytest.param(
        TWO + "promote_after=[60]\n[reserve]\nlanes=['a']\nslots=1\nrule='leave_free'",
        {"a": (0.5, 0), "b": (0, None)},
        id="leave_free promises the others nothing",
    ),
    pytest.param(
        "promotion='absolute'\n" + TWO + "promote_after=[60]", {"a": (0, 0), "b": (0, 60_000)}, id="absolute: no shares"
    ),
    pytest.param(
        "promotion='absolute'\n" + TWO + "promote_after=[60]\n[reserve]\nlanes=['a']\nslots=2",
        {"a": (0.25, 0), "b": (0, 60_000)},
        id="absolute, but for a reserve of its own",
    ),
    pytest.param(
        "promotion='absolute'\n[lanes.a]\nlevel=1\n[lanes.b]\nlevel=2\npromote_after=[60, 90]",
        {"a": (0, None), "b": (0, 90_000)},
        id="absolute: risen past the best",
    ),
]


@pytest.mark.parametrize("text, expected", SHARES)
def test_a_lane_is_sure_of_its_weight_among_those_it_can_meet(
    text: str, expected: dict[str, tuple[float, int | None]]
) -> None:
    assert {sure.lane: (round(sure.share, 9), sure.after_ms) for sure in check(text).guarantees} == expected


def test_a_bound_that_hangs_on_all_lanes_or_is_none_says_so() -> None:
    aged = check("promotion='absolute'", slots=5).guarantees[2]
    assert aged.bound == "22 min behind 10 min of work in all lanes"
    starving = check(TWO).guarantees[1]
    assert (starving.bound, starving.wait_ms(1)) == ("none: it can wait for ever", None)


lanes = st.builds(
    Lane,
    level=st.integers(0, 3),
    weight=st.floats(0.01, 100),
    max_retries=st.just(1),
    timeout_ms=st.just(1),
    promote_after_ms=st.lists(st.integers(1, 99), max_size=3).map(lambda found: tuple(sorted(found))),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    named=st.dictionaries(st.sampled_from("abcd"), lanes, min_size=1),
    inside=st.frozensets(st.sampled_from("abcd")),
    reserved=st.integers(0, 5),
    scope=st.sampled_from(["worker", "pool"]),
    rule=st.sampled_from(["cap", "leave_free"]),
    promotion=st.sampled_from(["share", "absolute"]),
    slots=st.integers(1, 5),
    workers=st.integers(1, 3),
)
def test_no_more_is_promised_than_there_is(
    named: dict[str, Lane],
    inside: frozenset[str],
    reserved: int,
    scope: str,
    rule: str,
    promotion: str,
    slots: int,
    workers: int,
) -> None:
    reserve = Reserve(inside & frozenset(named), reserved, scope, rule)
    policy = Policy(lanes=named, default_lane=min(named), promotion=promotion, reserve=reserve)
    checked = check_policy(policy, slots=slots, workers=workers)
    assert sum(sure.share for sure in checked.guarantees) <= 1 + 1e-9
    assert {sure.lane for sure in checked.guarantees} == set(named)
    for sure in checked.guarantees:
        starves = any(found.code == "starves" and f"lane {sure.lane} " in found.text for found in checked.findings)
        assert starves == (sure.after_ms is None)
        assert sure.share >= 0
        if promotion == "share":
            assert starves == (sure.share == 0)


# ---------------------------------------------------------------------- what surprises


@pytest.mark.parametrize(
    "text, found",
    [
        pytest.param(TWO, ("starves", "lanes.b.promote_after"), id="a lane that can starve"),
        pytest.param(
            "[lanes.'a b']\nlevel=1\n[lanes.c]\nlevel=0", ("starves", 'lanes."a b".promote_after'), id="quoted"
        ),
        pytest.param("promotion='absolute'", ("absolute", "promotion"), id="absolute promotion"),
        pytest.param(
            "[lanes.a]\nlevel=0\npromote_after=[9]", ("threshold_unused", "lanes.a.promote_after[0]"), id="top"
        ),
        pytest.param("reserve={slots=8}", ("reserve_too_large", "reserve.slots"), id="a reserve of all slots"),
        pytest.param(
            "reserve={lanes=['high','low','medium']}", ("reserve_unused", "reserve.lanes"), id="for everybody"
        ),
        pytest.param("[lanes.high]\nlevel=0", ("reserve_unused", "reserve.lanes"), id="from nobody"),
        pytest.param("reserve={lanes=['low']}", ("reserve_inverted", "reserve.lanes"), id="from better lanes"),
        pytest.param("[limits.x]\nconcurrency=8", ("limit_unused", "limits.x.concurrency"), id="a limit of all slots"),
        pytest.param("[limits.x]\nrate='5/s'\nburst=6", ("burst_over_rate", "limits.x.burst"), id="burst"),
        pytest.param(
            "[ladder]\nrungs=[{name='a',seconds=1,limit=8},{name='b',seconds=2,limit=8}]",
            ("limit_unused", "ladder.rungs[1].limit"),
            id="a rung that may take all",
        ),
        pytest.param(
            "[ladder]\nrungs=[{name='a',seconds=1,limit=3},{name='b',seconds=2,limit='60%'}]",
            ("limits_cross", "ladder.rungs[1].limit"),
            id="R3.14 with these slots",
        ),
        pytest.param(
            LADDER + "\n[tasks.t]\nduration='fast'\ntimeout=9", ("timeout_unused", "tasks.t.timeout"), id="rung"
        ),
        pytest.param("[retry]\nbase=90", ("backoff_flat", "retry.base"), id="base above cap"),
    ],
)
def test_what_will_surprise_is_told_with_its_key(text: str, found: tuple[str, str]) -> None:
    assert codes(check(text)) == [found]


def test_leave_free_is_told_to_starve_the_lanes_outside_it() -> None:
    checked = check("reserve={rule='leave_free'}")
    assert codes(checked) == [("starves", "reserve")] * 2
    assert check("reserve={slots=0, rule='leave_free'}").findings == ()


def test_a_reserve_of_the_whole_pool_is_told_to_leave_other_lanes_nothing() -> None:
    checked = check("reserve={slots=16, scope='pool'}", slots=8, workers=2)
    assert codes(checked) == [("starves", "reserve"), ("starves", "reserve"), ("reserve_too_large", "reserve.slots")]
    assert [sure.share for sure in checked.guarantees] == [1, 0, 0]


def test_a_limit_counts_all_workers() -> None:
    assert codes(check("[limits.x]\nconcurrency=8", slots=8, workers=2)) == []
    assert codes(check("reserve={slots=8, scope='pool'}", slots=8, workers=2)) == []
    assert codes(check("reserve={slots=8}", slots=8, workers=2)) == [("reserve_too_large", "reserve.slots")]


@pytest.mark.parametrize(
    "text, load, found",
    [
        pytest.param(
            LADDER, OfferedLoad(rungs={"slow": 4}), ["ladder.rungs[2].limit"], id="R3.36 the 8/4/2 of the study"
        ),
        pytest.param(LADDER, OfferedLoad(rungs={"slow": 2, "medium": 3}), ["ladder.rungs[1].limit"], id="R3.36 nested"),
        pytest.param(LADDER, OfferedLoad(rungs={"slow": 2, "medium": 2, "fast": 4}), [], id="just enough"),
        pytest.param(
            "[limits.x]\nconcurrency=3", OfferedLoad(limits={"x": 3.5}), ["limits.x.concurrency"], id="a limit"
        ),
        pytest.param("[limits.x]\nconcurrency=3\nby='n'", OfferedLoad(limits={"x": 3.5}), [], id="over all its values"),
        pytest.param(
            "[limits.x]\nconcurrency=3\nby='n'", OfferedLoad(limits={"x=7": 4}), ["limits.x.concurrency"], id="of one"
        ),
        pytest.param("", OfferedLoad(limits={"gone": 9}), [], id="a limit that is gone"),
        pytest.param("", OfferedLoad(lanes={"high": 5, "low": 4}), [""], id="more than all slots"),
        pytest.param(
            "reserve={slots=2}", OfferedLoad(lanes={"high": 0.5, "low": 6.5}), ["reserve.slots"], id="the reserve"
        ),
    ],
)
def test_limits_below_the_load_are_planning_errors(text: str, load: OfferedLoad, found: list[str]) -> None:
    # R3.36
    assert codes(check(text, load=load)) == [("below_load", key) for key in found]


def test_a_worker_of_one_slot_keeps_it_for_everybody() -> None:
    checked = check_policy(BUILT_IN, slots=1)
    assert codes(checked) == [("reserve_too_large", "reserve.slots")]
    assert [round(sure.share, 9) for sure in checked.guarantees] == [0.6, 0.3, 0.1]
    assert check_policy(replace(BUILT_IN, reserve=Reserve(slots=0)), slots=1).findings == ()
