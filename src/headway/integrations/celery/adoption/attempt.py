"""The attempt of a job that this thread runs, for the code of Celery that the task calls."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from headway.client.context import Context
from headway.integrations.celery.adoption.message import TaskMessage
from headway.integrations.celery.adoption.next_message import NextMessage


@dataclass(slots=True)
class RunningAttempt:
    """The requests of a running task so far."""

    context: Context
    task: str
    message: TaskMessage
    retry_after: float | None = None  # Seconds until the next attempt that the task asked for.
    state: tuple[str, Any] | None = None  # The last state and its meta that the task set.
    result: Any = None  # The plain result.
    children: list[Any] | None = None  # The results of the tasks that it sent, as tuples.
    kept: NextMessage | None = None  # The message that an earlier attempt kept, if this one runs it.
    replaced_after: float | None = None  # Seconds until the task that replaces this one may run.
    next: NextMessage | None = None  # What ``self.replace`` or ``self.retry`` with other arguments asked for.

    @property
    def job_id(self) -> str:
        return self.context.job_id


running: ContextVar[RunningAttempt | None] = ContextVar("headway_celery_attempt", default=None)
