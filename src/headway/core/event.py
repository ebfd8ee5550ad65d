"""The events of a job, derived from two reads of its record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from headway.core.job import JobRecord, State

# ``output`` is what a running program writes. All others are read from the job's record.
EventKind = Literal["queued", "released", "started", "downgraded", "progress", "output", "retried", "finished"]
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)

_QUEUED, _STARTED, _PROGRESS, _RETRIED, _FINISHED, _RELEASED = range(6)  # The order of events within one epoch.


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a job.

    ``place`` orders the events of a job, and is the same in whichever process derives them. An ``estimate`` has none:
    it says when a waiting job is expected to start, which is not in the record.
    """

    kind: EventKind | Literal["estimate"]
    at: int
    job_id: str
    data: dict[str, Any] = field(default_factory=dict)
    place: tuple[int, ...] = field(default=(), compare=False)


def events_between(before: JobRecord | None, after: JobRecord, now_at: int) -> Iterator[Event]:
    """Yield the events of a job between two reads of its record, oldest first.

    A store keeps the failed attempts of a job, so a watcher that reads rarely misses only intermediate progress, and
    the store writes no events. Progress is dated ``now_at``, when the watcher read it.
    """
    if before is None:
        yield Event("queued", after.submitted_at, after.job_id, {"lane": after.lane, "task": after.task}, (0, _QUEUED))
    elif before.held and not after.held and (after.epoch > before.epoch or not after.state.ended):
        released_at = after.eligible_at or after.started_at or now_at
        released = {"lane": after.lane, "task": after.task}
        yield Event("released", released_at, after.job_id, released, (before.epoch, _RELEASED))
    seen = len(before.history) if before else 0
    announced = before.epoch if before else 0
    for attempt in after.history[seen:]:
        if attempt.epoch > announced:
            begun = {"attempt": attempt.number, "worker": attempt.worker_id}
            yield Event("started", attempt.started_at, after.job_id, begun, (attempt.epoch, _STARTED))
            announced = attempt.epoch
        # A job that ended in the queue has no start, so its last attempt was followed by a retry.
        if not (after.state.ended and after.started_at is not None and attempt.epoch == after.epoch):
            data = {"attempt": attempt.number, "reason": attempt.reason}
            if attempt.error:
                data |= {"error": attempt.error.type, "message": attempt.error.message}
            yield Event("retried", attempt.ended_at, after.job_id, data, (attempt.epoch, _RETRIED))
    if after.started_at is not None and after.epoch > announced:
        begun = {"attempt": after.attempts, "worker": after.worker_id}
        yield Event("started", after.started_at, after.job_id, begun, (after.epoch, _STARTED))
    if before is not None and after.assigned is not None and _rung(before) not in (None, _rung(after)):
        lowered = {"duration": after.assigned, "from": before.assigned}
        reached = int((after.progress or 0.0) * 1_000)  # A job may be downgraded at any progress.
        yield Event("downgraded", now_at, after.job_id, lowered, (after.epoch, _PROGRESS, reached, now_at))
    if after.progress is not None and (
        before is None or (before.progress, before.note) != (after.progress, after.note)
    ):
        data = {"fraction": after.progress, "note": after.note}
        yield Event("progress", now_at, after.job_id, data, (after.epoch, _PROGRESS, int(after.progress * 1_000)))
    if after.state.ended and (before is None or _end(before) != _end(after)):
        ended_at = after.finished_at or 0
        yield Event("finished", ended_at, after.job_id, _ending(after), (after.epoch, _FINISHED, ended_at))


def output_place(epoch: int, at: int) -> tuple[int, ...]:
    """Return the place of a piece of a program's output among the events of its job."""
    return (epoch, _PROGRESS, 0, at)


def merge_output(events: Iterable[Event], output: Sequence[Event], last_place: tuple[int, ...]) -> list[Event]:
    """Return events and output in order. ``last_place`` is the place of the last output sent before.

    Progress of 0 beside output is left out: its note only repeats the last line of the output.
    """
    has_output = output or last_place[1:3] == (_PROGRESS, 0)
    shown = [one for one in events if not (has_output and one.kind == "progress" and one.data["fraction"] == 0)]
    return sorted([*shown, *output], key=lambda event: event.place)


def _rung(job: JobRecord) -> tuple[int, str] | None:
    """Return epoch and assigned rung of a job, or None if it has no rung."""
    return None if job.assigned is None else (job.epoch, job.assigned)


def _end(job: JobRecord) -> tuple[int | None, int]:
    """Return the identity of an ending: a job that was retried may end again."""
    return job.finished_at, job.epoch


def _ending(job: JobRecord) -> dict[str, Any]:
    data: dict[str, Any] = {"status": job.state.value, "reason": job.reason}
    if job.state is not State.COMPLETED and job.error:
        data |= {"error": job.error.type, "message": job.error.message}
    return data
