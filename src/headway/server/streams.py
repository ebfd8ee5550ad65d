"""What a stream tells of one job: what happened, its place while it waits, and signs of life in between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, NamedTuple

from headway.core.errors import JobNotFound
from headway.core.event import Event, events_between
from headway.core.job import Job, JobId, State
from headway.core.policy.position import position
from headway.server.service import Service

KEEPALIVE = 15.0  # Seconds between signs of life.
PLACE_EVERY = 1.0  # Seconds between looks at a waiting job's place,
PLACES_A_SECOND = 50  # or more, so that all streams of this process look no oftener.


class Told(NamedTuple):
    """One thing to tell: an event with the job as it was then; or its place; or, with neither, that we are here."""

    event: Event | None = None
    job: Job | None = None
    place: int | None = None


async def follow(
    service: Service, job_id: JobId, after: tuple[int, ...] = (), until: asyncio.Future[None] | None = None
) -> AsyncGenerator[Told]:
    """Tell a job's story until it has ended, or the service stops, or ``until`` is done.

    What does not come after ``after`` was told before. Nothing is kept for a reader who is slow: each look tells what
    is new since the last thing that was read.
    """
    ends: list[asyncio.Future[None]] = [service.stopping, *([] if until is None else [until])]
    watcher = await service.client.watcher()
    async with contextlib.aclosing(watcher.looks(job_id)) as looks:  # type: ignore[type-var]
        look = _next(looks)
        job: Job | None = None
        place: int | None = None
        place_due = 0.0
        try:
            while True:
                waits = job is not None and job.state is State.QUEUED
                patience = KEEPALIVE if not waits else min(KEEPALIVE, max(0.0, place_due - time.monotonic()))
                await _first(look, *ends, timeout=patience)
                if any(end.done() for end in ends):
                    return
                if look.done():
                    before, job = job, look.result()
                    if job is None:
                        raise JobNotFound(f"no task {job_id}; it may have been removed since it ended", job_id=job_id)
                    for event in events_between(before, job, time.time_ns() // 1_000_000):
                        if before is not None or event.place > after:
                            yield Told(event, job)
                    if job.state.ended:
                        return
                    look = _next(looks)
                elif not waits:
                    yield Told()
                if job is not None and job.state is State.QUEUED and time.monotonic() >= place_due:
                    found = await _place(service, job_id)
                    place_due = time.monotonic() + max(PLACE_EVERY, service.streams / PLACES_A_SECOND)
                    if found is not None and found != place:
                        place = found
                        yield Told(job=job, place=place)
        finally:
            look.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await look


async def _first(*futures: asyncio.Future[Any], timeout: float) -> None:
    await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def _next(looks: AsyncIterator[Job | None]) -> asyncio.Task[Job | None]:
    async def step() -> Job | None:
        return await anext(looks)

    return asyncio.get_running_loop().create_task(step())


async def _place(service: Service, job_id: JobId) -> int | None:
    standing = await (await service.store()).standing(job_id)
    return None if standing is None else position(standing, await service.policy())


def write_place(place: tuple[int, ...]) -> str:
    """Write where an event belongs, for a client to come back with."""
    return ".".join(map(str, place))


def read_place(text: str | None) -> tuple[int, ...]:
    """Read where a client had come to; nothing, if that makes no sense."""
    parts = (text or "").split(".")
    if len(parts) > 4 or not all(part.isdecimal() and len(part) < 19 for part in parts):
        return ()
    return tuple(map(int, parts))
