"""Axes of the drawings."""

from __future__ import annotations

import re

import pytest

from headway.simulate.svg import slots_chart


@pytest.mark.parametrize(
    "slots, ticks",
    [
        (0, ["0", "1"]),
        (1, ["0", "1"]),
        (2, ["0", "1", "2"]),
        (3, ["0", "1", "2", "3"]),
        (6, ["0", "2", "4", "6"]),
        (7, ["0", "2", "4", "6", "7"]),
        (10, ["0", "2", "4", "6", "8", "10"]),
        (16, ["0", "5", "10", "16"]),
        (250, ["0", "50", "100", "150", "200", "250"]),
        (1_000_000, ["0", "200,000", "400,000", "600,000", "800,000", "1,000,000"]),
    ],
)
def test_the_axis_of_slots_has_whole_numbers(slots: int, ticks: list[str]) -> None:
    drawing = slots_chart({"low": [0.5, 1.0]}, slots, 60_000, 30_000, "Busy slots")
    assert re.findall(r'text-anchor="end" x="56" y="[\d.]+">([^<]*)<', drawing) == ticks
