"""Every way a job leaves a state, statement by statement: reports, cancels, an operator's retry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from headway.core.job import JobId, State, check_move
from headway.core.lease import Report, ReportStatus, late_report_status, moved_class
from headway.core.policy.retry import heed_cancel
from headway.core.worker import WorkerState
from headway.stores.base import counted_as
from headway.stores.postgres import rows
from headway.stores.postgres.limits import classes_with_room, give_back, unblock_head
from headway.stores.postgres.ordering import PostgresOrdering, Requeue
from headway.stores.postgres.transaction import PostgresTransaction, Row
from headway.stores.unreadable import read_state


async def finish(
    tx: PostgresTransaction, reports: Sequence[Report], asker: str | None = None
) -> list[tuple[JobId, ReportStatus]]:  # fmt: skip
    """Carry out reports under the tokens of their leases. Gives those that were not newly taken."""
    seqs = [report.seq for report in reports]
    workers = {row["worker_id"]: row for row in await tx.db.run("workers_lock", seqs, asker)}
    held = {row["seq"]: row for row in await tx.db.run("leases_by_seq", seqs)}
    transient = {report.seq for report in reports if not report.token}
    if transient:
        transient -= {row["seq"] for row in await tx.db.run("jobs_exist", list(transient))}
    answers: dict[int, ReportStatus] = {}
    late: list[int] = []
    outcomes: list[tuple[Any, ...]] = []
    attempts: list[tuple[Any, ...]] = []
    freed: list[str] = []
    counts: Counter[str] = Counter()
    ended: list[int] = []
    any_ended = False
    for index, report in enumerate(reports):
        if not report.token and report.seq in transient:
            counts[f"transient_{report.state.value}"] += 1
            continue
        lease = held.get(report.seq)
        if lease is None or lease["token"] != report.token:
            late.append(index)
            continue
        if report.expired_only and not await _confirm_expired(tx, lease["worker_id"], workers):
            answers[index] = ReportStatus.STALE
            continue
        if lease["cancel_at"] is not None:
            report = heed_cancel(report)
        check_move(State.EXECUTING, report.state)
        del held[report.seq]  # A second report in the same batch finds no lease.
        ended.append(report.seq)
        any_ended = True
        if lease["held"] is not None and tx.parked:
            await give_back(tx, lease["held"])
        error = rows.error_text(report.error)
        reason = rows.text(report.reason)
        if error is not None:
            attempts.append(
                (report.seq, lease["epoch"], lease["attempts"], lease["worker_id"], lease["started_at"],
                 reason or report.state.value, error)
            )  # fmt: skip
        if report.state is State.QUEUED:
            counts[counted_as(report)] += 1
            await tx.db.run("lease_delete", ended)  # A tenant's place hangs on what else of it runs.
            ended = []
            await _requeue(tx, report, lease, error, reason)
            continue
        counts[report.state.value] += 1
        outcomes.append(
            (report.seq, report.state.value, lease["worker_id"], report.token, lease["started_at"],
             lease["eligible_at"], lease["epoch"], report.attempts, report.crashes,
             report.timeout_ms or lease["timeout_ms"], lease["cancel_at"], lease["progress"], lease["note"], reason,
             error, rows.text(report.result_error), report.result, lease["parked_for"], lease["parked_ms"])
        )  # fmt: skip
        if lease["unique_key"] is not None:
            freed.append(lease["unique_key"])
    if ended:
        await tx.db.run("lease_delete", ended)
    if any_ended:
        tx.eligible += await classes_with_room(tx)
    if outcomes:
        await tx.db.run("outcomes_keep", tx.now_at, *map(list, zip(*outcomes, strict=True)))
    if attempts:
        await tx.db.run("attempts_keep", tx.now_at, *map(list, zip(*attempts, strict=True)))
    if freed:
        await tx.db.run("free_unique", tx.namespace_id, freed)
    tx.count(counts)
    if late:  # Only now, since a report may come twice in one batch.
        last = {row["seq"]: row for row in await tx.db.run("last_token", [reports[index].seq for index in late])}
        answers |= {index: _answer_late(reports[index], last.get(reports[index].seq)) for index in late}
    return [(reports[index].job_id, answers[index]) for index in sorted(answers)]


async def cancel(tx: PostgresTransaction, row: Row, reason: str) -> State | None:
    """Cancel a queued job, or ask for an executing one to be stopped. Gives its state afterwards; None: it has just
    moved, look again.
    """
    state = read_state(row["state"])
    if state is State.EXECUTING:
        if not await tx.db.run("cancel_executing", tx.now_at, [row["seq"]]):
            return None
        tx.rung.append(row["worker_id"])
    if state is not State.QUEUED:
        return state
    if row["due_at"] is not None:
        found = await tx.db.run("delayed_delete", tx.namespace_id, row["due_at"], row["seq"])
    else:
        found = await tx.db.run("ready_delete", row["class_id"], row["park"] or "", row["order_key"], row["seq"])
    if not found:
        return None
    if row["park"]:
        await unblock_head(tx, row["class_id"], row["park"])
    check_move(State.QUEUED, State.CANCELLED)
    values = (
        row["seq"], State.CANCELLED.value, None, row["token"], None, row["eligible_at"], row["epoch"], row["attempts"],
        row["crashes"], row["timeout_ms"], None, None, None, rows.text(reason), row["error"], None, None, None, None,
    )  # fmt: skip
    await tx.db.run("outcomes_keep", tx.now_at, *([value] for value in values))
    if row["unique_key"] is not None:
        await tx.db.run("free_unique", tx.namespace_id, [row["unique_key"]])
    tx.count({State.CANCELLED.value: 1})
    return State.CANCELLED


async def retry(tx: PostgresTransaction, row: Row) -> State | None:
    """Queue an ended job again, if it may be. Gives its state afterwards; None: it has just moved, look again."""
    state = read_state(row["state"])
    if not state.ended or state is State.COMPLETED:
        return state
    key = row["unique_key"]
    if key is not None and await tx.db.first("known_unique", tx.namespace_id, key) is not None:
        return state
    check_move(state, State.QUEUED)
    if not await tx.db.run("outcome_delete", row["seq"]):
        return None
    if key is not None:
        await tx.db.run("hold_unique", tx.namespace_id, key, row["job_id"])
    await tx.db.run("retry_job", row["seq"])
    number = int(await tx.db.first("next_sequence", 1))
    back = Requeue(
        row["class_id"], row["seq"], row["task"], row["tenant"], None, row["unique_key"], row["epoch"], 0, 0, None,
        None, None, None,
    )  # fmt: skip
    await PostgresOrdering(tx).put(back, tx.now_at, number)
    return State.QUEUED


async def set_worker_state(tx: PostgresTransaction, worker_id: str, state: WorkerState) -> bool:
    return bool(await tx.db.run("set_worker_state", state.value, [worker_id], tx.namespace_id))


def _answer_late(report: Report, last: Row | None) -> ReportStatus:
    """Return the status of a report without a lease: accepted before, or stale."""
    if last is None or last["token"] != report.token:
        return ReportStatus.STALE
    return late_report_status(report, read_state(last["state"]))


async def _confirm_expired(tx: PostgresTransaction, worker_id: str, workers: dict[str, Row]) -> bool:
    """Check that a worker is past its deadline, and bury it: it may not speak again without registering."""
    worker = workers.get(worker_id)
    if worker is not None and worker["lease_ends_at"] > tx.now_at and worker["state"] != WorkerState.DEAD:
        return False
    await set_worker_state(tx, worker_id, WorkerState.DEAD)
    return True


async def _requeue(
    tx: PostgresTransaction, report: Report, lease: Row, error: str | None, reason: str | None
) -> None:  # fmt: skip
    """Put a job back whose lease has ended."""
    class_id = lease["class_id"]
    if report.needs or report.rung:
        class_id = await tx.class_id(moved_class((await tx.classes())[class_id], report))
    back = Requeue(
        class_id, report.seq, lease["task"], lease["tenant"], lease["expires_at"], lease["unique_key"], lease["epoch"],
        report.attempts, report.crashes, report.timeout_ms, report.token, error, reason,
    )  # fmt: skip
    if report.delay_ms > 0:
        due_at = tx.now_at + report.delay_ms
        await tx.db.run(
            "delay", tx.namespace_id, due_at, back.seq, class_id, back.epoch, back.attempts, back.crashes,
            back.timeout_ms, back.token, back.error, back.reason,
        )  # fmt: skip
    elif report.front:
        await PostgresOrdering(tx).put(back, lease["eligible_at"], report.seq, front=True)
    else:
        await PostgresOrdering(tx).put(back, tx.now_at, int(await tx.db.first("next_sequence", 1)))
