"""Reads jobs from the store, and from the history once the store no longer has them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Sequence
from typing import TypeVar

from headway.core.errors import StoreBusy, StoreUnavailable
from headway.core.job import JobId, JobRecord
from headway.core.log_event import LogEvent
from headway.stores.base import Archive, JobQuery, Store
from headway.stores.open import open_archive

T = TypeVar("T")

UNREACHABLE_SECONDS = 5.0  # Seconds without reads of a history that was unreachable, so that reads of jobs stay fast.

log = logging.getLogger("headway.history")


class JobReader:
    """Reads the store first, and the history (if there is one) for missing jobs. Belongs to one event loop.

    A retried job is in both places; the record in the store is the valid one.
    """

    def __init__(self, store: Store, url: str | None) -> None:
        self._store = store
        self._url = url
        self._archive: Archive | None = None
        self._unreachable_until = 0.0

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        """Read jobs. While the history is unavailable, return the jobs that the store has.

        Raises ``StoreUnavailable`` if the store has none of them, because the history may have all.
        """
        jobs = await self._store.get(job_ids)
        missing = [job_id for job_id, job in zip(job_ids, jobs, strict=True) if job is None]
        if self._url is None or not missing:
            return jobs
        try:
            archived = await self._ask(self._opened().get(missing))
        except StoreUnavailable:
            if len(missing) == len(jobs):
                raise
            return jobs
        found = dict(zip(missing, archived, strict=True))
        return [job or found[job_id] for job_id, job in zip(job_ids, jobs, strict=True)]

    async def find(self, query: JobQuery) -> list[JobRecord]:
        """Find jobs, newest first, each once. While the history is unavailable, return those that the store has."""
        found = await self._store.find(query)
        live_only = bool(query.states) and not any(state.ended for state in query.states)
        if self._url is None or live_only or query.limit < 1:
            return found
        try:
            return await self._merge(query, found)
        except StoreUnavailable:
            return found

    async def close(self) -> None:
        archive, self._archive = self._archive, None
        if archive is not None:
            await archive.close()

    async def _merge(self, query: JobQuery, found: Sequence[JobRecord]) -> list[JobRecord]:
        """Add jobs that only the history has. Read it after the store, to find jobs that left the store meanwhile."""
        jobs = {job.job_id: job for job in found}
        lowest = found[-1].seq if len(found) >= query.limit else 0  # Older jobs do not fit on this page.
        before = query.before
        while True:
            page = await self._ask(self._opened().find(query._replace(before=before)))
            new = [job for job in page if job.seq >= lowest and job.job_id not in jobs]
            # A job that the store has but did not find has changed since, for example by a retry.
            kept = await self._store.get([job.job_id for job in new]) if new else []
            jobs |= {job.job_id: job for job, live in zip(new, kept, strict=True) if live is None}
            if len(page) < query.limit or page[-1].seq <= lowest:
                break
            before = page[-1].seq
            if sum(job.seq >= before for job in jobs.values()) >= query.limit:
                break
        return sorted(jobs.values(), key=lambda job: job.seq, reverse=True)[: query.limit]

    def _opened(self) -> Archive:
        if time.monotonic() < self._unreachable_until:
            raise StoreUnavailable("the history did not answer a moment ago")
        if self._archive is None:
            if self._url is None:
                raise AssertionError("without a history there is nothing to ask")
            self._archive = open_archive(self._url, self._store.namespace)
        return self._archive

    async def _ask(self, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except StoreUnavailable as problem:
            if not isinstance(problem, StoreBusy):  # A slow history may answer the next read in time.
                self._unreachable_until = time.monotonic() + UNREACHABLE_SECONDS
            log.warning(LogEvent("history.unavailable", error=str(problem)))
            raise
