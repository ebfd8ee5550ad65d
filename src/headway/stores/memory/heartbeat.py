"""Workers: heartbeats that renew leases, draining, and preemption of running jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headway.core.job import State
from headway.core.lease import Lease
from headway.core.policy.document import BUILT_IN
from headway.core.policy.ladder import Preemption, amended, grants
from headway.core.policy.retry import Released, judge
from headway.core.worker import WorkerState
from headway.stores.base import LEASE_CHANNEL, Heartbeat, HeartbeatReply
from headway.stores.memory.finish import finish
from headway.stores.memory.limits import classes_with_room
from headway.stores.memory.record import StoredJob, lease_of
from headway.stores.memory.state import MemoryState


def renew(state: MemoryState, beat: Heartbeat) -> HeartbeatReply:
    now_at, worker_id = state.now_at, beat.worker.worker_id
    known = state.workers.get(worker_id)
    if not beat.register and (known is None or known.state is WorkerState.DEAD):
        return HeartbeatReply(now_at, WorkerState.DEAD, [job_id for job_id, _ in beat.held])
    worker_state = known.state if known and not beat.register else WorkerState.ACTIVE
    state.workers[worker_id] = replace(
        beat.worker,
        state=worker_state,
        started_at=known.started_at if known and not beat.register else now_at,
        heartbeat_at=now_at,
        lease_ends_at=now_at + beat.lease_ms,
        running=0,
    )
    if beat.register:
        state.waiting.pop(worker_id, None)
        if state.rule_index.rules.rungs or state.rule_index.rules.pool_reserve:  # New slots make room in every pool.
            state.wake_all()
    held = dict(beat.held)
    mine = {record.new.job_id: record for record in state.leased(worker_id)}
    lost = [job_id for job_id, token in held.items() if job_id not in mine or mine[job_id].token != token]
    for job_id, record in mine.items():
        unconfirmed = held.get(job_id) != record.token
        if unconfirmed and (record.started_at or 0) + beat.confirm_ms <= now_at:
            lease = lease_of(record, state.rule_index.ladder)
            finish(state, judge(Released("claim never started"), lease, BUILT_IN))
            state.changed.append(job_id)
    renewed = [mine[job_id] for job_id in held if job_id in mine and job_id not in lost]
    cancel = [record.new.job_id for record in renewed if record.cancel_at is not None]
    assigned = [(record.new.job_id, record.class_key.rung, record.assigned) for record in mine.values()]
    return HeartbeatReply(now_at, worker_state, lost, cancel, grants(state.rule_index.ladder, assigned))


def leases(state: MemoryState, worker_id: str | None, limit: int, *, payloads: bool) -> list[Lease]:
    """Return the leases of a worker, or without one those that have expired."""
    records = state.leased(worker_id) if worker_id is not None else _expired(state)
    found = [lease_of(record, state.rule_index.ladder) for record in records[:limit]]
    return found if payloads else [lease._replace(payload=b"") for lease in found]


def _expired(state: MemoryState) -> list[StoredJob]:
    def is_dead(record: StoredJob) -> bool:
        worker = state.workers.get(record.worker_id or "")
        return worker is None or state.worker_state(worker) is WorkerState.DEAD

    return [record for _, record in sorted(state.executing.items()) if is_dead(record)]


def drain(state: MemoryState, worker_id: str) -> bool:
    worker = state.workers.get(worker_id)
    if worker is None or worker.state is WorkerState.DEAD:
        return False
    state.set_worker_state(worker_id, WorkerState.DRAINING)
    state.notify(worker_id + LEASE_CHANNEL)
    return True


def preempt(state: MemoryState, amendments: Sequence[Preemption]) -> list[bool]:
    changed: list[bool] = []
    lowered: StoredJob | None = None
    for job_id, rung in amendments:
        record = state.jobs.get(job_id)
        assigned = None
        if record is not None and record.state is State.EXECUTING:
            assigned = amended(state.rule_index.ladder, record.class_key.rung, record.assigned, rung)
        changed.append(assigned is not None)
        if record is not None and assigned is not None:
            record.assigned = assigned
            state.count(f"lowered.{assigned}")
            lowered = record if rung is not None else lowered
            state.notify(f"{record.worker_id}{LEASE_CHANNEL}")
            state.changed.append(job_id)
    state.eligible += [] if lowered is None else classes_with_room(state, lowered)
    return changed
