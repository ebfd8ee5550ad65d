"""Reads of many jobs, a few at a time, since each may hold megabytes of arguments and results."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from headway.core.job import JobId, JobRecord, State
from headway.stores.base import JobQuery, next_page

JOBS_AT_ONCE = 16  # Jobs that one read brings into memory: at most 16 times the largest payload and result.
PASSED_OVER_MAX = 100  # Jobs that ``passed_over`` counts at most. An operator needs no larger number.

Find = Callable[[JobQuery], Awaitable[list[JobRecord]]]
Get = Callable[[Sequence[JobId]], Awaitable[list[JobRecord | None]]]


async def find_in_steps(find: Find, query: JobQuery) -> AsyncIterator[JobRecord]:
    """Yield the jobs that a query finds, newest first, up to its limit."""
    left = query.limit
    while left > 0:
        step = min(JOBS_AT_ONCE, left)
        jobs = await find(query._replace(limit=step))
        for job in jobs:
            yield job
        if len(jobs) < step:
            return
        left, query = left - step, next_page(query, jobs[-1])


async def get_in_steps(get: Get, job_ids: Sequence[JobId]) -> AsyncIterator[JobRecord | None]:
    """Yield each of the jobs, or None for an id that the store does not have."""
    for start in range(0, len(job_ids), JOBS_AT_ONCE):
        for job in await get(job_ids[start : start + JOBS_AT_ONCE]):
            yield job


def without_values(job: JobRecord) -> JobRecord:
    """Return a job without its arguments and result, for a reader that keeps many of them."""
    return replace(job, payload=b"", result=None)


async def passed_over(find: Find, job: JobRecord) -> int:
    """Return how many jobs of the same lane and tenant came later than a waiting job and have started before it.

    It counts on request, up to ``PASSED_OVER_MAX``, since keeping the number would take a write to every waiting job.
    """
    if job.state is not State.QUEUED:
        return 0
    later = JobQuery(
        states=(State.EXECUTING, State.COMPLETED, State.FAILED, State.DEAD_LETTER),
        lane=job.lane,
        tenant=job.tenant,
        submitted_after_at=job.submitted_at - 1,
        limit=PASSED_OVER_MAX,
    )
    return sum([found.seq > job.seq async for found in find_in_steps(find, later)])
