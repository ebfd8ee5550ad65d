"""Retention: expired jobs, old jobs and keys, dead workers."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import JobId, State
from headway.core.policy.document import Keep
from headway.core.worker import WorkerState
from headway.stores.memory.finish import end_queued
from headway.stores.memory.record import StoredJob
from headway.stores.memory.state import MemoryState

DEAD_WORKERS_KEPT_MS = 3_600_000  # An hour, so that an operator can still see which worker died.
WAIT_INTERVALS_KEPT_MS = 24 * 3_600_000  # A day, for ``why`` on jobs that have started.


def prune(state: MemoryState, keep: Keep, limit: int) -> int:
    expired = [record for record in state.in_state(State.QUEUED) if state.is_past(record.expires_at)][:limit]
    for record in expired:
        end_queued(state, record, "expired")
        state.changed.append(record.new.job_id)
    kept_ms = {
        State.COMPLETED: keep.completed_ms,
        State.FAILED: keep.failed_ms,
        State.CANCELLED: keep.cancelled_ms,
        State.DEAD_LETTER: keep.dead_letter_ms,
    }
    old = [
        record
        for record in state.by_seq.values()
        if record.state.ended
        and (record.finished_at or 0) + kept_ms[record.state] <= state.now_at
        and not state.is_needed(record)
    ][:limit]
    for record in old:
        state.forget(record)
    excess = _excess(state, keep)[: limit - len(old)]
    for record in excess:
        state.forget(record)
    used_up = [scope for scope, (_, _, until_at) in state.idempotent.items() if until_at <= state.now_at]
    for scope in used_up[:limit]:
        del state.idempotent[scope]
    _prune_workers(state)
    _prune_batches(state, keep)
    state.wait_intervals = [i for i in state.wait_intervals if i.until_at + WAIT_INTERVALS_KEPT_MS > state.now_at]
    state.rates = {key: reached_us for key, reached_us in state.rates.items() if reached_us > state.now_at * 1_000}
    return len(expired) + len(old) + len(excess)


def _excess(state: MemoryState, keep: Keep) -> list[StoredJob]:
    """Return the oldest ended jobs of each state that has more jobs than the policy keeps."""
    most = {
        State.COMPLETED: keep.completed_max,
        State.FAILED: keep.failed_max,
        State.CANCELLED: keep.cancelled_max,
        State.DEAD_LETTER: keep.dead_letter_max,
    }
    found: list[StoredJob] = []
    for job_state, count in most.items():
        ended = state.in_state(job_state) if count else []
        ended.sort(key=lambda record: (record.finished_at or 0, record.seq))
        found += [record for record in ended[: max(0, len(ended) - count)] if not state.is_needed(record)]
    return found


def _prune_workers(state: MemoryState) -> None:
    for worker in list(state.workers.values()):
        if worker.state is not WorkerState.DEAD and worker.lease_ends_at <= state.now_at:
            state.set_worker_state(worker.worker_id, WorkerState.DEAD)
        if worker.lease_ends_at + DEAD_WORKERS_KEPT_MS <= state.now_at and not state.leased(worker.worker_id):
            del state.workers[worker.worker_id]
            state.claims.pop(worker.worker_id, None)


def _prune_batches(state: MemoryState, keep: Keep) -> None:
    """Remove ended batches that have no member left, and that no live job waits for."""
    for batch in list(state.batches.values()):
        kept_ms = 0 if batch.total else keep.completed_ms
        if batch.finished_at is None or batch.members or batch.finished_at + kept_ms > state.now_at:
            continue
        if any(child in state.batches for child in batch.child_ids) or state.has_live_dependant(batch.new.batch_id):
            continue
        del state.batches[batch.new.batch_id]
        if batch.new.key is not None:
            del state.batch_keys[batch.new.tenant or "", batch.new.key]


def purge(state: MemoryState, states: Sequence[State], job_ids: Sequence[JobId] | None, limit: int) -> int:
    wanted = None if job_ids is None else set(job_ids)
    gone = [
        record
        for record in state.by_seq.values()
        if record.state.ended
        and record.state in states
        and (wanted is None or record.new.job_id in wanted)
        and not state.is_needed(record)
    ][:limit]
    for record in gone:
        state.forget(record)
    return len(gone)
