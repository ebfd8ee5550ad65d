"""A preview of a submit: the checks that a store makes of a graph, without storing it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headway.core.diagnostics import LimitView
from headway.core.errors import BadEdge, BatchClosed, BatchNotFound, CycleError
from headway.core.job import JobId
from headway.core.policy.document import LimitRule
from headway.core.policy.enforced import RuleIndex
from headway.core.preview import SubmitPreview, preview_held
from headway.core.workflow import (
    BatchId,
    BatchRecord,
    Edge,
    EdgeVerdict,
    Graph,
    GraphNode,
    Upstream,
    check_graph,
    is_batch,
    job_status,
    settle,
)
from headway.stores.base import Store


async def preview_graph(store: Store, graph: Graph) -> SubmitPreview:
    """Return what a submit of a graph with one job would do, and keep nothing. Raises what ``submit_graph`` raises."""
    [node] = graph.nodes
    if graph.batch_id is None and not node.after:
        return await store.preview(node.job)
    check_graph(graph)
    preview = await store.preview(node.job)
    around = await _batches_around(store, graph.batch_id, known=preview.existing is not None)
    sources = [await _read_source(store, node, edge, around) for edge in node.after]
    if preview.existing is not None:
        return preview
    verdicts = [settle(one.rule, one.status, failing=failing) for one, failing in sources]
    if EdgeVerdict.CANCEL in verdicts:
        return SubmitPreview(None, None, sources[verdicts.index(EdgeVerdict.CANCEL)][0].source)
    if EdgeVerdict.WAIT not in verdicts:
        return preview
    return preview_held(
        preview,
        [
            one._replace(satisfied=verdict is EdgeVerdict.SATISFY)
            for (one, _), verdict in zip(sources, verdicts, strict=True)
        ],
    )


async def _batches_around(store: Store, batch_id: BatchId | None, *, known: bool) -> set[str]:
    """Return the batch that a job joins and its parents. Raises ``BatchNotFound``, ``BatchClosed``."""
    around: set[str] = set()
    while batch_id is not None:
        batch = await _batch(store, batch_id)
        if batch is None:
            raise BatchNotFound(f"no batch {batch_id} in the store", batch_id=batch_id)
        cancelled = batch.cancel_requested_at is not None
        if not around and not known and (cancelled or batch.finished_at is not None):
            ended = "was cancelled" if cancelled else "has ended"
            raise BatchClosed(f"batch {batch_id} {ended} and takes no more jobs", batch_id=batch_id)
        around.add(batch_id)
        batch_id = batch.parent
    return around


async def _read_source(store: Store, node: GraphNode, edge: Edge, around: set[str]) -> tuple[Upstream, bool]:
    """Return a source as it is now, and whether it is a batch with a bad ending. Raises ``BadEdge``, ``CycleError``."""
    source, rule = edge
    if source in around:
        raise CycleError(f"job 0 of the graph waits for {source}, of which it is a member", index=0)
    batch = await _batch(store, BatchId(source)) if is_batch(source) else None
    (job,) = [None] if is_batch(source) else await store.get([JobId(source)])
    if batch is not None:
        tenant, failing = batch.tenant, batch.failing
        found = Upstream(
            source, rule, False, batch.source_status, name=batch.name, live=batch.live, total=batch.total
        )  # fmt: skip
    elif job is not None:
        tenant, failing, found = job.tenant, False, Upstream(source, rule, False, job_status(job.state), job.state)
    else:
        raise BadEdge(f"job 0 of the graph waits for {source}, which the store does not have", index=0)
    if node.job.tenant is not None and tenant != node.job.tenant:
        raise BadEdge(f"job 0 of the graph waits for {source} of another tenant", index=0)
    return found, failing


async def _batch(store: Store, batch_id: BatchId) -> BatchRecord | None:
    return (await store.get_batches([batch_id]))[0]


def with_undeclared(preview: SubmitPreview, limits: Mapping[str, LimitRule]) -> SubmitPreview:
    """Return a preview with the limits of its task that the store does not know yet. A submit would declare them."""
    diagnosis = preview.diagnosis
    if diagnosis is None:
        return preview
    rules, job = diagnosis.queue.rules, diagnosis.job
    unknown = {name: rule for name, rule in limits.items() if name not in rules.limits}
    if not unknown:
        return preview
    keys = RuleIndex(replace(rules, limits=unknown)).keys(job.task, job.tenant, job.limits)
    views = (*diagnosis.limits, *(LimitView(key, rule, 0, None) for key, rule in keys if rule in unknown.values()))
    queue = diagnosis.queue._replace(rules=replace(rules, limits={**rules.limits, **unknown}))
    return preview._replace(diagnosis=diagnosis._replace(queue=queue, limits=views))
