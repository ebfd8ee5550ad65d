"""The items of a job's stream: its events, its place while it waits, and keep-alives in between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, NamedTuple

from headway.client.job_events import estimate_interval, next_item
from headway.core.errors import JobNotFound
from headway.core.event import Event, events_between, merge_output
from headway.core.job import JobId, JobRecord, State
from headway.core.policy.estimate import Estimate, materially_differs
from headway.observability.job_output import output_events
from headway.runtime.bounded_wait import end_tasks
from headway.server.live_updates import KEEPALIVE
from headway.server.service import Service
from headway.server.submit import estimate_waiting

ESTIMATES_PER_SECOND = 50  # Maximum estimates per second of all streams of this process.


class StreamItem(NamedTuple):
    """An item: an event with the job at that time, an estimate of its start, or a keep-alive."""

    event: Event | None = None
    job: JobRecord | None = None
    estimate: Estimate | None = None


async def follow(
    service: Service, job_id: JobId, after: tuple[int, ...] = (), until: asyncio.Future[None] | None = None
) -> AsyncGenerator[StreamItem]:
    """Yield the events of a job until it has ended, or the service stops, or ``until`` is done.

    Events up to ``after`` were delivered before. Nothing is buffered for a slow reader. Each read of the job yields
    what is new since the last item that the reader took.
    """
    ends: list[asyncio.Future[None]] = [service.stopping, *([] if until is None else [until])]
    watcher = await service.client.watcher()
    async with contextlib.aclosing(watcher.watch_changes(job_id)) as jobs:  # type: ignore[type-var]
        reading = next_item(jobs)
        job: JobRecord | None = None
        last_estimate: Estimate | None = None
        after_output = after  # The output that was delivered.
        estimate_due = 0.0
        try:
            while True:
                waits = job is not None and job.state is State.QUEUED
                timeout = KEEPALIVE if not waits else min(KEEPALIVE, max(0.0, estimate_due - time.monotonic()))
                parts: list[asyncio.Future[Any]] = [reading, *ends]
                await asyncio.wait(parts, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
                if any(end.done() for end in ends):
                    return
                if reading.done():
                    before, job = job, reading.result()
                    if job is None:
                        raise JobNotFound(f"no task {job_id}; it may have been removed since it ended", job_id=job_id)
                    output = await output_events(await service.store(), job, after_output)
                    events = events_between(before, job, time.time_ns() // 1_000_000)
                    for event in merge_output(events, output, after_output):
                        if before is not None or event.place > after:
                            yield StreamItem(await _with_duration(service, event, job), job)
                    if output:
                        after_output = output[-1].place
                    if job.state.ended:
                        return
                    reading = next_item(jobs)
                elif not waits:
                    yield StreamItem()
                if job is not None and job.state is State.QUEUED and time.monotonic() >= estimate_due:
                    found = await _estimate(service, job_id)
                    estimate_due = time.monotonic() + max(
                        estimate_interval(found), service.streams / ESTIMATES_PER_SECOND
                    )
                    if found is not None and materially_differs(last_estimate, found):
                        last_estimate = found
                        yield StreamItem(job=job, estimate=last_estimate)
        finally:
            await end_tasks([reading])


async def _with_duration(service: Service, event: Event, job: JobRecord) -> Event:
    """Return a start or a downgrade with the rung's name and length, and other events unchanged."""
    if event.kind == "downgraded":
        duration = event.data["duration"]
    elif event.kind == "started" and event.place[0] == job.epoch:
        duration = job.assigned
    else:
        return event
    rung = None if duration is None else (await service.policy()).ladder.find(duration)
    if rung is None:
        return event
    return replace(event, data={**event.data, "duration": duration, "seconds": rung.length_ms / 1_000})


async def _estimate(service: Service, job_id: JobId) -> Estimate | None:
    diagnosis = await (await service.store()).diagnose_job(job_id)
    return None if diagnosis is None else await estimate_waiting(service, diagnosis)


def write_place(place: tuple[int, ...]) -> str:
    """Return the position of an event, with which a client can resume."""
    return ".".join(map(str, place))


def knows_end(job: JobRecord, after: tuple[int, ...]) -> bool:
    """Return whether a job has ended and a client at this position knows it."""
    return job.state.ended and bool(after) and all(event.place <= after for event in events_between(None, job, 0))


def read_place(text: str | None) -> tuple[int, ...]:
    """Return the position that a client resumes from, or None if it cannot be read."""
    parts = (text or "").split(".")
    if len(parts) > 4 or not all(part.isdecimal() and len(part) < 19 for part in parts):
        return ()
    return tuple(map(int, parts))
