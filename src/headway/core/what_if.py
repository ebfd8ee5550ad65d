"""The queue as it would be under another policy or with another number of slots, for forecasts."""

from __future__ import annotations

from dataclasses import replace

from headway.core.diagnostics import QueueDiagnostics
from headway.core.policy.document import Policy, reserved_slots
from headway.core.policy.enforced import rules_of
from headway.core.worker import ANY_TASK, WorkerInfo, WorkerState

ADDED = "added"  # The id of the worker that has the slots which no live worker has.


def change_queue(queue: QueueDiagnostics, policy: Policy, new: Policy, slots: int | None) -> QueueDiagnostics:
    """Return the queue with the rules of another policy, and with this many slots in all."""
    rules = rules_of(new)
    declared = {name: rule for name, rule in queue.rules.limits.items() if name not in policy.limits}
    changed = replace(
        rules, limits=declared | dict(rules.limits), costs_us=queue.rules.costs_us, paused=queue.rules.paused
    )
    workers = list(queue.workers) if slots is None else _resized(queue, slots)
    if new != policy or slots is not None:
        workers = [replace(worker, reserved=reserved_slots(new, worker.slots, None)) for worker in workers]
    return queue._replace(rules=changed, workers=tuple(workers))


def _resized(queue: QueueDiagnostics, slots: int) -> list[WorkerInfo]:
    """Return the workers with this many slots in all. Each keeps its part, and rounding goes to the first ones.

    If no worker is live, one worker is added that offers what every waiting job needs.
    """
    live = queue.active_workers
    total = sum(worker.slots for worker in live)
    if not total:
        needs = {need for view in queue.snapshot.classes for need in view.key.needs}
        worker = WorkerInfo(
            worker_id=ADDED, host="", pid=0, slots=slots, reserved=0, offers=(*sorted(needs), ANY_TASK), version=""
        )
        return [*queue.workers, worker] if slots else list(queue.workers)
    parts = {worker.worker_id: worker.slots * slots // total for worker in live}
    for worker in live[: slots - sum(parts.values())]:
        parts[worker.worker_id] += 1
    return [
        worker
        if worker.state is not WorkerState.ACTIVE
        else replace(worker, slots=parts[worker.worker_id], running=min(worker.running, parts[worker.worker_id]))
        for worker in queue.workers
        if parts.get(worker.worker_id, 1)
    ]
