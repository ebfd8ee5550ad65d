"""Runs async tasks on the runner's own loop."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from headway.client.invoke import invoke_async
from headway.core.policy.document import INTERACTIVE
from headway.protocol.sessions import AddressSigner
from headway.worker.active_job import ActiveJob
from headway.worker.executors.base import Executor
from headway.worker.session_transport import run_session


class InlineExecutor(Executor):
    """Awaits the task on the runner's loop. To stop a job it cancels the asyncio task of that job."""

    def __init__(self, addresses: AddressSigner | None = None) -> None:
        self._addresses = addresses or AddressSigner(None)

    def call(self, job: ActiveJob) -> Awaitable[Any]:  # Not async: small jobs would pay for a second coroutine.
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
