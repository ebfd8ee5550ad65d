"""The exchange of a worker with the store: reports and progress in, leases out."""

from __future__ import annotations

from collections.abc import Awaitable

from headway.core.job import ClassKey, JobId, State, check_move
from headway.core.lease import Lease, ReportStatus
from headway.core.policy.ladder import counts_on, fit_rung
from headway.core.policy.wait_reasons import blocked_queue_reason
from headway.core.snapshot import Plan, PlanWalk, Take
from headway.core.worker import WorkerInfo, WorkerState
from headway.core.workflow import batch_reason
from headway.runtime.immediate import run_now
from headway.stores.base import LEASE_CHANNEL, Exchange, ExchangeReply
from headway.stores.claim_loop import claim_class, claim_takes
from headway.stores.memory import finish
from headway.stores.memory.limits import LimitKeys, block, full_key, hold, keys_of, pool_room, running_jobs, use_rates
from headway.stores.memory.ordering import promote_due
from headway.stores.memory.query import snapshot
from headway.stores.memory.queue import ClassQueue
from headway.stores.memory.record import StoredJob, lease_of, transient_lease
from headway.stores.memory.state import MemoryState
from headway.stores.memory.workflow import settle_edges

# Looked up once, since Python 3.11 searches for an enum's member each time.
_ACTIVE, _OK, _EXECUTING = WorkerState.ACTIVE, ReportStatus.OK, State.EXECUTING


def exchange(state: MemoryState, request: Exchange) -> ExchangeReply:
    refused: list[tuple[JobId, ReportStatus]] = []
    for report in request.finished:
        status = finish.finish(state, report)
        if status is not _OK:
            refused.append((report.job_id, status))
    for note in request.progress:
        record = state.jobs.get(note.job_id)
        if record and record.state is _EXECUTING and record.token == note.token:
            record.progress, record.note = note.fraction, note.note
    settle_edges(state)
    promote_due(state)
    worker = state.workers.get(request.worker_id) if request.worker_id else None
    plan = request.plan
    outdated = plan is not None and _is_outdated(state, plan)
    leases: list[Lease] = []
    more = False
    if worker is not None:
        if worker.lease_ends_at > state.now_at:
            if plan is not None and not outdated:
                leases, more = _claim(state, worker, request.claim_id, plan)
                _note_waiting(state, worker, request, got_nothing=not leases and not more)
        elif worker.state is _ACTIVE:
            # The worker is alive, so the clock has stepped forward: make it renew its leases.
            state.notify(worker.worker_id + LEASE_CHANNEL)
    more = settle_edges(state) or more
    if state.job_channels:
        for changes in (request.finished, leases, request.progress):
            state.changed += [change.job_id for change in changes]
    state.settle(but=request.worker_id)
    view = snapshot(state) if request.want_snapshot or outdated else None
    worker_state = worker.state if worker else WorkerState.DEAD
    return ExchangeReply(state.now_at, leases, refused, view, more, worker_state)


def _note_waiting(state: MemoryState, worker: WorkerInfo, request: Exchange, *, got_nothing: bool) -> None:
    """Register a worker that got no job as waiting. A worker that waits already keeps its turn."""
    if request.wait and got_nothing and worker.state is _ACTIVE:
        state.wait(worker.worker_id, request.wait_lanes)
    else:
        state.waiting.pop(worker.worker_id, None)


def _is_outdated(state: MemoryState, plan: Plan) -> bool:
    """Return whether the store has classes that a plan does not know."""
    return plan.known is not None and plan.known < len(state.queues) + len(state.transient)


def _claim(state: MemoryState, worker: WorkerInfo, claim_id: bytes, plan: Plan) -> tuple[list[Lease], bool]:
    """Return the leases of a claim, and whether a take stopped early because it skipped too many jobs."""
    if worker.state is not _ACTIVE:
        return [], False
    if state.claims.get(worker.worker_id) == claim_id:
        mine = state.leased(worker.worker_id)
        return [lease_of(record, state.rule_index.ladder) for record in mine if record.token == claim_id], False
    takes = _takes_with_jobs(state, plan)
    if not takes:
        return [], False
    walk = PlanWalk(plan, slots=worker.slots - state.lease_counts[worker.worker_id], room=pool_room(state))

    def take_jobs(take: Take, want: int) -> Awaitable[tuple[list[Lease], bool]]:
        key = take.key
        if not key.persist:
            return _take_transient(state, key, want, worker)
        records = _WaitingRecords(state, key, state.queues[key], worker, claim_id)
        return claim_class(records, take, want, state.now_at)

    leases, more = run_now(claim_takes(takes, walk, state.rule_index, take_jobs))
    state.count("claimed", len(leases))
    for total, count in walk.promoted.items():
        state.count(total, count)
    if leases:
        state.claims[worker.worker_id] = claim_id
    return leases, more


def _takes_with_jobs(state: MemoryState, plan: Plan) -> list[Take]:
    """Return the takes of classes with waiting jobs. Most takes of an idle worker are of empty classes."""
    found: list[Take] = []
    queue_of = state.queues.get
    for take in plan.takes:
        queue = queue_of(take.key)
        if (take.key in state.transient) if queue is None else (queue.front or queue.blocked):
            found.append(take)
    return found


class _WaitingRecords:
    """The waiting jobs of a class, from the front of its queue and its open blocked queues."""

    def __init__(
        self, state: MemoryState, key: ClassKey, queue: ClassQueue, worker: WorkerInfo, claim_id: bytes
    ) -> None:
        self.on_ladder = counts_on(state.rule_index.ladder, key.rung)
        self._state = state
        self._queue = queue
        self._rung = key.rung
        self._worker = worker
        self._claim_id = claim_id
        self._assigned: str | None = None

    def next(self) -> list[StoredJob]:
        first = self._queue.first(self._state.now_at)
        return [] if first is None else [self._state.by_seq[first[1]]]

    def times(self, record: StoredJob) -> tuple[int | None, int | None]:
        is_cancelled = record.batch_id is not None and self._state.is_cancelled(record.batch_id)
        return record.eligible_at, 0 if is_cancelled else record.expires_at

    async def expire(self, record: StoredJob) -> None:
        batch_id = record.batch_id
        is_cancelled = self._state.is_cancelled(batch_id)
        finish.end_queued(self._state, record, batch_reason(batch_id or "") if is_cancelled else "expired")
        self._state.changed.append(record.new.job_id)

    def has_room(self) -> bool:
        fits, self._assigned = fit_rung(self._state.rule_index.ladder, running_jobs(self._state), self._rung)
        return fits

    def start(self, record: StoredJob) -> Lease | None:
        state, queue = self._state, self._queue
        keys = keys_of(state, record)
        full = full_key(state, keys) if keys else None
        if full is not None:
            block(state, queue, record, *full)
            return None
        _start(state, record, keys, queue, self._worker, self._claim_id, self._assigned)
        return lease_of(record, state.rule_index.ladder)


async def _take_transient(
    state: MemoryState, key: ClassKey, want: int, worker: WorkerInfo
) -> tuple[list[Lease], bool]:  # fmt: skip
    paused = state.rule_index.rules.paused.tasks
    listed = state.transient.get(key, [])
    taken = [entry for entry in listed if entry[1].task not in paused][:want]
    for entry in taken:
        listed.remove(entry)
    return [transient_lease(seq, job, worker, state.now_at) for seq, job in taken], False


def _start(
    state: MemoryState,
    record: StoredJob,
    keys: LimitKeys,
    queue: ClassQueue,
    worker: WorkerInfo,
    claim_id: bytes,
    assigned: str | None,
) -> None:
    record.blocked_for, record.blocked_ms = None, 0
    queue.remove(record.place, record.blocked_by, record.eligible_at or 0)
    if record.blocked_by:
        rule = state.rule_index.rules.limits.get(record.blocked_by.partition("=")[0])
        is_rate = rule is not None and rule.concurrency is None
        record.blocked_for = blocked_queue_reason(record.blocked_by, is_rate=is_rate)
        record.blocked_ms = state.now_at - record.blocked_at
        record.blocked_by = ""
    if queue.fair and record.order_key > queue.clock:
        queue.clock = record.order_key
    check_move(record.state, _EXECUTING)
    record.state = _EXECUTING
    state.add_lease(record, worker.worker_id)
    record.epoch += 1
    record.attempts += 1
    record.token, record.started_at = claim_id, state.now_at
    record.progress = record.note = record.cancel_at = record.error = record.reason = None
    record.assigned = assigned
    if keys:
        hold(state, record, keys)
        use_rates(state, keys)
