"""Headway: a task queue that tells you when your job will run, why it waits and what would change."""

from headway.client.app import Headway
from headway.client.batch import Batch, BatchStatus, Failure, Results
from headway.client.context import Context
from headway.client.job import Job
from headway.client.job_info import AttemptInfo, JobInfo
from headway.client.options import Depends, Limit, Retry, Unique
from headway.client.programs.output import Artifact, Output
from headway.client.task import Call, Task
from headway.core.errors import (
    BadArguments,
    BadEdge,
    BatchClosed,
    BatchNotFound,
    CommandFailed,
    ConfigError,
    CycleError,
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
    StepError,
    StoreError,
    StoreUnavailable,
    UnknownTask,
    UpstreamFailed,
)
from headway.core.event import Event
from headway.core.job import State
from headway.core.policy.estimate import Estimate
from headway.core.policy.why import Reason
from headway.version import __version__
from headway.worker.embedded import Worker

__all__ = [
    "Artifact", "AttemptInfo", "BadArguments", "BadEdge", "Batch", "BatchClosed", "BatchNotFound", "BatchStatus",
    "Call", "CommandFailed", "ConfigError", "Context", "CycleError", "Depends", "Discard", "Estimate", "Event",
    "Failure", "Headway", "HeadwayError", "IdempotencyConflict", "Job", "JobCancelled", "JobError", "JobFailed",
    "JobInfo", "JobNotFound", "Limit", "NotStored", "Output", "PayloadError", "QueueFull", "RateLimited", "Reason",
    "ResultTimeout", "Results", "Retry", "RetryAfter", "SessionClosed", "Snooze", "State", "StepError",
    "StoreError", "StoreUnavailable", "Task", "Unique", "UnknownTask", "UpstreamFailed", "Worker", "__version__",
]  # fmt: skip
