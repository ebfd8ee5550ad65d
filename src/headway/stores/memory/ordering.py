"""The place of a waiting job: in the queue of its class, or among the delayed jobs."""

from __future__ import annotations

from bisect import bisect_left, insort

from headway.core.job import ClassKey
from headway.core.policy.order import order_key
from headway.stores.base import DUE_BATCH_MAX
from headway.stores.memory.queue import ClassQueue
from headway.stores.memory.record import StoredJob
from headway.stores.memory.state import MemoryState


def make_ready(
    state: MemoryState, record: StoredJob, eligible_at: int, *, number: int, front: bool = False
) -> None:  # fmt: skip
    """Add a job to the queue of its class. ``number``: its place without tenants; ``front``: before all that wait."""
    queue, tenant = state.queue(record.class_key), record.tenant
    if not queue.fair and record.new.tenant is not None:
        _make_fair(state, record.class_key, queue, number)
    if not queue.fair:
        record.order_key = number
    elif front:
        record.order_key = queue.clock
    else:
        step_us = state.rule_index.step_us(record.new.task, tenant)
        record.order_key = order_key(queue.clock, queue.last(tenant), step_us)
    record.due_at, record.eligible_at, record.blocked_by = None, eligible_at, ""
    queue.add(record.place, eligible_at, tenant)
    state.eligible.append(record.class_key)


def _make_fair(state: MemoryState, key: ClassKey, queue: ClassQueue, number: int) -> None:
    """Share a class by tenant, from its first job with a tenant on."""
    since = [(state.by_seq[seq].eligible_at or 0, seq) for _, seq in queue.front]
    here = [place[0] for places in (queue.front, *queue.blocked.values()) for place in places]
    running = [record.order_key for record in state.executing.values() if record.class_key == key]
    queue.become_fair(since, here + running, queue.front[0][0] if queue.front else number)


def delay(state: MemoryState, record: StoredJob, due_at: int) -> None:
    """Delay a job until it is due."""
    record.due_at, record.eligible_at = due_at, None
    state.queue(record.class_key)
    insort(state.delayed, (due_at, record.seq))


def leave_queue(state: MemoryState, record: StoredJob) -> None:
    """Remove a job from where it waits. It still counts for its tenant."""
    if record.due_at is not None:
        state.delayed.pop(bisect_left(state.delayed, (record.due_at, record.seq)))
        record.due_at = None
    else:
        state.queues[record.class_key].remove(record.place, record.blocked_by, record.eligible_at or 0)
        record.blocked_by = ""


def leave_class(state: MemoryState, record: StoredJob) -> None:
    """Remove a job from where it waits, and from what its tenant has in the class."""
    is_ready = record.due_at is None
    leave_queue(state, record)
    if is_ready:
        state.queues[record.class_key].forget(record.order_key, record.tenant)


def promote_due(state: MemoryState) -> None:
    """Make a bounded batch of due jobs eligible."""
    left = DUE_BATCH_MAX
    while left and state.delayed and state.delayed[0][0] <= state.now_at:
        left -= 1
        _, seq = state.delayed.pop(0)
        make_ready(state, state.by_seq[seq], state.now_at, number=state.next_sequence())
