"""A job's position: how many jobs would start before it by the policy, if no more jobs arrived."""

from __future__ import annotations

from collections.abc import Iterable

from headway.core.diagnostics import JobDiagnostics
from headway.core.job import ClassKey, State
from headway.core.policy.document import Policy
from headway.core.policy.lanes import LaneView, service_order
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerInfo, WorkerState, serves


def position(diagnosis: JobDiagnostics, policy: Policy) -> int | None:
    """Count the jobs that would start before this one. Return None once it has started or ended."""
    job, queue = diagnosis.job, diagnosis.queue
    if job.state is not State.QUEUED:
        return None
    key = ClassKey(job.lane, job.needs, job.rung)
    ahead = diagnosis.ahead
    if job.due_at is not None or job.blocked_by is not None:  # The job is in no queue yet, so it comes last.
        ahead = waiting_in(queue.snapshot, key)
    return QueuePositions(queue.snapshot, policy, queue.workers).of(key, ahead)


def waiting_in(snapshot: Snapshot, key: ClassKey) -> int:
    """Return how many jobs of a class wait."""
    return sum(view.waiting for view in snapshot.classes if view.key == key)


class QueuePositions:
    """The positions of jobs in one snapshot.

    Rule 1: all jobs of lanes that are served before the job's lane start before it.
    Rule 2: of the other classes of its lane the same part goes first as of its own class.
    Rule 3: lanes that share its turn start as many jobs meanwhile as their weights allow.
    Without ``workers``, or if none of them can run the job, one worker is assumed that offers every need in the queue.
    """

    def __init__(self, snapshot: Snapshot, policy: Policy, workers: Iterable[WorkerInfo] | None = None) -> None:
        self._snapshot = snapshot
        self._policy = policy
        self._workers = [worker for worker in workers or () if worker.state is WorkerState.ACTIVE]
        self._orders: dict[tuple[str, ...], list[list[LaneView]]] = {}  # By needs.

    def of(self, key: ClassKey, ahead: int) -> int:
        """Count the jobs that would start before one with ``ahead`` jobs of its class before it."""
        groups = self._orders.get(key.needs)
        if groups is None:
            groups = self._orders[key.needs] = service_order(self._snapshot, self._offers(key), self._policy)
        before = 0
        for group in groups:
            own = next((line for line in group if line.name == key.lane), None)
            if own is None:
                before += sum(line.waiting for line in group)
                continue
            in_lane = _in_lane(own, key, ahead)
            turns = (in_lane + 1) / own.lane.weight
            beside = (min(line.waiting, int(turns * line.lane.weight)) for line in group if line is not own)
            return before + in_lane + sum(beside)
        return before + ahead  # Nothing of its lane can start now.

    def _offers(self, key: ClassKey) -> frozenset[str]:
        able = [worker for worker in self._workers if serves(key.needs, frozenset(worker.offers))]
        if able:
            return frozenset(offer for worker in able for offer in worker.offers)
        return frozenset(need for view in self._snapshot.classes for need in view.key.needs) | frozenset(key.needs)


def _in_lane(line: LaneView, key: ClassKey, ahead: int) -> int:
    """Count the jobs of a lane that go first."""
    views = [view for view in line.views if view.blocked is None]
    own = next((view.waiting for view in views if view.key == key), 0)
    others = sum(view.waiting for view in views if view.key != key)
    return ahead + (others if own <= ahead else others * ahead // own)
