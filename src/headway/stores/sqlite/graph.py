"""Submits graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headway.core.errors import BadEdge, CycleError
from headway.core.job import JobId, SubmitReply
from headway.core.workflow import (
    HELD_AT,
    EdgeVerdict,
    Graph,
    GraphNode,
    GraphReply,
    NewBatch,
    SourceStatus,
    foreign_member,
    settle,
    takes_tenant,
    upstream_reason,
)
from headway.stores.sql.batch import BatchHandle, add_members, check_open, create_batch, find_batch, find_batch_by_key
from headway.stores.sql.settle import cancel_all, release
from headway.stores.sql.sources import Source, read_sources
from headway.stores.sqlite.submit import submit_marked
from headway.stores.sqlite.transaction import SqliteTransaction

Added = Sequence[tuple[GraphNode, int]]  # New jobs with their numbers.


async def submit_graph(tx: SqliteTransaction, graph: Graph) -> GraphReply:
    """Store a graph. If this raises, the end of the transaction removes what it has written."""
    batch, create = await _find_own_batch(tx, graph)
    await _check_members(tx, graph, batch, create)
    sources = await _check_sources(tx, graph, batch, create)
    if create is not None:
        batch = await create_batch(tx, create)
        sources[create.batch_id] = Source(create.batch_id, batch.seq, create.tenant)
    awaited = {edge.source for node in graph.nodes for edge in node.after}
    batch_seq = None if batch is None else batch.seq
    marks = {
        node.job.job_id: (batch_seq if node.member else None, node.job.job_id in awaited or None)
        for node in graph.nodes
    }
    jobs = [node.job._replace(due_at=HELD_AT) if node.after else node.job for node in graph.nodes]
    replies, numbers = await submit_marked(tx, jobs, marks) if jobs else ([], {})
    new = {node.job.job_id: node for node in reversed(graph.nodes) if node.job.job_id in numbers}
    added = [(node, numbers[job_id]) for job_id, node in reversed(new.items())]
    if batch is not None:
        await add_members(tx, batch, [node for node, _ in added if node.member])
    dependants = [(node, seq) for node, seq in added if node.after]
    if dependants:
        sources |= {node.job.job_id: Source(node.job.job_id, seq, node.job.tenant) for node, seq in added}
        await _resolve(tx, sources, awaited, zip(graph.nodes, replies, strict=True))
        marked = {numbers[JobId(source)] for source in awaited if source in numbers}
        if create is not None:
            marked.add(sources[create.batch_id].seq)
        await _mark_sources(tx, sources, dependants, marked)
        await _add_edges(tx, sources, dependants, back=graph.back)
    await tx.settle_edges()
    batch_id = None if batch is None else batch.batch_id
    return GraphReply(replies, batch_id, graph.create is not None and batch_id == graph.create.batch_id)


# ---------------------------------------------------------------------- the batch and the sources


async def _find_own_batch(tx: SqliteTransaction, graph: Graph) -> tuple[BatchHandle | None, NewBatch | None]:
    """Return the batch of a graph's members, if it exists, and the batch to create, if it does not."""
    new = graph.create
    if new is None:
        return (None if graph.batch_id is None else await find_batch(tx, graph.batch_id)), None
    known = None if new.key is None else await find_batch_by_key(tx, new.key, new.tenant)
    known = known or await find_batch(tx, new.batch_id)
    return known, new if known is None else None


async def _check_members(
    tx: SqliteTransaction, graph: Graph, batch: BatchHandle | None, create: NewBatch | None
) -> None:  # fmt: skip
    """Raise ``BatchNotFound``, ``BatchClosed`` or ``BadEdge`` if the batch or its new parent takes no such members."""
    if create is not None:
        if create.parent is not None:
            parent = check_open(await find_batch(tx, create.parent), create.parent)
            if not takes_tenant(parent.tenant, create.tenant):
                raise foreign_member(create.parent, None)
    elif graph.batch_id is not None and batch is None:
        check_open(batch, graph.batch_id)
    elif batch is not None and not batch.takes_jobs:
        ids = [node.job.job_id for node in graph.nodes if node.member]
        if len(await read_sources(tx, ids)) < len(set(ids)):
            check_open(batch, batch.batch_id)
    target = create or batch
    for index, node in enumerate(graph.nodes):
        if target is not None and node.member and not takes_tenant(target.tenant, node.job.tenant):
            raise foreign_member(target.batch_id, index)


async def _around(tx: SqliteTransaction, batch: BatchHandle | None, create: NewBatch | None) -> set[str]:
    """Return the batches that cannot end before a member of a graph: its batch and the parents of that batch."""
    around: set[str] = set() if create is None else {create.batch_id}
    batch_id = create.parent if create is not None else None if batch is None else batch.batch_id
    while batch_id is not None:
        around.add(batch_id)
        batch_id = await tx.db.first("batch_parent", batch_id, tx.namespace_id)
    return around


async def _check_sources(
    tx: SqliteTransaction, graph: Graph, batch: BatchHandle | None, create: NewBatch | None
) -> dict[str, Source]:  # fmt: skip
    """Return the sources that exist already. Raises ``BadEdge``, ``CycleError``."""
    around = await _around(tx, batch, create) if any(node.after for node in graph.nodes) else set()
    inner: dict[str, str | None] = {node.job.job_id: node.job.tenant for node in graph.nodes}
    if create is not None:
        inner[create.batch_id] = create.tenant
    outer = {edge.source for node in graph.nodes for edge in node.after} - inner.keys()
    sources = await read_sources(tx, outer)
    for index, node in enumerate(graph.nodes):
        for source, _ in node.after:
            if node.member and source in around:
                raise CycleError(f"job {index} of the graph waits for {source}, of which it is a member", index=index)
            if source not in inner and source not in sources:
                raise BadEdge(
                    f"job {index} of the graph waits for {source}, which the store does not have", index=index
                )
            tenant = inner[source] if source in inner else sources[source].tenant
            if node.job.tenant is not None and tenant != node.job.tenant:
                raise BadEdge(f"job {index} of the graph waits for {source} of another tenant", index=index)
    return sources


async def _resolve(
    tx: SqliteTransaction,
    sources: dict[str, Source],
    awaited: set[str],
    answers: Iterable[tuple[GraphNode, SubmitReply]],
) -> None:
    """Add the jobs that the store has, or had until it pruned them, in place of jobs of the graph."""
    same = {
        node.job.job_id: reply.job_id
        for node, reply in answers
        if node.job.job_id in awaited and node.job.job_id not in sources
    }
    known = await read_sources(tx, same.values())
    for number, other in enumerate(dict.fromkeys(other for other in same.values() if other not in known), 1):
        known[other] = Source(other, -number, None, SourceStatus.FAILED)  # No job has a negative number.
    sources |= {job_id: known[other] for job_id, other in same.items()}


async def _mark_sources(
    tx: SqliteTransaction, sources: dict[str, Source], dependants: Added, marked: set[int]
) -> None:  # fmt: skip
    """Mark the jobs that an edge comes from now, and that were not written with that mark."""
    unmarked = {sources[edge.source].seq for node, _ in dependants for edge in node.after} - marked
    if unmarked:
        tx.exclude_others()  # The end of a source must not pass while its edges are written.
        seqs = tx.rows.array(sorted(unmarked))
        await tx.db.run("jobs_await", seqs)
        await tx.db.run("leases_await", seqs)


async def _add_edges(tx: SqliteTransaction, sources: dict[str, Source], dependants: Added, *, back: bool) -> None:
    """Write the edges into new jobs, settled by what their sources are now."""
    edges: list[tuple[object, ...]] = []
    held: list[tuple[object, ...]] = []
    ended: dict[int, str] = {}
    released: list[int] = []
    for node, seq in dependants:
        reason = None
        into: dict[int, tuple[object, ...]] = {}  # Two jobs of a graph may stand for one existing job.
        for place, (given, rule) in enumerate(node.after):
            source, source_seq, _, status, failing = sources[given]
            verdict = settle(rule, status, failing=failing)
            if verdict is EdgeVerdict.CANCEL and reason is None:
                reason = upstream_reason(source)
            satisfied = reason is None and verdict is EdgeVerdict.SATISFY
            into.setdefault(source_seq, (source_seq, seq, place, rule.value, satisfied, source))
        pending = sum(not edge[4] for edge in into.values())
        job = node.job
        edges += into.values()
        held.append((seq, pending, max(job.due_at or 0, tx.now_at + job.delay_ms), back))
        if reason is not None:
            ended[seq] = reason
            sources[job.job_id] = sources[job.job_id]._replace(status=SourceStatus.FAILED)
        elif not pending:
            released.append(seq)
    await tx.db.run_many("edge_add", edges)
    await tx.db.run_many("dependant_add", held)
    tx.count({"held": len(held)})
    await cancel_all(tx, ended)
    await release(tx, released)
