"""The replacement of processes that run jobs, after a number of jobs or above a bound on memory."""

from __future__ import annotations

from typing import NamedTuple

from headway.client.settings import Settings

MIB = 1 << 20
YOUNG = 60.0  # Seconds. A process that exceeds the memory bound earlier is probably not leaking: the bound is too low.
FIRST_PAUSE = 1.0  # Seconds before the second replacement in a row of young processes. It doubles up to ``YOUNG``.
TOO_LOW = "the bound is below what this app needs; raise max_memory_per_child"


class ChildBounds(NamedTuple):
    """The bounds on a process before it is replaced. 0 means no bound."""

    jobs: int = 0
    memory: int = 0  # Bytes.

    @classmethod
    def of(cls, settings: Settings) -> ChildBounds:
        return cls(settings.max_jobs_per_child, settings.max_memory_per_child * MIB)


def replaceable_after(previous: float, lived: float) -> float:
    """Return after how many seconds a new process may be replaced for its memory.

    ``previous`` is the same number of the process before, and ``lived`` its age in seconds. If one process after
    another exceeds the bound at once, replacing them does not help. The pause between them grows to a minute.
    """
    return 0.0 if lived >= max(YOUNG, 2 * previous) else min(max(FIRST_PAUSE, 2 * previous), YOUNG)


class RunnerUse:
    """Decides when a runner asks to be replaced.

    ``began`` and ``ready`` are the moments at which the process started and could claim. A new runner needs about
    their difference to start, so this runner asks that much before it has used up its jobs.
    """

    def __init__(self, bounds: ChildBounds, began: float, ready: float, memory_after: float) -> None:
        self.bounds = bounds
        self.jobs = 0  # Started in the runner's own process.
        self.is_due = False
        self._ready = ready
        self._startup = ready - began
        self._memory_after = memory_after

    def jobs_due(self, now: float) -> bool:
        """Return whether the runner has used up its jobs, or will have before a new runner can have started."""
        if not self.bounds.jobs or not self.jobs:
            return False
        left = self.bounds.jobs - self.jobs
        return left * (now - self._ready) <= self.jobs * self._startup if left > 0 else True

    def memory_exceeded(self, resident: int) -> bool:
        return 0 < self.bounds.memory < resident

    def may_replace_for_memory(self, now: float) -> bool:
        """Return whether a new runner could help: this one has run a job, and is old enough."""
        return self.jobs > 0 and now - self._ready >= self._memory_after
