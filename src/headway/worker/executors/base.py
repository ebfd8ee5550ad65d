"""What an executor is. To add one, name it in ``core.worker.EXECUTORS`` and give it an entry in ``table``."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

from headway.worker.active_job import ActiveJob


class Executor(Protocol):
    """Runs the jobs of the tasks that name it. A runner has one of each kind."""

    threaded: bool  # Whether tasks use their context from other threads than the runner's.

    async def prepare(self, tasks: Sequence[str]) -> None:
        """Get ready for the first job of these tasks."""
        ...

    def call(self, job: ActiveJob) -> Awaitable[Any]:
        """Run a job. Return what its task returned, or raise what the task raised."""
        ...

    def stop(self, job: ActiveJob) -> None:
        """Ask a job to stop."""
        ...

    def kill(self, job: ActiveJob) -> None:
        """End a job without grace, if this executor can: another worker may start it. Any thread may call this."""
        ...

    def shrink(self, job: ActiveJob) -> None:
        """Announce that a running job has got less time."""
        ...

    async def close(self) -> None: ...
