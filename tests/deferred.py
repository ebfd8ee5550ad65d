"""A Redis store that defers the submit of plain jobs always if possible, not only while no worker waits."""

from __future__ import annotations

from collections.abc import Sequence

from headway.core.job import NewJob, SubmitReply
from headway.stores.base import Store
from headway.stores.redis.store import RedisStore

_ids: set[tuple[str, str]] = set()  # Only unknown ids are deferred, as clients make sure of.


def defer_submits(store: Store) -> Store:
    """Make a store defer the submit of single jobs."""
    assert isinstance(store, RedisStore)
    submit = store.submit

    async def deferred(jobs: Sequence[NewJob]) -> list[SubmitReply]:
        names = [(store._prefix, job.job_id) for job in jobs]
        known = _ids.intersection(names)
        _ids.update(names)
        store._deferred.open = True
        answers = None if known or len(jobs) > 1 else store.submit_blocking(jobs)
        return await submit(jobs) if answers is None else answers

    store.submit = deferred  # type: ignore[method-assign]
    return store
