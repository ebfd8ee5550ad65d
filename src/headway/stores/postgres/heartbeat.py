"""Leases while they last: renewals, and changes to how long their jobs may run."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import JobId
from headway.core.policy.document import BUILT_IN
from headway.core.policy.ladder import Preemption, amended, grants
from headway.core.policy.retry import Released, judge
from headway.core.worker import WorkerState
from headway.stores.base import Heartbeat, HeartbeatReply
from headway.stores.postgres import rows
from headway.stores.postgres.finish import finish
from headway.stores.postgres.limits import classes_with_room
from headway.stores.postgres.transaction import ALL, PostgresTransaction
from headway.stores.unreadable import read_worker_state


async def renew(tx: PostgresTransaction, beat: Heartbeat) -> HeartbeatReply:
    """Move a worker's deadline; say what it has lost and what it must stop."""
    worker = beat.worker
    known = await tx.db.first("worker", worker.worker_id, tx.namespace_id)
    state = read_worker_state(known)
    ends_at = tx.now_at + beat.lease_ms
    offers = list(worker.offers)
    if beat.register:
        state = WorkerState.ACTIVE
        values = (worker.host, worker.pid, worker.slots, worker.reserved, offers, worker.version, worker.protocol)
        await tx.db.run("register", worker.worker_id, tx.namespace_id, *values, tx.now_at, ends_at)
        if tx.rule_index.rules.rungs or tx.rule_index.rules.pool_reserve:  # More slots are more room.
            await tx.wake_all()
    elif state is WorkerState.DEAD:
        return HeartbeatReply(tx.now_at, state, [job_id for job_id, _ in beat.held])
    else:
        await tx.db.run("renew", tx.now_at, ends_at, worker.slots, worker.reserved, offers, worker.worker_id)
    named = dict(beat.held)
    lost, cancel = set(named), []
    unnamed = False
    given: list[tuple[JobId, str | None, str | None]] = []
    for row in await tx.db.run("renew_held", worker.worker_id, tx.namespace_id):
        if row["assigned"] is not None:
            given.append((row["job_id"], row["rung"], row["assigned"]))
        if named.get(row["job_id"]) == row["token"]:
            lost.discard(row["job_id"])
            if row["cancel_at"] is not None:
                cancel.append(row["job_id"])
        else:
            unnamed = unnamed or row["started_at"] + beat.confirm_ms <= tx.now_at
    if unnamed:
        await _release_unnamed(tx, beat, named)
    granted = grants(tx.rule_index.ladder, given)
    return HeartbeatReply(tx.now_at, state, [job_id for job_id in named if job_id in lost], cancel, granted)


async def preempt(tx: PostgresTransaction, amendments: Sequence[Preemption]) -> list[bool]:
    """Lower elastic jobs and halt sessions, as far as that changes anything."""
    found = await tx.db.run("leases_by_job", tx.namespace_id, rows.ids_list([job_id for job_id, _ in amendments]))
    seen = {row["job_id"]: row for row in found}
    now = {job_id: row["assigned"] for job_id, row in seen.items()}
    changed: list[bool] = []
    lowered = False
    for job_id, wanted in amendments:
        row = seen.get(job_id)
        given = None if row is None else amended(tx.rule_index.ladder, row["rung"], now[job_id], wanted)
        changed.append(given is not None)
        if row is not None and given is not None:
            now[job_id] = given
            tx.count({f"lowered.{given}": 1})
            tx.rung.append(row["worker_id"])
            tx.changed.append(job_id)
            lowered = lowered or wanted is not None
    if any(changed):
        moved = [job_id for (job_id, _), done in zip(amendments, changed, strict=True) if done]
        await tx.db.run("lease_set_rung", [seen[job_id]["seq"] for job_id in moved], [now[job_id] for job_id in moved])
    if lowered:
        tx.eligible += await classes_with_room(tx)
    return changed


async def _release_unnamed(tx: PostgresTransaction, beat: Heartbeat, named: dict[JobId, bytes]) -> None:
    """Send back leases whose worker never heard of them: the reply to their claim was lost."""
    found = await tx.db.run("leases_of", beat.worker.worker_id, tx.namespace_id, ALL)
    leases = [rows.lease(row, tx.rule_index.ladder) for row in found]
    reports = [
        judge(Released("claim never started"), lease, BUILT_IN)
        for lease in leases
        if named.get(lease.job_id) != lease.token and lease.started_at + beat.confirm_ms <= tx.now_at
    ]
    await finish(tx, reports)
    tx.changed += [report.job_id for report in reports]
