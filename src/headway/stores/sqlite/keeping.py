"""Renewals: deadlines, and leases that nobody names."""

from __future__ import annotations

from headway.core.job import JobId
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Released, judge
from headway.core.worker import WorkerState
from headway.stores.base import Beat, Renewed
from headway.stores.sqlite import rows
from headway.stores.sqlite.database import ALL
from headway.stores.sqlite.ending import finish
from headway.stores.sqlite.transaction import Transaction


def renew(tx: Transaction, beat: Beat) -> Renewed:
    """Move a worker's deadline; say what it has lost and what it must stop."""
    worker = beat.worker
    known = tx.db.rows("worker", worker.worker_id, tx.namespace_id)
    state = WorkerState(known[0]["state"]) if known else WorkerState.DEAD
    ends_at = tx.now_at + beat.lease_ms
    offers = rows.json_list(worker.offers)
    if beat.register:
        state = WorkerState.ACTIVE
        values = (worker.host, worker.pid, worker.slots, worker.reserved, offers, worker.version, worker.protocol)
        tx.db.run("register", worker.worker_id, tx.namespace_id, *values, tx.now_at, ends_at)
        if tx.book.rules.rungs or tx.book.rules.pool_reserve:  # More slots are more room.
            tx.wake_all()
    elif state is WorkerState.DEAD:
        return Renewed(tx.now_at, state, [job_id for job_id, _ in beat.held])
    else:
        tx.db.run("renew", tx.now_at, ends_at, worker.slots, worker.reserved, offers, worker.worker_id)
    named = dict(beat.held)
    lost, cancel = set(named), []
    unnamed = False
    for job_id, token, started_at, cancel_at in tx.db.run("renew_held", worker.worker_id, tx.namespace_id):
        if named.get(job_id) == token:
            lost.discard(job_id)
            if cancel_at is not None:
                cancel.append(job_id)
        else:
            unnamed = unnamed or started_at + beat.confirm_ms <= tx.now_at
    if unnamed:
        _release_unnamed(tx, beat, named)
    return Renewed(tx.now_at, state, [job_id for job_id in named if job_id in lost], cancel)


def _release_unnamed(tx: Transaction, beat: Beat, named: dict[JobId, bytes]) -> None:
    """Send back leases whose worker never heard of them: the reply to their claim was lost."""
    leases = [
        rows.lease(row, tx.book.ladder) for row in tx.db.rows("leases_of", beat.worker.worker_id, tx.namespace_id, ALL)
    ]
    reports = [
        judge(Released("claim never started"), lease, BUILT_IN)
        for lease in leases
        if named.get(lease.job_id) != lease.token and lease.started_at + beat.confirm_ms <= tx.now_at
    ]
    finish(tx, reports)
    tx.changed += [report.job_id for report in reports]
