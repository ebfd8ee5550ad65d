"""The number of jobs that each take of a plan may bring, after the takes before it."""

from __future__ import annotations

import sys

import pytest

from headway.core.job import ClassKey
from headway.core.snapshot import Plan, PlanWalk, Take


def a_take(lane: str = "low", most: int = 9, *, below: bool = True, over: str | None = None) -> Take:
    return Take(ClassKey(lane, (), None, True), most, below, over)


@pytest.mark.parametrize(
    "plan, slots, room, takes, expected",
    [
        pytest.param(Plan(free=5, free_below=5), 9, 9, [a_take(), a_take()], [5, 0], id="no more than are free"),
        pytest.param(Plan(free=5, free_below=5), 2, 9, [a_take()], [2], id="nor than the store counts"),
        pytest.param(Plan(free=5, free_below=5), 9, 9, [a_take(most=2), a_take()], [2, 3], id="the rest goes on"),
        pytest.param(
            Plan(free=5, free_below=2), 9, 9, [a_take(), a_take("high", below=False)], [2, 3], id="a reserve is kept"
        ),
        pytest.param(
            Plan(free=5, free_below=2),
            9,
            9,
            [a_take("high", 4, below=False), a_take()],
            [4, 1],
            id="or is used",
        ),
        pytest.param(
            Plan(free=5, free_below=2, leave_free=True),
            9,
            9,
            [a_take("high", 2, below=False), a_take()],
            [2, 0],
            id="slots are left free",
        ),
        pytest.param(Plan(free=5, free_below=5), 9, 1, [a_take(), a_take("high", below=False)], [1, 4], id="the pool"),
    ],
)
def test_a_take_brings_what_the_takes_before_it_leave(
    plan: Plan, slots: int, room: int, takes: list[Take], expected: list[int]
) -> None:
    walk = PlanWalk(plan, slots=slots, room=room)
    found = []
    for take in takes:
        found.append(max(0, walk.most(take)))
        walk.claimed(take, found[-1])
    assert found == expected


def test_jobs_of_promoted_lanes_are_counted() -> None:
    walk = PlanWalk(Plan(free=9, free_below=9), slots=9, room=sys.maxsize)
    walk.claimed(a_take("low", over="high"), 2)
    walk.claimed(a_take("low", over="high"), 1)
    walk.claimed(a_take("medium", over="high"), 0)
    walk.claimed(a_take("high"), 3)
    assert walk.promoted == {"promoted.low.high": 3}
