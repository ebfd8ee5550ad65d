"""Endings of the members of a batch, read page by page from a store or over a server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headway.core.errors import BatchNotFound, JobError
from headway.core.job import JobId, State
from headway.core.workflow import BatchId
from headway.stores.base import Store

PAGE = 500  # Members that are read at a time.


class MemberEnding(NamedTuple):
    """The ending of one member of a batch."""

    job_id: JobId
    state: State
    result: bytes | None = None
    error: JobError | None = None
    reason: str | None = None


class MemberPage(NamedTuple):
    """Ended members in the order of adding. ``cursor``: where the next page begins, or None at the end."""

    members: Sequence[MemberEnding]
    cursor: str | None


class MemberReader(Protocol):
    """Reads a page of the ended members of a batch that are in one of these states."""

    async def __call__(self, batch_id: BatchId, states: Sequence[State], cursor: str | None) -> MemberPage: ...


async def read_members(store: Store, batch_id: BatchId, states: Sequence[State], cursor: str | None) -> MemberPage:
    """Read a page from a store. Raises ``BatchNotFound``."""
    found = await store.members(batch_id, beyond=int(cursor or 0), states=states, limit=PAGE)
    if not found and cursor is None and (await store.get_batches([batch_id]))[0] is None:
        raise BatchNotFound.of(batch_id)
    members = [MemberEnding(job.job_id, job.state, job.result, job.error, job.reason) for job in found]
    return MemberPage(members, str(found[-1].seq) if found else None)
