"""Leases while they last: renewals, and changes to how long their jobs may run."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import JobId
from headway.core.policy.document import BUILT_IN
from headway.core.policy.ladder import Preemption, amended, grants
from headway.core.policy.retry import Released, judge
from headway.core.worker import WorkerState
from headway.stores.base import LEASE_CHANNEL, Heartbeat, HeartbeatReply
from headway.stores.sqlite import rows
from headway.stores.sqlite.connection import ALL
from headway.stores.sqlite.finish import finish
from headway.stores.sqlite.limits import classes_with_room
from headway.stores.sqlite.transaction import SqliteTransaction
from headway.stores.unreadable import read_worker_state


def renew(tx: SqliteTransaction, beat: Heartbeat) -> HeartbeatReply:
    """Move a worker's deadline; say what it has lost and what it must stop."""
    worker = beat.worker
    known = tx.db.rows("worker", worker.worker_id, tx.namespace_id)
    state = read_worker_state(known[0]["state"]) if known else WorkerState.DEAD
    ends_at = tx.now_at + beat.lease_ms
    offers = rows.json_list(worker.offers)
    if beat.register:
        state = WorkerState.ACTIVE
        values = (worker.host, worker.pid, worker.slots, worker.reserved, offers, worker.version, worker.protocol)
        tx.db.run("register", worker.worker_id, tx.namespace_id, *values, tx.now_at, ends_at)
        if tx.rule_index.rules.rungs or tx.rule_index.rules.pool_reserve:  # More slots are more room.
            tx.wake_all()
    elif state is WorkerState.DEAD:
        return HeartbeatReply(tx.now_at, state, [job_id for job_id, _ in beat.held])
    else:
        tx.db.run("renew", tx.now_at, ends_at, worker.slots, worker.reserved, offers, worker.worker_id)
    named = dict(beat.held)
    lost, cancel = set(named), []
    unnamed = False
    given: list[tuple[JobId, str | None, str | None]] = []
    for job_id, token, started_at, cancel_at, rung, assigned in tx.db.run(
        "renew_held", worker.worker_id, tx.namespace_id
    ):
        if assigned is not None:
            given.append((job_id, rung, assigned))
        if named.get(job_id) == token:
            lost.discard(job_id)
            if cancel_at is not None:
                cancel.append(job_id)
        else:
            unnamed = unnamed or started_at + beat.confirm_ms <= tx.now_at
    if unnamed:
        _release_unnamed(tx, beat, named)
    granted = grants(tx.rule_index.ladder, given)
    return HeartbeatReply(tx.now_at, state, [job_id for job_id in named if job_id in lost], cancel, granted)


def preempt(tx: SqliteTransaction, amendments: Sequence[Preemption]) -> list[bool]:
    """Lower elastic jobs and halt sessions, as far as that changes anything."""
    job_ids = rows.ids_list([job_id for job_id, _ in amendments])
    seen = {row[0]: row[1:] for row in tx.db.run("leases_by_job", job_ids, tx.namespace_id)}
    changed: list[bool] = []
    lowered = False
    for job_id, wanted in amendments:
        seq, rung, assigned, worker_id = seen.get(job_id, (0, None, None, None))
        given = amended(tx.rule_index.ladder, rung, assigned, wanted)
        changed.append(given is not None)
        if given is not None:
            tx.db.run("lease_set_rung", given, seq)
            tx.count({f"lowered.{given}": 1})
            tx.notify(f"{worker_id}{LEASE_CHANNEL}")
            tx.changed.append(job_id)
            seen[job_id] = (seq, rung, given, worker_id)
            lowered = lowered or wanted is not None
    if lowered:
        tx.eligible += classes_with_room(tx)
    return changed


def _release_unnamed(tx: SqliteTransaction, beat: Heartbeat, named: dict[JobId, bytes]) -> None:
    """Send back leases whose worker never heard of them: the reply to their claim was lost."""
    leases = [
        rows.lease(row, tx.rule_index.ladder)
        for row in tx.db.rows("leases_of", beat.worker.worker_id, tx.namespace_id, ALL)
    ]
    reports = [
        judge(Released("claim never started"), lease, BUILT_IN)
        for lease in leases
        if named.get(lease.job_id) != lease.token and lease.started_at + beat.confirm_ms <= tx.now_at
    ]
    finish(tx, reports)
    tx.changed += [report.job_id for report in reports]
