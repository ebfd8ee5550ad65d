"""Every error Headway raises, and the exceptions by which a task steers.

    HeadwayError
    ├── ConfigError (ValueError)        a setting, option or file is wrong
    │   ├── UnknownOption               ... its name is not known
    │   ├── BadCron                     ... a cron expression cannot be read
    │   └── PolicyError                 ... a policy cannot be used; it lists every problem
    ├── PayloadError (ValueError)       an argument or result cannot be stored
    │   ├── PayloadTooLarge
    │   └── BadArguments (TypeError)    the arguments do not fit the task's signature
    ├── UnknownTask (LookupError)       this app has no task of that name
    ├── JobNotFound (LookupError)
    ├── JobFailed, JobCancelled         how a job ended, raised by result()
    ├── CommandFailed                   the program of a command failed
    ├── NotStored                       the store keeps no state of a transient job
    ├── ResultTimeout (TimeoutError)    result() reached its timeout
    ├── IdempotencyConflict             the key was used with another payload
    ├── QueueFull                       the policy allows no more waiting jobs
    ├── IllegalMove                     the job's state does not allow it
    ├── CycleError (ValueError)         the calls of a graph wait for each other
    ├── BadEdge (ValueError)            a job cannot wait for this
    ├── BatchNotFound (LookupError)
    ├── BatchClosed                     a batch that has ended takes no more jobs
    ├── UpstreamFailed                  an argument is the result of a job that did not complete
    ├── StepError (ValueError)          a step cannot be kept
    ├── LeaseLost                       the lease has ended; the report changes nothing
    ├── WorkerUnknown                   the store does not know this worker, or has declared it dead
    ├── TooMany                         more at once than the server allows
    ├── SessionClosed (EOFError)        the other end of a session has disconnected
    └── StoreError
        ├── StoreUnavailable            temporary; the call can be repeated
        │   ├── StoreBusy               locked by another process for too long
        │   └── ServerUnavailable       the Headway server does not answer, or not now
        ├── ServerRefused               the Headway server refused, with a code of its own
        ├── StoreFull                   no room left
        ├── NotAStore                   the file or server holds something else
        ├── StoreTooNew                 written by a newer Headway
        └── StoreCorrupt

Steering exceptions (``RetryAfter``, ``Snooze``, ``RateLimited``, ``Discard``) are raised by tasks and are not errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from headway.core.text_position import Position


class HeadwayError(Exception):
    """Headway could not do what was asked."""

    code = "error"  # Stable: HTTP replies, logs and users match on it.

    def __init_subclass__(cls, *, code: str | None = None, **others: Any) -> None:
        super().__init_subclass__(**others)
        if code is not None:
            cls.code = code

    def __init__(self, message: str | None = None, **facts: object) -> None:
        super().__init__(message or type(self).__doc__)
        self.facts = facts


class ConfigError(HeadwayError, ValueError, code="config"):
    """A setting has a value that cannot be used."""


class UnknownOption(ConfigError, code="unknown_option"):
    """No setting or option has this name."""


class BadCron(ConfigError, code="bad_cron"):
    """A cron expression cannot be read."""


class PolicyProblem(NamedTuple):
    """One problem in a policy: the path of its key (empty for the whole), and what was expected and found.

    ``position`` is where the file has the key, if the policy is from a file.
    """

    key: str
    text: str
    position: Position | None = None

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class PolicyError(ConfigError, code="policy"):
    """A policy cannot be used. ``problems`` lists every problem; the message has a line for each."""

    def __init__(self, message: str | None = None, *, problems: Sequence[PolicyProblem] = (), **facts: object) -> None:
        super().__init__(message, **facts)
        self.problems = tuple(problems) or (PolicyProblem("", str(self)),)


class PolicyConflict(HeadwayError, code="policy_conflict"):
    """Another policy was applied since the caller read the version that its change is based on."""


class ExpectNeeded(HeadwayError, code="expect_needed"):
    """A bulk action would change many jobs, and the caller did not say how many it expects."""


class CountGrew(HeadwayError, code="count_grew"):
    """More jobs fit a bulk action than the caller expects."""


class PayloadError(HeadwayError, ValueError, code="payload"):
    """A value cannot be stored as JSON."""


class PayloadTooLarge(PayloadError, code="payload_too_large"):
    """The arguments of a job are larger than the store accepts."""


class BadArguments(PayloadError, TypeError, code="bad_arguments"):
    """The arguments do not fit the task's signature."""


class UnknownTask(HeadwayError, LookupError, code="unknown_task"):
    """No task of this name is registered in this app."""


class JobNotFound(HeadwayError, LookupError, code="job_not_found"):
    """The store has no job with this id; it may have been pruned."""

    @classmethod
    def of(cls, job_id: str) -> JobNotFound:
        return cls(f"no job {job_id} in the store; it may have been pruned", job_id=job_id)


@dataclass(frozen=True, slots=True)
class JobError:
    """The error of an attempt as text: the name of its type, its message and its traceback."""

    type: str
    message: str
    traceback: str = ""
    retriable: bool = True


MESSAGE_MAX = 8_000  # Characters of a JobError's message that are stored.
TRACEBACK_MAX = 32_000  # Characters of its traceback.


def cut_middle(text: str, most: int) -> str:
    """Shorten a long text to its two ends, and escape surrogates, which UTF-8 cannot encode."""
    if len(text) > most:
        text = f"{text[: most // 2]}\n… {len(text) - most:,} characters left out …\n{text[-most // 2 :]}"
    return text.encode("utf-8", "backslashreplace").decode()


class JobFailed(HeadwayError, code="job_failed"):
    """The job ended without a result.

    ``partial`` is the value that its last attempt passed to ``Context.partial``, or the ``Output`` of a program, or
    None.
    """

    def __init__(
        self, message: str | None = None, *, error: JobError | None = None, partial: Any = None, **facts: object
    ) -> None:
        super().__init__(message, **facts)
        self.error = error or JobError(type="Unknown", message=str(self))
        self.partial = partial


class JobCancelled(HeadwayError, code="job_cancelled"):
    """The job was cancelled, or expired before it ran."""


class CommandFailed(HeadwayError, code="command_failed"):
    """The program of a command failed.

    ``exit_code`` is negative for a signal, and None if the program never ran. ``retriable`` is false if another
    attempt would fail in the same way.
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        exit_code: int | None = None,
        stdout: str = "",
        stderr: str = "",
        retriable: bool = True,
        **facts: object,
    ) -> None:
        super().__init__(message, **facts)
        self.exit_code = exit_code
        self.stdout = stdout
        self.stderr = stderr
        self.retriable = retriable


class NotStored(HeadwayError, code="not_stored"):
    """The store keeps neither state nor result of a transient job."""


class ResultTimeout(HeadwayError, TimeoutError, code="result_timeout"):
    """The job did not finish before the timeout."""


class IdempotencyConflict(HeadwayError, code="idempotency_conflict"):
    """The idempotency key or job id was used before, with another payload."""


class QueueFull(HeadwayError, code="queue_full"):
    """The queue is full: the policy allows no more waiting jobs. Try again later."""


class IllegalMove(HeadwayError, code="illegal_move"):
    """The job's state does not allow this."""


class CycleError(HeadwayError, ValueError, code="cycle"):
    """The calls of a graph wait for each other, so none of them could ever run."""


class BadEdge(HeadwayError, ValueError, code="bad_edge"):
    """A job cannot wait for this: the source is unknown, transient, of another tenant, or one too many.

    A batch of another tenant cannot have the job as a member.
    """


class BatchNotFound(HeadwayError, LookupError, code="batch_not_found"):
    """The store has no batch with this id; it may have been pruned."""

    @classmethod
    def of(cls, batch_id: str) -> BatchNotFound:
        return cls(f"no batch {batch_id} in the store; it may have been pruned", batch_id=batch_id)


class BatchClosed(HeadwayError, code="batch_closed"):
    """The batch has ended or was cancelled, so it takes no more jobs."""


class UpstreamFailed(HeadwayError, code="upstream_failed"):
    """An argument is the result of a job that did not complete."""


class StepError(HeadwayError, ValueError, code="step"):
    """A step cannot be kept: its name is used twice, its value is too large, or the job has too many steps."""


class LeaseLost(HeadwayError, code="lease_lost"):
    """The lease has ended, so its report changes nothing."""


class WorkerUnknown(HeadwayError, code="worker_unknown"):
    """The store does not know this worker, or has declared it dead. The worker must register again."""


class TooMany(HeadwayError, code="too_many"):
    """The server allows no more of these at once. Try again later."""


class SessionClosed(HeadwayError, EOFError, code="session_closed"):
    """The other end of this session has disconnected."""


class StoreError(HeadwayError, code="store"):
    """The store could not do what was asked."""


class StoreUnavailable(StoreError, code="store_unavailable"):
    """The store does not answer; the call may be repeated."""


class StoreBusy(StoreUnavailable, code="store_busy"):
    """Another process has kept the store locked for too long."""


class ServerUnavailable(StoreUnavailable, code="server_unavailable"):
    """The server does not answer, or cannot serve the call now; the call may be repeated."""


class ServerRefused(StoreError, code="server_refused"):
    """The server refused the request. ``code`` is the server's own."""

    def __init__(self, message: str | None = None, *, code: str | None = None, **facts: object) -> None:
        super().__init__(message, **facts)
        if code is not None:
            self.code = code


class StoreFull(StoreError, code="store_full"):
    """The store has no room left."""


class NotAStore(StoreError, code="not_a_store"):
    """The address does not lead to a Headway store."""


class StoreTooNew(StoreError, code="store_too_new"):
    """The store was written by a newer Headway."""


class StoreCorrupt(StoreError, code="store_corrupt"):
    """The store's data are damaged."""


class WorkerDied(HeadwayError, code="worker_died"):
    """The process that ran a job died. Jobs record it as their error; Headway never raises it."""


class JobControl(Exception):
    """Base of the exceptions that a task raises to decide what happens to its job."""


class RetryAfter(JobControl):
    """Fail this attempt and run the next one after ``seconds``."""

    def __init__(self, seconds: float | timedelta, reason: str | None = None) -> None:
        super().__init__(reason or f"retry after {seconds} s")
        self.seconds = seconds


class Snooze(JobControl):
    """Run again after ``seconds``; no attempt is used."""

    def __init__(self, seconds: float | timedelta, reason: str | None = None) -> None:
        super().__init__(reason or f"snoozed for {seconds} s")
        self.seconds = seconds


class RateLimited(JobControl):
    """Run again after the pause that an outside service asked for; no attempt is used."""

    def __init__(self, after: float | timedelta, reason: str | None = None) -> None:
        super().__init__(reason or f"rate limited, retry after {after} s")
        self.seconds = after


class Discard(JobControl):
    """End this job as failed, with no further attempt."""

    def __init__(self, reason: str = "discarded by the task") -> None:
        super().__init__(reason)
