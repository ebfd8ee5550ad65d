"""Sessions: whether there is a slot for one now, and which gives way to a job that waits.

The ladder's own cycle counts slots over all workers. Here they are looked at worker by worker: a slot is no use to a
job whose lane may not fill it, or whose needs its worker lacks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.core.diagnostics import QueueDiagnostics
from headway.core.job import JobId
from headway.core.policy.document import INTERACTIVE, Policy
from headway.core.policy.ladder import Preemption, RunningJobs, admit
from headway.core.worker import TASK, WorkerInfo, WorkerState, serves


class PlacedSession(NamedTuple):
    """A running session, and where it runs. ``stopping``: it was told to, and holds its slot until it has."""

    job_id: JobId
    worker_id: str
    lane: str
    started_at: int
    stopping: bool = False


class SessionAdmission(NamedTuple):
    """Whether a session may begin now; if not, why, and which running jobs are lowered for the next one."""

    admitted: bool
    reason: str = ""
    amendments: tuple[Preemption, ...] = ()


def admit_session(
    queue: QueueDiagnostics, policy: Policy, *, task: str, lane: str, needs: Iterable[str], chance: float = 0.0
) -> SessionAdmission:
    """Admit a session if a worker that knows its task has a slot for its lane now; a denial lowers one elastic job."""
    wanted = (*needs, f"{TASK}{task}")
    able = [worker for worker in _active(queue) if serves(wanted, frozenset(worker.offers))]
    if not able:
        return SessionAdmission(False, f"no worker that is running offers the task {task}")
    floors = _RunningByWorker(queue, policy)
    free = sum(floors.seats(worker, lane) for worker in able)
    floor = queue.snapshot.floor
    if floor is None or len(floor.counts) != len(policy.ladder.rungs):
        slots = sum(worker.slots for worker in queue.workers)
        floor = RunningJobs(slots, free, (0,) * len(policy.ladder.rungs))
    admitted, amendments = admit(policy.ladder, floor._replace(free=min(free, floor.free)), chance=chance)
    return SessionAdmission(admitted, "" if admitted else "no slot is free", amendments)


def crowded_out(
    queue: QueueDiagnostics, policy: Policy, sessions: Sequence[PlacedSession], *, chance: float = 0.0
) -> JobId | None:
    """Name the session to halt for a job that waits and for which no worker has a slot; None if there is none.

    One at a time, and none while another is stopping where it would help.
    """
    workers, floors = _active(queue), _RunningByWorker(queue, policy)
    for view in queue.snapshot.classes:
        key = view.key
        if not view.waiting or view.blocked is not None or key.rung == INTERACTIVE:
            continue
        able = {worker.worker_id: worker for worker in workers if serves(key.needs, frozenset(worker.offers))}
        if any(floors.seats(worker, key.lane) for worker in able.values()):
            continue
        helping = [
            one
            for one in sessions
            if one.worker_id in able and floors.seats(able[one.worker_id], key.lane, without=one.lane)
        ]
        if not helping or any(one.stopping for one in helping):
            continue
        order = sorted(helping, key=lambda one: (-one.started_at, one.job_id))
        return order[int(chance * len(order)) if policy.ladder.victim == "random" else 0].job_id
    return None


class _RunningByWorker:
    """What runs on each worker."""

    def __init__(self, queue: QueueDiagnostics, policy: Policy) -> None:
        self._reserve = policy.reserve
        self._running = Counter(job.worker_id for job in queue.executing)
        below = (job for job in queue.executing if self._is_below(job.lane))
        self._below = Counter(job.worker_id for job in below)

    def seats(self, worker: WorkerInfo, lane: str, *, without: str | None = None) -> int:
        """Count the free slots of a worker that a job of this lane may fill; ``without`` a job of that lane there."""
        free = worker.slots - self._running[worker.worker_id] + (without is not None)
        if lane not in self._reserve.lanes:
            below = self._below[worker.worker_id] - (without is not None and self._is_below(without))
            free = min(free, worker.slots - worker.reserved - below)
        return max(0, free)

    def _is_below(self, lane: str) -> bool:
        """Return whether a job of this lane counts against the slots outside the reserve."""
        return self._reserve.rule == "leave_free" or lane not in self._reserve.lanes


def _active(queue: QueueDiagnostics) -> list[WorkerInfo]:
    return [worker for worker in queue.workers if worker.state is WorkerState.ACTIVE]
