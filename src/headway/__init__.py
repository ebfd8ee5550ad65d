"""Headway: a task queue that tells you when your job will run, why it waits and what would change."""

from headway.client.app import Headway
from headway.client.context import Context
from headway.client.job import Job
from headway.client.options import Depends, Limit, Retry, Unique
from headway.client.programs.output import Artifact, Output
from headway.client.task import Call, Task
from headway.core.errors import (
    CommandFailed,
    Discard,
    HeadwayError,
    IdempotencyConflict,
    JobCancelled,
    JobFailed,
    JobNotFound,
    NotStored,
    PayloadError,
    RateLimited,
    RetryAfter,
    SessionClosed,
    Snooze,
)
from headway.core.event import Event
from headway.core.job import State
from headway.core.policy.estimate import Estimate
from headway.core.policy.why import Reason
from headway.version import __version__
from headway.worker.embedded import Worker

__all__ = [
    "Artifact",
    "Call",
    "CommandFailed",
    "Context",
    "Depends",
    "Discard",
    "Estimate",
    "Event",
    "Headway",
    "HeadwayError",
    "IdempotencyConflict",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobNotFound",
    "Limit",
    "NotStored",
    "Output",
    "PayloadError",
    "RateLimited",
    "Reason",
    "Retry",
    "RetryAfter",
    "SessionClosed",
    "Snooze",
    "State",
    "Task",
    "Unique",
    "Worker",
    "__version__",
]
