"""Where a job stands: all that is needed to say why it waits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headway.core.job import JobRecord
from headway.core.policy.document import LimitRule
from headway.core.policy.enforced import EnforcedRules
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerInfo

AHEAD_COUNTED = 10_000  # Jobs ahead are counted exactly up to here,
LANES_COUNTED = 1_000  # and those of whole classes in a picture.


class RunningJob(NamedTuple):
    """A job that runs, as far as others that wait are concerned."""

    task: str
    lane: str
    worker_id: str
    started_at: int
    held: tuple[str, ...]


class QueueDiagnostics(NamedTuple):
    """What waits, what runs and who could run it, at one moment."""

    snapshot: Snapshot
    workers: tuple[WorkerInfo, ...]
    executing: tuple[RunningJob, ...]
    rules: EnforcedRules

    @property
    def now_at(self) -> int:
        return self.snapshot.now_at


class LimitView(NamedTuple):
    """One limit that a job needs room in: how many jobs count against it, and from when another may start."""

    key: str
    rule: LimitRule
    used: int
    conforms_at: int | None


class JobDiagnostics(NamedTuple):
    """One job in the middle of all that. ``ahead`` are those of its class that go first, ``ahead_own`` its tenant's."""

    job: JobRecord
    queue: QueueDiagnostics
    fair: bool = False
    ahead: int = 0
    ahead_own: int = 0
    limits: tuple[LimitView, ...] = ()
    waited_ms: Mapping[str, int] = {}  # Of a job that has started: how long it waited, by reason.
