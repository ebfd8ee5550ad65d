"""State changes of jobs by reports, cancels and retries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headway.core.job import JobId, State, check_move
from headway.core.lease import Report, ReportStatus, late_report_status, moved_class
from headway.core.policy.retry import heed_cancel
from headway.core.worker import WorkerState
from headway.core.workflow import HELD_AT
from headway.stores.base import counted_as
from headway.stores.sql.limits import classes_with_room, give_back, unblock_head
from headway.stores.sql.ordering import Ordering, Requeue
from headway.stores.sql.rows import Row
from headway.stores.sql.transaction import Transaction
from headway.stores.unreadable import read_state

# Constants, because Python 3.11 looks up an enum's member and value slowly.
_COMPLETED, _QUEUED = State.COMPLETED, State.QUEUED
_VALUE = {state: state.value for state in State}


async def finish(
    tx: Transaction, reports: Sequence[Report], asker: str | None = None
) -> list[tuple[JobId, ReportStatus]]:  # fmt: skip
    """Apply reports whose token matches their lease. Return the status of those that were not newly accepted."""
    held = await tx.lock_leases([report.seq for report in reports], asker)
    transient = {report.seq for report in reports if not report.token}
    if transient:
        transient -= {seq for (seq,) in await tx.db.run("jobs_exist", tx.rows.array(transient))}
    answers: dict[int, ReportStatus] = {}
    late: list[int] = []
    counts: Counter[str] = Counter()
    freed: list[tuple[str]] = []
    released: list[str] = []  # What each lease that ends held of limits.
    members: Counter[tuple[int, State]] = Counter()  # Endings by batch.
    ended = _FinishedLeases(tx)
    for index, report in enumerate(reports):
        seq = report.seq
        if seq in transient:
            counts[f"transient_{_VALUE[report.state]}"] += 1
            continue
        lease = held.get(seq)
        if lease is None or lease[1] != report.token:
            late.append(index)
            continue
        _, _, cancel_at, unique_key, kept, batch_seq, awaited = lease
        if report.expired_only and not await _confirm_expired(tx, seq):
            answers[index] = ReportStatus.STALE
            continue
        if cancel_at is not None:
            report = heed_cancel(report)
        state = report.state
        if state is not _COMPLETED:
            check_move(State.EXECUTING, state)
        del held[seq]  # A second report in the same batch finds no lease.
        if kept is not None:
            released.append(kept)
        reason = tx.rows.text(report.reason)
        error = None
        if report.error is not None:
            error = tx.rows.error_text(report.error)
            ended.attempts.append((seq, reason or _VALUE[state], error))
        if state is _QUEUED:
            counts[counted_as(report)] += 1
            await _requeue(tx, report, error, reason, ended)
            continue
        counts[_VALUE[state]] += 1
        ended.keep(report, error, reason)
        if unique_key is not None:
            freed.append((unique_key,))
        if awaited:
            tx.unsettled[seq] = 0
        if batch_seq is not None:
            members[batch_seq, state] += 1
    await ended.settle()
    for (batch_seq, state), count in members.items():
        tx.members_ended(batch_seq, state, count)
    if tx.has_moves:
        tx.exclude_others()
    if released and tx.has_blocked:
        await give_back(tx, released)
    if ended.any:
        tx.eligible += await classes_with_room(tx)
    if freed:
        await tx.db.run_many("free_unique", freed, tx.namespace_id)
    tx.count(counts)
    if late:  # After the loop, because a batch may contain a report twice.
        found = await tx.db.run("last_token", tx.rows.array([reports[index].seq for index in late]))
        last = {seq: (token, state) for seq, token, state in found}
        answers |= {index: _answer_late(reports[index], last.get(reports[index].seq)) for index in late}
    return [(reports[index].job_id, answers[index]) for index in sorted(answers)]


async def cancel(tx: Transaction, row: Row, reason: str) -> State | None:
    """Cancel a queued job, or request the worker to stop an executing one.

    Return the state afterwards, or None if the job has just changed and must be read again.
    """
    state = read_state(row["state"])
    if state is State.EXECUTING:
        if not await tx.db.run("cancel_executing", tx.now_at, row["seq"]):
            return None
        tx.notify_worker(row["worker_id"])
    if state is not State.QUEUED:
        return state
    if not await _leave_queue(tx, row):
        return None
    check_move(State.QUEUED, State.CANCELLED)
    await tx.db.run(
        "cancel_queued", row["seq"], State.CANCELLED.value, tx.now_at, row["token"], row["eligible_at"], row["epoch"],
        row["attempts"], row["crashes"], row["timeout_ms"], tx.rows.text(reason), row["error"],
    )  # fmt: skip
    if row["unique_key"] is not None:
        await tx.db.run_many("free_unique", [(row["unique_key"],)], tx.namespace_id)
    tx.count({State.CANCELLED.value: 1})
    tx.moved(row, State.QUEUED, State.CANCELLED, held=-(row["due_at"] == HELD_AT))
    return State.CANCELLED


async def reschedule(tx: Transaction, row: Row, lane: str | None, *, now: bool) -> State | None:
    """Move a queued job to another lane, or let a delayed one run now.

    Return the state afterwards, or None if the job has just changed and must be read again.
    """
    state, due_at, class_id = read_state(row["state"]), row["due_at"], row["class_id"]
    if state is not State.QUEUED or due_at == HELD_AT:
        return state
    key = (await tx.classes())[class_id]
    moved = key if lane is None else key._replace(lane=lane)
    if moved == key and (due_at is None or not now):
        return state
    if not await _leave_queue(tx, row):
        return None
    back = Requeue(
        class_id if moved == key else await tx.class_id(moved), row["seq"], row["task"], row["tenant"],
        row["expires_at"], row["unique_key"], row["epoch"], row["attempts"], row["crashes"], row["timeout_ms"],
        row["token"], row["error"], row["reason"],
    )  # fmt: skip
    if due_at is not None and not now:
        await tx.put_delayed(back, due_at)
    else:
        [number] = await tx.next_numbers(1)
        await Ordering(tx).put(back, tx.now_at, number)
    return state


async def _leave_queue(tx: Transaction, row: Row) -> bool:
    """Take a queued job out of where it waits. Return False if it is not there any more."""
    if row["due_at"] is not None:
        found = bool(await tx.db.run("delayed_delete", tx.namespace_id, row["due_at"], row["seq"]))
    else:
        found = await tx.leave_ready(row["class_id"], row["park"] or "", row["order_key"], row["seq"], row["tenant"])
    if found and row["park"]:
        await unblock_head(tx, row["class_id"], row["park"])
    return found


async def retry(tx: Transaction, row: Row, *, alone: bool = False) -> State | None:
    """Queue an ended job again, unless it completed or another live job has its unique key.

    Return the state afterwards, or None if the job has just changed and must be read again.
    """
    state = read_state(row["state"])
    if not state.ended or state is State.COMPLETED or await is_unique_key_taken(tx, row):
        return state
    check_move(state, State.QUEUED)
    back = await take_back(tx, row)
    if back is None:
        return None
    [number] = await tx.next_numbers(1)
    await Ordering(tx).put(back, tx.now_at, number)
    tx.moved(row, state, State.QUEUED)
    if alone and tx.unsettled.pop(row["seq"], None) is not None:
        await tx.db.run("unsettled_delete", row["seq"], False)
    return State.QUEUED


async def is_unique_key_taken(tx: Transaction, row: Row) -> bool:
    """Return whether another live job has the unique key of an ended one."""
    key = row["unique_key"]
    return key is not None and await tx.db.first("known_unique", tx.namespace_id, key) is not None


async def take_back(tx: Transaction, row: Row) -> Requeue | None:
    """Make an ended or queued job as it was before its first attempt. Return it, or None if it has just changed."""
    is_queued = row["state"] == State.QUEUED
    if not (await _leave_queue(tx, row) if is_queued else await tx.db.run("outcome_delete", row["seq"])):
        return None
    key = row["unique_key"]
    if key is not None and not is_queued:
        await tx.db.run("hold_unique", tx.namespace_id, key, row["job_id"])
    await tx.db.run("retry_job", row["seq"])
    return Requeue(
        row["class_id"], row["seq"], row["task"], row["tenant"], None, key, row["epoch"], 0, 0, None, None, None, None
    )


async def set_worker_state(tx: Transaction, worker_id: str, state: WorkerState) -> bool:
    return bool(await tx.db.run("set_worker_state", state.value, worker_id, tx.namespace_id))


def _answer_late(report: Report, last: tuple[bytes | None, str] | None) -> ReportStatus:
    """Return the status of a report without a lease: accepted before, or stale."""
    if last is None or last[0] != report.token:
        return ReportStatus.STALE
    return late_report_status(report, read_state(last[1]))


async def _confirm_expired(tx: Transaction, seq: int) -> bool:
    """Return whether a job's worker is past its deadline, and mark the worker dead, so that it must register again."""
    worker_id, state, lease_ends_at = await tx.db.row("lease_worker", seq, tx.namespace_id)
    if lease_ends_at is not None and lease_ends_at > tx.now_at and state != WorkerState.DEAD:
        return False
    await set_worker_state(tx, worker_id, WorkerState.DEAD)
    return True


async def _requeue(
    tx: Transaction, report: Report, error: str | None, reason: str | None, ended: _FinishedLeases
) -> None:  # fmt: skip
    """Queue a job again whose lease ends."""
    found = await tx.db.row("lease_to_requeue", report.seq)
    class_id, epoch, eligible_at, task, tenant, expires_at, unique_key = found
    ended.drop(report.seq)
    await ended.settle()  # A tenant's place depends on its running jobs.
    if report.needs or report.rung:
        class_id = await tx.class_id(moved_class((await tx.classes())[class_id], report))
    back = Requeue(
        class_id, report.seq, task, tenant, expires_at, unique_key, epoch, report.attempts, report.crashes,
        report.timeout_ms, report.token, error, reason,
    )  # fmt: skip
    if report.delay_ms > 0:
        await tx.put_delayed(back, tx.now_at + report.delay_ms)
    elif report.front:
        await Ordering(tx).put(back, eligible_at, report.seq, front=True)
    else:
        [number] = await tx.next_numbers(1)
        await Ordering(tx).put(back, tx.now_at, number)


class _FinishedLeases:
    """Collects the leases that end, and writes them together."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._seqs: list[int] = []
        self._outcomes: list[tuple[Any, ...]] = []
        self.attempts: list[tuple[Any, ...]] = []
        self.any = False

    def keep(self, report: Report, error: str | None, reason: str | None) -> None:
        """Add a lease that ends together with its job."""
        self._seqs.append(report.seq)
        self._outcomes.append(
            (report.seq, _VALUE[report.state], report.attempts, report.crashes, report.timeout_ms, reason, error,
             self._tx.rows.text(report.result_error), report.result)
        )  # fmt: skip

    def drop(self, seq: int) -> None:
        """Add a lease that ends while its job is queued again."""
        self._seqs.append(seq)

    async def settle(self) -> None:
        """Write the outcomes of the jobs, which reads the leases, and then delete the leases."""
        if not self._seqs:
            return
        db, now_at = self._tx.db, self._tx.now_at
        if self.attempts:
            await db.run_many("finish_attempt", self.attempts, now_at)
        if self._outcomes:
            await db.run_many("finish_outcome", self._outcomes, now_at)
        await db.run("lease_delete", self._tx.rows.array(self._seqs))
        self._seqs, self._outcomes, self.attempts, self.any = [], [], [], True
