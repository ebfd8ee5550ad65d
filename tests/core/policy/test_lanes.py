"""What a worker is told to claim: levels, reserve, needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.job import ClassKey
from headway.core.policy.document import BUILT_IN, Lane, Policy
from headway.core.policy.lanes import plan
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.core.worker import serves

NOW_AT = 100_000


def a_view(
    lane: str = "medium", waiting: int = 1, waited_ms: int | None = 0, needs: tuple[str, ...] = (), persist: bool = True
) -> ClassView:
    oldest_at = None if waited_ms is None else NOW_AT - waited_ms
    return ClassView(ClassKey(lane, needs, None, persist), waiting, oldest_at)


def a_plan(
    *views: ClassView,
    free: int = 3,
    free_below: int = 2,
    offers: frozenset[str] = frozenset(),
    policy: Policy = BUILT_IN,
) -> Plan:
    return plan(Snapshot(NOW_AT, views), free=free, free_below=free_below, offers=offers, policy=policy)


def lanes(chosen: Plan) -> list[str]:
    return [take.key.lane for take in chosen.takes]


def test_the_best_level_comes_first_however_long_others_have_waited() -> None:
    # R5.49, R1.43
    chosen = a_plan(a_view("low", waited_ms=9_000), a_view("medium", waited_ms=5_000), a_view("high"))
    assert lanes(chosen) == ["high", "medium", "low"]


def test_inside_a_level_the_longest_wait_comes_first() -> None:
    chosen = a_plan(a_view(waited_ms=10, needs=("a",)), a_view(waited_ms=30), offers=frozenset({"a"}))
    assert [take.key.needs for take in chosen.takes] == [(), ("a",)]


def test_lanes_of_one_level_are_one_line() -> None:
    policy = Policy(lanes={name: Lane(0, 1, 3, 1_000) for name in ("a", "b")})
    assert lanes(a_plan(a_view("a", waited_ms=1), a_view("b", waited_ms=2), policy=policy)) == ["b", "a"]


def test_classes_that_looked_empty_are_named_too() -> None:
    chosen = a_plan(a_view("high", waiting=0, waited_ms=None), a_view("low", waited_ms=50))
    assert lanes(chosen) == ["high", "low"]


def test_a_lane_the_policy_no_longer_has_is_served_last() -> None:
    assert lanes(a_plan(a_view("gone", waited_ms=99_000), a_view("low"))) == ["low", "gone"]


def test_a_class_whose_needs_the_worker_lacks_is_never_named_and_hides_nobody() -> None:
    # R5.54, R5.52, R5.14
    unservable = [a_view("high", waiting=1_000, waited_ms=9_000, needs=(f"need-{n}",)) for n in range(100)]
    chosen = a_plan(*unservable, a_view("low"), a_view("high", needs=("gpu",)), offers=frozenset({"gpu", "arm"}))
    assert [take.key for take in chosen.takes] == [ClassKey("high", ("gpu",)), ClassKey("low")]


@pytest.mark.parametrize(
    "running_high, running_low, high_may, low_may",
    [
        pytest.param(0, 0, 3, 2, id="R1.12 all low: two of three"),
        pytest.param(0, 2, 1, 0, id="R1.12 a third low waits, a high does not"),
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


def test_takes_say_which_lanes_are_below_the_reserve_and_the_plan_how_much_is_free_there() -> None:
    chosen = a_plan(a_view("high"), a_view("low"), free=3, free_below=2)
    assert chosen == Plan((Take(ClassKey("high"), 3, False), Take(ClassKey("low"), 2, True)), 3, 2)


def test_nothing_below_the_reserve_is_named_when_nothing_is_free_there() -> None:
    chosen = a_plan(a_view("high"), a_view("low"), free=1, free_below=0)
    assert lanes(chosen) == ["high"]


@pytest.mark.parametrize("free", [0, -1])
def test_a_full_worker_asks_for_nothing(free: int) -> None:
    assert a_plan(a_view("high"), free=free, free_below=2) == Plan()


def test_more_free_below_than_free_is_not_believed() -> None:
    assert a_plan(a_view("low"), free=1, free_below=5).free_below == 1
    assert a_plan(a_view("high"), free=1, free_below=-2).free_below == 0


keys = st.builds(
    ClassKey,
    lane=st.sampled_from(["high", "medium", "low", "gone"]),
    needs=st.sampled_from([(), ("a",), ("a", "b"), ("c",)]),
    rung=st.sampled_from([None, "fast"]),
    persist=st.booleans(),
)
views = st.builds(ClassView, key=keys, waiting=st.integers(0, 5), oldest_at=st.none() | st.integers(0, NOW_AT))


@given(
    classes=st.lists(views, max_size=12, unique_by=lambda view: view.key),
    free=st.integers(-1, 9),
    free_below=st.integers(-1, 9),
    offers=st.frozensets(st.sampled_from("abc")),
    shuffled=st.randoms(use_true_random=False),
)
def test_a_plan_keeps_its_rules_and_depends_on_nothing_but_its_inputs(
    classes: list[ClassView], free: int, free_below: int, offers: frozenset[str], shuffled: object
) -> None:
    chosen = plan(Snapshot(NOW_AT, tuple(classes)), free=free, free_below=free_below, offers=offers, policy=BUILT_IN)
    mixed = list(classes)
    shuffled.shuffle(mixed)  # type: ignore[attr-defined]
    assert chosen == plan(
        Snapshot(NOW_AT, tuple(mixed)), free=free, free_below=free_below, offers=offers, policy=BUILT_IN
    )
    assert 0 <= chosen.free_below <= chosen.free <= max(0, free)
    for take in chosen.takes:
        assert 1 <= take.most <= (chosen.free_below if take.below_reserve else chosen.free)
        assert serves(take.key.needs, offers)
        assert take.below_reserve == (take.key.lane != "high")
    named = [take.key for take in chosen.takes]
    assert len(named) == len(set(named))
    if free > 0 and free_below > 0:
        assert set(named) == {view.key for view in classes if serves(view.key.needs, offers)}
    levels = [BUILT_IN.lanes[key.lane].level if key.lane in BUILT_IN.lanes else 99 for key in named]
    assert levels == sorted(levels)
