"""A lease: a worker's time-limited right to a job, proved by a random token."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from headway.core.errors import JobError
from headway.core.job import ClassKey, JobId, RetryRule, State

TOKEN_BYTES = 16  # 128 random bits: no token is ever guessed or repeated.


class Lease(NamedTuple):
    """A job that a worker has claimed.

    ``attempts`` counts this run too, so a crash uses an attempt. ``epoch`` grows with every claim and never falls, so
    a task may pass it to outside systems as a fencing token. The lease of a transient job has an empty token, since
    the store keeps nothing of the job and takes no report.
    """

    job_id: JobId
    seq: int
    token: bytes
    task: str
    payload: bytes
    lane: str
    tenant: str | None
    trace_id: str | None
    epoch: int
    attempts: int
    crashes: int
    max_retries: int
    timeout_ms: int
    asked_timeout_ms: int  # The timeout at submission, before any growth.
    retry: RetryRule | None
    started_at: int
    cancel_requested: bool = False
    needs: tuple[str, ...] = ()
    worker_id: str = ""
    rung: str | None = None  # The duration that the job asked for.
    assigned: str | None = None  # The rung assigned at the claim. An elastic job may have been lowered since.
    budget_ms: int | None = None  # The length of the assigned rung.
    submitted_at: int = 0  # 0 for a transient job.
    eligible_at: int = 0  # When the job last began to wait for a slot; 0 for a transient job.
    batch_id: str | None = None
    unreadable: str | None = None  # Why the job's record cannot be read. The other fields then hold what could be read.

    @property
    def limit_ms(self) -> int:
        """Return how many milliseconds the job may run."""
        return self.timeout_ms if self.budget_ms is None else min(self.timeout_ms, self.budget_ms)

    @property
    def class_key(self) -> ClassKey:
        return ClassKey(self.lane, self.needs, self.rung, self.persist)

    @property
    def persist(self) -> bool:
        return bool(self.token)


class Report(NamedTuple):
    """The next state of a leased job. Core decides it, and a store applies it under the lease's token.

    ``state`` is ``queued`` for a job that goes back to the queue. Then ``delay_ms`` is its delay, ``front`` keeps its
    old place, ``needs`` are added to its class, ``rung`` replaces its duration (None keeps it), and ``attempts`` and
    ``crashes`` are its new counts.
    """

    job_id: JobId
    seq: int
    token: bytes
    state: State
    result: bytes | None = None
    result_error: str | None = None
    error: JobError | None = None
    reason: str | None = None
    attempts: int = 0
    crashes: int = 0
    timeout_ms: int = 0  # 0 keeps the old timeout.
    delay_ms: int = 0
    front: bool = False
    needs: tuple[str, ...] = ()
    expired_only: bool = False  # Set by the reaper: the report is void if the worker has renewed the lease meanwhile.
    rung: str | None = None


class ReportStatus(StrEnum):
    """How a store answers a report."""

    OK = "ok"
    DUPLICATE = "same"  # The store applied this report before.
    STALE = "lost"  # The lease has ended, and the report changed nothing.


def late_report_status(report: Report, state: State) -> ReportStatus:
    """Return the answer to a report whose token is the last one of a job that has left ``executing`` for ``state``.

    A report with another ending than the stored one was not the report that the store applied. A job that went back
    to the queue may have been cancelled there since.
    """
    return ReportStatus.DUPLICATE if report.state in (state, State.QUEUED) else ReportStatus.STALE


def moved_class(key: ClassKey, report: Report) -> ClassKey:
    """Return the class of a job after a report sends it back to the queue."""
    needs = tuple(sorted({*key.needs, *report.needs})) if report.needs else key.needs
    return key._replace(needs=needs, rung=report.rung or key.rung)
