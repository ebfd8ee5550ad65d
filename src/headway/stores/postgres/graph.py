"""Submits a graph as columns, and reads the answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headway.core.errors import BadEdge, BatchClosed, BatchNotFound, CycleError
from headway.core.job import ClassKey
from headway.core.policy.enforced import RuleIndex
from headway.core.workflow import HELD_AT, BatchId, Graph, GraphReply, foreign_member
from headway.stores.postgres.rows import rows
from headway.stores.postgres.submit import SubmitBatch


class GraphSubmit:
    """A graph as the columns of a statement. Its jobs and the edges into them are numbered from 1."""

    def __init__(self, graph: Graph, class_ids: Mapping[ClassKey, int], rule_index: RuleIndex) -> None:
        nodes = graph.nodes
        self._graph = graph
        jobs = [node.job._replace(due_at=HELD_AT, delay_ms=0) if node.after else node.job for node in nodes]
        self._batch = SubmitBatch(jobs, class_ids, rule_index) if jobs else None
        self.careful = self._batch is not None and self._batch.careful
        inner: dict[str, int] = {node.job.job_id: number for number, node in enumerate(nodes, 1)}
        new = graph.create
        if new is not None:
            inner[new.batch_id] = 0
        edges = [
            (number, place, edge.source, inner.get(edge.source), edge.rule.value)
            for number, node in enumerate(nodes, 1)
            for place, edge in enumerate(node.after)
        ]
        awaited = {edge.source for node in nodes for edge in node.after}
        held = [(number, node.job.due_at, node.job.delay_ms) for number, node in enumerate(nodes, 1) if node.after]
        self.columns: list[Any] = [
            *(self._batch.columns if self._batch is not None else [None] * 23),
            [node.member for node in nodes],
            [node.job.job_id in awaited for node in nodes],
            graph.back,
            *_columns(held, 3),
            *_columns(edges, 5),
            *_batch_columns(graph),
        ]

    def classes(self, row: Mapping[str, Any]) -> dict[ClassKey, int]:
        """Return the ids of the classes of its jobs."""
        return {} if self._batch is None else self._batch.classes(row)

    def reply(self, row: Mapping[str, Any]) -> GraphReply:
        """Read the reply. Raises ``BadEdge`` and the other errors of ``Store.submit_graph``."""
        status, index, what = row["status"], row["bad"], row["what"]
        if status == "cycle":
            raise CycleError(f"job {index} of the graph waits for {what}, of which it is a member", index=index)
        if status == "unknown":
            raise BadEdge(f"job {index} of the graph waits for {what}, which the store does not have", index=index)
        if status == "foreign":
            raise BadEdge(f"job {index} of the graph waits for {what} of another tenant", index=index)
        if status == "tenant":
            raise foreign_member(what, index)
        if status == "missing":
            raise BatchNotFound(f"no batch {what} in the store", batch_id=what)
        if status in ("ended", "cancelled"):
            raise batch_closed(what, cancelled=status == "cancelled")
        replies = [] if self._batch is None else self._batch.answers(row)
        batch_id = None if row["batch_id"] is None else BatchId(row["batch_id"])
        new = self._graph.create
        return GraphReply(replies, batch_id, new is not None and new.batch_id == batch_id)  # Also if it was repeated.


def batch_closed(batch_id: str, *, cancelled: bool) -> BatchClosed:
    ended = "was cancelled" if cancelled else "has ended"
    return BatchClosed(f"batch {batch_id} {ended} and takes no more jobs", batch_id=batch_id)


def _columns(table: list[Any], width: int) -> list[Any]:
    return [list(column) for column in zip(*table, strict=True)] if table else [None] * width


def _batch_columns(graph: Graph) -> list[Any]:
    """Return the batch of the members: its id, whether it is to be created, and what a new one has."""
    new = graph.create
    if new is None:
        return [graph.batch_id, False, None, None, None, None, None]
    return [
        new.batch_id, True, rows.text(new.name), rows.text(new.key), rows.text(new.tenant), new.parent, new.open,
    ]  # fmt: skip
