"""Facts for those who watch a job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from headway.core.job import JobRecord, State

_QUEUED, _STARTED, _PROGRESS, _RETRIED, _FINISHED = range(5)  # The order of what happens in one epoch.


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened to a job: queued, started, downgraded, progress, output, retried or finished."""

    kind: str
    at: int
    job_id: str
    data: dict[str, Any] = field(default_factory=dict)
    place: tuple[int, ...] = field(
        default=(), compare=False
    )  # Where it belongs in the job's story: compares, and is the same whoever tells it.


def events_between(before: JobRecord | None, after: JobRecord, now_at: int) -> Iterator[Event]:
    """Yield what happened to a job between two looks at it, oldest first.

    A store keeps a job's failed attempts, so nothing but intermediate progress is missed
    however rarely the watcher looks; and no store writes an event that nobody reads. Progress is dated
    ``now_at``, when it was seen.
    """
    if before is None:
        yield Event("queued", after.submitted_at, after.job_id, {"lane": after.lane, "task": after.task}, (0, _QUEUED))
    seen = len(before.history) if before else 0
    announced = before.epoch if before else 0
    for attempt in after.history[seen:]:
        if attempt.epoch > announced:
            begun = {"attempt": attempt.number, "worker": attempt.worker_id}
            yield Event("started", attempt.started_at, after.job_id, begun, (attempt.epoch, _STARTED))
            announced = attempt.epoch
        # A job that ended in the queue has no start: then its last attempt was not the end of it.
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
        reached = int((after.progress or 0.0) * 1_000)  # It may come at any point of the progress.
        yield Event("downgraded", now_at, after.job_id, lowered, (after.epoch, _PROGRESS, reached, now_at))
    if after.progress is not None and (
        before is None or (before.progress, before.note) != (after.progress, after.note)
    ):
        come = {"fraction": after.progress, "note": after.note}
        yield Event("progress", now_at, after.job_id, come, (after.epoch, _PROGRESS, int(after.progress * 1_000)))
    if after.state.ended and (before is None or _end(before) != _end(after)):
        ended_at = after.finished_at or 0
        yield Event("finished", ended_at, after.job_id, _ending(after), (after.epoch, _FINISHED, ended_at))


def output_place(epoch: int, at: int) -> tuple[int, ...]:
    """Return where a piece of a program's output belongs in the job's story."""
    return (epoch, _PROGRESS, 0, at)


def told_together(events: Iterable[Event], output: Sequence[Event], told: tuple[int, ...]) -> list[Event]:
    """Return events and output in the order of the job's story. ``told``: the place of the last output told before.

    Progress that says no more than the last line of the output is left out.
    """
    has_output = output or told[1:3] == (_PROGRESS, 0)
    kept = [one for one in events if not (has_output and one.kind == "progress" and one.data["fraction"] == 0)]
    return sorted([*kept, *output], key=lambda event: event.place)


def _rung(job: JobRecord) -> tuple[int, str] | None:
    """Return the rung that a job is assigned, and in which run of it; None if it has none."""
    return None if job.assigned is None else (job.epoch, job.assigned)


def _end(job: JobRecord) -> tuple[int | None, int]:
    """Return what tells one ending from another: a job that was retried may end again."""
    return job.finished_at, job.epoch


def _ending(job: JobRecord) -> dict[str, Any]:
    data: dict[str, Any] = {"status": job.state.value, "reason": job.reason}
    if job.state is not State.COMPLETED and job.error:
        data |= {"error": job.error.type, "message": job.error.message}
    return data
