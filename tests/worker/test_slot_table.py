"""The board between a runner and its parent."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headway.core.job import JobId
from headway.worker.slot_table import Board, Held, Stop

JOB = JobId("0198c1f2-7a3b-7c4d-8e5f-001122334455")


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board.create(3)
    yield made
    made.close()


def test_what_the_runner_writes_its_parent_reads(board: Board) -> None:
    other = Board(os.dup(board.descriptor), 3)
    board.hold(1, JOB, b"t" * 16, "reports.export", "thread", 12.5)
    assert other.held() == [Held(JOB, b"t" * 16, "reports.export", "thread", Stop.NO, 12.5)]
    assert other.leases() == [(JOB, b"t" * 16)]
    board.stopping(1, Stop.CANCEL, 20.0)
    assert other.held() == [Held(JOB, b"t" * 16, "reports.export", "thread", Stop.CANCEL, 20.0)]
    board.ended(1)
    assert other.held() == []
    assert other.leases() == [(JOB, b"t" * 16)]  # Until the store has its report.
    board.free([1])
    assert other.leases() == []
    other.close()


def test_a_transient_job_is_on_the_board_but_has_no_lease(board: Board) -> None:
    board.hold(0, JOB, b"", "demo.noop", "async", 1.0)
    assert len(board.held()) == 1
    assert board.leases() == []


def test_long_names_are_cut(board: Board) -> None:
    board.hold(0, JOB, b"t" * 16, "é" * 100, "process", 1.0)
    assert board.held()[0].task.startswith("é" * 30)


def test_the_pulse_shows_that_the_loop_turns(board: Board) -> None:
    assert board.pulse() == 0
    board.beat()
    assert board.pulse() > 0


def test_the_parent_says_by_when_the_runner_must_end(board: Board) -> None:
    other = Board(os.dup(board.descriptor), 3)
    assert board.runner_ends() == 0
    other.end_by(12.5)
    board.beat()
    board.hold(0, JOB, b"t" * 16, "demo.noop", "async", 1.0)
    assert board.runner_ends() == 12.5
    other.close()
