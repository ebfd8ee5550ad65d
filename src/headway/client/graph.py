"""Graphs of calls: the calls that others wait for, what they inherit, and the graph that a store keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headway.client.links import merge_links
from headway.client.task import Call
from headway.core.job import JobId, NewJob
from headway.core.workflow import BATCH_PREFIX, BatchId, Edge, Graph, GraphNode, NewBatch, run_order
from headway.runtime.job_ids import new_job_id


def new_batch_id() -> BatchId:
    return BatchId(f"{BATCH_PREFIX}{new_job_id()}")


def with_sources(calls: Sequence[Call[Any]], tenant: str | None = None) -> list[Call[Any]]:
    """Return calls with all calls that they wait for, each after its sources. Raises ``CycleError``.

    A call inherits the lane and the tenant of the first call that it waits for. ``tenant``: of calls that have none.
    """
    if not any(call.links for call in calls):
        return [call if tenant is None else call.inherit(call.new.lane, tenant) for call in calls]
    found = _collect(calls)
    if tenant is not None:
        found = {job_id: call.inherit(call.new.lane, tenant) for job_id, call in found.items()}
    index = {job_id: place for place, job_id in enumerate(found)}
    listed = list(found.values())
    sources = [[index[JobId(link.source_id)] for link in call.links if link.source_id in index] for call in listed]
    order = run_order(sources)
    for place in order:
        if sources[place]:
            first = listed[sources[place][0]].new
            listed[place] = listed[place].inherit(first.lane, first.tenant)
    return [listed[place] for place in order]


def _collect(calls: Sequence[Call[Any]]) -> dict[JobId, Call[Any]]:
    """Return calls and their sources by id. ``after`` copies a call, so the links of equal ids are merged."""
    found: dict[JobId, Call[Any]] = {}
    seen: set[int] = set()
    left = list(reversed(calls))
    while left:
        call = left.pop()
        if id(call) in seen:
            continue
        seen.add(id(call))
        known = found.get(call.new.job_id)
        links = call.links if known is None else merge_links(known.links, call.links)
        found[call.new.job_id] = call if links is call.links else call._replace(links=links)
        left += [link.source for link in reversed(call.links) if not isinstance(link.source, str)]
    return found


def make_graph(calls: Sequence[Call[Any]], jobs: Sequence[NewJob], batch_id: BatchId | None) -> Graph:
    """Return the graph of calls and their jobs. Linked calls without ``batch_id`` get a batch of their own."""
    nodes = [
        GraphNode(job, tuple(Edge(link.source_id, link.rule) for link in call.links) if call.links else ())
        for call, job in zip(calls, jobs, strict=True)
    ]
    create = None
    if batch_id is None and _are_linked(nodes):
        tenants = {job.tenant for job in jobs}
        tenant = tenants.pop() if len(tenants) == 1 else None
        create = NewBatch(new_batch_id(), jobs[-1].task, tenant=tenant, open=False)
    return Graph(nodes, create, batch_id)


def _are_linked(nodes: Sequence[GraphNode]) -> bool:
    """Return whether a node waits for another one of the same graph."""
    inner = {str(node.job.job_id) for node in nodes}
    return any(edge.source in inner for node in nodes for edge in node.after)
