"""The functions of a worker that the contexts of its jobs call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from headway.client.app import Headway
from headway.client.members import MemberPage
from headway.core.job import State
from headway.core.workflow import BatchId
from headway.worker.backend.base import Backend


class WorkerRuntime:
    """Reads batches and keeps steps for running jobs, on the loop of their runner."""

    def __init__(self, app: Headway, backend: Backend) -> None:
        self.app = app
        self.steps = backend.steps
        self.record_step = backend.record_step
        self.loop: asyncio.AbstractEventLoop | None = None  # The runner's, once it runs.
        self._read_members = backend.read_members
        self.read_members = None if backend.read_members is None else self._read_on_loop

    async def _read_on_loop(self, batch_id: BatchId, states: Sequence[State], cursor: str | None) -> MemberPage:
        """Read on the runner's loop, whose connections to the server belong to it."""
        if self._read_members is None or self.loop is None:
            raise RuntimeError("no job runs before its runner")
        reading = self._read_members(batch_id, states, cursor)
        if asyncio.get_running_loop() is self.loop:
            return await reading
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(reading, self.loop))

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the runner's loop for a task in a thread."""
        if self.loop is None:
            raise RuntimeError("no job runs before its runner")
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()
