"""The part of an exchange before its claim: finish jobs, record progress, make due jobs eligible."""

from __future__ import annotations

from headway.core.job import JobId
from headway.core.lease import ReportStatus
from headway.stores.base import DUE_BATCH_MAX, Exchange
from headway.stores.sql.finish import finish
from headway.stores.sql.ordering import Ordering
from headway.stores.sql.transaction import Transaction


async def apply_reports(tx: Transaction, request: Exchange) -> list[tuple[JobId, ReportStatus]]:
    """Apply the reports of an exchange. Return the status of those that were not newly accepted."""
    refused: list[tuple[JobId, ReportStatus]] = []
    if request.finished:
        refused = await finish(tx, request.finished, request.worker_id)
        tx.changed += [report.job_id for report in request.finished]
    if request.progress:
        notes = [(note.seq, note.token, note.fraction, tx.rows.text(note.note)) for note in request.progress]
        await tx.db.run_many("progress", notes)
        tx.changed += [note.job_id for note in request.progress]
    return refused


async def make_due_eligible(tx: Transaction) -> None:
    """Make a bounded batch of due jobs eligible, and open the blocked queues that are due."""
    if tx.has_blocked:
        await tx.db.run("blocked_open_due", tx.namespace_id, tx.now_at)
        tx.blocked_queues_changed()
    due = await tx.take_due(DUE_BATCH_MAX)
    if not due:
        return
    ordering = Ordering(tx)
    for job, number in zip(due, await tx.next_numbers(len(due)), strict=True):
        await ordering.put(job, tx.now_at, number)
