"""Async tasks, on the runner's own loop."""

from __future__ import annotations

from typing import Any

from headway.client.invoke import invoke_async
from headway.core.policy.document import INTERACTIVE
from headway.worker.dialling import converse
from headway.worker.running import Running


class InlineExecutor:
    """Awaits the task. Stopping it cancels the asyncio task it runs in."""

    async def call(self, job: Running) -> Any:
        if job.lease.rung == INTERACTIVE:
            return await converse(job, lambda payload: self._call(job, payload))
        return await self._call(job, job.lease.payload)

    async def _call(self, job: Running, payload: bytes) -> Any:
        task = job.task
        args, kwargs = task.signature.decode(payload)
        if task.options.context:
            args.insert(0, job.context)
        dependencies = task.signature.dependencies
        if not dependencies:
            return await task.fn(*args, **kwargs)
        return await invoke_async(task.fn, args, kwargs, dependencies, job.context)

    def stop(self, job: Running) -> None:
        job.context.cancelled = True
        if job.handle is not None:
            job.handle.cancel()

    def shrink(self, job: Running) -> None: ...  # The context knows.

    async def close(self) -> None: ...
