"""The table of legal moves, and the class of a waiting job."""

from __future__ import annotations

from itertools import product

import pytest

from headway.core.errors import IllegalMove
from headway.core.job import MOVES, ClassKey, State, check_move
from tests.conformance.builders import a_job

LEGAL = {
    (State.QUEUED, State.EXECUTING),  # a claim
    (State.QUEUED, State.CANCELLED),  # a cancel, an expiry
    (State.EXECUTING, State.QUEUED),  # a retry, a release
    (State.EXECUTING, State.COMPLETED),
    (State.EXECUTING, State.FAILED),
    (State.EXECUTING, State.CANCELLED),
    (State.EXECUTING, State.DEAD_LETTER),
    (State.FAILED, State.QUEUED),  # an operator's retry
    (State.CANCELLED, State.QUEUED),
    (State.DEAD_LETTER, State.QUEUED),
}


@pytest.mark.parametrize("before, after", list(product(State, State)))
def test_a_move_is_legal_if_the_table_has_it(before: State, after: State) -> None:
    if (before, after) in LEGAL:
        check_move(before, after)
    else:
        with pytest.raises(IllegalMove) as caught:
            check_move(before, after)
        assert caught.value.facts == {"before": before, "after": after}


def test_the_states_are_the_six_of_the_interface() -> None:
    # R5.20
    assert [state.value for state in State] == [
        "queued", "executing", "completed", "failed", "cancelled", "dead_letter",
    ]  # fmt: skip
    assert set(MOVES) == set(State)


@pytest.mark.parametrize("state", State)
def test_a_state_has_ended_if_nothing_but_a_retry_leaves_it(state: State) -> None:
    assert state.ended == (MOVES[state] <= {State.QUEUED})


def test_nothing_leaves_completed() -> None:
    assert MOVES[State.COMPLETED] == frozenset()


def test_a_class_does_not_depend_on_the_order_of_needs() -> None:
    one, other = a_job(needs=("gpu", "arm"), rung="slow"), a_job(needs=("arm", "gpu"), rung="slow")
    assert one.class_key == other.class_key == ClassKey("medium", ("arm", "gpu"), "slow", True)
