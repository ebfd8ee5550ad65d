"""Submits calls to the store. Every kind of submit takes the same five steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from headway.client.client import BATCH
from headway.client.depth import QueueDepth
from headway.client.graph import make_graph, with_sources
from headway.client.job import Job
from headway.client.preview import preview_graph, with_undeclared
from headway.client.task import Call
from headway.core.errors import BadArguments, BadEdge, ConfigError
from headway.core.job import NewJob, SubmitReply
from headway.core.preview import SubmitPreview
from headway.core.workflow import BatchId, Graph, GraphReply
from headway.observability import traces
from headway.policy_store.rule_documents import declare_limits
from headway.stores.base import Store

if TYPE_CHECKING:
    from headway.client.app import Headway

FOLLOW_EVERY = 5.0  # Seconds between reads of the store's policy by a process that submits; each costs a round trip.

StoreGraph = Callable[[Graph], GraphReply]
StoreJobs = Callable[[Sequence[NewJob]], list[SubmitReply]]
AfterCommit = Callable[[Callable[[], None]], None]

log = logging.getLogger("headway.jobs")


class GraphOptions(TypedDict, total=False):
    """The options that hold for all calls of a graph."""

    batch_id: BatchId | None  # The batch that the calls become members of.
    tenant: str | None  # The tenant of calls that have none.


class Submitter:
    """Submits the calls of an app.

    1. Prepare: follow the store's policy, declare the limits of the tasks, make a job of each call.
    2. Check: refuse jobs that make the queue longer than the policy allows.
    3. Trace: open a span and put its context into the jobs.
    4. Store: all jobs of a round trip or none.
    5. Log what is queued.

    ``submit`` runs the steps on an event loop and ``submit_blocking`` in a thread. ``submit_by`` runs in a thread and
    lets the caller do step 4. ``submit_many`` and ``submit_many_blocking`` run the steps for each thousand calls. With
    a ``connection`` the store joins the current transaction of this connection, which the caller owns.

    ``after_commit`` runs a function once the last write is committed. By default each write commits at once.
    """

    def __init__(self, app: Headway, after_commit: AfterCommit = lambda action: action()) -> None:
        self._app = app
        self._after_commit = after_commit
        self._depth = QueueDepth()
        self.declared: set[str] = set()  # The tasks whose limits are in the store.

    async def submit(self, calls: Sequence[Call[Any]], connection: object | None = None) -> list[SubmitReply]:
        """Submit calls in one round trip, all or none."""
        return await self._send(await self._prepare(calls), connection)

    def submit_blocking(self, calls: Sequence[Call[Any]], connection: object | None = None) -> list[SubmitReply]:
        """Submit calls in one round trip, all or none. Blocks."""
        return self.submit_by(calls, lambda jobs: self._store_blocking(jobs, connection))

    def submit_by(self, calls: Sequence[Call[Any]], store_jobs: StoreJobs) -> list[SubmitReply]:
        """Submit calls in this thread. ``store_jobs`` stores their jobs. Blocks."""
        jobs = [call.job() for call in calls] if self._is_ready(calls) else self._app.portal.run(self._prepare(calls))
        with traces.SubmitSpan(jobs) as sent:
            replies = store_jobs(sent)
        _log_queued(sent, replies)
        return replies

    async def submit_many(self, calls: Iterable[Call[Any]], connection: object | None = None) -> list[Job[Any]]:
        """Submit any number of calls in batches. Reads the calls of a batch only when its turn comes."""
        if isinstance(calls, Sequence) and any(isinstance(call, Call) and call.links for call in calls):
            return await self.submit_graph(calls, connection)
        jobs: list[Job[Any]] = []
        remaining = iter(calls)
        remote = (await self._app.client.store()).abilities.remote
        before: Sequence[Call[Any]] = ()
        sent: asyncio.Task[list[SubmitReply]] | None = None
        # Prepare the next batch while a server stores this one. A store in this process would compete for the
        # interpreter and reach only two thirds of the speed, so its batches run one after the other.
        try:
            while batch := list(islice(remaining, BATCH)):
                within = _one_connection(batch, connection)
                if any(call.links for call in batch):
                    replies = [] if sent is None else await sent
                    return [
                        *jobs,
                        *map(Call.handle, before, replies),
                        *await self.submit_graph([*batch, *remaining], connection),
                    ]
                made = await self._prepare(batch)
                replies = [] if sent is None else await sent
                sent = asyncio.create_task(self._send(made, within))
                await asyncio.sleep(0) if remote else await asyncio.wait([sent])
                jobs += map(Call.handle, before, replies)
                before = batch
            if sent is not None:
                jobs += map(Call.handle, before, await sent)
            return jobs
        except Exception:
            if sent is not None:
                await asyncio.wait([sent])  # A bad call does not undo the batch before it.
            raise

    def submit_many_blocking(self, calls: Iterable[Call[Any]], connection: object | None = None) -> list[Job[Any]]:
        """Submit any number of calls in batches. Blocks."""
        if isinstance(calls, Sequence) and any(isinstance(call, Call) and call.links for call in calls):
            return self.submit_graph_blocking(calls, connection)
        remaining = iter(calls)
        batch = list(islice(remaining, BATCH))
        if _one_connection(batch, connection) is None:
            return self._app.portal.run(self.submit_many(chain(batch, remaining)))
        jobs: list[Job[Any]] = []
        while batch:
            jobs += map(Call.handle, batch, self.submit_blocking(batch, _one_connection(batch, connection)))
            batch = list(islice(remaining, BATCH))
        return jobs

    async def submit_graph(
        self,
        calls: Sequence[Call[Any]],
        connection: object | None = None,
        **options: Unpack[GraphOptions],
    ) -> list[Job[Any]]:
        """Submit calls and the calls that they wait for in one round trip, all or none. Return a job for each call.

        Without a ``batch_id``, calls that wait for each other become members of a batch of their own, so that they
        can be shown, cancelled and retried together.
        """
        connection = _one_connection(calls, connection)
        nodes = with_sources(calls, options.get("tenant"))
        client = self._app.client
        with _name_call(calls, nodes), traces.SubmitSpan(await self._prepare(nodes)) as sent:
            graph = self._graph(nodes, sent, options)
            reply = await client.submit_graph(graph) if connection is None else None
            while reply is None:
                reply = await (await client.prepare_graph(graph)).arun(connection)
        return _handles(calls, nodes, sent, reply)

    def submit_graph_blocking(
        self,
        calls: Sequence[Call[Any]],
        connection: object | None = None,
        **options: Unpack[GraphOptions],
    ) -> list[Job[Any]]:
        """Blocking twin of ``submit_graph``."""
        portal = self._app.portal
        connection = _one_connection(calls, connection)
        if connection is None:
            return portal.run(self.submit_graph(calls, **options))
        return self.submit_graph_by(calls, lambda graph: self.store_graph(graph, connection), **options)

    def submit_graph_by(
        self,
        calls: Sequence[Call[Any]],
        store_graph: StoreGraph,
        **options: Unpack[GraphOptions],
    ) -> list[Job[Any]]:
        """Submit a graph in this thread. ``store_graph`` stores it. Blocks."""
        nodes = with_sources(calls, options.get("tenant"))
        with _name_call(calls, nodes), traces.SubmitSpan(self._app.portal.run(self._prepare(nodes))) as sent:
            reply = store_graph(self._graph(nodes, sent, options))
        return _handles(calls, nodes, sent, reply)

    def store_graph(self, graph: Graph, connection: object) -> GraphReply:
        """Store a graph on the caller's connection. Blocks."""
        while True:
            prepared = self._app.portal.run(self._app.client.prepare_graph(graph))
            if (reply := prepared.run(connection)) is not None:
                return reply

    async def preview(
        self, call: Call[Any], store: Store | None = None, **options: Unpack[GraphOptions]
    ) -> tuple[NewJob, SubmitPreview]:
        """Return the job of a call, and what its submit would do. Keeps nothing. Raises what a submit raises.

        ``store``: in place of the app's own, if that does not exist yet.
        """
        nodes = with_sources([call], options.get("tenant"))
        if len(nodes) > 1:
            raise ConfigError("a preview is of one job; submit the calls that it waits for first")
        app = self._app
        if store is None:
            await app.follow_policy()
            store = await app.client.store()
        if call.task.terms.problem:
            await app.in_force.refresh(store, every=0)
        jobs = [node.job() for node in nodes]
        if self._bounds_depth:
            await self._depth.check(store, jobs, app.policy)
        found = await preview_graph(store, self._graph(nodes, jobs, options))
        return jobs[0], with_undeclared(found, call.task.limits)

    def _graph(self, calls: Sequence[Call[Any]], jobs: Sequence[NewJob], options: GraphOptions) -> Graph:
        return make_graph(calls, jobs, options.get("batch_id"))._replace(back=self._app.policy.release == "back")

    # ------------------------------------------------------------------ steps 1 and 2

    async def _prepare(self, calls: Sequence[Call[Any]]) -> list[NewJob]:
        app = self._app
        await app.follow_policy()
        tasks = {call.task for call in calls}
        for task in tasks:
            if task.limits and task.name not in self.declared:
                await declare_limits(await app.client.store(), task.name, task.limits)
                self._after_commit(partial(self.declared.add, task.name))
        if any(task.terms.problem for task in tasks):
            await app.in_force.refresh(await app.client.store(), every=0)  # The operator may have fixed the policy.
            for index, call in enumerate(calls):
                if (problem := call.task.terms.problem) is not None:
                    raise ConfigError(problem, index=index)
        jobs = [call.job() for call in calls]
        if self._bounds_depth:
            await self._depth.admit(await app.client.store(), jobs, app.policy)
        return jobs

    def _is_ready(self, calls: Sequence[Call[Any]]) -> bool:
        """Return whether steps 1 and 2 need no access to the store."""
        if self._bounds_depth or not self._app.in_force.was_read_within(FOLLOW_EVERY):
            return False
        for call in calls:
            task = call.task
            if task.terms.problem or (task.limits and task.name not in self.declared):
                return False
        return True

    @property
    def _bounds_depth(self) -> bool:
        policy = self._app.in_force.policy
        return bool(policy.max_depth or policy.tenants.max_depth or policy.tenants.max_depths)

    # ------------------------------------------------------------------ steps 3 to 5

    async def _send(self, jobs: Sequence[NewJob], connection: object | None) -> list[SubmitReply]:
        with traces.SubmitSpan(jobs) as sent:
            replies = await self._store(sent, connection)
        _log_queued(sent, replies)
        return replies

    async def _store(self, jobs: Sequence[NewJob], connection: object | None) -> list[SubmitReply]:
        client = self._app.client
        if connection is None:
            return await client.submit(jobs)
        while True:
            prepared = await client.prepare_submit(jobs)
            if (replies := await prepared.arun(connection)) is not None:
                return replies

    def _store_blocking(self, jobs: Sequence[NewJob], connection: object | None) -> list[SubmitReply]:
        """Store jobs from this thread if the store can do that, else on the portal's event loop."""
        client, portal = self._app.client, self._app.portal
        store = client.opened(portal.started)
        if connection is None:
            portal.warn_on_loop()
            submit = None if store is None else store.abilities.submit_blocking
            replies = None if submit is None else submit(jobs)
            return portal.run(client.submit(jobs)) if replies is None else replies
        external = None if store is None else store.abilities.external_submit
        while True:
            prepared = None if external is None else external.prepare_submit_blocking(jobs)
            prepared = prepared or portal.run(client.prepare_submit(jobs))
            if (replies := prepared.run(connection)) is not None:
                return replies


@contextmanager
def _name_call(calls: Sequence[Call[Any]], nodes: Sequence[Call[Any]]) -> Iterator[None]:
    """Change the index in an error to that of the caller's call, because a graph may have sorted the calls."""
    try:
        yield
    except (BadEdge, ConfigError) as problem:
        node = problem.facts.get("index")
        job_id = nodes[node].new.job_id if isinstance(node, int) else None
        index = next((place for place, call in enumerate(calls) if call.new.job_id == job_id), node)
        if index == node:
            raise
        text = str(problem).replace(f"job {node} of the graph", f"job {index} of the graph")
        raise type(problem)(text, **{**problem.facts, "index": index}) from None


def _handles(
    calls: Sequence[Call[Any]], nodes: Sequence[Call[Any]], jobs: Sequence[NewJob], reply: GraphReply
) -> list[Job[Any]]:
    """Log what a graph has queued, and return the jobs of the calls that were asked for."""
    _log_queued(jobs, reply.replies)
    handles = {node.new.job_id: node.handle(answer) for node, answer in zip(nodes, reply.replies, strict=True)}
    return [handles[call.new.job_id] for call in calls]


def _one_connection(calls: Sequence[Call[Any]], connection: object | None) -> object | None:
    """Return the caller's connection for a batch, or None. Raises ``ConfigError`` if its calls name different ones."""
    for call in calls:
        if not isinstance(call, Call):
            raise BadArguments(
                f"enqueue_many takes calls such as task.call(1), got {call!r:.100}; task(1) runs the task here and now"
            )
    connections = [task.connection for task in {call.task for call in calls}]
    found = {id(mine): mine for mine in (connection, *connections) if mine is not None}
    plain = connection is None and any(mine is None for mine in connections)
    if len(found) > 1 or (found and plain):
        raise ConfigError("jobs that are submitted together must name the same connection")
    return next(iter(found.values()), None)


def _log_queued(jobs: Sequence[NewJob], replies: Sequence[SubmitReply]) -> None:
    """Log the new jobs of one submit in one line."""
    if not log.isEnabledFor(logging.DEBUG):
        return
    new = [job for job, reply in zip(jobs, replies, strict=True) if not reply.deduplicated]
    if len(new) == 1:
        job = new[0]
        trace_id = traces.shown_trace(job.trace_id, job.job_id)
        facts: dict[str, Any] = {"job": job.job_id, "task": job.task, "lane": job.lane, "trace_id": trace_id}
        log.debug("job.queued", extra={"headway": facts})
    elif new:
        facts = {"jobs": [job.job_id for job in new], "tasks": sorted({job.task for job in new})}
        log.debug("jobs.queued", extra={"headway": facts})
