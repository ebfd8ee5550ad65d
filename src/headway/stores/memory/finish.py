"""Ends of jobs: reports on leases, cancellation in the queue, and an operator's retry."""

from __future__ import annotations

from headway.core.job import Attempt, State, check_move
from headway.core.lease import Report, ReportStatus, late_report_status, moved_class
from headway.core.policy.retry import heed_cancel
from headway.core.worker import WorkerState
from headway.stores.base import LEASE_CHANNEL, counted_as
from headway.stores.memory.limits import release
from headway.stores.memory.ordering import delay, leave_class, make_ready
from headway.stores.memory.record import StoredJob
from headway.stores.memory.state import MemoryState

# Looked up once, since Python 3.11 searches for an enum's member each time.
_OK, _QUEUED, _EXECUTING = ReportStatus.OK, State.QUEUED, State.EXECUTING


def finish(state: MemoryState, report: Report) -> ReportStatus:
    """Apply a report, unless its lease has ended."""
    if not report.token and report.job_id not in state.jobs:
        state.count(f"transient_{report.state.value}")
        return _OK
    record = state.jobs.get(report.job_id)
    if record is None or record.token != report.token:
        return ReportStatus.STALE
    if record.state is not _EXECUTING:
        return late_report_status(report, record.state)
    if report.expired_only:
        worker = state.workers.get(record.worker_id or "")
        if worker is not None and worker.lease_ends_at > state.now_at and worker.state is not WorkerState.DEAD:
            return ReportStatus.STALE
        state.set_worker_state(record.worker_id or "", WorkerState.DEAD)
    if record.cancel_at is not None:
        report = heed_cancel(report)
    check_move(record.state, report.state)
    if report.error is not None:
        reason, started_at = report.reason or report.state.value, record.started_at or 0
        record.history.append(
            Attempt(record.attempts, record.epoch, record.worker_id, started_at, state.now_at, reason, report.error)
        )
    state.remove_lease(record)
    release(state, record)
    state.queues[record.class_key].forget(record.order_key, record.tenant)
    record.state, before = report.state, record.state
    record.attempts, record.crashes = report.attempts, report.crashes
    record.error, record.reason = report.error, report.reason
    state.count(counted_as(report))
    if report.state is _QUEUED:
        record.timeout_ms = report.timeout_ms
        _requeue(state, record, report)
    else:
        record.result, record.result_error = report.result, report.result_error
        record.finished_at = state.now_at
        state.free_unique_key(record)
        state.moved(record, before)
        if record.seq in state.edges_to:
            state.ended_dependants.append(record)
    return _OK


def _requeue(state: MemoryState, record: StoredJob, report: Report) -> None:
    eligible_at = record.eligible_at or state.now_at
    record.worker_id = record.started_at = record.progress = record.note = None
    record.class_key = moved_class(record.class_key, report)
    if report.delay_ms > 0:
        delay(state, record, state.now_at + report.delay_ms)
    elif report.front:
        make_ready(state, record, eligible_at, number=record.seq, front=True)
    else:
        make_ready(state, record, state.now_at, number=state.next_sequence())


def cancel(state: MemoryState, record: StoredJob, reason: str) -> None:
    """Cancel a queued job at once, and ask the worker of a running job to stop it."""
    if record.state is State.QUEUED:
        end_queued(state, record, reason)
    elif record.state is State.EXECUTING and record.cancel_at is None:
        record.cancel_at = state.now_at
        state.notify(f"{record.worker_id}{LEASE_CHANNEL}")


def end_queued(state: MemoryState, record: StoredJob, reason: str) -> None:
    """Cancel a job that waits."""
    held = record.held
    leave_class(state, record)
    check_move(record.state, State.CANCELLED)
    record.state, record.reason, record.finished_at = State.CANCELLED, reason, state.now_at
    state.free_unique_key(record)
    state.count(State.CANCELLED.value)
    state.moved(record, State.QUEUED, was_held=held)


def reschedule(state: MemoryState, record: StoredJob, lane: str | None, *, now: bool) -> None:
    """Move a queued job to another lane, or let a delayed one run now."""
    key, due_at = record.class_key, record.due_at
    moved = key if lane is None else key._replace(lane=lane)
    if record.state is not State.QUEUED or record.held or (moved == key and (due_at is None or not now)):
        return
    leave_class(state, record)
    record.class_key, record.new = moved, record.new._replace(lane=moved.lane)
    if due_at is not None and not now:
        delay(state, record, due_at)
    else:
        make_ready(state, record, state.now_at, number=state.next_sequence())


def retry(state: MemoryState, record: StoredJob, *, alone: bool = False) -> bool:
    """Queue a job that ended badly again, unless another job uses its unique key now. Return whether that was done."""
    if not record.state.ended or record.state is State.COMPLETED or record.new.unique_key in state.unique:
        return False
    check_move(record.state, State.QUEUED)
    before = record.state
    reset(state, record)
    make_ready(state, record, state.now_at, number=state.next_sequence())
    state.moved(record, before)
    if alone:
        state.unsettled.pop(record.new.job_id, None)
    return True


def reset(state: MemoryState, record: StoredJob) -> None:
    """Make an ended job as it was before its first attempt, but for its history and epoch."""
    key = record.new.unique_key
    record.state = State.QUEUED
    record.attempts = record.crashes = 0
    record.timeout_ms = record.new.timeout_ms
    record.token = b""
    record.worker_id = record.started_at = record.finished_at = record.cancel_at = record.expires_at = None
    record.progress = record.note = record.result = record.result_error = record.error = record.reason = None
    if key is not None:
        state.unique[key] = record.new.job_id
