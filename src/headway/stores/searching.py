"""Finds the jobs of a search: the store filters by what it has an index for, and this module by the rest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

from headway.core.job import JobId, JobRecord, State
from headway.core.search import JobSearch, matches
from headway.stores.base import JobQuery
from headway.stores.paging import Find, Get, find_in_steps, get_in_steps

IDS_AT_ONCE = 500

FindIds = Callable[[JobQuery], Awaitable[list[tuple[int, JobId]]]]


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
    find_ids: FindIds,
    get: Get,
    search: JobSearch,
    reason_of: Callable[[JobRecord], str | None],
    *,
    tenant: str | None = None,
    before: int | None = None,
) -> AsyncGenerator[tuple[JobRecord, bool]]:
    """Yield jobs, newest first, each with whether it fits. The caller stops when it has seen enough.

    It finds many ids at a time, because a store may have to look at all queued jobs for that, and reads a few jobs.
    """
    query = query_of(search, tenant=tenant, before=before)._replace(limit=IDS_AT_ONCE)
    while True:
        if search.whole_ids:
            found = await _numbered(get, search.whole_ids, before)
        else:
            found = await find_ids(query)
        async for job in get_in_steps(get, [job_id for _, job_id in found]):
            if job is not None:
                yield job, tenant in (None, job.tenant) and matches(search, job, reason_of)
        if search.whole_ids or len(found) < IDS_AT_ONCE:
            return
        query = query._replace(before=found[-1][0])


async def _numbered(get: Get, job_ids: Sequence[JobId], before: int | None) -> list[tuple[int, JobId]]:
    """Return the jobs of these ids that exist, newest first, below a number."""
    found = [(job.seq, job.job_id) async for job in get_in_steps(get, job_ids) if job is not None]
    return sorted((pair for pair in found if before is None or pair[0] < before), reverse=True)


def ids_by_find(find: Find) -> FindIds:
    """Return a function that finds ids by a function that finds jobs, such as that of a history."""

    async def find_ids(query: JobQuery) -> list[tuple[int, JobId]]:
        return [(job.seq, job.job_id) async for job in find_in_steps(find, query)]

    return find_ids


def needs_reasons(search: JobSearch) -> bool:
    """Return whether a search asks why jobs wait."""
    return bool(search.reasons) and State.QUEUED in search.states
