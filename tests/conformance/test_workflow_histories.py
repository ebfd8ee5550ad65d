"""Random histories of graphs, batches and steps, compared with the memory store and recounted after every step."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from headway.core.errors import HeadwayError
from headway.core.job import JobId, JobRecord, NewJob, State
from headway.core.workflow import (
    CALLBACKS,
    BatchId,
    BatchQuery,
    BatchRecord,
    Edge,
    EdgeRule,
    EdgeVerdict,
    Graph,
    GraphNode,
    GraphReply,
    NewBatch,
    SourceStatus,
    Step,
    Upstream,
    ending,
    is_batch,
    settle,
    upstream_reason,
)
from headway.stores.base import Store
from tests.conformance.builders import an_id
from tests.conformance.histories import JobDraft, StoreHistory, all_jobs, job_drafts, mostly, numbers, play

pytestmark = pytest.mark.one_store  # All answers are those of one store, order keys and all.

ALL_BATCHES = BatchQuery(limit=100_000)


class EdgeDraft(NamedTuple):
    """An edge as a strategy draws it: the ``number``-th latest node of the graph, job or batch of its kind."""

    kind: str
    number: int
    rule: EdgeRule


class NodeDraft(NamedTuple):
    """A node of a graph as a strategy draws it."""

    job: JobDraft
    after: list[EdgeDraft]
    member: bool


class BatchDraft(NamedTuple):
    """The batch of a graph as a strategy draws it: none, one that exists, or a new one."""

    kind: str
    number: int
    key: str | None
    tenant: str | None
    open: bool
    nested: bool


class WorkflowContents(NamedTuple):
    """Everything that can be read of a store's workflows at one moment."""

    batches: dict[BatchId, BatchRecord]
    members: dict[BatchId, list[JobId]]
    upstreams: dict[JobId, list[Upstream]]
    steps: dict[JobId, dict[str, bytes]]


rules = mostly(EdgeRule.CANCEL, EdgeRule.RUN, EdgeRule.HOLD)
edges = st.one_of(
    st.builds(EdgeDraft, st.sampled_from(["node", "node", "job"]), st.integers(0, 6), rules),
    st.builds(EdgeDraft, st.just("batch"), st.integers(0, 2), st.sampled_from(list(EdgeRule))),
)
nodes = st.builds(NodeDraft, job_drafts, st.lists(edges, max_size=3), mostly(True, False))
batches = st.builds(
    BatchDraft,
    kind=st.sampled_from(["none", "new", "new", "known"]),
    number=st.integers(0, 3),
    key=mostly(None, "b1", "b2"),
    tenant=mostly(None, "acme"),
    open=st.booleans(),
    nested=st.booleans(),
)


class WorkflowHistories(StoreHistory):
    """Histories of graphs that grow, fail, are cancelled, retried and pruned."""

    same_numbers = False  # On PostgreSQL a graph that is refused has used up the number of its batch.

    @initialize()
    def begin(self) -> None:
        self.batch_ids: list[BatchId] = []  # As created, in order.
        self.tenants: dict[str, str | None] = {}  # Of batches.
        self.ended_members: dict[BatchId, Counter[str]] = defaultdict(Counter)  # That are pruned by now.
        self.batches: dict[BatchId, BatchRecord] = {}  # As last seen.
        self.edges: dict[JobId, list[Upstream]] = {}  # As last seen.
        self.by_hand: set[JobId] = set()  # Jobs that an operator queued again, whatever they waited for.
        self.alone: set[JobId] = set()  # Sources that were retried without their dependants.
        self.fired: set[tuple[JobId, str, int]] = set()  # Callbacks that were released, by batch and round.

    # ------------------------------------------------------------------ the steps

    @rule(wanted_nodes=st.lists(nodes, min_size=1, max_size=5), batch=batches, back=mostly(False, True))
    def graph(self, wanted_nodes: list[NodeDraft], batch: BatchDraft, back: bool) -> None:
        create, batch_id = self._batch(batch)
        new = self._nodes(wanted_nodes)
        graph = Graph(new, create, batch_id, back)
        reply = self._same(lambda store: _submitted_graph(store, graph))
        self.jobs += [node.job for node in new]
        if not isinstance(reply, GraphReply):
            return
        if create is not None and reply.created:
            self.batch_ids.append(create.batch_id)
            self.tenants[create.batch_id] = create.tenant
        for node, answer in zip(new, reply.replies, strict=True):
            if not answer.deduplicated and answer.job_id not in self.acknowledged:
                self.totals["submitted"] += 1
                self.acknowledged.add(answer.job_id)
                self.by_hand.discard(node.job.job_id)
                self.alone.discard(node.job.job_id)
                self.fired = {fired for fired in self.fired if fired[0] != answer.job_id}

    @rule(shape=st.sampled_from(["chain", "diamond", "fan in", "fan out"]), batch=batches, callbacks=st.booleans())
    def shape(self, shape: str, batch: BatchDraft, callbacks: bool) -> None:
        """Submit a usual graph in a batch with all callbacks."""
        after = {
            "chain": [[], [0], [1]], "diamond": [[], [0], [0], [1, 2]], "fan in": [[], [], [0, 1]],
            "fan out": [[], [0], [0]],
        }[shape]  # fmt: skip
        plain = JobDraft(None, "export", b"1", "medium", (), None, 0, 0, None, None, None, None, True, ())
        wanted_nodes = [
            NodeDraft(plain, [EdgeDraft("node", at - source - 1, EdgeRule.CANCEL) for source in sources], True)
            for at, sources in enumerate(after)
        ]
        self.graph(wanted_nodes, batch, back=False)
        if callbacks and self.batch_ids:
            self.check()
            rules = (EdgeRule.CANCEL, EdgeRule.ON_FAILURE, EdgeRule.ON_DONE)
            wanted_nodes = [NodeDraft(plain, [EdgeDraft("batch", 0, rule)], False) for rule in rules]
            self.graph(wanted_nodes, BatchDraft("none", 0, None, None, False, False), back=False)

    @rule(number=st.integers(0, 3))
    def close_batch(self, number: int) -> None:
        batch_id = self._known_batch(number)
        self._same(lambda store: _plain_batch_of(store.close_batch(batch_id)))

    @rule(number=st.integers(0, 3))
    def cancel_batch(self, number: int) -> None:
        batch_id = self._known_batch(number)
        self._same(lambda store: _plain_batch_of(store.cancel_batch(batch_id)))

    @rule(picked=st.lists(numbers, min_size=1, max_size=2))
    def retry_alone(self, picked: list[int]) -> None:
        """Retry jobs, but none that was cancelled because of them."""
        ids = self._ids(picked)
        self.may_move = set(ids)
        before = self.known
        answers = self._same(lambda store: store.retry(ids, alone=True))
        moved = [
            job_id
            for job_id, state in zip(ids, answers, strict=True)
            if state is State.QUEUED and before[job_id].state.ended
        ]
        self.alone.update(moved)
        if not any(before[job_id].batch_id for job_id in moved):
            now = self._both(all_jobs)[0]
            changed = {one for one, job in now.items() if replace(job, seen_at=0) != replace(before[one], seen_at=0)}
            assert changed <= set(moved)

    @rule(number=st.integers(0, 2), mode=st.sampled_from(["bad", "all bad"]))
    def retry_batch(self, number: int, mode: str) -> None:
        """Retry members of a batch that ended badly."""
        batch_id = self._known_batch(number)
        bad = [
            job.job_id
            for job in reversed(self.known.values())  # The oldest first: SQL stores retry in this order.
            if job.batch_id == batch_id and job.state in (State.FAILED, State.DEAD_LETTER, State.CANCELLED)
        ]
        bad = bad if mode == "all bad" else bad[:1]
        self.may_move = set(bad)
        self._same(lambda store: store.retry(bad))

    @rule(
        number=numbers, key=st.sampled_from(["fetch", "parse"]), value=st.sampled_from([b"1", b"\x00", b"x" * 65_537])
    )
    def record_step(self, number: int, key: str, value: bytes) -> None:
        if not self.leases:
            return
        pair = self._lease(number)

        async def play(store: Store) -> bool | str:
            lease = pair[0] if store is self.store else pair[1]
            try:
                return await store.record_step(Step(lease.job_id, lease.seq, lease.token, key, value))
            except HeadwayError as error:
                return error.code

        self._same(play)

    # ------------------------------------------------------------------ what holds after each of them

    def _check_more(self, jobs: dict[JobId, JobRecord]) -> None:
        seen = self._same(_read_workflows)
        self._remember_pruned(jobs, seen)
        for batch in seen.batches.values():
            self._check_batch(batch, jobs, seen)
        for job_id, upstreams in seen.upstreams.items():
            self._check_edges(jobs[job_id], upstreams, seen)
        for job in jobs.values():
            self._check_firing(job, seen)
        self.by_hand = {job_id for job_id in self.by_hand if job_id in jobs and not jobs[job_id].held}
        self.by_hand |= {job_id for job_id in self.may_move if job_id in jobs and not jobs[job_id].held}
        self.alone = {source for source in self.alone if source in jobs}
        self.batches, self.edges = seen.batches, seen.upstreams

    def _remember_pruned(self, jobs: dict[JobId, JobRecord], seen: WorkflowContents) -> None:
        for job_id, job in self.known.items():
            if job.batch_id is not None and (job_id not in jobs or jobs[job_id].submitted_at > job.submitted_at):
                self.ended_members[BatchId(job.batch_id)][ending(job.state)] += 1
        for batch_id, batch in self.batches.items():
            if batch_id not in seen.batches and batch.parent is not None:
                self.ended_members[batch.parent][_child_ending(batch)] += 1

    def _check_batch(self, batch: BatchRecord, jobs: dict[JobId, JobRecord], seen: WorkflowContents) -> None:
        """Check that every count equals a recount, and that a batch has ended once it is closed and empty."""
        members = [jobs[job_id] for job_id in seen.members[batch.batch_id]]
        assert all(job.batch_id == batch.batch_id for job in members)
        assert len(members) == sum(job.batch_id == batch.batch_id for job in jobs.values())
        children = [child for child in seen.batches.values() if child.parent == batch.batch_id]
        counted = Counter(ending(job.state) for job in members if job.state.ended)
        counted += Counter(_child_ending(child) for child in children if child.finished_at is not None)
        counted += self.ended_members[batch.batch_id]
        live = [job for job in members if not job.state.ended]
        assert batch.children == sum(child.finished_at is None for child in children)
        assert batch.live == len(live) + batch.children
        assert batch.held == sum(job.held for job in live)
        assert batch.running == sum(job.state is State.EXECUTING for job in live)
        assert (batch.completed, batch.failed, batch.cancelled) == tuple(
            counted[name] for name in ("completed", "failed", "cancelled")
        )
        assert batch.total == batch.live + batch.completed + batch.failed + batch.cancelled
        assert (batch.finished_at is None) == (batch.open or batch.live > 0)
        before = self.batches.get(batch.batch_id)
        assert before is None or before.round <= batch.round <= before.round + 1

    def _check_edges(self, job: JobRecord, upstreams: Sequence[Upstream], seen: WorkflowContents) -> None:
        """Check that a held job waits for something, and that only an edge with such a rule cancels a job."""
        verdicts = [_verdict(upstream, seen) for upstream in upstreams]
        if job.held:
            assert EdgeVerdict.WAIT in verdicts, upstreams
            assert EdgeVerdict.CANCEL not in verdicts, upstreams
        for upstream, verdict in zip(upstreams, verdicts, strict=True):
            if verdict is EdgeVerdict.SATISFY or (job.held and upstream.source not in self.alone):
                assert upstream.satisfied == (verdict is EdgeVerdict.SATISFY), upstream
        before = self.known.get(job.job_id)
        if job.state is State.CANCELLED and (job.reason or "").startswith("upstream "):
            [(upstream, verdict)] = [
                pair for pair in zip(upstreams, verdicts, strict=True) if upstream_reason(pair[0].source) == job.reason
            ]
            assert upstream.rule in (EdgeRule.CANCEL, EdgeRule.ON_FAILURE)
            if upstream.status is SourceStatus.LIVE:  # Else a retry restores what it had cancelled.
                assert upstream.source in self.alone or job.unique_key is not None
            elif before is None or not before.state.ended:
                assert verdict is EdgeVerdict.CANCEL
        if before is not None and before.state.ended and not job.state.ended and job.job_id not in self.may_move:
            sources = {upstream_reason(up.source) for up in upstreams}
            assert before.reason in sources or any(up.rule in CALLBACKS for up in upstreams)

    def _check_firing(self, job: JobRecord, seen: WorkflowContents) -> None:
        """Check that no callback is released before its condition holds, or twice in a round."""
        before = self.known.get(job.job_id)
        was_held = before is None or before.held or before.state.ended
        if not was_held or job.held or job.state is State.CANCELLED or job.job_id in self.by_hand | self.may_move:
            return
        if before is not None and before.state.ended and job.state.ended:
            return
        for upstream in seen.upstreams.get(job.job_id, ()):
            assert upstream.satisfied
            if upstream.source in self.alone:
                continue
            assert _verdict(upstream, seen) is EdgeVerdict.SATISFY, (job, upstream)
            if upstream.rule in CALLBACKS:
                fired = (job.job_id, upstream.source, seen.batches[BatchId(upstream.source)].round)
                assert fired not in self.fired
                self.fired.add(fired)

    def _check_move(self, before: JobRecord | None, after: JobRecord) -> None:
        """Check a move as in all histories, unless another job or a batch may have caused it."""
        caused = before is not None and before.state.ended and after.job_id in self.edges
        if before is None and after.state is State.CANCELLED:
            assert (after.reason or "").startswith("upstream ")
        elif caused and after.job_id not in self.may_move:
            self.may_move.add(after.job_id)
            super()._check_move(before, after)
            self.may_move.discard(after.job_id)
        else:
            super()._check_move(before, after)

    # ------------------------------------------------------------------ helpers

    def _known_batch(self, number: int) -> BatchId:
        return self.batch_ids[-1 - number] if number < len(self.batch_ids) else _batch_id(10**6)

    def _batch(self, batch: BatchDraft) -> tuple[NewBatch | None, BatchId | None]:
        match batch.kind:
            case "new":
                parent = self._known_batch(batch.number) if batch.nested and self.batch_ids else None
                batch_id = _batch_id(len(self.batch_ids))
                tenant = batch.tenant if self.scene in ("tenants", "limits") else None
                return NewBatch(batch_id, "import", batch.key, tenant, parent, batch.open), None
            case "known":
                return None, self._known_batch(batch.number)
            case _:
                return None, None

    def _nodes(self, wanted_nodes: list[NodeDraft]) -> list[GraphNode]:
        made: list[GraphNode] = []
        for one in wanted_nodes:
            job = self._new_job(one.job, len(self.jobs) + len(made))._replace(persist=True)
            found: dict[str, EdgeRule] = {}
            for edge in one.after:
                for source in self._sources(edge, job, made):
                    found.setdefault(source, edge.rule)
            made.append(GraphNode(job, tuple(Edge(source, rule) for source, rule in found.items()), one.member))
        return made

    def _sources(self, edge: EdgeDraft, job: NewJob, made: list[GraphNode]) -> Iterable[str]:
        """Return the job or batch that an edge names, if there is one that the job may wait for."""
        named: list[tuple[str, str | None]]
        if edge.kind == "batch":
            named = [(batch_id, self.tenants[batch_id]) for batch_id in self.batch_ids]
        else:
            among = [node.job for node in made] if edge.kind == "node" else [job for job in self.jobs if job.persist]
            named = [(one.job_id, one.tenant) for one in among]
        allowed = [name for name, tenant in named if name != job.job_id and job.tenant in (None, tenant)]
        return allowed[-1 - edge.number : len(allowed) - edge.number] if edge.number < len(allowed) else ()


def _batch_id(number: int) -> BatchId:
    return BatchId(f"batch-{an_id(10**8 + number)}")


def _child_ending(batch: BatchRecord) -> str:
    return "failed" if batch.failed or batch.cancelled else "completed"


def _verdict(upstream: Upstream, seen: WorkflowContents) -> EdgeVerdict:
    batch = seen.batches.get(BatchId(upstream.source)) if is_batch(upstream.source) else None
    if upstream.satisfied and batch is None and is_batch(upstream.source):  # It was pruned.
        return EdgeVerdict.SATISFY
    return settle(upstream.rule, upstream.status, failing=batch is not None and batch.failing)


async def _submitted_graph(store: Store, graph: Graph) -> GraphReply | tuple[str, object]:
    """Submit a graph. If the store refuses it, return the code of the error and the node that it names."""
    try:
        return await store.submit_graph(graph)
    except HeadwayError as error:
        return error.code, error.facts.get("index")


async def _plain_batch_of(reading: Awaitable[BatchRecord | None]) -> BatchRecord | None:
    batch = await reading
    return batch and replace(batch, seq=0)


async def _read_workflows(store: Store) -> WorkflowContents:
    found = await store.find_batches(ALL_BATCHES)
    members = {
        batch.batch_id: [job.job_id for job in await store.members(batch.batch_id, limit=100_000)] for batch in found
    }
    job_ids = list(await all_jobs(store))
    upstreams = await store.upstreams(job_ids, results=True)
    steps = {job_id: await store.steps(job_id) for job_id in job_ids}
    return WorkflowContents(
        {batch.batch_id: replace(batch, seq=0) for batch in found},
        members,
        {job_id: edges for job_id, edges in zip(job_ids, upstreams, strict=True) if edges},
        {job_id: kept for job_id, kept in steps.items() if kept},
    )


@pytest.mark.slow
@pytest.mark.timeout(600)  # One that fails is cut down to what matters, and that takes its time.
@pytest.mark.parametrize("part", range(2))
def test_random_workflows_come_out_as_on_the_memory_store(store_name: str, part: int, seed: int) -> None:
    examples = 15 if store_name == "postgres" else 30
    play(WorkflowHistories, store_name, seed * 100 + part, examples=examples, steps=40)


PARTS = int(os.environ.get("HISTORY_PARTS", "20"))


@pytest.mark.proof
@pytest.mark.parametrize("part", range(PARTS))
def test_many_long_workflows_come_out_as_on_the_memory_store(store_name: str, part: int, seed: int) -> None:
    play(WorkflowHistories, store_name, 1_000_000 + seed * 100 + part, examples=500, steps=100)
