"""Finds the jobs of a search: the store filters by what it has an index for, and this module by the rest."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import NamedTuple

from headway.core.job import JobId, JobRecord, State
from headway.core.search import JobSearch, matches, plain_words
from headway.stores.base import JobQuery, MatchWords, Store
from headway.stores.paging import Find, Get, find_in_steps, get_in_steps

# Ids that one read brings. A store may have to look at all queued jobs for any number of them, so later reads bring
# more. The first read is small, because most searches fill their page from it.
FIRST_IDS, MORE_IDS = 500, 5_000

FindIds = Callable[[JobQuery], Awaitable[list[tuple[int, JobId]]]]


class SearchSource(NamedTuple):
    """The functions with which a search reads jobs. ``match_words``: as in ``Abilities``."""

    find_ids: FindIds
    get: Get
    match_words: MatchWords | None = None


class Visit(NamedTuple):
    """A step of a search down to the number ``seq``. ``looked``: how many jobs it passed, with or without reading."""

    seq: int
    looked: int
    job: JobRecord | None = None
    fits: bool = False


def source_of(store: Store) -> SearchSource:
    """Return the jobs of a store as a source."""
    return SearchSource(store.find_ids, store.get, store.abilities.match_words)


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
    source: SearchSource,
    search: JobSearch,
    reason_of: Callable[[JobRecord], str | None],
    arguments_of: Callable[[JobRecord], bytes],
    *,
    tenant: str | None = None,
    before: int | None = None,
) -> AsyncGenerator[Visit]:
    """Yield what a search meets, newest first. The caller stops when it has seen enough.

    It finds many ids at a time and reads a few jobs at a time. A store that can look for words leaves out jobs without
    them, so that these are not read.
    """
    query, words = query_of(search, tenant=tenant, before=before)._replace(limit=FIRST_IDS), plain_words(search.words)
    while True:
        if search.whole_ids:
            found = await _numbered(source.get, search.whole_ids, before)
        else:
            found = await source.find_ids(query)
        read = found
        if words and found and source.match_words is not None:
            kept = await source.match_words([job_id for _, job_id in found], words)
            read = [pair for pair in found if pair[1] in kept]
        jobs = get_in_steps(source.get, [job_id for _, job_id in read])
        places = iter(read)
        async for job in jobs:
            seq = next(places)[0]
            if job is not None:
                fits = tenant in (None, job.tenant) and matches(search, job, reason_of, arguments_of)
                yield Visit(seq, 1, job, fits)
        if found:
            yield Visit(found[-1][0], len(found) - len(read))
        if search.whole_ids or len(found) < query.limit:
            return
        query = query._replace(before=found[-1][0], limit=MORE_IDS)


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
