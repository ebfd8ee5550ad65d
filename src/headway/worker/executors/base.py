"""The base of executors. To add one, name it in ``core.worker.EXECUTORS`` and make one in ``Runner``."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from headway.worker.active_job import ActiveJob


class Executor:
    """Runs the jobs of the tasks that name it. A runner has one of each kind."""

    threaded = False  # Whether tasks use their context in threads other than the runner's.

    async def prepare(self, tasks: Sequence[str]) -> None:
        """Get ready for the first job of these tasks."""

    def call(self, job: ActiveJob) -> Awaitable[Any]:
        """Run a job. Return what its task returned, or raise what the task raised."""
        raise NotImplementedError

    def stop(self, job: ActiveJob) -> None:
        """Ask a job to stop."""
        raise NotImplementedError

    def kill(self, job: ActiveJob) -> None:
        """Kill a job at once, if this executor can, because another worker may start it. Any thread may call this."""

    def shrink(self, job: ActiveJob) -> None:
        """Pass a lower time limit to a running job that does not read it from its context."""

    async def close(self) -> None:
        """Release everything that the executor holds."""
