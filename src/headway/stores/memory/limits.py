"""Checks at a claim: limits, the ladder and the pool reserve. Jobs without room wait in blocked queues."""

from __future__ import annotations

import sys

from headway.core.job import ClassKey
from headway.core.policy.document import LimitRule
from headway.core.policy.enforced import RuleIndex, lets_start
from headway.core.policy.ladder import RunningJobs, counts_on, summarize_running
from headway.core.policy.limits import clamp_rate, conforms_at, step_rate
from headway.core.worker import WorkerState
from headway.stores.base import RULES
from headway.stores.memory.ordering import leave_queue
from headway.stores.memory.queue import ClassQueue
from headway.stores.memory.record import StoredJob
from headway.stores.memory.state import MemoryState

LimitKeys = tuple[tuple[str, LimitRule], ...]  # Limit counters, with their rules.


def keys_of(state: MemoryState, record: StoredJob) -> LimitKeys:
    """Return the limit counters that a job needs room in, with their rules."""
    return state.rule_index.keys(record.new.task, record.new.tenant, record.new.limits)


def full_key(state: MemoryState, keys: LimitKeys) -> tuple[str, int | None] | None:
    """Return the first of a job's counters that has no room, and when it will have, if that is known."""
    for key, rule in keys:
        if rule.concurrency is not None and len(state.holders.get(key, ())) >= rule.concurrency:
            return key, None
        start_at = next_start_at(state, key, rule)
        if start_at is not None and start_at > state.now_at:
            return key, start_at
    return None


def next_start_at(state: MemoryState, key: str, rule: LimitRule) -> int | None:
    """Return when a rate allows the next start, or None if the rule has no rate."""
    if rule.count is None:
        return None
    return conforms_at(step_rate(rule, state.rates.get(key), state.now_at * 1_000)[0])


def block(state: MemoryState, queue: ClassQueue, record: StoredJob, key: str, open_at: int | None) -> None:
    """Move a job to the blocked queue of a full counter. If it waits there already, close that queue."""
    if record.blocked_by == key:
        queue.close(key, open_at)
        return
    since_at = record.blocked_at if record.blocked_by else state.now_at
    leave_queue(state, record)
    record.blocked_by, record.blocked_at = key, since_at
    queue.block(record.place, key, open_at)


def hold(state: MemoryState, record: StoredJob, keys: LimitKeys) -> None:
    """Count a lease against the limits in force."""
    record.limits_held = tuple([key for key, rule in keys if rule.concurrency is not None])
    for key in record.limits_held:
        state.holders.setdefault(key, set()).add(record.seq)


def use_rates(state: MemoryState, keys: LimitKeys) -> None:
    """Count a start against the rates in force."""
    for key, rule in keys:
        if rule.count is not None:
            _, state.rates[key] = step_rate(rule, state.rates.get(key), state.now_at * 1_000)


def release(state: MemoryState, record: StoredJob) -> None:
    """Release the counters and the rung of a lease that has ended, and open the queues that waited for them."""
    for key in record.limits_held:
        state.holders[key].discard(record.seq)
        for class_key, queue in state.queues.items():
            if key in queue.blocked and key not in queue.opens:
                queue.opens[key] = 0
                state.eligible.append(class_key)
    record.limits_held = ()
    record.assigned = None
    state.eligible += classes_with_room(state, record)


def classes_with_room(state: MemoryState, record: StoredJob) -> list[ClassKey]:
    """Return the classes that may have room on the ladder, or in the pool, after this job has left it."""
    rules = state.rule_index.rules
    if not rules.rungs and rules.pool_reserve is None:
        return []
    reserve, freed = rules.pool_reserve, counts_on(state.rule_index.ladder, record.class_key.rung)
    return [
        key
        for key, queue in state.sorted_queues
        if queue.front and ((freed and key.rung is not None) or (reserve and key.lane not in reserve.lanes))
    ]


def adopt_rules(state: MemoryState) -> None:
    """Apply the stored rules: count the leases again, and open every blocked queue."""
    parts = sorted((d for d in state.documents.values() if d.kind == RULES), key=lambda d: d.name)
    rules = state.rule_reader.join((document.name, document.body) for document in parts)
    before, state.rule_index = state.rule_index, RuleIndex(rules)
    if not lets_start(before.rules, state.rule_index.rules):
        return
    limits = state.rule_index.rules.limits
    clamped = {
        key: clamp_rate(limits.get(key.partition("=")[0]), reached_us, state.now_at * 1_000)
        for key, reached_us in state.rates.items()
    }
    state.rates = {key: reached_us for key, reached_us in clamped.items() if reached_us is not None}
    state.holders.clear()
    for record in state.executing.values():
        hold(state, record, keys_of(state, record))
    for queue in state.queues.values():
        queue.opens = dict.fromkeys(queue.blocked, 0)
    state.wake_all()


def running_jobs(state: MemoryState) -> RunningJobs | None:
    """Return the running jobs by rung, or None if no job uses the ladder."""
    ladder = state.rule_index.ladder
    if not ladder.rungs and not state.has_sessions:
        return None
    running = [
        (record.new.job_id, record.class_key.rung, record.assigned, record.started_at or 0)
        for _, record in sorted(state.executing.items())
    ]
    return summarize_running(ladder, live_slots(state), running)


def pool_room(state: MemoryState) -> int:
    """Return how many more jobs of lanes outside a pool reserve may run."""
    reserve = state.rule_index.rules.pool_reserve
    if reserve is None:
        return sys.maxsize
    lanes = [record.class_key.lane for record in state.executing.values()]
    counted = lanes if reserve.rule == "leave_free" else [lane for lane in lanes if lane not in reserve.lanes]
    return max(0, live_slots(state) - reserve.slots - len(counted))


def live_slots(state: MemoryState) -> int:
    return sum(w.slots for w in state.workers.values() if state.worker_state(w) is WorkerState.ACTIVE)
