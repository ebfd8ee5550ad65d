"""A worker's connection to a store."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import msgspec

from headway.core.errors import StoreError
from headway.core.job import JobId
from headway.core.lease import Lease
from headway.core.policy.document import Policy, reserved_slots
from headway.core.policy.retry import Ending
from headway.core.policy.writer import policy_data
from headway.core.worker import WorkerInfo
from headway.core.workflow import Step, Upstream, is_batch
from headway.dispatch.job_source import StoreJobSource
from headway.estimates.costs import TaskCosts
from headway.maintenance.recovery import end_worker
from headway.metrics.recorder import MetricsRecorder
from headway.observability.job_output import Chunk, write_output
from headway.policy_store.catalogue import publish_crons, publish_tasks
from headway.policy_store.current import CurrentPolicy
from headway.policy_store.rule_documents import declare_limits, write_rules
from headway.policy_store.versions import apply_policy
from headway.security.audit import PYTHON
from headway.security.audited_store import audited
from headway.stores.base import Heartbeat, HeartbeatReply, Store, Subscription
from headway.stores.paging import get_in_steps
from headway.worker.backend.base import AppManifest, Backend, EndingOf, JobSource, LeaseTimes, RegisteredWorker

LINKS_MAX = 100  # Links of one span; OpenTelemetry keeps 128.
FILES = "policy_file"  # The kind of document that holds the digest of the last applied policy file.


class StoreBackend(Backend):
    """Talks to a store. ``file``: the policy file the worker was started with, and its path."""

    def __init__(
        self,
        store: Store,
        in_force: CurrentPolicy,
        *,
        file: tuple[Policy, str] | None = None,
        recorder: MetricsRecorder | None = None,
    ) -> None:
        super().__init__(in_force)
        self.store = self._store = store
        self._file = file
        self._durations = TaskCosts()
        self.durations_due = self._durations.due
        self.recorder = recorder or MetricsRecorder()

    async def open(self) -> None:
        await self._store.open()

    async def close(self) -> None:
        with contextlib.suppress(StoreError):
            await self.recorder.retire(self._store)
        await self._store.close()

    async def register(
        self, worker: WorkerInfo, pace: LeaseTimes, known: Callable[[Policy], AppManifest], *, reserved: int | None
    ) -> RegisteredWorker:
        store = self._store
        if self._file is not None:  # A changed file is applied before the policy is read.
            await apply_file(store, *self._file, now_at=(await store.snapshot()).now_at)
        await self.in_force.refresh(store, every=0)
        policy = self.in_force.policy
        worker = replace(worker, reserved=reserved_slots(policy, worker.slots, reserved))
        beat = Heartbeat(worker, int(pace.dead_after * 1_000), int(pace.confirm * 1_000), register=True)
        answer = await store.renew(beat)
        tasks, limits, crons = known(policy)
        await publish_tasks(store, tasks)
        for task, declared in limits.items():
            await declare_limits(store, task, declared)
        await self._durations.publish(store)
        await publish_crons(store, crons, {entry.name for entry in tasks}, answer.now_at)
        return RegisteredWorker(worker, pace)

    def job_source(self, worker: WorkerInfo, pace: LeaseTimes, *, offset: float) -> JobSource:
        return StoreJobSource(
            self._store,
            self.in_force,
            worker.worker_id,
            worker.offers,
            durations=self._durations,
            recorder=self.recorder,
            offset=offset,
            confirm=pace.confirm,
        )

    def subscribe(self, name: str) -> Subscription:
        return self._store.subscribe(name)

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        return await self._store.renew(beat)

    async def check(self) -> None:
        await self._store.snapshot()

    async def refresh_policy(self) -> None:
        if await self.in_force.refresh(self._store, every=0):
            # The process that applied the policy may have died before it wrote the rules.
            await write_rules(self._store, self.in_force.policy)

    async def learn(self, *, idle: bool) -> bool:
        await self.recorder.publish(self._store)
        if not self._durations.noted and not idle:
            return False
        await self._durations.publish(self._store)
        return True

    async def learn_first(self) -> float | None:
        return await self._durations.publish_first(self._store)

    async def upstreams(self, lease: Lease) -> list[Upstream]:
        return (await self._store.upstreams([lease.job_id], results=True))[0]

    async def trace_ids(self, upstreams: Sequence[Upstream]) -> dict[str, str]:
        named = [JobId(one.source) for one in upstreams if not is_batch(one.source)][:LINKS_MAX]
        found = get_in_steps(self._store.get, named)
        return {job.job_id: job.trace_id async for job in found if job is not None and job.trace_id is not None}

    async def steps(self, lease: Lease) -> dict[str, bytes]:
        return await self._store.steps(lease.job_id)

    async def record_step(self, step: Step) -> bool:
        return await self._store.record_step(step)

    async def write_output(self, worker_id: str, lease: Lease, chunks: Sequence[Chunk]) -> None:
        await write_output(self._store, lease.job_id, lease.epoch, chunks)

    async def give_back(
        self, worker_id: str, leases: Sequence[tuple[JobId, bytes]], ending_of: EndingOf, *, left: bool = False
    ) -> None:
        def ending(lease: Lease) -> Ending:
            return ending_of(lease.job_id, lease.limit_ms)

        await end_worker(self._store, worker_id, self.in_force.policy, ending, recorder=self.recorder, left=left)


async def apply_file(store: Store, policy: Policy, path: str, *, now_at: int) -> None:
    """Apply the policy of a file that a process was started with, unless the last applied file had the same policy.

    So a new file takes effect when it is deployed, and a later change by an operator survives a restart.
    """
    digest = hashlib.sha256(msgspec.json.encode(policy_data(policy), order="deterministic")).digest()
    known = await store.read(FILES, "last")
    if known and known[0].body == digest:
        return
    await apply_policy(audited(store, PYTHON), policy, now_at=now_at, note=f"from {path}")
    await store.write(FILES, "last", digest)
