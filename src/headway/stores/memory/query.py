"""Reads: jobs, the snapshot and statistics."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from heapq import merge

from headway.core.job import RETRYABLE_STATES, ClassKey, JobId, JobRecord, State
from headway.core.snapshot import ClassView, Snapshot
from headway.core.timestamps import earlier
from headway.core.worker import WorkerInfo
from headway.core.workflow import HELD_AT
from headway.stores.base import (
    WAITING_COUNTED,
    BlockedStats,
    JobQuery,
    LaneStats,
    QueueBreakdown,
    Stats,
    TenantStats,
    end_place,
)
from headway.stores.memory.limits import running_jobs
from headway.stores.memory.queue import ClassQueue, key_order
from headway.stores.memory.record import StoredJob, job_of, matches
from headway.stores.memory.state import MINUTE, MemoryState


def get(state: MemoryState, job_id: JobId) -> JobRecord | None:
    return job_of(state.jobs[job_id], state.now_at) if job_id in state.jobs else None


def find(state: MemoryState, query: JobQuery) -> list[JobRecord]:
    if query.by_end:
        return _find_ended(state, query)
    found: list[JobRecord] = []
    for record in reversed(state.by_seq.values()):
        if len(found) >= query.limit:
            break
        if matches(record, query):
            found.append(job_of(record, state.now_at))
    return found


def _find_ended(state: MemoryState, query: JobQuery) -> list[JobRecord]:
    """Return jobs that ended badly, the last one to end first."""
    records = [r for r in state.by_seq.values() if r.state in RETRYABLE_STATES and matches(r, query)]
    jobs = [job_of(record, state.now_at) for record in records]
    last = query.ended_before
    jobs = [job for job in jobs if last is None or end_place(job) < last]
    return sorted(jobs, key=end_place, reverse=True)[: query.limit]


def snapshot(state: MemoryState) -> Snapshot:
    now_at, rules, running = state.now_at, state.rule_index, running_jobs(state)
    views = []
    soon = [state.delayed[0][0]] if state.delayed and state.delayed[0][0] < HELD_AT else []
    for key, queue in state.sorted_queues:
        blocked = rules.blocked_reason(key.lane, key.rung, running) if rules.may_block_classes else None
        if not queue.front and not queue.blocked:
            views.append(queue.empty_view if blocked is None else queue.empty_view._replace(blocked=blocked))
            continue
        waiting, first = queue.waiting(now_at), queue.first(now_at)
        oldest_at, head_key = _oldest_at(state, queue), 0 if first is None else first[0]
        views.append(ClassView(key, min(waiting, WAITING_COUNTED), oldest_at, head_key, queue.fair, blocked))
        if queue.opens:
            soon += [open_at for open_at in queue.opens.values() if open_at > now_at]
    for key, listed in state.transient.items():
        head = listed[0][0] if listed else 0
        waiting = min(len(listed), WAITING_COUNTED)
        oldest_at, blocked = now_at if listed else None, rules.blocked_reason(key.lane, key.rung, None)
        views.append(ClassView(key, waiting, oldest_at, head, False, blocked))
    if state.transient:
        views.sort(key=lambda view: key_order(view.key))
    return Snapshot(now_at, tuple(views), min(soon) if soon else None, running)


def stats(state: MemoryState) -> Stats:
    # Of the jobs that wait, queues know the number, so that this stays quick however many they are.
    counts = {lane: Counter[str]() for lane in {record.class_key.lane for record in state.jobs.values()}}
    for key, queue in state.queues.items():
        if waiting := len(queue.front) + sum(map(len, queue.blocked.values())):
            counts[key.lane]["waiting"] += waiting
    for record in state.executing.values():
        counts[record.class_key.lane]["executing"] += 1
    for _, seq in state.delayed:
        record = state.by_seq[seq]
        counts[record.class_key.lane]["held" if record.held else "delayed"] += 1
    lanes = {lane: LaneStats(**counted) for lane, counted in counts.items()}
    for key, queue in state.queues.items():
        if queue.front:
            lane = lanes[key.lane]
            lanes[key.lane] = lane._replace(oldest_at=earlier(lane.oldest_at, _oldest_at(state, queue)))
    for key, listed in state.transient.items():
        lane = lanes.get(key.lane, LaneStats())
        lanes[key.lane] = lane._replace(waiting=lane.waiting + len(listed))
    totals: Counter[str] = Counter()
    recent: Counter[str] = Counter()
    for (minute, what), count in state.counters.items():
        totals[what] += count
        if minute >= state.now_at // MINUTE - 1:
            recent[what] += count
    kept = Counter(record.state.value for record in state.jobs.values() if record.state in RETRYABLE_STATES)
    return Stats(state.now_at, lanes, workers(state), dict(totals), dict(recent), dict(kept))


def workers(state: MemoryState) -> tuple[WorkerInfo, ...]:
    """Return every worker with its state now and the number of jobs it runs."""
    return tuple(
        replace(worker, running=state.lease_counts[worker.worker_id], state=state.worker_state(worker))
        for worker in state.workers.values()
    )


def waiting_of(state: MemoryState, tenant: str) -> dict[str, LaneStats]:
    lanes: dict[str, LaneStats] = {}
    seen: set[ClassKey] = set()
    own = [record for record in state.jobs.values() if record.new.tenant == tenant]
    waiting = [record for record in own if record.state is State.QUEUED and record.due_at is None]
    for record in sorted(waiting, key=lambda one: one.place):
        key = record.class_key
        lane = lanes.get(key.lane, LaneStats())
        oldest_at = lane.oldest_at
        if key not in seen:
            seen.add(key)
            oldest_at = earlier(oldest_at, record.eligible_at)
        lanes[key.lane] = LaneStats(waiting=lane.waiting + 1, oldest_at=oldest_at)
    return lanes


def breakdown(state: MemoryState, limit: int) -> QueueBreakdown:
    tenants: dict[str, TenantStats] = {}
    blocked: dict[str, BlockedStats] = {}
    for key, queue in state.queues.items():
        here: dict[str, list[StoredJob]] = {}
        for _, seq in merge(queue.front, *queue.blocked.values()):
            record = state.by_seq[seq]
            if record.tenant:
                here.setdefault(record.tenant, []).append(record)
        for tenant in sorted(here)[:limit]:
            known, mine = tenants.get(tenant, TenantStats()), here[tenant]
            waiting = known.waiting + min(len(mine), WAITING_COUNTED)
            tenants[tenant] = TenantStats(waiting, 0, earlier(known.oldest_at, mine[0].eligible_at))
        for name, places in queue.blocked.items():
            counted, open_at = blocked.get(name, BlockedStats()), queue.opens.get(name, 0)
            waiting = counted.lanes.get(key.lane, 0) + min(len(places), WAITING_COUNTED)
            opens_at = open_at if open_at > state.now_at else None
            blocked[name] = BlockedStats({**counted.lanes, key.lane: waiting}, earlier(counted.open_at, opens_at))
    for record in state.executing.values():
        if record.tenant:
            known = tenants.get(record.tenant, TenantStats())
            tenants[record.tenant] = known._replace(running=known.running + 1)
    return QueueBreakdown(state.now_at, tenants, dict(sorted(blocked.items())[:limit]))


def _oldest_at(state: MemoryState, queue: ClassQueue) -> int | None:
    if not queue.front:
        return None
    return queue.oldest_at() if queue.fair else state.by_seq[queue.front[0][1]].eligible_at
