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


class HeadwayError(Exception):
    """Headway could not do what was asked."""

    code = "error"  # Stable: HTTP replies, logs and users match on it.

    def __init__(self, message: str | None = None, **facts: object) -> None:
        super().__init__(message or type(self).__doc__)
        self.facts = facts


class ConfigError(HeadwayError, ValueError):
    """A setting has a value that cannot be used."""

    code = "config"


class UnknownOption(ConfigError):
    """No setting or option has this name."""

    code = "unknown_option"


class BadCron(ConfigError):
    """A cron expression cannot be read."""

    code = "bad_cron"


class PolicyProblem(NamedTuple):
    """One problem in a policy: the path of its key (empty for the whole), and what was expected and found."""

    key: str
    text: str

    def __str__(self) -> str:
        return f"{self.key}: {self.text}" if self.key else self.text


class PolicyError(ConfigError):
    """A policy cannot be used. ``problems`` lists every problem; the message has a line for each."""

    code = "policy"

    def __init__(self, message: str | None = None, *, problems: Sequence[PolicyProblem] = (), **facts: object) -> None:
        super().__init__(message, **facts)
        self.problems = tuple(problems) or (PolicyProblem("", str(self)),)


class PayloadError(HeadwayError, ValueError):
    """A value cannot be stored as JSON."""

    code = "payload"


class PayloadTooLarge(PayloadError):
    """The arguments of a job are larger than the store accepts."""

    code = "payload_too_large"


class BadArguments(PayloadError, TypeError):
    """The arguments do not fit the task's signature."""

    code = "bad_arguments"


class UnknownTask(HeadwayError, LookupError):
    """No task of this name is registered in this app."""

    code = "unknown_task"


class JobNotFound(HeadwayError, LookupError):
    """The store has no job with this id; it may have been pruned."""

    code = "job_not_found"


@dataclass(frozen=True, slots=True)
class JobError:
    """The error of an attempt as text: the name of its type, its message and its traceback."""

    type: str
    message: str
    traceback: str = ""
    retriable: bool = True


class JobFailed(HeadwayError):
    """The job ended without a result.

    ``partial`` is the value that its last attempt passed to ``Context.partial``, or the ``Output`` of a program, or
    None.
    """

    code = "job_failed"

    def __init__(
        self, message: str | None = None, *, error: JobError | None = None, partial: Any = None, **facts: object
    ) -> None:
        super().__init__(message, **facts)
        self.error = error or JobError(type="Unknown", message=str(self))
        self.partial = partial


class JobCancelled(HeadwayError):
    """The job was cancelled, or expired before it ran."""

    code = "job_cancelled"


class CommandFailed(HeadwayError):
    """The program of a command failed.

    ``exit_code`` is negative for a signal, and None if the program never ran. ``retriable`` is false if another
    attempt would fail in the same way.
    """

    code = "command_failed"

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


class NotStored(HeadwayError):
    """The store keeps neither state nor result of a transient job."""

    code = "not_stored"


class ResultTimeout(HeadwayError, TimeoutError):
    """The job did not finish before the timeout."""

    code = "result_timeout"


class IdempotencyConflict(HeadwayError):
    """The idempotency key or job id was used before, with another payload."""

    code = "idempotency_conflict"


class QueueFull(HeadwayError):
    """The queue is full: the policy allows no more waiting jobs. Try again later."""

    code = "queue_full"


class IllegalMove(HeadwayError):
    """The job's state does not allow this."""

    code = "illegal_move"


class LeaseLost(HeadwayError):
    """The lease has ended, so its report changes nothing."""

    code = "lease_lost"


class WorkerUnknown(HeadwayError):
    """The store does not know this worker, or has declared it dead. The worker must register again."""

    code = "worker_unknown"


class TooMany(HeadwayError):
    """The server allows no more of these at once. Try again later."""

    code = "too_many"


class SessionClosed(HeadwayError, EOFError):
    """The other end of this session has disconnected."""

    code = "session_closed"


class StoreError(HeadwayError):
    """The store could not do what was asked."""

    code = "store"


class StoreUnavailable(StoreError):
    """The store does not answer; the call may be repeated."""

    code = "store_unavailable"


class StoreBusy(StoreUnavailable):
    """Another process has kept the store locked for too long."""

    code = "store_busy"


class ServerUnavailable(StoreUnavailable):
    """The server does not answer, or cannot serve the call now; the call may be repeated."""

    code = "server_unavailable"


class ServerRefused(StoreError):
    """The server refused the request. ``code`` is the server's own."""

    code = "server_refused"

    def __init__(self, message: str | None = None, *, code: str | None = None, **facts: object) -> None:
        super().__init__(message, **facts)
        if code is not None:
            self.code = code


class StoreFull(StoreError):
    """The store has no room left."""

    code = "store_full"


class NotAStore(StoreError):
    """The address does not lead to a Headway store."""

    code = "not_a_store"


class StoreTooNew(StoreError):
    """The store was written by a newer Headway."""

    code = "store_too_new"


class StoreCorrupt(StoreError):
    """The store's data are damaged."""

    code = "store_corrupt"


class WorkerDied(HeadwayError):
    """The process that ran a job died. Jobs record it as their error; Headway never raises it."""

    code = "worker_died"


class Steer(Exception):
    """Base of the exceptions that a task raises to decide what happens to its job."""


class RetryAfter(Steer):
    """Fail this attempt and run the next one after ``seconds``."""

    def __init__(self, seconds: float | timedelta, reason: str | None = None) -> None:
        super().__init__(reason or f"retry after {seconds} s")
        self.seconds = seconds


class Snooze(Steer):
    """Run again after ``seconds``; no attempt is used."""

    def __init__(self, seconds: float | timedelta, reason: str | None = None) -> None:
        super().__init__(reason or f"snoozed for {seconds} s")
        self.seconds = seconds


class RateLimited(Steer):
    """Run again after the pause that an outside service asked for; no attempt is used."""

    def __init__(self, after: float | timedelta, reason: str | None = None) -> None:
        super().__init__(reason or f"rate limited, retry after {after} s")
        self.seconds = after


class Discard(Steer):
    """End this job as failed, with no further attempt."""

    def __init__(self, reason: str = "discarded by the task") -> None:
        super().__init__(reason)
