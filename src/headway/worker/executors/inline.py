"""Async tasks, on the runner's own loop."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from headway.client.invoke import invoke_async
from headway.core.policy.document import INTERACTIVE
from headway.protocol.sessions import AddressSigner
from headway.worker.active_job import ActiveJob
from headway.worker.session_transport import run_session


class InlineExecutor:
    """Awaits the task. Stopping it cancels the asyncio task it runs in."""

    def __init__(self, addresses: AddressSigner | None = None) -> None:
        self._addresses = addresses or AddressSigner(None)

    def call(self, job: ActiveJob) -> Awaitable[Any]:  # Not async itself: that would cost small jobs a coroutine more.
        lease = job.lease
        if lease.rung == INTERACTIVE:
            return run_session(job, self._addresses, lambda payload: self._call(job, payload))
        return self._call(job, lease.payload)

    def _call(self, job: ActiveJob, payload: bytes) -> Awaitable[Any]:
        task = job.task
        signature = task.signature
        args, kwargs = signature.decode(payload)
        if task.options.context:
            args.insert(0, job.context)
        if signature.dependencies:
            return invoke_async(task.fn, args, kwargs, signature.dependencies, job.context)
        called: Awaitable[Any] = task.fn(*args, **kwargs)
        return called

    def stop(self, job: ActiveJob) -> None:
        job.context.cancelled = True
        if job.handle is not None:
            job.handle.cancel()

    def shrink(self, job: ActiveJob) -> None: ...  # The context knows.

    async def close(self) -> None: ...
