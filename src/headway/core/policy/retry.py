"""What happens to a leased job when its run ends: the only way out of ``executing``.

Every worker, parent and reaper calls ``judge``, so attempts and crashes are counted in one place:

Rule 1: the claim counts an attempt. It is given back only where the job did nothing wrong: a drain, a snooze, a rate
        limit, a claim that never started, or a task that this worker does not know.
Rule 2: a failed job runs again while attempts used <= max_retries. Then it becomes a dead letter.
Rule 3: a crash counts as an attempt and as a crash. After ``crash_limit`` crashes the job becomes a dead letter.
Rule 4: a job asked to stop never goes back to the queue. Where it would, it is cancelled.
Rule 5: a transient job never goes back either. The store only counts its end.
Rule 6: a job stopped by the length of its rung does what its client chose: it fails, queues again for a longer rung
        (the ladder bounds how often, so no attempt is used), or completes with its partial result.
Rule 7: a session never goes back to the queue, where its client would be gone. If its run failed it fails, and if it
        would go back unharmed it is cancelled.
Rule 8: a job whose record cannot be read never runs. When its lease ends, it becomes a dead letter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import NamedTuple, assert_never

from headway.core.errors import JobError
from headway.core.job import RetryRule, State
from headway.core.lease import Lease, Report
from headway.core.policy.document import HALTED, INTERACTIVE, Policy
from headway.core.worker import TASK

_CANCELLED = "cancelled while executing"
_COMPLETED = State.COMPLETED  # Looked up once, since Python 3.11 searches for an enum's member each time.
_KEPT = itemgetter(*map(Lease._fields.index, ("job_id", "seq", "token", "attempts", "crashes", "timeout_ms")))
_NO_MORE = tuple(Report._field_defaults[name] for name in Report._fields[11:])
_as_report = partial(tuple.__new__, Report)
BACKOFFS = ("exponential", "linear", "fixed")  # How ``backoff_ms`` computes a delay.
DELAY_MS_MAX = 366 * 24 * 3_600_000  # A year. Longer delays from tasks are mistakes and are clamped.


class Returned(NamedTuple):  # A tuple, since one is made for every job.
    """The task returned. Its result is encoded, or ``result_error`` says why it could not be stored."""

    result: bytes | None
    result_error: str | None = None


@dataclass(frozen=True, slots=True)
class Raised:
    """The task raised. ``after_ms`` overrides the backoff; ``error.retriable`` false ends the job.

    ``partial``: the encoded partial result. The job keeps it if this attempt is its last.
    """

    error: JobError
    after_ms: int | None = None
    partial: bytes | None = None


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The task asked to run later without using an attempt."""

    after_ms: int
    reason: str = "snoozed"


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The attempt ran past its timeout and was stopped. ``error.retriable`` false ends the job.

    ``partial``: the encoded partial result.
    """

    error: JobError
    partial: bytes | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """The attempt was stopped because the job was cancelled."""

    reason: str = _CANCELLED


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process that ran the job died, or its lease ended without a report."""

    cause: str


@dataclass(frozen=True, slots=True)
class Released:
    """The job goes back unharmed: a drain, or a claim that never started."""

    reason: str = "released"


@dataclass(frozen=True, slots=True)
class Unknown:
    """This worker does not know the task."""


Ending = Returned | Raised | Snoozed | TimedOut | Stopped | Crashed | Released | Unknown


def judge(ending: Ending, lease: Lease, policy: Policy, *, chance: float = 0.0) -> Report:
    """Return the report that decides what happens to a leased job.

    ``chance`` is a random number in [0, 1) for the jitter of the backoff. The caller passes it, so that the same inputs
    give the same report.
    """
    if not lease.persist:
        return _transient(ending, lease)
    match ending:
        case Returned():  # The usual case comes first. ``_completed`` unpacks it faster than a pattern.
            return _completed(ending, lease)
        case _ if lease.unreadable is not None:  # Rule 8.
            error = JobError("UnreadableJob", lease.unreadable, retriable=False)
            return _report(lease, State.DEAD_LETTER, error=error, reason="unreadable")
        case Stopped(reason):
            return _report(lease, State.CANCELLED, reason=reason)
        case Raised(error, after_ms, partial):
            if not error.retriable:
                return _report(lease, State.FAILED, partial, error=error, reason="not_retriable")
            return _again(
                lease, policy, error=error, reason="failed", after_ms=after_ms, chance=chance, partial=partial
            )
        case TimedOut(error, partial) if lease.budget_ms is not None and lease.budget_ms <= lease.timeout_ms:
            return _stopped(lease, policy, error, partial, chance)
        case TimedOut(error, partial) if not error.retriable:
            return _report(lease, State.FAILED, partial, error=error, reason="time_limit")
        case TimedOut(error, partial):
            return _again(lease, policy, error=error, reason="timeout", grow=True, chance=chance, partial=partial)
        case Crashed(cause):
            error = JobError(type="WorkerDied", message=cause)
            crashes = lease.crashes + 1
            if crashes >= policy.crash_limit and not lease.cancel_requested and lease.rung != INTERACTIVE:
                return _report(lease, State.DEAD_LETTER, error=error, reason="crash_limit", crashes=crashes)
            return _again(lease, policy, error=error, reason="crash", crashes=crashes, chance=chance)
        case Snoozed(after_ms, reason):
            return _back(lease, reason=reason, delay_ms=_clamp(after_ms))
        case Released(reason):
            return _back(lease, reason=reason, front=True)
        case Unknown():
            return _back(lease, reason="unknown_task", front=True, needs=(f"{TASK}{lease.task}",))
        case _ as never:
            assert_never(never)


def _completed(ending: Returned, lease: Lease) -> Report:
    """Return what ``_report`` does, at a third of its cost."""
    job_id, seq, token, attempts, crashes, timeout_ms = _KEPT(lease)
    result, result_error = ending
    return _as_report(
        (job_id, seq, token, _COMPLETED, result, result_error, None, None, attempts, crashes, timeout_ms, *_NO_MORE)
    )


def _stopped(lease: Lease, policy: Policy, error: JobError, partial: bytes | None, chance: float) -> Report:
    """Apply rule 6."""
    if lease.assigned == HALTED:
        return _report(lease, State.CANCELLED, reason="halted")
    on_stop = "fail" if lease.retry is None else lease.retry.on_stop
    if on_stop == "partial" and partial is not None:
        return _report(lease, State.COMPLETED, partial, reason="partial")
    if on_stop == "retry_longer" and lease.assigned not in [rung.name for rung in policy.ladder.rungs]:
        # The policy has changed. This uses an attempt, so that a worker with an old policy cannot repeat it for ever.
        return _again(lease, policy, error=error, reason="time_limit", chance=chance, partial=partial)
    longer = policy.ladder.longer(lease.assigned) if on_stop == "retry_longer" else None
    if longer is None:
        return _report(lease, State.FAILED, partial, error=error, reason="time_limit")
    return _back(lease, reason="time_limit")._replace(error=error, rung=longer.name)


def _transient(ending: Ending, lease: Lease) -> Report:
    """Apply rule 5: the store counts the end of a transient job, and neither repeats nor keeps anything."""
    match ending:
        case Returned():
            return _report(lease, State.COMPLETED)
        case Stopped() | Released():
            return _report(lease, State.CANCELLED, reason="dropped")
        case _:
            return _report(lease, State.FAILED, reason="failed")


def heed_cancel(report: Report) -> Report:
    """Apply rule 4 for a worker that did not know of the request: a job that would go back is cancelled instead."""
    if report.state is not State.QUEUED:
        return report
    return report._replace(state=State.CANCELLED, reason=_CANCELLED, timeout_ms=0)


def backoff_ms(rule: RetryRule, attempts: int, *, chance: float = 0.0) -> int:
    """Return the milliseconds before the next attempt: 1, 2, 4, 8 … s up to the cap, for the default rule."""
    match rule.backoff:
        case "exponential":
            wait_ms = rule.base_ms * 2 ** min(attempts - 1, 40)
        case "linear":
            wait_ms = rule.base_ms * attempts
        case _:
            wait_ms = rule.base_ms
    wait_ms = min(wait_ms, rule.cap_ms)
    return int(wait_ms * (1 - rule.jitter * chance))


def _again(
    lease: Lease,
    policy: Policy,
    *,
    error: JobError,
    reason: str,
    chance: float,
    crashes: int | None = None,
    after_ms: int | None = None,
    grow: bool = False,
    partial: bytes | None = None,
) -> Report:
    crashes = lease.crashes if crashes is None else crashes
    if lease.cancel_requested:  # Rule 4.
        return _report(lease, State.CANCELLED, partial, error=error, reason=_CANCELLED, crashes=crashes)
    if lease.rung == INTERACTIVE:  # Rule 7.
        return _report(lease, State.FAILED, partial, error=error, reason=reason, crashes=crashes)
    if lease.attempts > lease.max_retries:  # Rule 2.
        return _report(lease, State.DEAD_LETTER, partial, error=error, reason="max_retries_exceeded", crashes=crashes)
    rule = policy.retry if lease.retry is None or lease.retry.backoff == "policy" else lease.retry
    delay_ms = backoff_ms(rule, lease.attempts, chance=chance) if after_ms is None else after_ms
    timeout_ms = grown_timeout_ms(lease, policy) if grow else lease.timeout_ms
    queued = _report(lease, State.QUEUED, error=error, reason=reason, crashes=crashes)
    return queued._replace(timeout_ms=timeout_ms, delay_ms=_clamp(delay_ms))


def grown_timeout_ms(lease: Lease, policy: Policy) -> int:
    """Return the timeout of the attempt after a timeout: longer, but capped by a multiple of the first one."""
    growth, cap = policy.timeout_growth, policy.timeout_growth_cap
    if growth <= 1:
        return lease.timeout_ms
    return int(min(lease.timeout_ms * growth, lease.asked_timeout_ms * cap))


def _back(lease: Lease, *, reason: str, delay_ms: int = 0, front: bool = False, needs: tuple[str, ...] = ()) -> Report:
    if lease.cancel_requested:  # Rule 4.
        return _report(lease, State.CANCELLED, reason=_CANCELLED)
    if lease.rung == INTERACTIVE:  # Rule 7.
        return _report(lease, State.CANCELLED, reason=reason)
    queued = _report(lease, State.QUEUED, reason=reason)
    return queued._replace(attempts=lease.attempts - 1, delay_ms=delay_ms, front=front, needs=needs)  # Rule 1.


def _report(
    lease: Lease,
    state: State,
    result: bytes | None = None,
    *,
    error: JobError | None = None,
    reason: str | None = None,
    crashes: int | None = None,
) -> Report:
    return Report(
        lease.job_id,
        lease.seq,
        lease.token,
        state,
        result,
        None,
        error,
        reason,
        lease.attempts,
        lease.crashes if crashes is None else crashes,
        lease.timeout_ms,
    )


def _clamp(delay_ms: int) -> int:
    return max(0, min(delay_ms, DELAY_MS_MAX))
