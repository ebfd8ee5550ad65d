"""Renewals of leases, and changes to how long their jobs may run."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import JobId
from headway.core.policy.document import BUILT_IN
from headway.core.policy.ladder import Preemption, amended, grants
from headway.core.policy.retry import Released, judge
from headway.core.worker import WorkerState
from headway.stores.base import Heartbeat, HeartbeatReply
from headway.stores.sql.finish import finish
from headway.stores.sql.limits import classes_with_room
from headway.stores.sql.transaction import ALL, Transaction
from headway.stores.unreadable import read_worker_state


async def renew(tx: Transaction, beat: Heartbeat) -> HeartbeatReply:
    """Extend a worker's deadline. Return the jobs that the worker has lost and those that it must stop."""
    worker = beat.worker
    state = read_worker_state(await tx.db.first("worker_state", worker.worker_id, tx.namespace_id))
    ends_at = tx.now_at + beat.lease_ms
    offers = tx.rows.array(worker.offers)
    if beat.register:
        state = WorkerState.ACTIVE
        values = (worker.host, worker.pid, worker.slots, worker.reserved, offers, worker.version, worker.protocol)
        await tx.db.run("register", worker.worker_id, tx.namespace_id, *values, tx.now_at, ends_at)
        if tx.rule_index.rules.rungs or tx.rule_index.rules.pool_reserve:  # More slots may let other jobs start.
            await tx.wake_all()
    elif state is WorkerState.DEAD:
        return HeartbeatReply(tx.now_at, state, [job_id for job_id, _ in beat.held])
    else:
        await tx.db.run("renew", tx.now_at, ends_at, worker.slots, worker.reserved, offers, worker.worker_id)
    named = dict(beat.held)
    lost, cancel = set(named), []
    unnamed = False
    given: list[tuple[JobId, str | None, str | None]] = []
    held = await tx.db.run("renew_held", worker.worker_id, tx.namespace_id)
    for job_id, token, started_at, cancel_at, rung, assigned in held:
        if named.get(job_id) == token:
            lost.discard(job_id)
            if cancel_at is not None:
                cancel.append(job_id)
        elif started_at + beat.confirm_ms <= tx.now_at:
            unnamed = True
            continue
        if assigned is not None:
            given.append((job_id, rung, assigned))
    if unnamed:
        await _release_unnamed(tx, beat, named)
    granted = grants(tx.rule_index.ladder, given)
    return HeartbeatReply(tx.now_at, state, [job_id for job_id in named if job_id in lost], cancel, granted)


async def preempt(tx: Transaction, amendments: Sequence[Preemption]) -> list[bool]:
    """Lower elastic jobs and halt sessions. Return for each amendment whether it changed the job."""
    job_ids = tx.rows.ids([job_id for job_id, _ in amendments])
    seen = {job_id: rest for job_id, *rest in await tx.db.run("leases_by_job", tx.namespace_id, job_ids)}
    changed: list[bool] = []
    lowered = False
    for job_id, wanted in amendments:
        seq, rung, assigned, worker_id = seen.get(job_id, (0, None, None, ""))
        given = amended(tx.rule_index.ladder, rung, assigned, wanted)
        changed.append(given is not None)
        if given is not None:
            await tx.db.run("lease_set_rung", given, seq)
            tx.count({f"lowered.{given}": 1})
            tx.notify_worker(worker_id)
            tx.changed.append(job_id)
            seen[job_id] = [seq, rung, given, worker_id]
            lowered = lowered or wanted is not None
    if lowered:
        tx.eligible += await classes_with_room(tx)
    return changed


async def _release_unnamed(tx: Transaction, beat: Heartbeat, named: dict[JobId, bytes]) -> None:
    """Release leases that their worker does not know, because the reply to its claim was lost."""
    found = await tx.db.rows("leases_of", beat.worker.worker_id, tx.namespace_id, ALL, False)
    leases = [tx.rows.lease(row, tx.rule_index.ladder) for row in found]
    reports = [
        judge(Released("claim never started"), lease, BUILT_IN)
        for lease in leases
        if named.get(lease.job_id) != lease.token and lease.started_at + beat.confirm_ms <= tx.now_at
    ]
    await finish(tx, reports)
    tx.changed += [report.job_id for report in reports]
