"""The errors that Headway raises, and the exceptions by which a task steers its job.

Every error is a ``HeadwayError`` with a stable ``code`` and ``facts``. The page docs/reference/python.md
says when each is raised.
"""

from headway.core.errors import (
    BadArguments,
    BadCron,
    BadEdge,
    BatchClosed,
    BatchNotFound,
    CommandFailed,
    ConfigError,
    CycleError,
    Discard,
    HeadwayError,
    IdempotencyConflict,
    IllegalMove,
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    NotAStore,
    NotStored,
    PayloadError,
    PayloadTooLarge,
    PolicyConflict,
    PolicyError,
    QueueFull,
    RateLimited,
    ResultTimeout,
    RetryAfter,
    ServerRefused,
    ServerUnavailable,
    SessionClosed,
    Snooze,
    StepError,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreTooNew,
    StoreUnavailable,
    UnknownOption,
    UnknownTask,
    UpstreamFailed,
    WorkerDied,
)

__all__ = [
    "BadArguments", "BadCron", "BadEdge", "BatchClosed", "BatchNotFound", "CommandFailed", "ConfigError",
    "CycleError", "Discard", "HeadwayError", "IdempotencyConflict", "IllegalMove", "JobCancelled", "JobError",
    "JobFailed", "JobNotFound", "NotAStore", "NotStored", "PayloadError", "PayloadTooLarge", "PolicyConflict",
    "PolicyError",
    "QueueFull", "RateLimited", "ResultTimeout", "RetryAfter", "ServerRefused", "ServerUnavailable",
    "SessionClosed", "Snooze", "StepError", "StoreBusy", "StoreCorrupt", "StoreError", "StoreFull", "StoreTooNew",
    "StoreUnavailable", "UnknownOption", "UnknownTask", "UpstreamFailed", "WorkerDied",
]  # fmt: skip
