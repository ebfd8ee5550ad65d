"""Workflows: jobs that wait for other jobs, batches of jobs, and the one rule by which an edge is settled.

An *edge* says that a job, the *dependant*, waits for a *source*: another job or a batch. A dependant is *held* until
all its edges are satisfied. A held job is queued. It waits in no class, so no worker can claim it.

A store settles the edges of a source in the same step that ends the source or queues it again. It looks at the source
as it is now, not at what happened, so settling an edge twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush
from typing import NamedTuple, NewType

from headway.core.errors import BadEdge, CycleError, StepError
from headway.core.job import JobId, NewJob, State, SubmitReply

BatchId = NewType("BatchId", str)

BATCH_PREFIX = "batch-"  # Every batch id begins with it, so that an edge can name a job or a batch.
EDGES_MAX = 1_000  # Edges into one job. A job that waits for more waits for a batch.
GRAPH_MAX = 100_000  # Jobs in one graph, since a store keeps all of them or none.
SETTLED_MAX = 100  # Edges that one verb settles at most: 10 ms of CPU on the slowest store, whatever the fan-out.
HELD_AT = 253_402_300_800_000  # When a held job is due: the year 10000, which no delay reaches.

STEP_BYTES_MAX = 65_536  # Bytes of one step's value.
STEPS_MAX = 1_000  # Steps of one job.
STEPS_BYTES_MAX = 4 * 1_048_576  # Bytes of all steps of one job.


class EdgeRule(StrEnum):
    """What a dependant does when its source ends without completing.

    ``on_failure`` and ``on_done`` are the edges of a batch's callbacks. They fire once in each round of the batch.
    """

    CANCEL = "cancel"  # The dependant is cancelled too.
    RUN = "run"  # The dependant runs all the same.
    HOLD = "hold"  # The dependant waits until the source is retried and completes.
    ON_FAILURE = "on_failure"  # The dependant runs at the first bad ending, and is cancelled if there is none.
    ON_DONE = "on_done"  # The dependant runs when all have ended.


CALLBACKS = frozenset({EdgeRule.ON_FAILURE, EdgeRule.ON_DONE})


class SourceStatus(StrEnum):
    """The state of a source, as far as its edges are concerned."""

    LIVE = "live"
    COMPLETED = "completed"
    FAILED = "failed"  # It ended without completing: failed, dead letter or cancelled.


class EdgeVerdict(StrEnum):
    """What becomes of an edge."""

    WAIT = "wait"
    SATISFY = "satisfy"
    CANCEL = "cancel"


class Edge(NamedTuple):
    """A source that a job waits for."""

    source: str  # A job id or a batch id.
    rule: EdgeRule = EdgeRule.CANCEL


class NewBatch(NamedTuple):
    """A batch as a client creates it. While it is ``open``, it does not end even if it has no live member."""

    batch_id: BatchId
    name: str
    key: str | None = None  # A tenant has one batch with this key. Creating it again returns that batch.
    tenant: str | None = None
    parent: BatchId | None = None  # The batch counts as one member of its parent.
    open: bool = True


class GraphNode(NamedTuple):
    """A job of a graph, the edges into it, and whether it is a member of the graph's batch."""

    job: NewJob
    after: tuple[Edge, ...] = ()
    member: bool = True


class Graph(NamedTuple):
    """Jobs, edges and a batch that a store keeps all or none of.

    ``create`` makes a batch first, unless one with its id or key exists. Nodes with ``member`` become members of the
    created batch, or else of ``batch_id``. ``back`` sends released jobs to the back of their queue.
    """

    nodes: Sequence[GraphNode] = ()
    create: NewBatch | None = None
    batch_id: BatchId | None = None
    back: bool = False


class GraphReply(NamedTuple):
    """The answer to a graph: one reply for each node, and the batch of its members.

    ``created``: the batch is the one that the graph creates, which an earlier try may have done.
    """

    replies: Sequence[SubmitReply]
    batch_id: BatchId | None = None
    created: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """Everything that a store keeps about a batch.

    ``total`` counts all members. The counts of endings and ``live`` add up to it. A child batch is one member.
    """

    batch_id: BatchId
    seq: int  # The place of the batch among the submits of its store.
    name: str
    key: str | None
    tenant: str | None
    parent: BatchId | None
    open: bool
    total: int
    live: int  # Members that have not ended: ``held``, waiting, ``running`` and ``children``.
    children: int  # Child batches that have not ended.
    held: int
    running: int
    completed: int
    failed: int
    cancelled: int
    failing: bool  # A member ended badly in this round, while the batch was not cancelled.
    round: int  # From 1. Retrying a member of an ended batch begins the next round.
    created_at: int
    cancel_requested_at: int | None
    finished_at: int | None
    seen_at: int = 0  # When this record was read, by the store's clock.

    @property
    def waiting(self) -> int:
        return self.live - self.children - self.held - self.running

    @property
    def source_status(self) -> SourceStatus:
        """Return the state of the batch as the source of edges."""
        if self.open or self.live:
            return SourceStatus.LIVE
        return SourceStatus.FAILED if self.failed or self.cancelled else SourceStatus.COMPLETED

    @property
    def status(self) -> str:
        """Return the state of the batch for people: open, running, completed, failed or cancelled."""
        if self.open:
            return "open"
        if self.live:
            return "running"
        if self.cancel_requested_at is not None and self.cancelled:
            return "cancelled"
        return "failed" if self.failed or self.cancelled else "completed"

    @property
    def ends_in(self) -> float | None:
        """Return the seconds until the last member ends at the pace so far, or None if there is none yet."""
        if not self.live:
            return None if self.open else 0.0
        ended = self.total - self.live
        elapsed = (self.seen_at - self.created_at) / 1_000
        return self.live * elapsed / ended if ended and elapsed > 0 else None


class BatchQuery(NamedTuple):
    """A query for batches, newest first. ``before`` is the ``seq`` at which the previous page ended."""

    tenant: str | None = None
    statuses: tuple[str, ...] = ()
    before: int | None = None
    limit: int = 100


class Upstream(NamedTuple):
    """A source of a job as it is now.

    ``state`` and ``result`` belong to a job, the counts and ``name`` to a batch.
    """

    source: str
    rule: EdgeRule
    satisfied: bool
    status: SourceStatus
    state: State | None = None
    result: bytes | None = None
    name: str | None = None
    live: int = 0
    total: int = 0


class Step(NamedTuple):
    """A value that a running job keeps under a key, written under the token of its lease."""

    job_id: JobId
    seq: int
    token: bytes
    key: str
    value: bytes


def is_batch(source: str) -> bool:
    return source.startswith(BATCH_PREFIX)


def job_status(state: State) -> SourceStatus:
    """Return the state of a job as the source of edges."""
    if not state.ended:
        return SourceStatus.LIVE
    return SourceStatus.COMPLETED if state is State.COMPLETED else SourceStatus.FAILED


def ending(state: State) -> str:
    """Return the count of a batch in which a member with this ending appears: completed, failed or cancelled."""
    return State.FAILED.value if state is State.DEAD_LETTER else state.value


def settle(rule: EdgeRule, status: SourceStatus, *, failing: bool = False) -> EdgeVerdict:
    """Return what becomes of an edge. ``failing``: the source is a batch with a bad ending in this round."""
    if rule is EdgeRule.ON_FAILURE:
        if failing:
            return EdgeVerdict.SATISFY
        return EdgeVerdict.WAIT if status is SourceStatus.LIVE else EdgeVerdict.CANCEL
    if status is SourceStatus.LIVE:
        return EdgeVerdict.WAIT
    if status is SourceStatus.COMPLETED or rule in (EdgeRule.RUN, EdgeRule.ON_DONE):
        return EdgeVerdict.SATISFY
    return EdgeVerdict.CANCEL if rule is EdgeRule.CANCEL else EdgeVerdict.WAIT


def waits_again(edges: Iterable[tuple[SourceStatus, EdgeVerdict]]) -> bool:
    """Return whether a retried job waits for its sources again: for a live one, unless another one would cancel it."""
    found = set(edges)
    cancelled = any(verdict is EdgeVerdict.CANCEL for _, verdict in found)
    return not cancelled and (SourceStatus.LIVE, EdgeVerdict.WAIT) in found


def check_graph(graph: Graph) -> None:
    """Raise ``CycleError`` or ``BadEdge`` for a graph that no store can keep, whatever it has."""
    if len(graph.nodes) > GRAPH_MAX:
        raise BadEdge(f"a graph has at most {GRAPH_MAX:,} jobs, got {len(graph.nodes):,}; add them to a batch instead")
    for index, node in enumerate(graph.nodes):
        if not node.job.persist:
            raise BadEdge(f"job {index} of the graph is transient, so it can neither wait nor be counted", index=index)
        if not node.after:
            continue
        if len(node.after) > EDGES_MAX:
            text = f"job {index} of the graph waits for {len(node.after):,} others, at most {EDGES_MAX:,} are allowed"
            raise BadEdge(f"{text}; put them into a batch and wait for the batch", index=index)
        if len({edge.source for edge in node.after}) < len(node.after):
            raise BadEdge(f"job {index} of the graph names a source twice", index=index)
    if not any(node.after for node in graph.nodes):
        return
    inner = _stand_ins(graph)
    run_order([
        [inner[edge.source] for edge in node.after if edge.source in inner] if inner[node.job.job_id] == index else []
        for index, node in enumerate(graph.nodes)
    ])  # fmt: skip


def _stand_ins(graph: Graph) -> dict[str, int]:
    """Return the index of the job that a store keeps for each job of a graph: the first one with its id or keys.

    A store drops the edges of the others.
    """
    inner: dict[str, int] = {}
    by_key: dict[tuple[str | None, ...], int] = {}
    for index, node in enumerate(graph.nodes):
        job, first = node.job, index
        if job.idempotency_key is not None:
            first = by_key.setdefault((job.tenant, job.idempotency_key), first)
        if job.unique_key is not None:
            first = by_key.setdefault((job.unique_key,), first)
        inner.setdefault(job.job_id, first)
    return inner


def run_order(sources: Sequence[Sequence[int]]) -> list[int]:
    """Return the nodes of a graph so that each comes after its sources, and else in their order.

    ``sources`` has the sources of each node. Raises ``CycleError``.
    """
    left = [len(mine) for mine in sources]
    dependants: dict[int, list[int]] = {}
    for index, mine in enumerate(sources):
        for source in mine:
            dependants.setdefault(source, []).append(index)
    ready = [index for index, count in enumerate(left) if count == 0]  # Sorted, so it is a heap.
    order: list[int] = []
    while ready:
        order.append(heappop(ready))
        for index in dependants.get(order[-1], ()):
            left[index] -= 1
            if left[index] == 0:
                heappush(ready, index)
    if len(order) < len(sources):
        index = next(index for index, count in enumerate(left) if count)
        raise CycleError(f"the calls of a graph wait for each other, among them number {index}", index=index)
    return order


def check_step(key: str, value: bytes, steps: int, size: int) -> None:
    """Raise ``StepError`` for a step that a job cannot keep beside its other ``steps`` of ``size`` bytes in all."""
    if len(value) > STEP_BYTES_MAX:
        raise StepError(f"the value of step {key!r} has {len(value):,} bytes, at most {STEP_BYTES_MAX:,} are kept")
    if steps >= STEPS_MAX:
        raise StepError(f"step {key!r} is one too many: a job keeps at most {STEPS_MAX:,} steps")
    if size + len(value) > STEPS_BYTES_MAX:
        raise StepError(f"step {key!r} exceeds the {STEPS_BYTES_MAX:,} bytes that all steps of a job may have")


def takes_tenant(batch_tenant: str | None, tenant: str | None) -> bool:
    """Return whether a batch takes members of a tenant. Who may read a batch may read the results of its members."""
    return batch_tenant is None or batch_tenant == tenant


def foreign_member(batch_id: str, index: int | None) -> BadEdge:
    """Return the error about a job of a graph, or a child batch, of another tenant than its batch."""
    if index is None:
        return BadEdge(f"a child of batch {batch_id} must have the same tenant", batch_id=batch_id)
    text = f"job {index} of the graph is of another tenant than batch {batch_id}, so it cannot be a member"
    return BadEdge(text, index=index, batch_id=batch_id)


def upstream_reason(source: str) -> str:
    """Return the reason of a job that is cancelled because of a source."""
    return f"upstream {source}"


def batch_reason(batch_id: str) -> str:
    """Return the reason of a member that is cancelled together with its batch."""
    return f"batch {batch_id}"
