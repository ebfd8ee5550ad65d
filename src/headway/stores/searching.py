"""Finds the jobs of a search: the store filters by what it has an index for, and this module by the rest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable

from headway.core.job import JobRecord, State
from headway.core.search import JobSearch, matches
from headway.stores.base import JobQuery, next_page
from headway.stores.paging import JOBS_AT_ONCE, Find, Get

STEP_MAX = 128  # Jobs of one read, while they are small.
STEP_BYTES = 4 << 20  # Bytes of arguments and results that one read should bring into memory.


def query_of(search: JobSearch, *, tenant: str | None = None, before: int | None = None) -> JobQuery:
    """Return the query that finds all jobs of a search, and perhaps others. ``tenant``: find only jobs of this one."""

    def only(values: tuple[str, ...]) -> str | None:
        return values[0] if len(values) == 1 else None

    task = only(search.tasks)
    return JobQuery(
        states=search.states,
        task=None if task is None or any(sign in task for sign in "*?[") else task,
        lane=only(search.lanes),
        tenant=only(search.tenants) if tenant is None else tenant,
        worker_id=only(search.workers),
        submitted_before_at=search.before_at,
        submitted_after_at=search.after_at,
        before=before,
    )


def is_indexed(search: JobSearch) -> bool:
    """Return whether a store finds exactly the jobs of a search, so that no job needs to be compared."""
    lists = (search.tasks, search.lanes, search.tenants, search.workers)
    patterns = any(sign in task for task in search.tasks for sign in "*?[")
    rest = (search.reasons, search.errors, search.ids, search.words)
    return all(len(values) <= 1 for values in lists) and not patterns and not any(rest)


async def scan(
    find: Find,
    get: Get,
    search: JobSearch,
    reason_of: Callable[[JobRecord], str | None],
    *,
    tenant: str | None = None,
    before: int | None = None,
) -> AsyncGenerator[tuple[JobRecord, bool]]:
    """Yield jobs, newest first, each with whether it fits. The caller stops when it has seen enough.

    The steps grow while jobs are small, so that a long scan takes few reads and little memory.
    """
    if search.whole_ids:
        found = [job for job in await get(search.whole_ids) if job is not None]
        for job in sorted(found, key=lambda job: job.seq, reverse=True):
            if before is None or job.seq < before:
                yield job, tenant in (None, job.tenant) and matches(search, job, reason_of)
        return
    query, step = query_of(search, tenant=tenant, before=before), JOBS_AT_ONCE
    while True:
        jobs = await find(query._replace(limit=step))
        for job in jobs:
            yield job, tenant in (None, job.tenant) and matches(search, job, reason_of)
        if len(jobs) < step:
            return
        query = next_page(query, jobs[-1])
        size = sum(len(job.payload) + len(job.result or b"") for job in jobs) // len(jobs)
        step = max(JOBS_AT_ONCE, min(STEP_MAX, 2 * step, STEP_BYTES // (size + 1)))


def needs_reasons(search: JobSearch) -> bool:
    """Return whether a search asks why jobs wait."""
    return bool(search.reasons) and State.QUEUED in search.states
