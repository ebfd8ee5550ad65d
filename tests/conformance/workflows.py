"""Builders of graphs and batches, and short forms of store calls, for tests of workflows."""

from __future__ import annotations

from headway.core.errors import JobError
from headway.core.job import JobId, NewJob, State
from headway.core.lease import Lease, Report
from headway.core.policy.document import BUILT_IN
from headway.core.policy.retry import Ending, Raised, Released, Returned, judge
from headway.core.workflow import (
    BATCH_PREFIX,
    BatchId,
    BatchRecord,
    Edge,
    EdgeRule,
    Graph,
    GraphNode,
    GraphReply,
    NewBatch,
)
from headway.stores.base import Store
from tests.conformance.builders import a_job, an_id, ask, claim, end, report, the_job

FAILED = Raised(JobError("ValueError", "bad", retriable=False))


def a_batch_id() -> BatchId:
    return BatchId(f"{BATCH_PREFIX}{an_id()}")


def a_batch(
    name: str = "import", *, key: str | None = None, tenant: str | None = None, parent: BatchId | None = None,
    open: bool = True,
) -> NewBatch:  # fmt: skip
    return NewBatch(a_batch_id(), name, key, tenant, parent, open)


def node(*sources: str, rule: EdgeRule = EdgeRule.CANCEL, job: NewJob | None = None, member: bool = True) -> GraphNode:
    return GraphNode(job or a_job(), tuple(Edge(source, rule) for source in sources), member)


async def submit_graph(store: Store, *nodes: GraphNode, create: NewBatch | None = None) -> list[JobId]:
    return [reply.job_id for reply in (await store.submit_graph(Graph(nodes, create))).replies]


async def submit_node(
    store: Store, *sources: str, rule: EdgeRule = EdgeRule.CANCEL, job: NewJob | None = None, member: bool = True
) -> JobId:
    [job_id] = await submit_graph(store, node(*sources, rule=rule, job=job, member=member))
    return job_id


async def submit_batch(
    store: Store, size: int, *, name: str = "import", key: str | None = None, tenant: str | None = None,
    parent: BatchId | None = None, open: bool = False,
) -> tuple[BatchId, list[JobId]]:  # fmt: skip
    """Submit a batch of jobs, closed unless ``open`` is set."""
    nodes = [node(job=a_job(tenant=tenant)) for _ in range(size)]
    create = a_batch(name, key=key, tenant=tenant, parent=parent, open=open)
    reply = await store.submit_graph(Graph(nodes, create))
    assert reply.batch_id is not None
    return reply.batch_id, [one.job_id for one in reply.replies]


async def add(store: Store, batch_id: BatchId, *nodes: GraphNode) -> GraphReply:
    return await store.submit_graph(Graph(nodes or (node(),), batch_id=batch_id))


async def the_batch(store: Store, batch_id: BatchId) -> BatchRecord:
    [batch] = await store.get_batches([batch_id])
    assert batch is not None
    return batch


async def run(store: Store, *job_ids: JobId, ending: Ending | None = None) -> None:
    """Claim all jobs that can be claimed, end the named ones with this ending, and return the others."""
    leases = {lease.job_id: lease for lease in await claim(store, free=5)}
    assert set(job_ids) <= set(leases), "these jobs cannot be claimed yet"
    for job_id in job_ids:
        await end(store, leases.pop(job_id), ending)
    await give_back(store, *leases.values())


async def give_back(store: Store, *leases: Lease) -> None:
    await report(store, *(judge(Released("not this one"), lease, BUILT_IN) for lease in leases))


async def run_all(store: Store, *, failing: frozenset[JobId] = frozenset(), most: int = 1_000) -> list[JobId]:
    """Run jobs until none can be claimed. Return the order in which they started."""
    order: list[JobId] = []
    finished: list[Report] = []
    for _ in range(most):
        answer = await ask(store, free=5, finished=finished)
        order += [lease.job_id for lease in answer.leases]
        if not answer.leases and not answer.more:
            return order
        finished = [
            judge(FAILED if lease.job_id in failing else Returned(b'"done"'), lease, BUILT_IN)
            for lease in answer.leases
        ]
    raise AssertionError("the store never comes to rest")


async def states(store: Store, *job_ids: JobId) -> list[State]:
    return [(await the_job(store, job_id)).state for job_id in job_ids]


async def are_held(store: Store, *job_ids: JobId) -> bool:
    jobs = [await the_job(store, job_id) for job_id in job_ids]
    assert all(not job.held or (job.state is State.QUEUED and job.due_at is None) for job in jobs)
    return all(job.held for job in jobs)
