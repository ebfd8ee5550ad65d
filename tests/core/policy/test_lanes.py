"""The plan of a worker: levels, shares, aging, reserve, needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headway.core.job import ClassKey, JobId, JobRecord, State
from headway.core.policy.document import BUILT_IN, Ladder, Lane, Policy, Reserve, Rung
from headway.core.policy.ladder import ElasticJob, RunningJobs
from headway.core.policy.lanes import ShareClocks, effective_lane, lane_of, make_room, plan, risen_level
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.core.worker import serves

NOW_AT = 10_000_000
SECOND = 1_000
OVERDUE = {"high": 0, "medium": 1_200 * SECOND, "low": 1_200 * SECOND}  # Risen to the top.
PLAIN = replace(BUILT_IN, reserve=Reserve(slots=0, lanes=frozenset()))
ABSOLUTE = replace(PLAIN, promotion="absolute")


def a_view(
    lane: str = "medium",
    waiting: int = 1,
    waited_ms: int | None = 0,
    needs: tuple[str, ...] = (),
    *,
    head_key: int = 0,
    fair: bool = False,
    blocked: str | None = None,
    persist: bool = True,
) -> ClassView:
    oldest_at = None if waited_ms is None else NOW_AT - waited_ms
    return ClassView(ClassKey(lane, needs, None, persist), waiting, oldest_at, head_key, fair, blocked)


def a_plan(
    *views: ClassView,
    free: int = 3,
    free_below: int | None = None,
    offers: frozenset[str] = frozenset("abc"),
    policy: Policy = BUILT_IN,
    clocks: ShareClocks | None = None,
) -> Plan:
    below = free if free_below is None else free_below
    return plan(Snapshot(NOW_AT, views), free=free, free_below=below, offers=offers, policy=policy, clocks=clocks)


def lanes(chosen: Plan) -> list[str]:
    return [take.key.lane for take in chosen.takes]


def counted(chosen: Plan) -> list[tuple[str, int]]:
    """Return the lane and maximum of each take, without takes of everything."""
    return [(take.key.lane, take.most) for take in chosen.takes if take.most < chosen.free]


def carry_out(chosen: Plan, jobs: Mapping[ClassKey, Sequence[int]]) -> list[tuple[ClassKey, int, str | None]]:
    """Execute a plan as a store does: the takes in order, within both totals, from the front of each class.

    ``jobs`` maps a class to the times since when its jobs have waited, in order. Returns the claimed jobs.
    """
    left = {key: list(since) for key, since in jobs.items()}
    free, below = chosen.free, chosen.free_below
    claimed: list[tuple[ClassKey, int, str | None]] = []
    for take in chosen.takes:
        for _ in range(take.most):
            waiting = left.get(take.key, [])
            late = bool(waiting) and take.until_at is not None and waiting[0] > take.until_at
            if not waiting or late or free <= 0 or (take.below_reserve and below <= 0):
                break
            claimed.append((take.key, waiting.pop(0), take.over))
            free -= 1
            below -= take.below_reserve
    return claimed


def by_lane(claimed: Sequence[tuple[ClassKey, int, str | None]]) -> dict[str, int]:
    return dict(Counter(key.lane for key, _, _ in claimed))


def as_many_as_seen(views: Sequence[ClassView]) -> dict[ClassKey, list[int]]:
    """Return the jobs that a correct snapshot describes, at most 99 of each class."""
    return {
        view.key: [NOW_AT if view.oldest_at is None else view.oldest_at]
        * (0 if view.blocked else min(view.waiting, 99))
        for view in views
    }


# ---------------------------------------------------------------------- levels, needs


def test_the_best_level_comes_first_however_long_others_have_waited() -> None:
    # R5.49, R1.43
    chosen = a_plan(a_view("low", waited_ms=9_000), a_view("medium", waited_ms=5_000), a_view("high"))
    assert lanes(chosen) == ["high", "medium", "low"]


def test_classes_of_a_lane_go_by_sequence_when_nobody_shares() -> None:
    # R5.11
    for late, early in (((), ("a",)), (("a",), ())):
        chosen = a_plan(a_view(needs=late, head_key=30), a_view(waited_ms=9, needs=early, head_key=10), free=1)
        assert [take.key.needs for take in chosen.takes] == [early, late]


@pytest.mark.parametrize(
    "turns, lengths, split",
    [
        pytest.param(1, (9, 9), (1, 0), id="one turn: the first to come"),
        pytest.param(4, (9, 9), (2, 2), id="evenly"),
        pytest.param(5, (9, 9), (3, 2), id="an odd one goes to the first to come"),
        pytest.param(5, (100, 900), (1, 4), id="in proportion to length"),
        pytest.param(5, (900, 100), (5, 0), id="a short one may have to wait a little"),
        pytest.param(10, (1, 999), (1, 9), id="but is not forgotten"),
        pytest.param(5, (2, 1), (2, 1), id="no more than wait"),
    ],
)
def test_classes_of_a_lane_share_its_turns_by_length(
    turns: int, lengths: tuple[int, int], split: tuple[int, int]
) -> None:
    views = [a_view(waiting=lengths[0], head_key=1), a_view(waiting=lengths[1], needs=("a",), head_key=2)]
    chosen = a_plan(*views, free=turns)
    got = Counter(key.needs for key, _, _ in carry_out(chosen, as_many_as_seen(views)))
    assert (got[()], got[("a",)]) == split
    assert [take.most for take in chosen.takes[: len(got)]] == [count for count in split if count]


def test_lanes_of_one_level_share_it_by_weight() -> None:
    policy = replace(PLAIN, lanes={"a": Lane(0, 3, 3, 1_000), "b": Lane(0, 1, 3, 1_000)})
    chosen = a_plan(a_view("b", 9, waited_ms=9_000), a_view("a", 9), free=4, policy=policy)
    # First the part of each, in case both have enough; then all of each, in case one has not.
    assert [(take.key.lane, take.most, take.over) for take in chosen.takes] == [
        ("a", 3, None),
        ("b", 1, None),
        ("a", 4, None),
        ("b", 4, None),
    ]


def test_of_lanes_that_share_the_one_that_is_behind_comes_first() -> None:
    # The store may find fewer slots free than the plan was made for.
    policy = replace(PLAIN, lanes={"a": Lane(0, 1, 3, 1_000), "b": Lane(0, 1, 3, 1_000)})
    clocks = ShareClocks()
    clocks.charge(policy, ClassKey("b"), 1.0)
    clocks.charge(policy, ClassKey("a"), 2.0)
    assert counted(a_plan(a_view("a", 9), a_view("b", 9), free=5, policy=policy, clocks=clocks)) == [("b", 3), ("a", 2)]


def test_what_one_lane_cannot_use_is_shared_by_the_others() -> None:
    policy = replace(PLAIN, lanes={name: Lane(0, 1, 3, 1_000) for name in "abc"})
    views = [a_view("a", 1), a_view("b", 9), a_view("c", 9)]
    claimed = carry_out(a_plan(*views, free=9, policy=policy), as_many_as_seen(views))
    assert by_lane(claimed) == {"a": 1, "b": 4, "c": 4}


def test_a_worker_begins_with_a_lane_of_its_own() -> None:
    # Many workers that claim little must not all begin with the first.
    policy = replace(PLAIN, lanes={"a": Lane(0, 1, 3, 1_000), "b": Lane(0, 4, 3, 1_000)})
    for offset, first in ((0.0, "a"), (0.9, "b")):
        chosen = a_plan(a_view("a", 9), a_view("b", 9), free=1, policy=policy, clocks=ShareClocks(offset))
        assert lanes(chosen)[0] == first


def test_all_of_a_lane_comes_before_the_next_level_however_much_was_seen() -> None:
    # R1.43: the snapshot may be old, also where a lane has several classes.
    views = [a_view("high"), a_view("high", needs=("a",)), a_view("medium", 9)]
    came_since = as_many_as_seen(views) | {ClassKey("high"): [NOW_AT] * 4, ClassKey("high", ("a",)): [NOW_AT] * 4}
    assert by_lane(carry_out(a_plan(*views, free=6, policy=PLAIN), came_since)) == {"high": 6}


def test_classes_that_looked_empty_are_named_too() -> None:
    chosen = a_plan(a_view("high", waiting=0, waited_ms=None), a_view("low", waited_ms=50))
    assert lanes(chosen) == ["high", "low"]


def test_a_lane_the_policy_no_longer_has_is_served_last() -> None:
    assert lanes(a_plan(a_view("gone", waited_ms=99_000_000), a_view("low"))) == ["low", "gone"]
    assert lane_of(BUILT_IN, "gone").level > max(lane.level for lane in BUILT_IN.lanes.values())
    assert lane_of(BUILT_IN, "low") == BUILT_IN.lanes["low"]


def test_a_class_whose_needs_the_worker_lacks_is_never_named_and_hides_nobody() -> None:
    # R5.54, R5.52, R5.14
    unservable = [a_view("high", waiting=1_000, waited_ms=9_000, needs=(f"need-{n}",)) for n in range(100)]
    chosen = a_plan(*unservable, a_view("low"), a_view("high", needs=("gpu",)), offers=frozenset({"gpu", "arm"}))
    assert [take.key for take in chosen.takes] == [ClassKey("high", ("gpu",)), ClassKey("low")]


def test_needs_are_all_needed() -> None:
    # R5.14
    for offers, served in ((frozenset("a"), False), (frozenset("ab"), True), (frozenset("abc"), True)):
        chosen = a_plan(a_view(needs=("a", "b")), offers=offers)
        assert bool(chosen.takes) == served


def test_a_class_the_worker_lacks_needs_for_does_not_age_its_lane() -> None:
    # R5.54: high would give up a part of its turns for jobs that this worker cannot run.
    chosen = a_plan(a_view("high", 9), a_view("low", 9), a_view("low", 9, OVERDUE["low"], needs=("gpu",)))
    assert lanes(chosen) == ["high", "low"]


@pytest.mark.parametrize("blocked", ["paused", "ladder"])
def test_a_class_that_cannot_start_does_not_age_its_lane_nor_take_its_turns(blocked: str) -> None:
    chosen = a_plan(a_view("high", 9), a_view("low", 9), a_view("low", 9, OVERDUE["low"], ("a",), blocked=blocked))
    assert counted(chosen) == []
    assert {take.over for take in chosen.takes} == {None}


# ---------------------------------------------------------------------- reserve


@pytest.mark.parametrize(
    "running_high, running_low, high_may, low_may",
    [
        pytest.param(0, 0, 3, 2, id="R1.9 R1.10 R1.12 all low: two of three"),
        pytest.param(0, 2, 1, 0, id="R1.8 R1.12 a third low waits, a high does not"),
        pytest.param(3, 0, 0, 0, id="R1.13 all high"),
        pytest.param(1, 1, 1, 1, id="R1.14 mixed: one high, a second low"),
        pytest.param(1, 2, 0, 0, id="R1.15 full"),
        pytest.param(2, 0, 1, 1, id="R1.16 high bursts into the last slot"),
    ],
)
def test_lanes_below_the_reserve_leave_it_free(
    running_high: int, running_low: int, high_may: int, low_may: int
) -> None:
    # R1.11, R1.17, R1.18: MAX 3, RESERVED 1.
    free = 3 - running_high - running_low
    free_below = min(free, 2 - running_low)
    chosen = a_plan(a_view("high", 9), a_view("low", 9), free=free, free_below=free_below)
    most = {take.key.lane: take.most for take in chosen.takes}
    assert (most.get("high", 0), most.get("low", 0)) == (high_may, low_may)


def test_a_lane_that_has_risen_is_still_below_the_reserve() -> None:
    # R1.8, R1.11: a cap is never broken by age.
    views = [a_view("high", 0, None), a_view("low", 9, OVERDUE["low"])]
    claimed = carry_out(a_plan(*views, free=3, free_below=2), as_many_as_seen(views))
    assert by_lane(claimed) == {"low": 2}
    views = [a_view("high", 9), a_view("low", 9, OVERDUE["low"])]
    for promotion in ("share", "absolute"):
        policy = replace(BUILT_IN, promotion=promotion)
        claimed = carry_out(a_plan(*views, free=3, free_below=0, policy=policy), as_many_as_seen(views))
        assert by_lane(claimed) == {"high": 3}


def test_a_reserve_may_be_for_several_lanes() -> None:
    policy = replace(BUILT_IN, reserve=Reserve(lanes=frozenset({"high", "low"})))
    chosen = a_plan(a_view("high"), a_view("medium"), a_view("low"), free=3, free_below=1, policy=policy)
    assert [(take.key.lane, take.most, take.below_reserve) for take in chosen.takes] == [
        ("high", 3, False),
        ("medium", 1, True),
        ("low", 3, False),
    ]


def test_takes_say_which_lanes_are_below_the_reserve_and_the_plan_how_much_is_free_there() -> None:
    chosen = a_plan(a_view("high"), a_view("low"), free=3, free_below=2)
    assert chosen == Plan((Take(ClassKey("high"), 3, False), Take(ClassKey("low"), 2, True)), 3, 2)


def test_nothing_below_the_reserve_is_named_when_nothing_is_free_there() -> None:
    chosen = a_plan(a_view("high"), a_view("low"), free=1, free_below=0)
    assert lanes(chosen) == ["high"]


@pytest.mark.parametrize("free", [0, -1])
def test_a_full_worker_asks_for_nothing(free: int) -> None:
    # R1.19
    assert a_plan(a_view("high"), free=free, free_below=2) == Plan()


def test_more_free_below_than_free_is_not_believed() -> None:
    assert a_plan(a_view("low"), free=1, free_below=5).free_below == 1
    assert a_plan(a_view("high"), free=1, free_below=-2).free_below == 0


# ---------------------------------------------------------------------- aging

STEEP = Lane(level=3, weight=1, max_retries=0, timeout_ms=1, promote_after_ms=(10, 10, 30))


@pytest.mark.parametrize(
    "lane, waited_ms, level",
    [
        pytest.param(BUILT_IN.lanes["low"], 0, 2, id="low is low"),
        pytest.param(BUILT_IN.lanes["low"], 599_999, 2, id="still"),
        pytest.param(BUILT_IN.lanes["low"], 600_000, 1, id="R5.6 low as medium after 600 s"),
        pytest.param(BUILT_IN.lanes["low"], 1_199_999, 1, id="still as medium"),
        pytest.param(BUILT_IN.lanes["low"], 1_200_000, 0, id="R5.63 low as high after 20 minutes, not 30"),
        pytest.param(BUILT_IN.lanes["low"], 10**9, 0, id="there is nothing above"),
        pytest.param(BUILT_IN.lanes["medium"], 1_199_999, 1, id="medium is medium"),
        pytest.param(BUILT_IN.lanes["medium"], 1_200_000, 0, id="R5.7 medium as high after 1200 s"),
        pytest.param(BUILT_IN.lanes["high"], 10**9, 0, id="high is high"),
        pytest.param(BUILT_IN.lanes["low"], -5, 2, id="a moment that is still to come"),
        pytest.param(STEEP, 9, 3, id="before both"),
        pytest.param(STEEP, 10, 1, id="two thresholds at once"),
        pytest.param(STEEP, 30, 0, id="the third"),
        pytest.param(Lane(5, 1, 0, 1, ()), 10**9, 5, id="a lane that never rises"),
        pytest.param(Lane(1, 1, 0, 1, (10, 20)), 20, 0, id="more thresholds than levels"),
    ],
)
def test_a_lane_rises_a_level_at_each_threshold(lane: Lane, waited_ms: int, level: int) -> None:
    # R5.5
    assert risen_level(lane, waited_ms) == level


@pytest.mark.parametrize(
    "medium_s, low_s, claimed",
    [
        pytest.param(0, 599, {"high": 6}, id="nobody has risen"),
        pytest.param(0, 600, {"high": 6}, id="R5.6 low has risen to medium, and high is served"),
        pytest.param(0, 1_199, {"high": 6}, id="still"),
        pytest.param(1_199, 0, {"high": 6}, id="medium has not risen"),
        pytest.param(1_200, 0, {"high": 4, "medium": 2}, id="R5.7 medium has joined high"),
        pytest.param(0, 1_200, {"high": 5, "low": 1}, id="R5.63 low has joined high"),
        pytest.param(1_200, 1_200, {"high": 3, "medium": 2, "low": 1}, id="both have"),
    ],
)
def test_a_lane_that_has_risen_to_the_level_being_served_joins_it(
    medium_s: int, low_s: int, claimed: dict[str, int]
) -> None:
    # R5.65: it gets its part, and the natives keep theirs.
    views = [a_view("high", 99), a_view("medium", 99, medium_s * SECOND), a_view("low", 99, low_s * SECOND)]
    got = carry_out(a_plan(*views, free=6, policy=PLAIN), as_many_as_seen(views))
    assert by_lane(got) == claimed
    # R5.62: a promotion is noted where it decides a claim, and nowhere else.
    assert [over for key, _, over in got if key.lane == "high"] == [None] * claimed["high"]
    assert [over for key, _, over in got if key.lane != "high"] == ["high"] * (6 - claimed["high"])


@pytest.mark.parametrize(
    "low_s, first",
    [
        pytest.param(599, [], id="not yet"),
        pytest.param(600, [("medium", 3), ("low", 1)], id="R5.6 as medium"),
        pytest.param(1_200, [("medium", 3), ("low", 1)], id="above medium it still only joins"),
    ],
)
def test_the_level_being_served_is_the_best_that_has_something(low_s: int, first: list[tuple[str, int]]) -> None:
    views = [a_view("high", 0, None), a_view("medium", 99), a_view("low", 99, low_s * SECOND)]
    chosen = a_plan(*views, free=4, policy=PLAIN)
    assert lanes(chosen)[0] == "high"
    assert counted(chosen) == first
    assert [take.over for take in chosen.takes if take.over] == (["medium"] if first else [])


def test_a_lane_alone_is_promoted_over_nobody() -> None:
    # R5.62
    for policy in (PLAIN, ABSOLUTE):
        chosen = a_plan(a_view("low", 99, OVERDUE["low"]), policy=policy)
        assert [(take.most, take.over) for take in chosen.takes] == [(3, None)]


def test_a_lane_rises_by_the_oldest_job_of_any_class_of_it() -> None:
    views = [a_view("high", 99), a_view("low", 1, 5), a_view("low", 1, OVERDUE["low"], ("a",))]
    chosen = a_plan(*views, free=7, policy=PLAIN)
    assert [(take.key, take.most) for take in chosen.takes if take.over] == [(ClassKey("low"), 1)]


def test_a_backlog_of_any_length_rises_at_once() -> None:
    # R5.64, R5.8, R5.9: nothing is moved, so there is no batch and no interval.
    views = [a_view("high", 10**6), a_view("low", 10**6, OVERDUE["low"])]
    assert counted(a_plan(*views, free=700, policy=PLAIN)) == [("high", 600), ("low", 100)]


def test_a_lane_that_joins_one_level_after_another_has_the_turns_it_had() -> None:
    # R5.65: three turns for each of three equals, two of its own with the first and one with the second.
    names = {"a": Lane(0, 1, 0, 1), "b": Lane(1, 1, 0, 1), "c": Lane(2, 1, 0, 1, (100, 100))}
    views = [a_view("a", 3), a_view("b", 9), a_view("c", 9, 100)]
    claimed = carry_out(a_plan(*views, free=9, policy=replace(PLAIN, lanes=names)), as_many_as_seen(views))
    assert Counter((key.lane, over) for key, _, over in claimed) == {
        ("a", None): 3,
        ("c", "a"): 2,
        ("b", None): 3,
        ("c", "b"): 1,
    }


@pytest.mark.parametrize("blocked", ["paused", "ladder"])
def test_a_class_that_cannot_start_takes_no_turns_of_its_lanes_share(blocked: str) -> None:
    views = [a_view("high", 99), a_view("low", 9, OVERDUE["low"]), a_view("low", 90, 0, ("a",), blocked=blocked)]
    claimed = carry_out(a_plan(*views, free=14, policy=PLAIN), as_many_as_seen(views))
    assert by_lane(claimed) == {"high": 12, "low": 2}


def test_what_has_aged_goes_first_by_the_literal_rule() -> None:
    # R5.5 to R5.7: promotion = absolute.
    views = [a_view("high", 9, 30), a_view("medium", 9, 1_300 * SECOND), a_view("low", 9, 1_900 * SECOND)]
    chosen = a_plan(*views, policy=ABSOLUTE)
    aged_until = NOW_AT - 1_200 * SECOND
    assert chosen.takes[:3] == (
        Take(ClassKey("low"), 3, True, "high", aged_until),
        Take(ClassKey("medium"), 3, True, "high", aged_until),
        Take(ClassKey("high"), 3, True),
    )


def test_by_the_literal_rule_only_what_has_aged_goes_first() -> None:
    views = [a_view("high", 9, 30), a_view("low", 9, 1_900 * SECOND)]
    jobs = {ClassKey("high"): [NOW_AT - 30] * 9, ClassKey("low"): [NOW_AT - 1_900 * SECOND] + [NOW_AT - 1] * 8}
    claimed = carry_out(a_plan(*views, free=5, policy=ABSOLUTE), jobs)
    assert [(key.lane, over) for key, _, over in claimed] == [("low", "high")] + [("high", None)] * 4


def test_by_the_literal_rule_what_came_first_goes_first() -> None:
    views = [a_view("high", 1, 1_300 * SECOND), a_view("low", 9, 1_250 * SECOND)]
    assert lanes(a_plan(*views, policy=ABSOLUTE))[:2] == ["high", "low"]
    # What has not aged keeps its level.
    views = [a_view("high", 1, 30), a_view("low", 9, 1_100 * SECOND)]
    assert lanes(a_plan(*views, policy=ABSOLUTE)) == ["high", "low"]


@pytest.mark.parametrize("high", [0, 1])
def test_by_the_literal_rule_one_aged_job_lifts_no_other(high: int) -> None:
    views = [a_view("high", high, 30 if high else None), a_view("medium", 9), a_view("low", 9, 1_900 * SECOND)]
    jobs = as_many_as_seen(views) | {ClassKey("low"): [NOW_AT - 1_900 * SECOND] + [NOW_AT - 1] * 8}
    claimed = carry_out(a_plan(*views, free=6, policy=ABSOLUTE), jobs)
    assert by_lane(claimed) == ({"high": 1} if high else {}) | {"low": 1, "medium": 5 - high}
    assert [over for key, _, over in claimed if key.lane == "low"] == ["high" if high else "medium"]


def test_by_the_literal_rule_equals_are_promoted_over_nobody() -> None:
    # R5.62
    policy = replace(ABSOLUTE, lanes={name: Lane(1, 1, 0, 1, (100,)) for name in "ab"})
    chosen = a_plan(a_view("a", 9, 100), a_view("b", 9, 150), policy=policy)
    assert lanes(chosen)[:2] == ["b", "a"]
    assert {take.over for take in chosen.takes} == {None}


FOUR = replace(
    ABSOLUTE,
    lanes={
        name: Lane(level, 1, 0, 1, tuple(100 * (rise + 1) for rise in range(level)))
        for level, name in enumerate(("first", "second", "third", "fourth"))
    },
)


@given(
    ages=st.fixed_dictionaries(
        dict.fromkeys(FOUR.lanes, st.lists(st.sampled_from([0, 50, 100, 150, 200, 250, 300, 350]), max_size=5))
    ),
    free=st.integers(1, 8),
)
@example(ages={"first": [], "second": [], "third": [0], "fourth": [300, 200]}, free=2)
def test_by_the_literal_rule_no_job_goes_before_one_that_has_risen_higher(
    ages: dict[str, list[int]], free: int
) -> None:
    # R5.6, R5.7: each job has the level of its own age. One at a time, the oldest of the best level is next.
    jobs = {ClassKey(lane): [NOW_AT - age for age in sorted(ages[lane], reverse=True)] for lane in ages}
    views = [ClassView(key, len(since), min(since, default=None)) for key, since in jobs.items()]
    claimed = carry_out(a_plan(*views, free=free, policy=FOUR), jobs)

    def level(key: ClassKey, since_at: int) -> int:
        return risen_level(FOUR.lanes[key.lane], NOW_AT - since_at)

    got = Counter(key for key, _, _ in claimed)
    left = [(level(key, since_at), since_at) for key, since in jobs.items() for since_at in since[got[key] :]]
    if left:
        assert all(level(key, since_at) <= min(left)[0] for key, since_at, _ in claimed)
        if free == 1:
            assert (level(*claimed[0][:2]), claimed[0][1]) <= min(left)


def test_by_the_literal_rule_what_has_risen_a_level_goes_before_what_came_there_later() -> None:
    # R5.6: of two aged low jobs one is as good as high, the other as medium.
    since = [NOW_AT - 1_300 * SECOND, NOW_AT - 700 * SECOND, NOW_AT - 1]
    views = [a_view("medium", 9, 5), a_view("low", 3, 1_300 * SECOND)]
    jobs = as_many_as_seen(views) | {ClassKey("low"): since}
    claimed = carry_out(a_plan(*views, free=4, policy=ABSOLUTE), jobs)
    assert [key.lane for key, _, _ in claimed] == ["low", "low", "medium", "medium"]


# ---------------------------------------------------------------------- the effective priority of a job

A_JOB = JobRecord(
    job_id=JobId("j"), seq=1, task="t", payload=b"", state=State.QUEUED, lane="low", needs=(), rung=None, tenant=None,
    max_retries=0, timeout_ms=1, retry=None, attempts=0, crashes=0, epoch=0, submitted_at=0, due_at=None,
    eligible_at=None, started_at=None, finished_at=None, expires_at=None, cancel_requested_at=None, worker_id=None,
    progress=None, note=None, result=None, result_error=None, error=None, reason=None, idempotency_key=None,
    unique_key=None, trace_id=None, history=(),
)  # fmt: skip


def ago(seconds: int) -> int:
    return NOW_AT - seconds * SECOND


@pytest.mark.parametrize(
    "job, lane",
    [
        pytest.param(replace(A_JOB, eligible_at=ago(0)), "low", id="it has just come"),
        pytest.param(replace(A_JOB, eligible_at=ago(599)), "low", id="not yet"),
        pytest.param(replace(A_JOB, eligible_at=ago(600)), "medium", id="R5.6 R5.10 after 600 s"),
        pytest.param(replace(A_JOB, eligible_at=ago(1_200)), "high", id="R5.63 after 1200 s"),
        pytest.param(replace(A_JOB, eligible_at=ago(9_999)), "high", id="there is nothing above"),
        pytest.param(replace(A_JOB, lane="medium", eligible_at=ago(1_199)), "medium", id="medium is medium"),
        pytest.param(replace(A_JOB, lane="medium", eligible_at=ago(1_200)), "high", id="R5.7 medium after 1200 s"),
        pytest.param(replace(A_JOB, lane="high", eligible_at=ago(9_999)), "high", id="high is high"),
        pytest.param(replace(A_JOB, lane="gone", eligible_at=ago(9_999)), "gone", id="a lane that is no more"),
        pytest.param(replace(A_JOB, due_at=NOW_AT + 5), "low", id="R5.68 delayed: it does not wait for a slot yet"),
        pytest.param(
            replace(A_JOB, submitted_at=ago(9_999), attempts=2, eligible_at=ago(5)), "low",
            id="R5.68 a retry counts from when it was eligible again, not from its submission",
        ),
        pytest.param(
            replace(A_JOB, submitted_at=ago(9_999), attempts=2, eligible_at=ago(601)), "medium",
            id="R5.68 and grows old anew",
        ),
        pytest.param(
            replace(A_JOB, state=State.EXECUTING, eligible_at=ago(2_000), started_at=ago(1_900)), "low",
            id="R5.10 running: as it was when it started, not later",
        ),
        pytest.param(
            replace(A_JOB, state=State.EXECUTING, eligible_at=ago(2_000), started_at=ago(1_000)), "medium",
            id="R5.62 running: the promotion that it started with",
        ),
        pytest.param(
            replace(A_JOB, state=State.COMPLETED, eligible_at=ago(2_000), started_at=ago(1_400), finished_at=ago(9)),
            "medium", id="R5.62 finished: as it was when it started",
        ),
        pytest.param(
            replace(A_JOB, state=State.CANCELLED, eligible_at=ago(2_000), finished_at=ago(1_900)), "low",
            id="R5.62 cancelled while it waited: as it was then",
        ),
    ],
)  # fmt: skip
def test_the_effective_priority_of_a_job_follows_its_own_age(job: JobRecord, lane: str) -> None:
    assert effective_lane(BUILT_IN, job, NOW_AT) == lane


@pytest.mark.parametrize(
    "levels, waited, lane",
    [
        pytest.param({"a": 0, "b": 5}, 2, "x", id="no lane has the level it rose to"),
        pytest.param({"a": 0, "b": 5}, 3, "b", id="the level that it rose to"),
        pytest.param({"a": 0, "b": 6}, 3, "b", id="or one that it rose past"),
        pytest.param({"b": 5, "a": 5}, 3, "a", id="of two on a level the first by name"),
        pytest.param({"a": 5, "b": 6}, 3, "a", id="the best that it reached"),
        pytest.param({"a": 8}, 3, "x", id="its own level is no promotion"),
    ],
)
def test_a_job_is_as_good_as_the_best_lane_it_has_risen_to(levels: dict[str, int], waited: int, lane: str) -> None:
    other = {name: Lane(level, 1, 0, 1) for name, level in levels.items()}
    policy = replace(PLAIN, lanes={**other, "x": Lane(8, 1, 0, 1, (1, 2, 3))})
    assert effective_lane(policy, replace(A_JOB, lane="x", eligible_at=NOW_AT - waited), NOW_AT) == lane


# ---------------------------------------------------------------------- shares over many claims


def claim_for_long(
    policy: Policy,
    views: Sequence[ClassView],
    batches: Sequence[int],
    *,
    clocks: ShareClocks | None = None,
    seconds: Mapping[str, float] | None = None,
) -> list[list[ClassKey]]:
    """Claim in batches from classes that always have jobs, and charge each claim as a worker does."""
    clocks = clocks or ShareClocks()
    claimed: list[list[ClassKey]] = []
    for free in batches:
        chosen = a_plan(*views, free=free, policy=policy, clocks=clocks)
        got = [key for key, _, _ in carry_out(chosen, as_many_as_seen(views))]
        assert len(got) == free
        for key in got:
            clocks.charge(policy, key, (seconds or {}).get(key.lane, 1.0))
        claimed.append(got)
    return claimed


@pytest.mark.parametrize("offset", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("free", [1, 2, 3, 7, 10])
def test_lanes_that_compete_get_their_weights_whatever_the_backlog(free: int, offset: float) -> None:
    # R5.65, R1.44: six to three to one, however much aged work there is.
    views = [a_view(lane, 10**6, OVERDUE[lane]) for lane in OVERDUE]
    claimed = claim_for_long(PLAIN, views, [free] * 1_000, clocks=ShareClocks(offset))
    got = Counter(key.lane for batch in claimed for key in batch)
    assert [got[lane] / (100 * free) for lane in OVERDUE] == pytest.approx([6, 3, 1], abs=0.03)


def test_a_lane_that_is_not_overdue_gets_nothing_while_a_better_one_has_work() -> None:
    # R1.43
    views = [a_view("high", 9), a_view("medium", 9, 1_199 * SECOND), a_view("low", 9, 1_199 * SECOND)]
    claimed = claim_for_long(PLAIN, views, [3] * 50)
    assert {key.lane for batch in claimed for key in batch} == {"high"}


@given(
    levels=st.dictionaries(
        st.sampled_from("abcd"),
        st.tuples(st.integers(0, 3), st.integers(1, 12), st.booleans()),
        min_size=2,
    ),
    batches=st.lists(st.integers(1, 6), min_size=1, max_size=40),
    offset=st.sampled_from([0.0, 0.3, 0.99]),
)
def test_a_lane_that_is_overdue_gets_its_share_and_the_natives_keep_theirs(
    levels: dict[str, tuple[int, int, bool]], batches: list[int], offset: float
) -> None:
    """R1.44, R5.12, R5.65: each share is right to within a turn, over any stretch.

    Between two turns of an overdue lane, a native lane gets at most its weight over that lane's, and one more.
    """
    policy = replace(
        PLAIN,
        lanes={
            name: Lane(level, weight, 0, 1, (100,) * level if rises else ())
            for name, (level, weight, rises) in levels.items()
        },
    )
    views = [a_view(name, 10**6, 100) for name in levels]
    best = min(level for level, _, _ in levels.values())
    competing = [name for name, (level, _, rises) in levels.items() if level == best or rises]
    steps = {name: 1 / levels[name][1] for name in competing}
    total: Counter[str] = Counter()
    pairs = [(one, other) for one in competing for other in competing if one < other]
    ahead: dict[tuple[str, str], list[float]] = {pair: [0.0] for pair in pairs}
    since = {name: Counter[str]() for name in competing}
    for batch in claim_for_long(policy, views, batches, clocks=ShareClocks(offset)):
        got = Counter(key.lane for key in batch)
        total += got
        assert set(total) <= set(competing)
        for one, other in pairs:
            ahead[one, other].append(total[one] * steps[one] - total[other] * steps[other])
            assert max(ahead[one, other]) - min(ahead[one, other]) <= steps[one] + steps[other] + 1e-6
        for name in competing:
            if got[name]:
                since[name].clear()
                continue
            since[name] += got
            for other in competing:
                assert since[name][other] <= steps[name] / steps[other] + 1 + 1e-6


def test_age_opens_a_lane_at_its_moment_and_closes_it_when_its_old_jobs_are_gone() -> None:
    # R1.44, R5.12, R5.67: endless high work, and low jobs that came one a minute for half an hour.
    clocks = ShareClocks()
    came = [minute * 60 * SECOND for minute in range(30)]
    served: list[tuple[int, int]] = []
    for now_at in range(0, 4_000 * SECOND, SECOND):
        waiting = [at for at in came if at <= now_at]
        views = (ClassView(ClassKey("high"), 9, now_at), ClassView(ClassKey("low"), len(waiting), min(waiting or [0])))
        chosen = plan(Snapshot(now_at, views), free=1, free_below=1, offers=frozenset(), policy=PLAIN, clocks=clocks)
        key = carry_out(chosen, {ClassKey("high"): [now_at], ClassKey("low"): waiting})[0][0]
        clocks.charge(PLAIN, key, 1.0)
        if key.lane == "low":
            served.append((now_at, waiting[0]))
            came.remove(waiting[0])
    waits = [now_at - at for now_at, at in served]
    assert len(served) == 30
    # Overdue lanes get one turn in seven, more than one a minute: each goes soon after its twenty minutes.
    assert 1_200 * SECOND <= min(waits) <= max(waits) <= 1_210 * SECOND


def test_classes_with_tenants_take_turns() -> None:
    views = [a_view("high", 99, needs=(need,), head_key=key, fair=key == 5) for need, key in (("a", 900), ("b", 5))]
    claimed = claim_for_long(PLAIN, views, [1, 2, 3] * 20)
    got = Counter(key.needs for batch in claimed for key in batch)
    assert got[("a",)] == got[("b",)] == 60


def test_classes_with_tenants_take_turns_in_a_lane_that_is_served_now_and_then() -> None:
    views = [
        a_view("high", 99),
        *(a_view("low", 99, OVERDUE["low"], needs=(need,), fair=True) for need in ("a", "b")),
    ]
    claimed = claim_for_long(PLAIN, views, [1] * 700)
    got = Counter(key.needs for batch in claimed for key in batch)
    assert (got[("a",)], got[("b",)]) == (50, 50)


@pytest.mark.parametrize("free", [1, 10])
def test_lanes_share_by_time_and_not_by_jobs(free: int) -> None:
    policy = replace(PLAIN, lanes={"short": Lane(0, 1, 0, 1), "long": Lane(0, 1, 0, 1)})
    seconds = {"short": 0.1, "long": 5.0}
    views = [a_view("short", 10**6), a_view("long", 10**6)]
    claimed = claim_for_long(policy, views, [free] * 2_000, seconds=seconds)
    got = Counter(key.lane for batch in claimed for key in batch)
    time = {lane: got[lane] * seconds[lane] for lane in seconds}
    assert time["short"] / time["long"] == pytest.approx(1, rel=0.1)


def test_what_a_job_took_is_set_right_when_it_ends() -> None:
    policy = replace(PLAIN, lanes={"a": Lane(0, 2, 0, 1), "b": Lane(0, 2, 0, 1)})
    views = [a_view("a", 99), a_view("b", 99)]
    clocks = ShareClocks()
    clocks.charge(policy, ClassKey("a"), 1.0)
    clocks.charge(policy, ClassKey("b"), 1.0)
    clocks.correct(policy, ClassKey("a"), 3.0)
    # a is now 1.5 ahead at a weight of 2: b has three turns before it.
    claimed = claim_for_long(policy, views, [1] * 6, clocks=clocks)
    assert "".join(key.lane for batch in claimed for key in batch) == "bbbaba"


# ---------------------------------------------------------------------- whatever is seen

keys = st.builds(
    ClassKey,
    lane=st.sampled_from(["high", "medium", "low", "gone"]),
    needs=st.sampled_from([(), ("a",), ("a", "b"), ("c",)]),
    rung=st.sampled_from([None, "fast"]),
    persist=st.booleans(),
)
views = st.builds(
    ClassView,
    key=keys,
    waiting=st.integers(0, 5),
    oldest_at=st.none() | st.sampled_from([NOW_AT - 1_300_000, NOW_AT - 700_000, NOW_AT - 5, NOW_AT]),
    head_key=st.integers(0, 3),
    fair=st.booleans(),
    blocked=st.sampled_from([None, None, None, "paused", "ladder"]),
)
some_views = st.lists(views, max_size=12, unique_by=lambda view: view.key)
policies = st.sampled_from([BUILT_IN, replace(BUILT_IN, promotion="absolute"), PLAIN, ABSOLUTE])
offered = st.frozensets(st.sampled_from("abc"))


def level_of(key: ClassKey) -> int:
    return lane_of(BUILT_IN, key.lane).level


@st.composite
def some_clocks(draw: st.DrawFn) -> ShareClocks:
    """Draw the clocks of a worker that has claimed before."""
    clocks = ShareClocks(draw(st.sampled_from([0.0, 0.5])))
    for key in draw(st.lists(keys, max_size=12)):
        clocks.charge(BUILT_IN, key, draw(st.sampled_from([0.5, 1.0, 3.0])))
    return clocks


@given(
    classes=some_views,
    free=st.integers(-1, 9),
    free_below=st.integers(-1, 9),
    offers=offered,
    policy=policies,
    clocks=some_clocks(),
    shuffled=st.randoms(use_true_random=False),
)
def test_a_plan_keeps_its_rules_and_depends_on_nothing_but_its_inputs(
    classes: list[ClassView],
    free: int,
    free_below: int,
    offers: frozenset[str],
    policy: Policy,
    clocks: ShareClocks,
    shuffled: Random,
) -> None:
    def ask(seen: Sequence[ClassView]) -> Plan:
        return a_plan(*seen, free=free, free_below=free_below, offers=offers, policy=policy, clocks=clocks)

    chosen = ask(classes)
    mixed = list(classes)
    shuffled.shuffle(mixed)
    assert chosen == ask(classes) == ask(mixed)
    assert 0 <= chosen.free_below <= chosen.free <= max(0, free)
    for take in chosen.takes:
        assert 1 <= take.most <= (chosen.free_below if take.below_reserve else chosen.free)
        assert serves(take.key.needs, offers)
        assert take.below_reserve == (take.key.lane not in policy.reserve.lanes)
    # Of every class that it can serve the plan takes in the end all there is, and names it no more after that.
    named = [take.key for take in chosen.takes]
    whole = [
        take.key
        for take in chosen.takes
        if take.until_at is None and take.most == (chosen.free_below if take.below_reserve else chosen.free)
    ]
    assert len(whole) == len(set(whole))
    if free > 0 and free_below > 0:
        assert set(named) == set(whole) == {view.key for view in classes if serves(view.key.needs, offers)}
    if policy.promotion == "share":
        # Lanes that were not promoted come by level.
        levels = [level_of(take.key) for take in chosen.takes if take.over is None and take.key in whole]
        first = {take.key.lane: at for at, take in reversed(list(enumerate(chosen.takes)))}
        risen = {take.key.lane for take in chosen.takes if take.over}
        assert risen or levels == sorted(levels)
        assert all(lane in first for lane in risen)


@given(classes=some_views, free=st.integers(0, 9), free_below=st.integers(0, 9), offers=offered, policy=policies)
def test_a_promotion_is_noted_over_a_lane_that_waits_and_was_met(
    classes: list[ClassView], free: int, free_below: int, offers: frozenset[str], policy: Policy
) -> None:
    # R5.10, R5.62
    chosen = a_plan(*classes, free=free, free_below=free_below, offers=offers, policy=policy)
    claimable = [view for view in classes if view.waiting and not view.blocked and serves(view.key.needs, offers)]
    for take in chosen.takes:
        if take.over is None:
            assert take.until_at is None or policy.promotion == "absolute"
            continue
        lane, over = policy.lanes[take.key.lane], policy.lanes[take.over]
        assert lane.level > over.level
        assert any(view.key.lane == take.over for view in claimable)
        waited = max(NOW_AT - (view.oldest_at or NOW_AT) for view in claimable if view.key.lane == take.key.lane)
        assert risen_level(lane, waited) <= over.level
        if policy.promotion == "absolute":
            assert take.until_at in {NOW_AT - after for after in lane.promote_after_ms}
        else:
            assert take.until_at is None


@given(
    classes=some_views,
    changes=st.dictionaries(keys, st.integers(0, 12)),
    free=st.integers(0, 9),
    free_below=st.integers(0, 9),
    offers=offered,
    policy=policies,
    clocks=some_clocks(),
)
def test_no_slot_stays_empty_for_which_something_waits_and_no_cap_is_passed(
    classes: list[ClassView],
    changes: dict[ClassKey, int],
    free: int,
    free_below: int,
    offers: frozenset[str],
    policy: Policy,
    clocks: ShareClocks,
) -> None:
    """R1.7, R1.11, R1.19, R1.20: this also holds for an old snapshot that knew the class."""
    chosen = a_plan(*classes, free=free, free_below=free_below, offers=offers, policy=policy, clocks=clocks)
    jobs = as_many_as_seen(classes)
    jobs |= {key: [NOW_AT] * count for key, count in changes.items() if key in jobs}
    claimed = carry_out(chosen, jobs)
    got = Counter(key for key, _, _ in claimed)
    below = sum(count for key, count in got.items() if key.lane not in policy.reserve.lanes)
    assert len(claimed) <= free
    assert below <= free_below
    left_below = min(free, free_below) - below
    for key, waiting in jobs.items():
        may = free - len(claimed) if key.lane in policy.reserve.lanes else min(free - len(claimed), left_below)
        if serves(key.needs, offers) and may > 0:
            assert got[key] == len(waiting)


@given(
    classes=some_views,
    changes=st.dictionaries(keys, st.integers(0, 12)),
    free=st.integers(0, 9),
    offers=offered,
)
def test_levels_hold_on_an_old_snapshot(
    classes: list[ClassView], changes: dict[ClassKey, int], free: int, offers: frozenset[str]
) -> None:
    # R1.43: nothing has aged here, so nothing goes before a job of a better level, seen or not.
    seen = [view._replace(oldest_at=None if view.oldest_at is None else NOW_AT) for view in classes]
    jobs = as_many_as_seen(seen)
    jobs |= {key: [NOW_AT] * count for key, count in changes.items() if key in jobs}
    for policy in (PLAIN, ABSOLUTE):
        claimed = Counter(key for key, _, _ in carry_out(a_plan(*seen, free=free, offers=offers, policy=policy), jobs))
        left = [level_of(key) for key in jobs if len(jobs[key]) > claimed[key] and serves(key.needs, offers)]
        assert all(level_of(key) <= min(left) for key in claimed if left)


def one_by_one(
    policy: Policy, waiting: Mapping[str, int], waited_ms: Mapping[str, int], clocks: ShareClocks, free: int
) -> Counter[tuple[str, str | None]]:
    """Claim one slot at a time. Return counts by lane and by the native lane that gave up its turn."""
    left = Counter(waiting)
    tags = {name: clocks.lane(name, policy.lanes[name], 1).tag for name in waiting}
    claimed: Counter[tuple[str, str | None]] = Counter()
    for _ in range(free):
        able = sorted((name for name in left if left[name]), key=lambda name: (policy.lanes[name].level, name))
        if not able:
            break
        native = able[0]
        served = policy.lanes[native].level
        competing = [name for name in able if risen_level(policy.lanes[name], waited_ms[name]) <= served]
        first = min(competing, key=lambda name: tags[name])
        claimed[first, native if policy.lanes[first].level > served else None] += 1
        tags[first] += 1 / policy.lanes[first].weight
        left[first] -= 1
    return claimed


@st.composite
def one_class_a_lane(draw: st.DrawFn) -> tuple[Policy, dict[str, int], dict[str, int], ShareClocks]:
    """Draw lanes with one class each: levels, waiting jobs and waits. Weights are powers of two."""
    lane = st.builds(
        Lane,
        level=st.integers(0, 2),
        weight=st.sampled_from([1, 2, 4, 8]),
        max_retries=st.just(0),
        timeout_ms=st.just(1),
        promote_after_ms=st.sampled_from([(), (100,), (100, 200)]),
    )
    policy = replace(PLAIN, lanes=draw(st.dictionaries(st.sampled_from("abcd"), lane, min_size=1)))
    waiting = {name: draw(st.integers(0, 9)) for name in sorted(policy.lanes)}
    waited_ms = {name: draw(st.sampled_from([0, 100, 200])) for name in sorted(policy.lanes)}
    clocks = ShareClocks()
    for name in draw(st.lists(st.sampled_from(sorted(policy.lanes)), max_size=8)):
        clocks.charge(policy, ClassKey(name), 1.0)
    return policy, waiting, waited_ms, clocks


Scene = tuple[Policy, dict[str, int], dict[str, int], ShareClocks]


def both_ways(scene: Scene, free: int) -> tuple[Counter[tuple[str, str | None]], Counter[tuple[str, str | None]]]:
    policy, waiting, waited_ms, clocks = scene
    seen = [a_view(name, waiting[name], waited_ms[name]) for name in waiting]
    claimed = carry_out(a_plan(*seen, free=free, policy=policy, clocks=clocks), as_many_as_seen(seen))
    return Counter((key.lane, over) for key, _, over in claimed), one_by_one(policy, waiting, waited_ms, clocks, free)


@given(scene=one_class_a_lane(), free=st.integers(1, 12))
def test_a_batch_is_claimed_as_slot_by_slot_while_the_best_level_lasts(scene: Scene, free: int) -> None:
    policy, waiting, waited_ms, clocks = scene
    best = min((policy.lanes[name].level for name in waiting if waiting[name]), default=0)
    enough = {name: 99 if count and policy.lanes[name].level == best else count for name, count in waiting.items()}
    at_once, slow = both_ways((policy, enough, waited_ms, clocks), free)
    assert at_once == slow  # Here also over whom: the first of the natives.


@given(scene=one_class_a_lane(), free=st.integers(1, 12))
def test_a_batch_is_claimed_as_slot_by_slot(scene: Scene, free: int) -> None:
    at_once, slow = both_ways(scene, free)
    assert promoted(at_once) == promoted(slow)


def promoted(claimed: Counter[tuple[str, str | None]]) -> Counter[tuple[str, bool]]:
    """Return counts by lane and by whether it was another lane's turn. Which of two native lanes does not matter."""
    counts: Counter[tuple[str, bool]] = Counter()
    for (lane, over), count in claimed.items():
        counts[lane, over is not None] += count
    return counts


def test_an_overdue_lane_does_not_push_out_the_lane_between() -> None:
    # R5.65: one high job is there. After it, medium is the native lane, and low may share with it.
    views = [a_view("high", 1), a_view("medium", 99), a_view("low", 99, OVERDUE["low"])]
    claimed = carry_out(a_plan(*views, free=9, policy=PLAIN), as_many_as_seen(views))
    assert by_lane(claimed) == {"high": 1, "medium": 6, "low": 2}


# ---------------------------------------------------------------------- making room on the ladder

LADDER = Ladder((Rung("fast", 3_000), Rung("medium", 10_000, limit=3), Rung("slow", 30_000, limit=1)))
ELASTIC_AT_SLOW = ElasticJob(JobId("e"), 2, 5)


@pytest.mark.parametrize(
    "waiting, running_jobs, amended",
    [
        pytest.param(
            "slow", RunningJobs(5, 2, (0, 0, 1), (ELASTIC_AT_SLOW,)), [("e", "medium")], id="R3.18 slow is full"
        ),
        pytest.param("slow", RunningJobs(5, 2, (0, 2, 1), (ELASTIC_AT_SLOW,)), [("e", "fast")], id="R3.19 medium too"),
        pytest.param("slow", RunningJobs(5, 2, (0, 0, 1)), [], id="R3.20 nobody to lower"),
        pytest.param(
            "fast", RunningJobs(1, 0, (0, 0, 1), (ELASTIC_AT_SLOW,)), [("e", "fast")], id="R3.23 no slot free"
        ),
        pytest.param("fast", RunningJobs(5, 2, (0, 0, 1), (ELASTIC_AT_SLOW,)), [], id="R3.9 there is room"),
        pytest.param(None, RunningJobs(1, 0, (0, 0, 1), (ELASTIC_AT_SLOW,)), [], id="nothing on the ladder waits"),
    ],
)
def test_the_running_jobs_are_named_that_make_room(
    waiting: str | None, running_jobs: RunningJobs, amended: list[tuple[str, str]]
) -> None:
    view = ClassView(ClassKey("medium", rung=waiting), 1, NOW_AT, blocked="ladder" if waiting == "slow" else None)
    snapshot = Snapshot(NOW_AT, (view,), running_jobs=running_jobs)
    policy = replace(PLAIN, ladder=LADDER)
    chosen = make_room(snapshot, offers=frozenset(), policy=policy)
    assert [(amendment.job_id, amendment.rung) for amendment in chosen] == amended


def test_a_paused_lane_takes_room_from_nobody() -> None:
    view = ClassView(ClassKey("medium", rung="slow"), 1, NOW_AT, blocked="paused")
    snapshot = Snapshot(NOW_AT, (view,), running_jobs=RunningJobs(5, 2, (0, 0, 1), (ELASTIC_AT_SLOW,)))
    policy = replace(PLAIN, ladder=LADDER)
    assert make_room(snapshot, offers=frozenset(), policy=policy) == ()
