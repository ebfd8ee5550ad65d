"""Learned distributions: sketches of run times, and arrivals."""

from __future__ import annotations

import random

import pytest

from headway.core.distributions import (
    NOTHING,
    TASK_JOBS_MIN,
    Arrivals,
    LaneArrivals,
    Lengths,
    Model,
    ModelData,
    bucket,
    decay,
    doubt,
    merge,
    up_to,
)


def sketch(*seconds: float) -> dict[int, float]:
    return merge({bucket(length): 1.0} for length in seconds)


def many(source: random.Random, count: int = 2_000) -> list[float]:
    return [source.expovariate(1 / 4) for _ in range(count)]


def test_a_sketch_knows_quantiles_and_mean_to_within_a_tenth() -> None:
    taken = sorted(many(random.Random(1)))
    lengths = Lengths(sketch(*taken))
    assert lengths.mean == pytest.approx(sum(taken) / len(taken), rel=0.02)
    for part in (0.1, 0.5, 0.9, 0.99):
        assert lengths.at(part) == pytest.approx(taken[int(part * len(taken))], rel=0.1)


def test_sketches_are_merged_by_adding_them_up() -> None:
    source = random.Random(2)
    one, other = many(source), many(source)
    assert merge([sketch(*one), sketch(*other)]) == sketch(*one, *other)


def test_the_past_fades_and_what_it_says_stays() -> None:
    whole = sketch(*many(random.Random(3), 5_000))
    less = decay(whole, 500)
    assert sum(less.values()) == pytest.approx(500, rel=0.01)
    assert Lengths(less).at(0.5) == pytest.approx(Lengths(whole).at(0.5), rel=0.01)
    assert decay({1: 3.0}, 500) == {1: 3.0}


@pytest.mark.parametrize(
    "elapsed, least, most",
    [
        pytest.param(0.0, 1.0, 3.5, id="it has just begun: one of the short ones, most likely"),
        pytest.param(5.0, 10.0, 26.0, id="it is not one of the short ones"),
        pytest.param(29.0, 0.0, 4.0, id="it must end soon"),
        pytest.param(100.0, 20.0, 60.0, id="none took that long: it goes on for a good part of that"),
    ],
)
def test_what_has_run_for_a_while_goes_on_as_those_did_that_took_as_long(
    elapsed: float, least: float, most: float
) -> None:
    lengths = Lengths(sketch(*([1.0, 2.0, 3.0] * 100), *([20.0, 25.0, 30.0] * 20)))
    assert least <= sorted(lengths.left(elapsed, 9))[4] <= most


def test_short_and_long_jobs_are_told_apart() -> None:
    short, long = Lengths(sketch(*([1.0] * 80), *([20.0] * 20))).phases
    assert (round(short.part, 2), round(long.part, 2)) == (0.8, 0.2)
    assert short.mean == pytest.approx(1.0, rel=0.15)
    assert long.mean == pytest.approx(20.0, rel=0.15)


def test_a_length_of_which_only_the_longest_is_known_lies_anywhere_below() -> None:
    lengths = up_to(30.0)
    assert lengths.mean == pytest.approx(15.0, rel=0.1)
    assert lengths.at(1.0) <= 30.0


def test_a_task_with_few_runs_is_like_its_lane_and_a_lane_without_runs_is_unknown() -> None:
    known = Model(ModelData({"low": {"rare": {0: TASK_JOBS_MIN - 1}, "report": {8: TASK_JOBS_MIN}}}))
    assert known.task("report", "low") is known.own("report")
    assert known.task("rare", "low") is known.lane("low")
    assert known.task("rare", "high") is known.own("rare")
    assert known.task("new", "high") is None
    assert known.lane("high") is None
    assert Model().anything() is None


def test_a_mean_is_exact_where_buckets_are_not() -> None:
    lengths = {"low": {"short": {bucket(0.2101): 10.0}, "long": {bucket(5.0): 10.0}}}
    known = Model(ModelData(lengths, means={"low": {"short": 0.2101, "long": 5.0}}))
    short, lane = Lengths(lengths["low"]["short"]), known.lane("low")
    assert short.mean < 0.2101 * 0.93
    assert lane is not None
    assert lane.mean == pytest.approx((0.2101 + 5.0) / 2, rel=0.35)  # With room for longer jobs,
    many = Model(ModelData({"low": {"short": {bucket(0.2101): 500.0}}}, means={"low": {"short": 0.2101}})).lane("low")
    assert many is not None
    assert many.mean == pytest.approx(0.2101)  # and without.


@pytest.mark.parametrize("runs, factor", [(1, 9.0), (2, 2.5), (3, 1.6), (10, 1.05)])
def test_a_declared_duration_is_outweighed_by_a_few_runs(runs: int, factor: float) -> None:
    learned = Lengths({bucket(0.2): float(runs)})
    assert learned.mean < learned.blended(up_to(30.0)).mean < factor * learned.mean


def test_the_tasks_of_a_lane_are_mixed_as_they_come_not_as_they_are_remembered() -> None:
    lengths = {"medium": {"short": {0: 500.0}, "long": {17: 500.0}}}
    mixed = Model(ModelData(lengths, shares={"medium": {"short": 1_900.0, "long": 100.0}})).lane("medium")
    assert mixed is not None
    assert mixed.phases[0].part == pytest.approx(0.95)
    assert mixed.count == pytest.approx(1_000)


# ---------------------------------------------------------------------- arrivals


def test_of_rare_bursts_none_is_counted_until_one_is_as_likely_as_not() -> None:
    burst = Arrivals(200, 1 / 600, steady=False)
    assert burst.within(60) == 0
    assert burst.within(450) == 200
    assert burst.within(1_050) == 400
    assert Arrivals(2, 0.1).within(60) == 12


def test_others_bring_at_most_so_many_each_and_ones_own_are_left_out() -> None:
    comers = LaneArrivals({"mine": Arrivals(1, 1.0), "a": Arrivals(1, 0.1), "b": Arrivals(1, 2.0)})
    assert comers.of_others("mine", 10, 5).mean == pytest.approx(1 + 5, rel=0.1)
    assert comers.of_others("nobody", 10, 5).mean == pytest.approx(1 + 5 + 5, rel=0.1)
    assert comers.of_others("mine", 10, 0) == NOTHING


def test_a_burst_of_others_counts_up_to_the_bound_and_makes_all_less_certain() -> None:
    comers = LaneArrivals({"bulk": Arrivals(200, 1 / 600, steady=False), "a": Arrivals(1, 0.1)})
    coming = comers.of_others("a", 450, 50)
    assert coming.mean == 25  # The later the burst arrives, the fewer of its jobs go first.
    assert coming.variance > 50
    assert comers.of_others("bulk", 450, 1_000).mean == pytest.approx(45, rel=0.01)


def test_regular_bursts_and_rare_ones_make_the_near_future_less_uncertain() -> None:
    by_cron, by_chance = (
        LaneArrivals({"bulk": Arrivals(200, 1 / 600, steady=False, irregular=irregular)}, 3_600.0)
        for irregular in (0.1, 1.0)
    )
    assert by_cron.within(600).variance < by_chance.within(600).variance / 3
    assert by_chance.within(6).variance < by_chance.within(600).variance / 1_000  # None is likely within six seconds.
    # Beyond the time observed nothing is sure.
    assert by_cron.within(36_000).variance > by_chance.within(36_000).variance / 2


def test_jobs_that_come_in_batches_are_as_many_but_less_certain_and_more_skewed() -> None:
    single, batches = LaneArrivals({"a": Arrivals(1, 2.0)}), LaneArrivals({"a": Arrivals(50, 0.04)})
    assert single.within(0) == batches.within(0) == NOTHING
    assert single.within(100).mean == batches.within(100).mean == 200
    assert batches.within(100).variance == pytest.approx(50 * single.within(100).variance)
    assert batches.within(100).third == pytest.approx(2_500 * single.within(100).third)
    others = batches.of_others("b", 100, 1_000)
    assert others.variance == pytest.approx(50 * single.of_others("b", 100, 1_000).variance, rel=0.05)


def test_of_a_batch_no_more_goes_first_than_one_has_before_oneself() -> None:
    comers = LaneArrivals({"a": Arrivals(50, 0.04), "mine": Arrivals(500, 1.0)})
    few, many = (comers.of_others("mine", 100, most).mean for most in (5, 500))
    assert few < 5
    assert many > 150


# ---------------------------------------------------------------------- few jobs, and jobs that run now


def test_few_jobs_leave_room_for_longer_ones_and_many_do_not() -> None:
    few = Model(ModelData({"low": {"t": {bucket(1.0): 12.0}}})).lane("low")
    many_seen = Model(ModelData({"low": {"t": {bucket(1.0): 400.0}}})).lane("low")
    assert few is not None
    assert many_seen is not None
    assert many_seen.at(0.999) < 1.2
    assert few.at(0.5) < 1.2
    assert few.at(0.97) > 2.0
    assert sum(few.left(1.1, 8)) / 8 > 3 * sum(many_seen.left(1.1, 8)) / 8


def test_the_mean_of_few_jobs_is_in_doubt() -> None:
    assert doubt(10) == pytest.approx(0.245, abs=0.01)
    assert doubt(50) > doubt(100) > doubt(200) == 0.0


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_the_part_that_has_run_for_longer_is_that_of_a_steady_stream(spread: float) -> None:
    source = random.Random(5)
    lengths = [1.0 + spread * source.expovariate(1.0) for _ in range(5_000)]
    found = Lengths(sketch(*lengths))
    for elapsed in (0.0, 0.5, 1.0, 2.0):
        expected = sum(max(0.0, length - elapsed) for length in lengths) / sum(lengths)
        assert found.longer(elapsed) == pytest.approx(expected, abs=0.1)


def test_jobs_that_run_longer_than_was_learned_change_what_is_expected() -> None:
    short = Lengths({bucket(0.1): 300.0})
    assert short.seen_with([0.05, 0.02]) is short
    assert short.seen_with([]) is short
    assert short.seen_with([1.0]) is short  # One may be an exception.
    assert short.seen_with([0.099] * 16) is short  # They started together and are about to end.
    all_long = short.seen_with([1.0] * 4)
    assert all_long.mean == pytest.approx(1.5, rel=0.15)
    half = short.seen_with([1.0] * 4 + [0.05] * 4)
    assert short.mean < half.mean < 0.4  # Short ones start more often in the slots that are left to them.


def test_long_jobs_that_were_learned_are_no_surprise() -> None:
    mixed = Lengths({bucket(0.1): 950.0, bucket(10.0): 50.0})  # Most slots hold long ones at any moment.
    assert mixed.seen_with([6.0, 8.0, 3.0, 9.0]) is mixed
