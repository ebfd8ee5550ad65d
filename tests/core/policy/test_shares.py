"""Shares by weight: the order of turns, and a bound on how far one sharer gets ahead of another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.core.policy.shares import Sharer, Shares, share_out


def one_by_one(turns: int, sharers: Sequence[Sharer[str]]) -> dict[str, int]:
    """Deal turns one by one: each to the smallest tag, and of equal tags to the first."""
    given_to = {sharer.name: 0 for sharer in sharers}
    for _ in range(turns):
        able = [sharer for sharer in sharers if given_to[sharer.name] < sharer.most]
        if able:
            first = min(able, key=lambda sharer: sharer.tag + given_to[sharer.name] * sharer.step)
            given_to[first.name] += 1
    return given_to


def deal(shares: Shares[str], turns: int, steps: Mapping[str, float], most: int = 1_000_000) -> dict[str, int]:
    """Share out turns and charge them as a claiming worker does: all of one sharer, then all of the next."""
    sharers = [Sharer(name, shares.tag(name, step), step, most) for name, step in steps.items()]
    dealt = share_out(turns, sharers)
    for name, count in dealt.items():
        for _ in range(count):
            shares.charge(name, steps[name])
    return dealt


# ---------------------------------------------------------------------- dealing


@pytest.mark.parametrize(
    "turns, sharers, dealt",
    [
        pytest.param(0, [Sharer("a", 0, 1, 9)], {"a": 0}, id="nothing to deal"),
        pytest.param(-3, [Sharer("a", 0, 1, 9)], {"a": 0}, id="less than nothing"),
        pytest.param(5, [], {}, id="nobody to deal to"),
        pytest.param(5, [Sharer("a", 7, 3, 9)], {"a": 5}, id="one gets all"),
        pytest.param(5, [Sharer("a", 7, 3, 2)], {"a": 2}, id="but no more than it can use"),
        pytest.param(5, [Sharer("a", 0, 1, 0), Sharer("b", 9, 1, 9)], {"a": 0, "b": 5}, id="one can use none"),
        pytest.param(4, [Sharer("a", 0, 1, 9), Sharer("b", 0, 1, 9)], {"a": 2, "b": 2}, id="equals"),
        pytest.param(3, [Sharer("a", 0, 1, 9), Sharer("b", 0, 1, 9)], {"a": 2, "b": 1}, id="an odd one: the first"),
        pytest.param(8, [Sharer("a", 0, 1 / 3, 9), Sharer("b", 0, 1, 9)], {"a": 6, "b": 2}, id="three to one"),
        pytest.param(10, [Sharer("a", 0, 1 / 6, 9), Sharer("b", 0, 1 / 3, 9), Sharer("c", 0, 1, 9)],
                     {"a": 6, "b": 3, "c": 1}, id="six to three to one"),
        pytest.param(1, [Sharer("a", 0.5, 1, 9), Sharer("b", 0.25, 1, 9)], {"a": 0, "b": 1}, id="the smallest tag"),
        pytest.param(4, [Sharer("a", 4, 1, 9), Sharer("b", 0, 1, 9)], {"a": 0, "b": 4}, id="who is behind catches up"),
        pytest.param(6, [Sharer("a", 4, 1, 9), Sharer("b", 0, 1, 9)], {"a": 1, "b": 5}, id="and no further"),
        pytest.param(9, [Sharer("a", 0, 1, 2), Sharer("b", 0, 1, 99), Sharer("c", 0, 1, 99)],
                     {"a": 2, "b": 4, "c": 3}, id="what one leaves is shared anew"),
        pytest.param(5, [Sharer("a", 0, 1, 99), *(Sharer(name, 0, 100, 99) for name in "bcdefghijk")],
                     {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, **dict.fromkeys("fghijk", 0)},
                     id="all who stand at one tag get a turn before anybody gets a second"),
        pytest.param(4, [Sharer("a", 0, 1, 99), *(Sharer(name, 3.5, 100, 99) for name in "bcdefghijk")],
                     {"a": 4, **dict.fromkeys("bcdefghijk", 0)}, id="and who stands behind them several"),
        pytest.param(4, [Sharer("a", 0, 1, 3), *(Sharer(name, 3.5, 100, 99) for name in "bcdefghijk")],
                     {"a": 3, "b": 1, **dict.fromkeys("cdefghijk", 0)}, id="as many as it can use"),
    ],
)  # fmt: skip
def test_turns_go_to_the_smallest_tag(turns: int, sharers: list[Sharer[str]], dealt: dict[str, int]) -> None:
    assert share_out(turns, sharers) == dealt
    assert one_by_one(turns, sharers) == dealt


# Binary fractions, so that equal tags are equal however they were computed.
exact_sharers = st.lists(
    st.builds(
        Sharer[str],
        name=st.sampled_from("abcdefgh"),
        tag=st.integers(0, 64).map(lambda eighths: eighths / 8),
        step=st.sampled_from([1 / 8, 1 / 4, 1 / 2, 1, 2, 3, 5, 32]),
        most=st.integers(0, 30) | st.just(10_000),
    ),
    max_size=8,
    unique_by=lambda sharer: sharer.name,
)
any_sharers = st.lists(
    st.builds(
        Sharer[str],
        name=st.sampled_from("abcdefgh"),
        tag=st.floats(0, 1_000),
        step=st.floats(0.001, 100),
        most=st.integers(0, 10_000),
    ),
    max_size=8,
    unique_by=lambda sharer: sharer.name,
)


@given(turns=st.integers(0, 200), sharers=exact_sharers)
def test_dealing_at_once_is_dealing_one_by_one(turns: int, sharers: list[Sharer[str]]) -> None:
    assert share_out(turns, sharers) == one_by_one(turns, sharers)


@given(turns=st.integers(0, 10_000), sharers=any_sharers)
def test_every_turn_is_dealt_and_none_before_one_that_should_come_sooner(
    turns: int, sharers: list[Sharer[str]]
) -> None:
    dealt = share_out(turns, sharers)
    assert sum(dealt.values()) == min(turns, sum(sharer.most for sharer in sharers))
    last = max((s.tag + (dealt[s.name] - 1) * s.step for s in sharers if dealt[s.name]), default=0.0)
    for sharer in sharers:
        assert 0 <= dealt[sharer.name] <= sharer.most
        if dealt[sharer.name] < sharer.most and turns:
            assert last <= sharer.tag + dealt[sharer.name] * sharer.step + 1e-6


@given(turns=st.integers(0, 200), sharers=any_sharers, shuffled=st.randoms(use_true_random=False))
def test_only_equals_are_told_apart_by_their_order(turns: int, sharers: list[Sharer[str]], shuffled: Random) -> None:
    mixed = list(sharers)
    shuffled.shuffle(mixed)
    once, again = share_out(turns, sharers), share_out(turns, mixed)
    assert share_out(turns, sharers) == once
    if once != again:
        ends = {s.name: s.tag + min(once[s.name], again[s.name]) * s.step for s in sharers}
        moved = [ends[name] for name in ends if once[name] != again[name]]
        assert max(moved) - min(moved) <= 1e-6


def test_many_turns_cost_no_more_than_few() -> None:
    # A loop over them would take minutes.
    dealt = share_out(10**9, [Sharer(name, 0, 1 / weight, 10**9) for name, weight in (("a", 6), ("b", 3), ("c", 1))])
    assert [round(count / 10**8, 6) for count in dealt.values()] == [6, 3, 1]
    assert sum(dealt.values()) == 10**9


# ---------------------------------------------------------------------- clocks


def test_turns_go_round_by_weight() -> None:
    shares: Shares[str] = Shares()
    steps = {"a": 1 / 2, "b": 1.0}
    order = [next(name for name, count in deal(shares, 1, steps).items() if count) for _ in range(9)]
    assert "".join(order) == "abaabaaba"


def test_one_that_was_away_comes_back_at_the_clock() -> None:
    # It has stored up nothing: in the next six turns it gets its three and no more.
    shares: Shares[str] = Shares()
    deal(shares, 1, {"b": 1.0})
    for _ in range(100):
        deal(shares, 1, {"a": 1.0})
    assert shares.tag("b", 1.0) == 99
    assert deal(shares, 6, {"a": 1.0, "b": 1.0}) == {"a": 3, "b": 3}


def test_one_that_leaves_and_comes_back_pays_for_its_last_turn() -> None:
    # Otherwise a sharer that waits with one job at a time would always be first.
    shares: Shares[str] = Shares()
    got: Counter[str] = Counter()
    for turn in range(700):
        absent = turn % 7 == 6
        got.update(deal(shares, 1, {"a": 1 / 6} if absent else {"a": 1 / 6, "b": 1.0}))
    assert got["b"] <= 101


def test_a_new_one_begins_where_the_offset_says() -> None:
    for offset, first in ((0.0, "a"), (0.9, "b")):
        shares: Shares[str] = Shares(offset)
        # a's turn is worth 4, b's 1: where both begin late in their cycles, the short one is first.
        assert deal(shares, 1, {"a": 4.0, "b": 1.0})[first] == 1
    shares = Shares(0.5)
    assert (shares.tag("a", 4.0), shares.tag("b", 1.0)) == (2.0, 0.5)


def test_a_new_one_keeps_its_place_until_its_first_turn() -> None:
    # Were its place counted from the clock, it would move away as fast as others are served.
    shares: Shares[str] = Shares(0.9)
    got: Counter[str] = Counter()
    for _ in range(70):
        got.update(deal(shares, 1, {"a": 1 / 6, "b": 1.0}))
    assert got == {"a": 60, "b": 10}


@pytest.mark.parametrize(
    "correction, then",
    [
        pytest.param(0.0, {"a": 2, "b": 2}, id="as expected"),
        pytest.param(2.0, {"a": 1, "b": 3}, id="it took longer"),
        pytest.param(-1.0, {"a": 3, "b": 1}, id="it took less"),
    ],
)
def test_a_turn_that_was_worth_more_or_less_than_thought_is_corrected(correction: float, then: dict[str, int]) -> None:
    shares: Shares[str] = Shares()
    deal(shares, 4, {"a": 1.0, "b": 1.0})
    shares.correct("a", correction)
    assert deal(shares, 4, {"a": 1.0, "b": 1.0}) == then


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.001, 100), st.integers(1, 50)), max_size=20))
def test_turns_charged_at_once_are_turns_charged_one_by_one(charges: list[tuple[str, float, int]]) -> None:
    at_once: Shares[str] = Shares(0.5)
    each: Shares[str] = Shares(0.5)
    for name, seconds, turns in charges:
        at_once.charge(name, seconds, 2.0, turns)
        for _ in range(turns):
            each.charge(name, seconds, 2.0)
        assert at_once.usual(name) == pytest.approx(each.usual(name))
        assert at_once.tag(name, 1.0) == pytest.approx(each.tag(name, 1.0))


def test_what_is_usual_is_learned_by_and_by() -> None:
    shares: Shares[str] = Shares()
    assert shares.usual("a") == 1.0
    shares.charge("a", 3.0)
    assert shares.usual("a") == 3.0
    shares.charge("a", 23.0)
    assert shares.usual("a") == 4.0
    for _ in range(200):
        shares.charge("a", 0.0)
    assert 0 < shares.usual("a") < 0.001
    assert shares.usual("b") == 1.0


def test_one_who_never_had_a_turn_has_nothing_to_correct() -> None:
    shares: Shares[str] = Shares()
    shares.correct("a", 50.0)
    assert shares.tag("a", 1.0) == 0


def test_looking_changes_nothing() -> None:
    shares: Shares[str] = Shares()
    deal(shares, 5, {"a": 1.0, "b": 0.5})
    before = [shares.tag(name, 1.0) for name in "abc"]
    assert [shares.tag(name, 1.0) for name in "cba"] == before[::-1]


@given(
    batches=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    weights=st.dictionaries(st.sampled_from("abcd"), st.integers(1, 8), min_size=2),
    shuffled=st.randoms(use_true_random=False),
)
def test_the_order_in_which_one_batch_is_noted_does_not_matter(
    batches: list[int], weights: dict[str, int], shuffled: Random
) -> None:
    in_order: Shares[str] = Shares()
    mixed: Shares[str] = Shares()
    steps = {name: 1 / weight for name, weight in weights.items()}
    for turns in batches:
        dealt = deal(in_order, turns, steps)
        for name in steps:
            mixed.tag(name, steps[name])
        names = [name for name, count in dealt.items() for _ in range(count)]
        shuffled.shuffle(names)
        for name in names:
            mixed.charge(name, steps[name])
        assert [in_order.tag(name, 1) for name in steps] == pytest.approx([mixed.tag(name, 1) for name in steps])


@given(
    weights=st.dictionaries(st.sampled_from("abcde"), st.floats(0.1, 20), min_size=2),
    rounds=st.lists(
        st.tuples(st.integers(1, 12), st.frozensets(st.sampled_from("abcde"), max_size=3)), min_size=1, max_size=60
    ),
    offset=st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.99]),
)
def test_two_who_are_both_busy_stay_within_a_turn_of_each(
    weights: dict[str, float], rounds: list[tuple[int, frozenset[str]]], offset: float
) -> None:
    """The bound of start-time fair queueing, for every stretch in which both have work, in batches of any size."""
    shares: Shares[str] = Shares(offset)
    steps = {name: 1 / weight for name, weight in weights.items()}
    names = sorted(weights)
    pairs = [(one, other) for one in names for other in names if one < other]
    ahead: dict[tuple[str, str], list[float]] = {pair: [0.0] for pair in pairs}
    for turns, away in rounds:
        present = {name: step for name, step in steps.items() if name not in away}
        dealt = deal(shares, turns, present)
        for one, other in pairs:
            if one in present and other in present:
                gain = dealt[one] * steps[one] - dealt[other] * steps[other]
                ahead[one, other].append(ahead[one, other][-1] + gain)
                lead = max(ahead[one, other]) - min(ahead[one, other])
                assert lead <= steps[one] + steps[other] + 1e-6
            else:
                ahead[one, other] = [0.0]


@pytest.mark.parametrize("offset", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("turns", [1, 2, 3, 5, 7, 16, 100])
def test_shares_follow_weights_in_batches_of_any_size(turns: int, offset: float) -> None:
    # R5.65
    shares: Shares[str] = Shares(offset)
    steps = {"a": 1 / 6, "b": 1 / 3, "c": 1.0}
    got: Counter[str] = Counter()
    for _ in range(1_000):
        got.update(deal(shares, turns, steps))
    assert [got[name] / (100 * turns) for name in "abc"] == pytest.approx([6, 3, 1], abs=0.02)


@given(
    weights=st.dictionaries(st.sampled_from("abcde"), st.integers(1, 20), min_size=2),
    turns=st.integers(1, 7),
    offset=st.sampled_from([0.0, 0.5, 0.99]),
)
def test_nobody_waits_longer_than_the_weights_say(weights: dict[str, int], turns: int, offset: float) -> None:
    # R1.44: between two turns of one, each other gets at most its weight over that one's, and one more.
    shares: Shares[str] = Shares(offset)
    steps = {name: 1 / weight for name, weight in weights.items()}
    since: dict[str, Counter[str]] = {name: Counter() for name in weights}
    for _ in range(60):
        dealt = deal(shares, turns, steps)
        for name in weights:
            for other in weights:
                if not dealt[name] and other != name:
                    since[name][other] += dealt[other]
                    assert since[name][other] <= weights[other] / weights[name] + 1 + 1e-6
            if dealt[name]:
                since[name].clear()
