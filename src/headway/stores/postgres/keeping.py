"""Renewals: deadlines, and leases that nobody names."""

from __future__ import annotations

from headway.core.job import JobId
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Released, judge
from headway.core.worker import WorkerState
from headway.stores.base import Beat, Renewed
from headway.stores.postgres import rows
from headway.stores.postgres.ending import finish
from headway.stores.postgres.transaction import ALL, Transaction


async def renew(tx: Transaction, beat: Beat) -> Renewed:
    """Move a worker's deadline; say what it has lost and what it must stop."""
    worker = beat.worker
    known = await tx.db.first("worker", worker.worker_id, tx.namespace_id)
    state = WorkerState(known) if known is not None else WorkerState.DEAD
    ends_at = tx.now_at + beat.lease_ms
    offers = list(worker.offers)
    if beat.register:
        state = WorkerState.ACTIVE
        values = (worker.host, worker.pid, worker.slots, worker.reserved, offers, worker.version, worker.protocol)
        await tx.db.run("register", worker.worker_id, tx.namespace_id, *values, tx.now_at, ends_at)
        if tx.book.rules.rungs or tx.book.rules.pool_reserve:  # More slots are more room.
            await tx.wake_all()
    elif state is WorkerState.DEAD:
        return Renewed(tx.now_at, state, [job_id for job_id, _ in beat.held])
    else:
        await tx.db.run("renew", tx.now_at, ends_at, worker.slots, worker.reserved, offers, worker.worker_id)
    named = dict(beat.held)
    lost, cancel = set(named), []
    unnamed = False
    for row in await tx.db.run("renew_held", worker.worker_id, tx.namespace_id):
        if named.get(row["job_id"]) == row["token"]:
            lost.discard(row["job_id"])
            if row["cancel_at"] is not None:
                cancel.append(row["job_id"])
        else:
            unnamed = unnamed or row["started_at"] + beat.confirm_ms <= tx.now_at
    if unnamed:
        await _release_unnamed(tx, beat, named)
    return Renewed(tx.now_at, state, [job_id for job_id in named if job_id in lost], cancel)


async def _release_unnamed(tx: Transaction, beat: Beat, named: dict[JobId, bytes]) -> None:
    """Send back leases whose worker never heard of them: the reply to their claim was lost."""
    found = await tx.db.run("leases_of", beat.worker.worker_id, tx.namespace_id, ALL)
    leases = [rows.lease(row, tx.book.ladder) for row in found]
    reports = [
        judge(Released("claim never started"), lease, BUILT_IN)
        for lease in leases
        if named.get(lease.job_id) != lease.token and lease.started_at + beat.confirm_ms <= tx.now_at
    ]
    await finish(tx, reports)
    tx.changed += [report.job_id for report in reports]
