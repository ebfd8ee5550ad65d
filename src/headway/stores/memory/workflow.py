"""Workflows: graphs of held jobs, edges that are settled when their source changes, batches that count members."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from headway.core.errors import BadEdge, BatchClosed, BatchNotFound, CycleError
from headway.core.job import JobId, JobRecord, State
from headway.core.workflow import (
    CALLBACKS,
    HELD_AT,
    BatchId,
    BatchQuery,
    BatchRecord,
    Edge,
    EdgeRule,
    EdgeVerdict,
    Graph,
    GraphReply,
    NewBatch,
    SourceStatus,
    Step,
    Upstream,
    batch_reason,
    check_step,
    foreign_member,
    is_batch,
    job_status,
    settle,
    takes_tenant,
    upstream_reason,
    waits_again,
)
from headway.stores.memory import finish
from headway.stores.memory.ordering import delay, leave_class, leave_queue, make_ready
from headway.stores.memory.record import StoredJob, job_of
from headway.stores.memory.state import MemoryState, StoredBatch, StoredEdge
from headway.stores.memory.submit import check_known, submit

# ---------------------------------------------------------------------- graphs


def submit_graph(state: MemoryState, graph: Graph) -> GraphReply:
    batch_id, create = _batch_of(state, graph)
    _check_members(state, graph, batch_id, create)
    _check_sources(state, graph, batch_id, create)
    known = {node.job.job_id for node in graph.nodes if node.job.job_id in state.jobs}
    own_due_at = [max(node.job.due_at or 0, state.now_at + node.job.delay_ms) for node in graph.nodes]
    jobs = [node.job._replace(due_at=HELD_AT) if node.after else node.job for node in graph.nodes]
    check_known(state, jobs)  # Raises before anything is kept.
    if create is not None:
        _create(state, create)
    replies = submit(state, jobs)
    same = {node.job.job_id: reply.job_id for node, reply in zip(graph.nodes, replies, strict=True)}
    added: list[tuple[int, StoredJob]] = []
    for index, (node, reply) in enumerate(zip(graph.nodes, replies, strict=True)):
        if reply.deduplicated or reply.job_id in known:
            continue
        known.add(reply.job_id)
        record = state.jobs[reply.job_id]
        added.append((index, record))
        record.own_due_at, record.to_back = own_due_at[index], graph.back
        if node.member and batch_id is not None:
            batch = state.batches[batch_id]
            record.batch_id = batch_id
            batch.members.append(record.seq)
            batch.total += 1
            batch.counts["live"] += 1
            batch.counts["held"] += record.held
        sources: dict[str, EdgeRule] = {}
        for source, rule in node.after:  # Two of them may stand for one job.
            sources.setdefault(same.get(JobId(source), source), rule)
        for source, rule in sources.items():
            _add_edge(state, record, source, rule)
    for _, record in added:
        if record.held:
            state.count("held")
            _settle_dependant(state, record)
    settle_edges(state)
    created = graph.create is not None and batch_id == graph.create.batch_id  # By this verb, or when it was repeated.
    return GraphReply(replies, batch_id, created)


def _batch_of(state: MemoryState, graph: Graph) -> tuple[BatchId | None, NewBatch | None]:
    """Return the batch of a graph's members, and the batch to create, if it does not exist yet."""
    new = graph.create
    if new is None:
        return graph.batch_id, None
    known = state.batch_keys.get((new.tenant or "", new.key)) if new.key is not None else None
    if known is not None or new.batch_id in state.batches:
        return known or new.batch_id, None
    return new.batch_id, new


def _check_members(state: MemoryState, graph: Graph, batch_id: BatchId | None, create: NewBatch | None) -> None:
    """Raise ``BatchNotFound``, ``BatchClosed`` or ``BadEdge`` if the batch or its new parent takes no such members."""
    if create is not None:
        if create.parent is not None:
            _check_open(state, create.parent)
            if not takes_tenant(state.batches[create.parent].new.tenant, create.tenant):
                raise foreign_member(create.parent, None)
    elif batch_id is not None and any(node.member and node.job.job_id not in state.jobs for node in graph.nodes):
        _check_open(state, batch_id)
    elif batch_id is not None and batch_id not in state.batches:
        raise BatchNotFound(f"no batch {batch_id} in the store", batch_id=batch_id)
    if batch_id is None:
        return
    tenant = create.tenant if create is not None else state.batches[batch_id].new.tenant
    for index, node in enumerate(graph.nodes):
        if node.member and not takes_tenant(tenant, node.job.tenant):
            raise foreign_member(batch_id, index)


def _check_open(state: MemoryState, batch_id: BatchId) -> None:
    batch = state.batches.get(batch_id)
    if batch is None:
        raise BatchNotFound(f"no batch {batch_id} in the store", batch_id=batch_id)
    if batch.cancel_at is not None or batch.finished_at is not None:
        ended = "was cancelled" if batch.cancel_at is not None else "has ended"
        raise BatchClosed(f"batch {batch_id} {ended} and takes no more jobs", batch_id=batch_id)


def _check_sources(state: MemoryState, graph: Graph, batch_id: BatchId | None, create: NewBatch | None) -> None:
    around = _around(state, batch_id, create)
    inner = {str(node.job.job_id): node.job.tenant for node in graph.nodes}
    if create is not None:
        inner[create.batch_id] = create.tenant
    for index, node in enumerate(graph.nodes):
        for source, _ in node.after:
            if node.member and source in around:
                raise CycleError(f"job {index} of the graph waits for {source}, of which it is a member", index=index)
            if source in inner:
                tenant = inner[source]
            elif source in state.batches:
                tenant = state.batches[BatchId(source)].new.tenant
            elif source in state.jobs:
                tenant = state.jobs[JobId(source)].new.tenant
            else:
                raise BadEdge(
                    f"job {index} of the graph waits for {source}, which the store does not have", index=index
                )
            if node.job.tenant is not None and tenant != node.job.tenant:
                raise BadEdge(f"job {index} of the graph waits for {source} of another tenant", index=index)


def _around(state: MemoryState, batch_id: BatchId | None, create: NewBatch | None) -> set[str]:
    """Return the batches that cannot end before a member of a graph: its batch and the parents of that batch."""
    around: set[str] = set()
    while batch_id is not None:
        around.add(batch_id)
        new = create if create is not None and create.batch_id == batch_id else state.batches[batch_id].new
        batch_id = new.parent
    return around


def _create(state: MemoryState, new: NewBatch) -> None:
    state.batches[new.batch_id] = StoredBatch(new, state.next_sequence(), state.now_at, open=new.open)
    if new.key is not None:
        state.batch_keys[new.tenant or "", new.key] = new.batch_id
    if new.parent is not None:
        parent = state.batches[new.parent]
        parent.child_ids.append(new.batch_id)
        parent.total += 1
        parent.counts["live"] += 1
        parent.counts["children"] += 1
    state.changed_counts.setdefault(new.batch_id, Counter())  # An empty batch that is not open ends at once.


def _add_edge(state: MemoryState, record: StoredJob, source: str, rule: EdgeRule) -> None:
    edge = StoredEdge(state.next_edge(), record.seq, Edge(source, rule))
    state.edges_from.setdefault(source, []).append(edge)
    state.edges_to.setdefault(record.seq, []).append(edge)


# ---------------------------------------------------------------------- settling


def settle_edges(state: MemoryState) -> bool:
    """Settle what this verb and earlier verbs have left, up to a bound. Return whether something is left."""
    if not (state.ended_dependants or state.unsettled or state.uncancelled or state.changed_counts):
        return False
    while True:
        while state.ended_dependants:
            record = state.ended_dependants.pop()
            if any(edge.again for edge in state.edges_to[record.seq]):
                _hold_again(state, record)
        while state.unsettled and state.edges_left:
            _settle_source(state, next(iter(state.unsettled)))
        while state.uncancelled and state.edges_left:
            _cancel_members(state, next(iter(state.uncancelled)))
        if not state.changed_counts:
            break
        _count_endings(state)
    left = bool(state.unsettled or state.uncancelled)
    if left:
        state.wake_any()
    return left


def _settle_source(state: MemoryState, source: str) -> None:
    edges = state.edges_from.get(source, [])
    first = bisect_right(edges, state.unsettled[source], key=lambda edge: edge.number)
    todo = edges[first : first + state.edges_left]
    state.edges_left -= len(todo)
    if first + len(todo) < len(edges):
        state.unsettled[source] = todo[-1].number
    else:
        del state.unsettled[source]
    for edge in todo:
        _settle_edge(state, edge)


def _settle_edge(state: MemoryState, edge: StoredEdge) -> None:
    record = state.by_seq[edge.target]
    verdict = _verdict(state, edge)
    if verdict is EdgeVerdict.SATISFY:
        edge.satisfied = True
        if record.held and all(other.satisfied for other in state.edges_to[record.seq]):
            _release(state, record)
    elif verdict is EdgeVerdict.CANCEL:
        if record.held:
            _end(state, record, upstream_reason(edge.edge.source))
    elif _status(state, edge) is SourceStatus.LIVE:
        _wait_again(state, edge, record)


def _wait_again(state: MemoryState, edge: StoredEdge, record: StoredJob) -> None:
    """Make a dependant wait again for a source that is live again and whose ending had released or cancelled it."""
    source, rule = edge.edge
    if edge.satisfied and record.held:
        edge.satisfied = False
    elif edge.satisfied and rule in CALLBACKS:  # A new round has begun.
        edge.again = record.state is State.EXECUTING
        if not edge.again:
            _hold_again(state, record)
    elif record.state is State.CANCELLED and record.reason == upstream_reason(source):
        others = [other for other in state.edges_to[record.seq] if _verdict(state, other) is EdgeVerdict.CANCEL]
        if others:
            record.reason = upstream_reason(others[0].edge.source)
            state.changed.append(record.new.job_id)
        else:
            _hold_again(state, record)


def _settle_dependant(state: MemoryState, record: StoredJob) -> None:
    """Settle all edges into a held job at once."""
    edges = state.edges_to[record.seq]
    for edge in edges:
        edge.again = False
        verdict = _verdict(state, edge)
        if verdict is EdgeVerdict.CANCEL:
            _end(state, record, upstream_reason(edge.edge.source))
            return
        edge.satisfied = verdict is EdgeVerdict.SATISFY
    if all(edge.satisfied for edge in edges):
        _release(state, record)


def _verdict(state: MemoryState, edge: StoredEdge) -> EdgeVerdict:
    source, rule = edge.edge
    if edge.satisfied and source not in state.jobs and source not in state.batches:  # It was pruned.
        return EdgeVerdict.SATISFY
    failing = is_batch(source) and BatchId(source) in state.batches and state.batches[BatchId(source)].failing
    return settle(rule, _status(state, edge), failing=failing)


def _status(state: MemoryState, edge: StoredEdge) -> SourceStatus:
    source = edge.edge.source
    if is_batch(source) and BatchId(source) in state.batches:
        batch = state.batches[BatchId(source)]
        if batch.finished_at is None:
            return SourceStatus.LIVE
        return SourceStatus.COMPLETED if batch.completed else SourceStatus.FAILED
    if source in state.jobs:
        return job_status(state.jobs[JobId(source)].state)
    return SourceStatus.COMPLETED if edge.satisfied else SourceStatus.FAILED  # The source was pruned.


def _release(state: MemoryState, record: StoredJob) -> None:
    """Make a held job ready, or delay it until its own delay has passed."""
    leave_queue(state, record)
    if record.own_due_at > state.now_at:
        delay(state, record, record.own_due_at)
    else:
        number = state.next_sequence() if record.to_back else record.seq
        make_ready(state, record, state.now_at, number=number)
    if record.batch_id is not None:
        state.changed_counts.setdefault(record.batch_id, Counter())["held"] -= 1
    state.count("unheld")
    state.changed.append(record.new.job_id)


def _end(state: MemoryState, record: StoredJob, reason: str) -> None:
    finish.end_queued(state, record, reason)
    state.changed.append(record.new.job_id)


def _hold_again(state: MemoryState, record: StoredJob) -> None:
    """Hold a job that has ended or been released as if it were new, unless another job uses its unique key now."""
    before = record.state
    if before is State.QUEUED:
        leave_class(state, record)
    elif record.new.unique_key in state.unique:
        return
    finish.reset(state, record)
    state.steps.pop(record.new.job_id, None)
    delay(state, record, HELD_AT)
    if before.ended:
        state.moved(record, before)
    elif record.batch_id is not None:
        state.changed_counts.setdefault(record.batch_id, Counter())["held"] += 1
    state.changed.append(record.new.job_id)
    _settle_dependant(state, record)


def hold_retried(state: MemoryState, records: Sequence[StoredJob]) -> None:
    """Hold the retried jobs again that have a live source."""
    for record in records:
        edges = state.edges_to.get(record.seq, ())
        if waits_again((_status(state, edge), _verdict(state, edge)) for edge in edges):
            _hold_again(state, record)


# ---------------------------------------------------------------------- batches


def _count_endings(state: MemoryState) -> None:
    """Add what the verb has changed to the counts of batches, and find those that failed, ended or began a round."""
    while state.changed_counts:
        changes, state.changed_counts = sorted(state.changed_counts.items()), {}
        for batch_id, change in changes:
            _count_ending(state, state.batches[batch_id], change)


def _count_ending(state: MemoryState, batch: StoredBatch, change: Counter[str]) -> None:
    bad, had_completed = change.pop("bad", 0), batch.completed
    batch.counts.update(change)
    if batch.finished_at is not None and batch.counts["live"]:
        batch.finished_at = batch.cancel_at = None
        batch.failing = False
        batch.round += 1
        state.uncancelled.pop(batch.new.batch_id, None)
        _count_child(state, batch, completed=had_completed, ended=-1)
        _touch(state, batch)
    if bad and not batch.failing and batch.cancel_at is None:
        batch.failing = True
        _touch(state, batch)
    if batch.finished_at is None and not batch.open and not batch.counts["live"]:
        batch.finished_at = state.now_at
        _count_child(state, batch, completed=batch.completed, ended=1)
        _touch(state, batch)


def _count_child(state: MemoryState, batch: StoredBatch, *, completed: bool, ended: int) -> None:
    """Count the ending of a child batch in its parent, or take it back with ``ended=-1``."""
    if batch.new.parent is not None:
        change = state.changed_counts.setdefault(batch.new.parent, Counter())
        change["live"] -= ended
        change["children"] -= ended
        change["completed" if completed else "failed"] += ended
        change["bad"] += ended == 1 and not completed


def _touch(state: MemoryState, batch: StoredBatch) -> None:
    if batch.new.batch_id in state.edges_from:
        state.unsettled[batch.new.batch_id] = 0


def close(state: MemoryState, batch_id: BatchId) -> BatchRecord | None:
    if batch_id in state.batches:
        state.batches[batch_id].open = False
        state.changed_counts.setdefault(batch_id, Counter())
        settle_edges(state)
    return batch_of(state, batch_id)


def cancel(state: MemoryState, batch_id: BatchId) -> BatchRecord | None:
    todo = [batch_id] if batch_id in state.batches else []
    for one in todo:
        batch = state.batches[one]
        if batch.finished_at is None and batch.cancel_at is None:
            batch.cancel_at, batch.open = state.now_at, False
            state.uncancelled[one] = 0
            state.changed_counts.setdefault(one, Counter())
            todo += [child for child in batch.child_ids if child in state.batches]
    settle_edges(state)
    return batch_of(state, batch_id)


def _cancel_members(state: MemoryState, batch_id: BatchId) -> None:
    """Cancel members of a cancelled batch, up to the bound of the verb."""
    members = state.batches[batch_id].members
    first = bisect_right(members, state.uncancelled[batch_id])
    todo = members[first : first + state.edges_left]
    state.edges_left -= len(todo)
    if first + len(todo) < len(members):
        state.uncancelled[batch_id] = todo[-1]
    else:
        del state.uncancelled[batch_id]
    for seq in todo:
        record = state.by_seq[seq]
        if not record.state.ended:
            finish.cancel(state, record, batch_reason(batch_id))
            state.changed.append(record.new.job_id)


# ---------------------------------------------------------------------- reads and steps


def batch_of(state: MemoryState, batch_id: BatchId) -> BatchRecord | None:
    batch = state.batches.get(batch_id)
    if batch is None:
        return None
    new, counts = batch.new, batch.counts
    return BatchRecord(
        batch_id=batch_id,
        seq=batch.seq,
        name=new.name,
        key=new.key,
        tenant=new.tenant,
        parent=new.parent,
        open=batch.open,
        total=batch.total,
        live=counts["live"],
        children=counts["children"],
        held=counts["held"],
        running=sum(record.batch_id == batch_id for record in state.executing.values()),
        completed=counts["completed"],
        failed=counts["failed"],
        cancelled=counts["cancelled"],
        failing=batch.failing,
        round=batch.round,
        created_at=batch.created_at,
        cancel_requested_at=batch.cancel_at,
        finished_at=batch.finished_at,
        seen_at=state.now_at,
    )


def find_batches(state: MemoryState, query: BatchQuery) -> list[BatchRecord]:
    found = [batch_of(state, batch_id) for batch_id in state.batches]
    wanted = [
        batch
        for batch in found
        if batch is not None
        and query.tenant in (None, batch.tenant)
        and (not query.statuses or batch.status in query.statuses)
        and (query.before is None or batch.seq < query.before)
    ]
    return sorted(wanted, key=lambda batch: batch.seq, reverse=True)[: query.limit]


def members(
    state: MemoryState, batch_id: BatchId, beyond: int, states: Sequence[State], limit: int
) -> list[JobRecord]:  # fmt: skip
    batch = state.batches.get(batch_id)
    records = [] if batch is None else [state.by_seq[seq] for seq in batch.members if seq > beyond]
    wanted = [record for record in records if not states or record.state in states]
    return [job_of(record, state.now_at) for record in wanted[:limit]]


def read_upstreams(state: MemoryState, record: StoredJob, *, results: bool) -> list[Upstream]:
    found = []
    for edge in state.edges_to.get(record.seq, ()):
        source, rule = edge.edge
        upstream = Upstream(source, rule, edge.satisfied, _status(state, edge))
        if is_batch(source):
            batch = batch_of(state, BatchId(source))
            if batch is not None:
                upstream = upstream._replace(name=batch.name, live=batch.live, total=batch.total)
        elif source in state.jobs:
            job = state.jobs[JobId(source)]
            upstream = upstream._replace(state=job.state, result=job.result if results else None)
        found.append(upstream)
    return found


def record_step(state: MemoryState, step: Step) -> bool:
    record = state.jobs.get(step.job_id)
    if record is None or record.state is not State.EXECUTING or record.token != step.token:
        return False
    kept = state.steps.setdefault(step.job_id, {})
    if step.key not in kept:
        check_step(step.key, step.value, len(kept), sum(map(len, kept.values())))
        kept[step.key] = step.value
    return True
