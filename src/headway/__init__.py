"""Headway: a task queue that tells you when your job will run, why it waits and what would change."""

from headway.client.app import Headway
from headway.client.context import Context
from headway.client.job import Job
from headway.client.job_info import AttemptInfo, JobInfo
from headway.client.options import Depends, Limit, Retry, Unique
from headway.client.programs.output import Artifact, Output
from headway.client.task import Call, Task
from headway.core.errors import (
    BadArguments,
    CommandFailed,
    ConfigError,
    Discard,
    HeadwayError,
    IdempotencyConflict,
    JobCancelled,
    JobError,
    JobFailed,
    JobNotFound,
    NotStored,
    PayloadError,
    QueueFull,
    RateLimited,
    ResultTimeout,
    RetryAfter,
    SessionClosed,
    Snooze,
    StoreError,
    StoreUnavailable,
    UnknownTask,
)
from headway.core.event import Event
from headway.core.job import State
from headway.core.policy.estimate import Estimate
from headway.core.policy.why import Reason
from headway.version import __version__
from headway.worker.embedded import Worker

__all__ = [
    "Artifact", "AttemptInfo", "BadArguments", "Call", "CommandFailed", "ConfigError", "Context", "Depends",
    "Discard", "Estimate", "Event", "Headway", "HeadwayError", "IdempotencyConflict", "Job", "JobCancelled",
    "JobError", "JobFailed", "JobInfo", "JobNotFound", "Limit", "NotStored", "Output", "PayloadError", "QueueFull",
    "RateLimited", "Reason", "ResultTimeout", "Retry", "RetryAfter", "SessionClosed", "Snooze", "State", "StoreError",
    "StoreUnavailable", "Task", "Unique", "UnknownTask", "Worker", "__version__",
]  # fmt: skip
