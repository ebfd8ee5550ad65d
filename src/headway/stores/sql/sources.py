"""Reads the sources of edges: the jobs and batches that jobs wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headway.core.job import JobId
from headway.core.workflow import SourceStatus, Upstream
from headway.stores.sql.transaction import Transaction


class Source(NamedTuple):
    """A job or batch that jobs of a graph wait for."""

    source: str
    seq: int
    tenant: str | None
    status: SourceStatus = SourceStatus.LIVE
    failing: bool = False


async def upstreams(tx: Transaction, job_ids: Sequence[JobId], *, results: bool) -> list[list[Upstream]]:
    """Return what each job waits or waited for, in the order in which its edges were given."""
    numbers = {job_id: source.seq for job_id, source in (await read_sources(tx, job_ids)).items()}
    found: dict[int, list[Upstream]] = {}
    for row in await tx.db.rows("edges_to", tx.rows.array(numbers.values()), results):
        found.setdefault(row["dependant_seq"], []).append(tx.rows.upstream(row))
    return [found.get(numbers.get(job_id, 0), []) for job_id in job_ids]


async def read_sources(tx: Transaction, ids: Iterable[str]) -> dict[str, Source]:
    """Return those of these jobs and batches that exist."""
    wanted = [JobId(one) for one in ids]
    found = await tx.db.run("sources", tx.rows.ids(wanted), tx.namespace_id) if wanted else ()
    return {
        source: Source(source, seq, tx.rows.read_text(tenant), SourceStatus(status), bool(failing))
        for source, seq, tenant, status, failing in found
    }
