"""Every way a job leaves a state: reports, cancels, an operator's retry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headway.core.job import JobId, State, check_move
from headway.core.lease import Report, ReportStatus, late_report_status, moved_class
from headway.core.policy.retry import heed_cancel
from headway.core.worker import WorkerState
from headway.stores.base import LEASE_CHANNEL, counted_as
from headway.stores.sqlite import rows
from headway.stores.sqlite.limits import classes_with_room, give_back, unblock_head
from headway.stores.sqlite.ordering import SqliteOrdering
from headway.stores.sqlite.transaction import SqliteTransaction
from headway.stores.unreadable import read_state

# Named once: Python 3.11 searches for an enum's member each time.
_COMPLETED, _QUEUED = State.COMPLETED, State.QUEUED


def finish(tx: SqliteTransaction, reports: Sequence[Report]) -> list[tuple[JobId, ReportStatus]]:
    """Carry out reports under the tokens of their leases. Gives those that were not newly taken."""
    held = {row[0]: row for row in tx.db.run("leases_by_seq", rows.json_list([report.seq for report in reports]))}
    answers: dict[int, ReportStatus] = {}
    late: list[int] = []
    counts: Counter[str] = Counter()
    ended = _FinishedLeases(tx)
    for index, report in enumerate(reports):
        seq = report.seq
        if not report.token and not tx.db.first("job_exists", seq):
            counts[f"transient_{report.state}"] += 1
            continue
        lease = held.get(seq)
        if lease is None or lease[1] != report.token:
            late.append(index)
            continue
        _, _, cancel_at, unique_key, kept = lease
        if report.expired_only and not _confirm_expired(tx, seq):
            answers[index] = ReportStatus.STALE
            continue
        if cancel_at is not None:
            report = heed_cancel(report)
        state = report.state
        if state is not _COMPLETED:
            check_move(State.EXECUTING, state)
        del held[seq]  # A second report in the same batch finds no lease.
        if kept is not None and tx.parked:
            give_back(tx, kept)
        error = None
        if report.error is not None:
            error = rows.error_text(report.error)
            tx.db.run("finish_attempt", tx.now_at, rows.text(report.reason) or state, error, seq)
        if state is _QUEUED:
            counts[counted_as(report)] += 1
            _requeue(tx, report, error, ended)
            continue
        counts[state] += 1
        ended.keep(report, error)
        if unique_key is not None:
            tx.db.run("free_unique", tx.namespace_id, unique_key)
    ended.settle()
    if ended.any:
        tx.eligible += classes_with_room(tx)
    tx.count(counts)
    # Only now, since a report may come twice in one batch.
    answers |= {index: _answer_late(tx, reports[index]) for index in late}
    return [(reports[index].job_id, answers[index]) for index in sorted(answers)]


def cancel(tx: SqliteTransaction, row: rows.Row, reason: str) -> State:
    """Cancel a queued job, or ask for an executing one to be stopped. Gives its state afterwards."""
    state = read_state(row["state"])
    if state is State.EXECUTING:
        tx.db.run("cancel_executing", tx.now_at, row["seq"])
        tx.notify(f"{row['worker_id']}{LEASE_CHANNEL}")
    if state is not State.QUEUED:
        return state
    if row["due_at"] is not None:
        tx.db.run("delayed_delete", tx.namespace_id, row["due_at"], row["seq"])
    else:
        tx.db.run("ready_delete", row["class_id"], row["park"], row["order_key"], row["seq"])
        if row["park"]:
            unblock_head(tx, row["class_id"], row["park"])
    _end_queued(tx, row, reason)
    return State.CANCELLED


def retry(tx: SqliteTransaction, row: rows.Row) -> State:
    """Queue an ended job again, if it may be. Gives its state afterwards."""
    state = read_state(row["state"])
    if not state.ended or state is State.COMPLETED:
        return state
    if row["unique_key"] is not None:
        if tx.db.first("known_unique", tx.namespace_id, row["unique_key"]) is not None:
            return state
        tx.db.run("submit_unique", tx.namespace_id, row["unique_key"], row["seq"])
    check_move(state, State.QUEUED)
    number = int(tx.db.first("next_sequence", 1))
    tx.db.run("outcome_delete", row["seq"])
    tx.db.run("retry_job", row["seq"])
    counts = (row["epoch"], 0, 0, None, None, None, None)
    SqliteOrdering(tx).put(row["class_id"], row["seq"], row["task"], row["tenant"], tx.now_at, number, *counts)
    return State.QUEUED


def _answer_late(tx: SqliteTransaction, report: Report) -> ReportStatus:
    """Return the status of a report without a lease: accepted before, or stale."""
    last = tx.db.run("last_token", report.seq).fetchone()
    return (
        late_report_status(report, read_state(last[1]))
        if last is not None and last[0] == report.token
        else ReportStatus.STALE
    )


def _confirm_expired(tx: SqliteTransaction, seq: int) -> bool:
    """Check that a job's worker is past its deadline, and bury it: it may not speak again without registering."""
    worker_id = tx.db.first("lease_worker", seq)
    worker = tx.db.rows("worker", worker_id, tx.namespace_id)
    if worker and worker[0]["lease_ends_at"] > tx.now_at and worker[0]["state"] != WorkerState.DEAD:
        return False
    set_worker_state(tx, worker_id, WorkerState.DEAD)
    return True


def _requeue(tx: SqliteTransaction, report: Report, error: str | None, ended: _FinishedLeases) -> None:
    """Put a job back whose lease ends."""
    class_id, epoch, eligible_at, task, tenant = tx.db.run("lease_to_requeue", report.seq).fetchone()
    ended.drop(report.seq)
    ended.settle()  # A tenant's place hangs on what else of it runs.
    if report.needs or report.rung:
        class_id = tx.class_id(moved_class(tx.classes()[class_id], report))
    reason = rows.text(report.reason)
    counts = (epoch, report.attempts, report.crashes, report.timeout_ms, report.token, error, reason)
    if report.delay_ms > 0:
        due_at = tx.now_at + report.delay_ms
        tx.db.run("delay", tx.namespace_id, due_at, report.seq, class_id, *counts)
        tx.db.run("job_set_place", class_id, None, due_at, report.seq)
        return
    number = report.seq if report.front else int(tx.db.first("next_sequence", 1))
    since_at = eligible_at if report.front else tx.now_at
    SqliteOrdering(tx).put(class_id, report.seq, task, tenant, since_at, number, *counts, front=report.front)


class _FinishedLeases:
    """Gathers the leases that end, and writes them together."""

    def __init__(self, tx: SqliteTransaction) -> None:
        self._tx = tx
        self._seqs: list[int] = []
        self._outcomes: list[tuple[Any, ...]] = []
        self.any = False

    def keep(self, report: Report, error: str | None) -> None:
        """A lease ends, and its job with it."""
        self._seqs.append(report.seq)
        self._outcomes.append(
            (report.state, self._tx.now_at, report.attempts, report.crashes, report.timeout_ms,
             rows.text(report.reason), error, rows.text(report.result_error), report.result, report.seq)
        )  # fmt: skip

    def drop(self, seq: int) -> None:
        """A lease ends; its job goes back."""
        self._seqs.append(seq)

    def settle(self) -> None:
        """Write what was gathered: how the jobs ended, and then, since that is read from the leases, their end."""
        if self._seqs:
            self._tx.db.run_many("finish_outcome", self._outcomes)
            self._tx.db.run("lease_delete", rows.json_text(self._seqs))
            self._seqs, self._outcomes, self.any = [], [], True


def _end_queued(tx: SqliteTransaction, row: rows.Row, reason: str) -> None:
    check_move(State.QUEUED, State.CANCELLED)
    tx.db.run(
        "cancel_queued", row["seq"], State.CANCELLED, tx.now_at, row["token"], row["eligible_at"], row["epoch"],
        row["attempts"], row["crashes"], row["timeout_ms"], reason, row["error"],
    )  # fmt: skip
    if row["unique_key"] is not None:
        tx.db.run("free_unique", tx.namespace_id, row["unique_key"])
    tx.count({State.CANCELLED: 1})


def set_worker_state(tx: SqliteTransaction, worker_id: str, state: WorkerState) -> bool:
    return tx.db.first("set_worker_state", state.value, worker_id, tx.namespace_id) is not None
