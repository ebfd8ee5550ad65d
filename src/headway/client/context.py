"""What a running task may know and say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any

from headway.core.lease import Lease

Report = Callable[[float, str | None], None]


class Budget:
    """What is left of an attempt's time."""

    __slots__ = ("_ends", "shrunk")

    def __init__(self, length: float, started: float | None = None) -> None:
        self._ends = (time.monotonic() if started is None else started) + length
        self.shrunk = False

    @property
    def remaining(self) -> float:
        """Seconds until the attempt is stopped; never negative."""
        return max(0.0, self._ends - time.monotonic())


class Context:
    """The running job, handed to tasks made with ``context=True``, to middleware and to dependencies."""

    __slots__ = (
        "_report", "attempt", "budget", "cancelled", "epoch", "job_id", "lane", "state", "task", "tenant", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        job_id: str,
        task: str,
        lane: str = "",
        attempt: int = 1,
        epoch: int = 1,
        tenant: str | None = None,
        trace_id: str = "",
        timeout: float = 3_600.0,
        state: Mapping[str, Any] | None = None,
        report: Report | None = None,
    ) -> None:
        self.job_id = job_id
        self.task = task
        self.lane = lane
        self.attempt = attempt
        self.epoch = epoch
        self.tenant = tenant
        self.trace_id = trace_id
        self.budget = Budget(timeout)
        self.state: Mapping[str, Any] = {} if state is None else state
        self.cancelled = False  # True once the job should stop; threads must look by themselves.
        self._report = report

    def progress(self, fraction: float, note: str | None = None) -> None:
        """Say how far the job has come, 0 to 1. Never blocks; only the latest word is kept."""
        if self._report is not None:
            self._report(min(1.0, max(0.0, float(fraction))), None if note is None else str(note)[:500])

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose lines carry the job."""
        facts = {"job": self.job_id, "task": self.task, "attempt": self.attempt, "trace_id": self.trace_id}
        return _JobLog(logging.getLogger("headway.task"), {"headway": facts})


class _JobLog(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        extra = dict(self.extra or {})
        kwargs["extra"] = {**extra, **kwargs.get("extra", {})}
        return msg, kwargs


# The job that this piece of code runs for; jobs submitted from inside one inherit its trace.
current: ContextVar[Context | None] = ContextVar("headway_context", default=None)


def trace_of(lease: Lease) -> str:
    """Give a job's trace id: its own, or one made of its id, so that none need be stored."""
    return lease.trace_id or lease.job_id.replace("-", "")


def context_of(lease: Lease, state: Mapping[str, Any], report: Report | None) -> Context:
    """Make the context of a leased job."""
    return Context(
        job_id=lease.job_id,
        task=lease.task,
        lane=lease.lane,
        attempt=lease.attempts,
        epoch=lease.epoch,
        tenant=lease.tenant,
        trace_id=trace_of(lease),
        timeout=lease.timeout_ms / 1_000,
        state=state,
        report=report,
    )
