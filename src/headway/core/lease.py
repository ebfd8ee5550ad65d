"""A lease: a worker's time-limited right to a job, proved by a random token."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from headway.core.errors import JobError
from headway.core.job import ClassKey, JobId, RetryRule, State

TOKEN_BYTES = 16


class Lease(NamedTuple):
    """A job in the hands of a worker.

    ``attempts`` counts this run too: a crash is never free. ``epoch`` grows with every claim
    and never falls; tasks may hand it to outside systems that can compare.
    A transient job's lease has an empty token: nothing is kept of it, so nothing is reported.
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
    asked_timeout_ms: int  # Before any growth.
    retry: RetryRule | None
    started_at: int
    cancel_requested: bool = False
    needs: tuple[str, ...] = ()
    worker_id: str = ""
    rung: str | None = None  # The duration it asked for.
    assigned: str | None = None  # The rung it was given; an elastic one may be lowered since.
    budget_ms: int | None = None  # How long that rung lasts.
    submitted_at: int = 0  # 0 for a transient job, of which no store keeps it;
    eligible_at: int = 0  # so too when it last began to wait for a slot.
    unreadable: str | None = None  # Why its record cannot be read; then the rest is as far as it could be.

    @property
    def limit_ms(self) -> int:
        """How long it may run."""
        return self.timeout_ms if self.budget_ms is None else min(self.timeout_ms, self.budget_ms)

    @property
    def class_key(self) -> ClassKey:
        return ClassKey(self.lane, self.needs, self.rung, self.persist)

    @property
    def persist(self) -> bool:
        return bool(self.token)


class Report(NamedTuple):
    """What becomes of a leased job: decided by core, carried out by a store under the lease's token.

    ``state`` is ``queued`` for a job that goes back; then ``delay_ms`` says how long it is held, ``front``
    that it keeps its old place, ``needs`` what its class gains, ``rung`` the duration it asks for from now on
    (None: the same as before), and the counts are those it goes back with.
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
    timeout_ms: int = 0  # 0: the one it had.
    delay_ms: int = 0
    front: bool = False
    needs: tuple[str, ...] = ()
    expired_only: bool = False  # A reaper's report: void if the worker has renewed meanwhile.
    rung: str | None = None


class ReportStatus(StrEnum):
    """How a store answers a report."""

    OK = "ok"
    DUPLICATE = "same"  # This very report was taken before.
    STALE = "lost"  # The lease has ended; nothing was changed.


def late_report_status(report: Report, state: State) -> ReportStatus:
    """Answer a report whose token is the last one of a job that has left ``executing`` for this state.

    If it wanted another ending than the one that stands, it is not the report that was taken. A job that went
    back may have been cancelled in the queue since.
    """
    return ReportStatus.DUPLICATE if report.state in (state, State.QUEUED) else ReportStatus.STALE


def moved_class(key: ClassKey, report: Report) -> ClassKey:
    """Return the class in which a job waits that a report sends back."""
    needs = tuple(sorted({*key.needs, *report.needs})) if report.needs else key.needs
    return key._replace(needs=needs, rung=report.rung or key.rung)
