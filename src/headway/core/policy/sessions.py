"""Sessions: whether a slot is free for one now, and which session stops for a waiting job.

The ladder's own cycle counts slots over all workers. This module looks at each worker, since a job cannot use a slot
that its lane may not fill, or whose worker lacks its needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.core.diagnostics import QueueDiagnostics
from headway.core.job import JobId
from headway.core.policy.document import INTERACTIVE, Policy
from headway.core.policy.ladder import Preemption, RunningJobs, admit
from headway.core.worker import TASK, WorkerInfo, serves


class PlacedSession(NamedTuple):
    """A running session and its worker. ``stopping``: it was told to stop, and holds its slot until it has."""

    job_id: JobId
    worker_id: str
    lane: str
    started_at: int
    stopping: bool = False


class SessionAdmission(NamedTuple):
    """The decision on a session: start it now, or a reason and the running jobs to lower for the next request."""

    admitted: bool
    reason: str = ""
    amendments: tuple[Preemption, ...] = ()


def admit_session(
    queue: QueueDiagnostics, policy: Policy, *, task: str, lane: str, needs: Iterable[str], chance: float = 0.0
) -> SessionAdmission:
    """Admit a session if a worker that knows its task has a slot for its lane now. A denial lowers one elastic job."""
    wanted = (*needs, f"{TASK}{task}")
    able = [worker for worker in queue.active_workers if serves(wanted, frozenset(worker.offers))]
    if not able:
        return SessionAdmission(False, f"no worker that is running offers the task {task}")
    by_worker = _RunningByWorker(queue, policy)
    free = sum(by_worker.free_slots(worker, lane) for worker in able)
    running_jobs = queue.snapshot.running_jobs
    if running_jobs is None or len(running_jobs.counts) != len(policy.ladder.rungs):
        slots = sum(worker.slots for worker in queue.workers)
        running_jobs = RunningJobs(slots, free, (0,) * len(policy.ladder.rungs))
    admitted, amendments = admit(policy.ladder, running_jobs._replace(free=min(free, running_jobs.free)), chance=chance)
    return SessionAdmission(admitted, "" if admitted else "no slot is free", amendments)


def crowded_out(
    queue: QueueDiagnostics, policy: Policy, sessions: Sequence[PlacedSession], *, chance: float = 0.0
) -> JobId | None:
    """Return the session to halt for a waiting job for which no worker has a slot, or None.

    It names one session at a time, and none while a session that would make room is stopping.
    """
    workers, by_worker = queue.active_workers, _RunningByWorker(queue, policy)
    for view in queue.snapshot.classes:
        key = view.key
        if not view.waiting or view.blocked is not None or key.rung == INTERACTIVE:
            continue
        able = {worker.worker_id: worker for worker in workers if serves(key.needs, frozenset(worker.offers))}
        if any(by_worker.free_slots(worker, key.lane) for worker in able.values()):
            continue
        helping = [
            one
            for one in sessions
            if one.worker_id in able and by_worker.free_slots(able[one.worker_id], key.lane, without=one.lane)
        ]
        if not helping or any(one.stopping for one in helping):
            continue
        order = sorted(helping, key=lambda one: (-one.started_at, one.job_id))
        return order[int(chance * len(order)) if policy.ladder.victim == "random" else 0].job_id
    return None


class _RunningByWorker:
    """The number of running jobs on each worker."""

    def __init__(self, queue: QueueDiagnostics, policy: Policy) -> None:
        self._reserve = policy.reserve
        self._running = Counter(job.worker_id for job in queue.executing)
        below = (job for job in queue.executing if self._is_below(job.lane))
        self._below = Counter(job.worker_id for job in below)

    def free_slots(self, worker: WorkerInfo, lane: str, *, without: str | None = None) -> int:
        """Count the free slots of a worker for a job of ``lane``, as if a job of lane ``without`` had ended there."""
        free = worker.slots - self._running[worker.worker_id] + (without is not None)
        if lane not in self._reserve.lanes:
            below = self._below[worker.worker_id] - (without is not None and self._is_below(without))
            free = min(free, worker.slots - worker.reserved - below)
        return max(0, free)

    def _is_below(self, lane: str) -> bool:
        """Return whether a job of this lane counts against the slots outside the reserve."""
        return self._reserve.rule == "leave_free" or lane not in self._reserve.lanes
