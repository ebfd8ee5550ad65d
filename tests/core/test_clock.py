"""Store time: it never falls, never stands still for long, and returns to the true time."""

from __future__ import annotations

import pytest

from headway.core.policy.clock import StoreClock, step_clock

HOUR = 3_600_000
T = 1_760_000_000_000


@pytest.mark.parametrize(
    "ahead, reached, raw, now, after",
    [
        (0, 0, T, T, (0, T)),  # The first reading.
        (0, T, T + 1_000, T + 1_000, (0, T)),  # Within a second nothing is written.
        (0, T, T + 1_001, T + 1_001, (0, T + 1_001)),
        (0, T, T - 1_000, T, (0, T)),  # A small step back is waited out.
        (0, T, T - 1_001, T + 1_000, (2_001, T + 1_000)),
        (0, T, T - HOUR, T + 1_000, (HOUR + 1_000, T + 1_000)),  # A large one is not.
        (0, T, T + HOUR, T + HOUR, (0, T + HOUR)),  # A step forward is followed,
        (HOUR, T, T, T + 1_000, (1_000, T + 1_000)),  # unless it puts right an earlier one.
        (HOUR, T, T - HOUR + 20_000, T + 19_000, (HOUR - 1_000, T + 19_000)),  # 5 % slower, until it is home.
        (10, T, T - 10 + 20_000, T + 19_990, (0, T + 19_990)),
    ],
)
def test_a_reading_gives_store_time_and_what_to_remember(
    ahead: int, reached: int, raw: int, now: int, after: tuple[int, int]
) -> None:
    # T2
    assert step_clock(StoreClock(ahead, reached), raw) == (now, after)
