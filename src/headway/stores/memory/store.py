"""The verbs of a store on dictionaries. Random-history tests compare every other store with this one."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from headway.core.diagnostics import JobDiagnostics, QueueDiagnostics
from headway.core.job import ClassKey, JobId, JobRecord, NewJob, State, SubmitReply
from headway.core.lease import Lease
from headway.core.policy.document import Keep
from headway.core.policy.ladder import Preemption
from headway.core.preview import SubmitPreview
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerState
from headway.core.workflow import BatchId, BatchQuery, BatchRecord, Graph, GraphReply, Step, Upstream, check_graph
from headway.stores import base
from headway.stores.clock import SteadyClock
from headway.stores.memory import claim, diagnose, finish, heartbeat, prune, submit, workflow
from headway.stores.memory import query as reads
from headway.stores.memory.limits import adopt_rules
from headway.stores.memory.record import StoredJob
from headway.stores.memory.state import MemoryState
from headway.stores.notifications import LocalSubscription
from headway.stores.texts import check_jobs, check_text, check_worker


class MemoryStore:
    """Jobs in dictionaries, for tests and for trying Headway out. The jobs end with the process."""

    abilities = base.Abilities(durable=False, shared=False, any_loop=True)

    def __init__(self, namespace: str = "default", *, clock: base.Clock) -> None:
        self.namespace = namespace
        self._clock = clock
        self._steady = SteadyClock()
        self._lock = threading.RLock()
        self.state = MemoryState()

    @contextmanager
    def _transaction(self) -> Iterator[MemoryState]:
        """Hold the lock for one verb, and send its wake-ups at the end."""
        with self._lock:
            self.state.begin(self._steady.now(self._clock()))
            yield self.state
            self.state.settle()

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        check_jobs(jobs)
        with self._transaction() as state:
            return submit.submit(state, jobs)

    async def exchange(self, request: base.Exchange) -> base.ExchangeReply:
        with self._transaction() as state:
            return claim.exchange(state, request)

    async def renew(self, beat: base.Heartbeat) -> base.HeartbeatReply:
        check_worker(beat.worker)
        with self._transaction() as state:
            reply = heartbeat.renew(state, beat)
            workflow.settle_edges(state)
            return reply

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000, payloads: bool = True) -> list[Lease]:
        with self._transaction() as state:
            return heartbeat.leases(state, worker_id, limit, payloads=payloads)

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        with self._transaction() as state:
            state.set_worker_state(worker_id, WorkerState.DEAD)
            if left and not state.leased(worker_id):
                state.workers.pop(worker_id, None)

    async def drain(self, worker_id: str) -> bool:
        with self._transaction() as state:
            return heartbeat.drain(state, worker_id)

    async def preempt(self, amendments: Sequence[Preemption]) -> list[bool]:
        with self._transaction() as state:
            return heartbeat.preempt(state, amendments)

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        with self._transaction() as state:
            states: list[State | None] = []
            for job_id in job_ids:
                if record := state.jobs.get(job_id):
                    finish.cancel(state, record, reason)
                states.append(record.state if record else None)
            workflow.settle_edges(state)
            state.changed += job_ids
            return states

    async def retry(self, job_ids: Sequence[JobId], *, alone: bool = False) -> list[State | None]:
        with self._transaction() as state:
            states: list[State | None] = []
            retried: list[StoredJob] = []
            for job_id in job_ids:
                record = state.jobs.get(job_id)
                if record and finish.retry(state, record, alone=alone):
                    retried.append(record)
                states.append(record.state if record else None)
            workflow.hold_retried(state, retried)
            workflow.settle_edges(state)
            state.changed += job_ids
            return states

    async def reschedule(
        self, job_ids: Sequence[JobId], *, lane: str | None = None, now: bool = False
    ) -> list[State | None]:
        check_text(lane or "", "a lane")
        with self._transaction() as state:
            states: list[State | None] = []
            for job_id in job_ids:
                if record := state.jobs.get(job_id):
                    finish.reschedule(state, record, lane, now=now)
                states.append(record.state if record else None)
            state.changed += job_ids
            return states

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        with self._transaction() as state:
            return [reads.get(state, job_id) for job_id in job_ids]

    async def find(self, query: base.JobQuery) -> list[JobRecord]:
        with self._transaction() as state:
            return reads.find(state, query)

    async def find_ids(self, query: base.JobQuery) -> list[tuple[int, JobId]]:
        return [(job.seq, job.job_id) for job in await self.find(query)]

    async def submit_graph(self, graph: Graph) -> GraphReply:
        check_graph(graph)
        check_jobs([node.job for node in graph.nodes])
        with self._transaction() as state:
            return workflow.submit_graph(state, graph)

    async def close_batch(self, batch_id: BatchId) -> BatchRecord | None:
        with self._transaction() as state:
            return workflow.close(state, batch_id)

    async def cancel_batch(self, batch_id: BatchId) -> BatchRecord | None:
        with self._transaction() as state:
            return workflow.cancel(state, batch_id)

    async def get_batches(self, batch_ids: Sequence[BatchId]) -> list[BatchRecord | None]:
        with self._transaction() as state:
            return [workflow.batch_of(state, batch_id) for batch_id in batch_ids]

    async def find_batches(self, query: BatchQuery) -> list[BatchRecord]:
        with self._transaction() as state:
            return workflow.find_batches(state, query)

    async def members(
        self, batch_id: BatchId, *, beyond: int = 0, states: Sequence[State] = (), limit: int = 500
    ) -> list[JobRecord]:
        with self._transaction() as state:
            return workflow.members(state, batch_id, beyond, states, limit)

    async def upstreams(self, job_ids: Sequence[JobId], *, results: bool = False) -> list[list[Upstream]]:
        with self._transaction() as state:
            found = [state.jobs.get(job_id) for job_id in job_ids]
            return [[] if one is None else workflow.read_upstreams(state, one, results=results) for one in found]

    async def record_step(self, step: Step) -> bool:
        with self._transaction() as state:
            return workflow.record_step(state, step)

    async def steps(self, job_id: JobId) -> dict[str, bytes]:
        with self._transaction() as state:
            return dict(state.steps.get(job_id, {}))

    async def snapshot(self) -> Snapshot:
        with self._transaction() as state:
            return reads.snapshot(state)

    async def stats(self) -> base.Stats:
        with self._transaction() as state:
            return reads.stats(state)

    async def waiting_of(self, tenant: str) -> dict[str, base.LaneStats]:
        with self._transaction() as state:
            return reads.waiting_of(state, tenant)

    async def breakdown(self, *, limit: int = 1_000) -> base.QueueBreakdown:
        with self._transaction() as state:
            return reads.breakdown(state, limit)

    async def diagnose(self) -> QueueDiagnostics:
        with self._transaction() as state:
            return diagnose.diagnose(state)

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        with self._transaction() as state:
            return diagnose.diagnose_job(state, job_id)

    async def preview(self, job: NewJob) -> SubmitPreview:
        check_jobs([job])
        with self._transaction() as state:
            return diagnose.preview(state, job)

    async def record_wait_reasons(self, reasons: Mapping[ClassKey, str]) -> None:
        with self._transaction() as state:
            diagnose.record_wait_reasons(state, reasons)

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        with self._transaction() as state:
            touched = prune.prune(state, keep, limit)
            workflow.settle_edges(state)
            return touched

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        with self._transaction() as state:
            return prune.purge(state, states, job_ids, limit)

    async def read(self, kind: str, name: str | None = None) -> list[base.Document]:
        with self._transaction() as state:
            found = [d for d in state.documents.values() if d.kind == kind and name in (None, d.name)]
            return sorted(found, key=lambda document: document.name)

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        check_text(kind, "a document's kind")
        check_text(name, "a document's name")
        with self._transaction() as state:
            known = state.documents.get((kind, name))
            version = known.version if known else 0
            if if_version is not None and if_version != version:
                return None
            if body is None:
                state.documents.pop((kind, name), None)
            else:
                state.documents[kind, name] = base.Document(kind, name, version + 1, body)
            if kind == base.RULES:
                adopt_rules(state)
            if kind == base.POLICIES:
                for worker_id in state.workers:
                    state.notify(worker_id + base.LEASE_CHANNEL)
            return version + 1

    def subscribe(self, name: str) -> base.Subscription:
        def unsubscribe(subscription: LocalSubscription) -> None:
            with self._lock:
                self.state.unsubscribe(name, subscription)

        subscription = LocalSubscription(unsubscribe)
        with self._lock:
            self.state.subscribe(name, subscription)
        return subscription

    async def schema(self) -> tuple[int | None, int]:
        return 0, 0

    async def describe(self) -> dict[str, str]:
        return {"store": "memory", "durability": "none: jobs end with the process"}
