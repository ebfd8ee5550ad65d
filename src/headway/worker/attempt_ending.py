"""Decides how an attempt ended, from what its task returned or raised and why the job was stopped."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from headway.client.context import NOTHING
from headway.core.errors import JobError
from headway.core.policy.retry import Ending, Raised, Released, Returned, Stopped, TimedOut
from headway.worker.active_job import ActiveJob
from headway.worker.executors.process import Encoded
from headway.worker.outcomes import raised, returned
from headway.worker.slot_table import Stop


def ending_of_value(job: ActiveJob, value: Any, largest: int) -> Returned:
    """Return the ending of a job whose task returned. A process has already encoded the value."""
    if isinstance(value, Encoded):
        return Returned(value.payload, value.error)
    return returned(value, job.task, largest)


def ending_of_error(job: ActiveJob, error: BaseException, largest: int) -> Ending | None:
    """Return the ending of a job whose task raised, with the partial result it handed in."""
    if job.stop is Stop.LOST:
        return None  # The lease is lost, so the store would refuse a report.
    if isinstance(error, asyncio.CancelledError):
        if job.stop is Stop.CANCEL:
            return Stopped()
        if job.stop is Stop.DRAIN:
            return Released("drained")
    ending = raised(error, job.task)
    if isinstance(ending, Raised) and job.context.kept is not NOTHING:
        return replace(ending, partial=ending_of_value(job, job.context.kept, largest).result)
    return ending


def ending_of_timeout(job: ActiveJob, ending: Ending | None, largest: int) -> TimedOut:
    """Return the ending of a job that ran out of time, with the partial result it handed in."""
    seconds, rule, partial = job.lease.limit_ms / 1_000, job.lease.retry, None
    if isinstance(ending, Returned) and rule is not None and rule.on_stop == "partial":
        partial = ending.result  # The task returned after it was asked to stop.
    elif job.context.kept is not NOTHING:
        partial = ending_of_value(job, job.context.kept, largest).result
    error = JobError("TimeoutError", f"time limit ({seconds:g} s)", retriable=not job.task.gives_up_on_timeouts)
    return TimedOut(error, partial)
