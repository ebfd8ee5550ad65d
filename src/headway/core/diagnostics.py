"""The state of the queue and of one job in it: the input of ``why`` and of estimates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headway.core.job import JobRecord
from headway.core.policy.document import LimitRule
from headway.core.policy.enforced import EnforcedRules
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerInfo, WorkerState
from headway.core.workflow import Upstream

AHEAD_COUNTED = 10_000  # Jobs. A store counts the jobs ahead of one exactly up to here, which takes a few ms,
LANES_COUNTED = 1_000  # and the waiting jobs of each class in a snapshot up to here.


class RunningJob(NamedTuple):
    """A running job: its worker, its start, and the limit counters that it holds."""

    task: str
    lane: str
    worker_id: str
    started_at: int
    held: tuple[str, ...]


class QueueDiagnostics(NamedTuple):
    """The waiting classes, the running jobs, the workers and the enforced rules at one moment."""

    snapshot: Snapshot
    workers: tuple[WorkerInfo, ...]
    executing: tuple[RunningJob, ...]
    rules: EnforcedRules

    @property
    def now_at(self) -> int:
        return self.snapshot.now_at

    @property
    def active_workers(self) -> list[WorkerInfo]:
        return [worker for worker in self.workers if worker.state is WorkerState.ACTIVE]


class LimitView(NamedTuple):
    """One limit that applies to a job: how many jobs count against it, and when its rate allows the next start."""

    key: str
    rule: LimitRule
    used: int
    conforms_at: int | None


class JobDiagnostics(NamedTuple):
    """One job in the queue. ``ahead`` counts the jobs of its class before it, ``ahead_own`` those of its tenant."""

    job: JobRecord
    queue: QueueDiagnostics
    fair: bool = False
    ahead: int = 0
    ahead_own: int = 0
    limits: tuple[LimitView, ...] = ()
    upstreams: tuple[Upstream, ...] = ()  # While the job is held: what it waits for, without results.
    waited_ms: Mapping[str, int] = {}  # Once the job has started: milliseconds that it waited, by reason.
