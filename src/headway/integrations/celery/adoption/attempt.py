"""The attempt of a job that this thread runs, for the code of Celery that the task calls.

With ``self.replace``, or ``self.retry`` with other arguments, the attempt leaves a message that the job runs next. The
job keeps its id, its place in chains and chords, and the options of its first call. Steps of the job keep the message,
so that an attempt after a crash runs it too.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headway.client.codec import decode_result
from headway.client.context import Context
from headway.core.job import PAYLOAD_VERSION
from headway.core.workflow import STEP_BYTES_MAX
from headway.integrations.celery.adoption.message import CALL, MessageSignature, TaskMessage, read_message

if TYPE_CHECKING:
    from headway.integrations.celery.adoption.adoption import Adoption

KEY = "celery.message:"  # Before the epoch of the attempt that kept a message.
PART = STEP_BYTES_MAX // 2 - 2  # Characters of one step. JSON may escape each, and adds quotes and a version.


class NextMessage(NamedTuple):
    """A message that a job runs in place of the one that it has run so far.

    ``waker``: the job that wakes this one when the tasks before the message have ended. ``epoch`` and ``attempts``:
    how many claims and attempts earlier messages have used.
    """

    task: str
    message: TaskMessage
    waker: str | None = None
    epoch: int = 0
    attempts: int = 0

    def keep(self, adoption: Adoption, context: Context) -> None:
        """Keep the message in steps of the running job. Raises ``PayloadError``, ``StepError``."""
        signature = MessageSignature(self.task, adoption.app.tasks[self.task].run)
        payload = signature.encode({CALL: self.message}, largest=adoption.headway.settings.payload_max)
        text = payload[len(PAYLOAD_VERSION) :].decode()
        parts = [text[start : start + PART] for start in range(0, len(text), PART)]
        key = f"{KEY}{context.epoch}"
        for number, part in enumerate(parts):
            context.step(f"{key}:{number}", str, part)
        about = {
            "task": self.task, "waker": self.waker, "epoch": self.epoch, "attempts": self.attempts,
            "parts": len(parts),
        }  # fmt: skip
        context.step(key, dict, about)  # It comes last and makes the message count.


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


def kept_message(adoption: Adoption, job_id: str) -> NextMessage | None:
    """Return the last message that a job has kept, or None if it runs its first one."""
    steps = adoption.app.backend.read_steps(job_id)
    keys = [key for key in steps if key.startswith(KEY) and ":" not in key.removeprefix(KEY)]
    if not keys:
        return None
    about: dict[str, Any] = decode_result(steps[keys[-1]])
    text = "".join(decode_result(steps[f"{keys[-1]}:{number}"]) for number in range(about.pop("parts")))
    return NextMessage(message=read_message(PAYLOAD_VERSION + text.encode()), **about)
