"""When busy slots become free, compared with an exact sum over the slots."""

from __future__ import annotations

from statistics import fmean, pvariance

import pytest

from headway.core.policy.slot_release import SLOTS_MAX, SlotReleases

SOON = [0.1, 0.3, 0.6, 1.0, 1.5, 2.1, 3.0, 5.0]
LATE = [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0]
SURE = [4.0] * 8
MEAN = 2.0


def starts(points: list[float], now: float) -> list[float]:
    """Return how many jobs a slot could have started by a moment, for each point at which it may become free."""
    return [1.0 + (now - point) / MEAN if point <= now else 0.0 for point in points]


@pytest.mark.parametrize("now", [0.5, 1.0, 3.0, 9.0, 30.0])
def test_the_doubt_is_that_of_each_slot_added_up(now: float) -> None:
    remaining = [SOON, LATE, SURE, LATE]
    slots = SlotReleases(remaining, 6)  # Two are free.
    expected = sum(pvariance(starts(points, now)) for points in remaining)
    assert slots.doubt(now, MEAN) == pytest.approx(expected)
    assert slots.due(now) == pytest.approx(2 + sum(fmean([point <= now for point in points]) for points in remaining))


def test_slots_of_which_the_end_is_known_leave_no_doubt() -> None:
    slots = SlotReleases([[float(at)] * 8 for at in range(1, 9)], 8)
    assert slots.doubt(5.5, MEAN) == pytest.approx(0.0, abs=1e-9)


def test_in_a_large_pool_some_slots_stand_for_all() -> None:
    slots = SlotReleases([SOON, LATE] * (2 * SLOTS_MAX), 4 * SLOTS_MAX)
    few = SlotReleases([SOON, LATE], 2)
    assert slots.due(3.0) == pytest.approx(2 * SLOTS_MAX * few.due(3.0))
    assert slots.doubt(3.0, MEAN) == pytest.approx(2 * SLOTS_MAX * few.doubt(3.0, MEAN))
