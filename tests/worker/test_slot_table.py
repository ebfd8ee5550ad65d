"""The table of slots that a runner shares with its parent."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from headway.core.job import JobId
from headway.worker.slot_table import BusySlot, SlotTable, Stop

JOB = JobId("0198c1f2-7a3b-7c4d-8e5f-001122334455")


@pytest.fixture
def slot_table() -> Iterator[SlotTable]:
    made = SlotTable.create(3)
    yield made
    made.close()


def test_what_the_runner_writes_its_parent_reads(slot_table: SlotTable) -> None:
    other = SlotTable(os.dup(slot_table.descriptor), 3)
    slot_table.hold(1, JOB, b"t" * 16, "reports.export", "thread", 12.5)
    assert other.held() == [BusySlot(JOB, b"t" * 16, "reports.export", "thread", Stop.NO, 12.5)]
    assert other.leases() == [(JOB, b"t" * 16)]
    slot_table.stopping(1, Stop.CANCEL, 20.0)
    assert other.held() == [BusySlot(JOB, b"t" * 16, "reports.export", "thread", Stop.CANCEL, 20.0)]
    slot_table.ended(1)
    assert other.held() == []
    assert other.leases() == [(JOB, b"t" * 16)]  # Until the store has its report.
    slot_table.free([1])
    assert other.leases() == []
    other.close()


def test_a_transient_job_is_on_the_board_but_has_no_lease(slot_table: SlotTable) -> None:
    slot_table.hold(0, JOB, b"", "demo.noop", "async", 1.0)
    assert len(slot_table.held()) == 1
    assert slot_table.leases() == []


def test_any_id_is_read_as_it_was_written(slot_table: SlotTable) -> None:
    job_id = JobId("\U0001f40c" * 255)
    slot_table.hold(2, job_id, b"t" * 16, "demo.noop", "async", 1.0, gives_up=True)
    assert slot_table.leases() == [(job_id, b"t" * 16)]
    slot_table.until(2, 0.5)
    slot_table.stopping(2, Stop.TIMEOUT, 2.0)
    assert slot_table.held() == [BusySlot(job_id, b"t" * 16, "demo.noop", "async", Stop.TIMEOUT, 2.0, gives_up=True)]


def test_long_names_are_cut(slot_table: SlotTable) -> None:
    slot_table.hold(0, JOB, b"t" * 16, "é" * 100, "process", 1.0)
    assert slot_table.held()[0].task.startswith("é" * 30)


def test_the_pulse_shows_that_the_loop_turns(slot_table: SlotTable) -> None:
    assert slot_table.pulse() == 0
    slot_table.beat()
    assert slot_table.pulse() > 0


def test_the_parent_says_by_when_the_runner_must_end(slot_table: SlotTable) -> None:
    other = SlotTable(os.dup(slot_table.descriptor), 3)
    assert slot_table.runner_ends() == 0
    other.end_by(12.5)
    slot_table.beat()
    slot_table.hold(0, JOB, b"t" * 16, "demo.noop", "async", 1.0)
    assert slot_table.runner_ends() == 12.5
    other.close()
