"""Serve workers that have no access to the store: registration, polls, results, heartbeats, drains.

Any number of servers may share a store, so a worker may register with one server and poll another. A process caches
what it knows of a worker in a ``WorkerSession``, and can rebuild all of it from the store. Nothing here knows HTTP.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

from headway.core.errors import TooMany, WorkerUnknown
from headway.core.job import PAYLOAD_VERSION, JobId
from headway.core.lease import Lease
from headway.core.policy.document import LimitRule
from headway.core.policy.retry import Released, Unknown
from headway.core.policy.writer import policy_data
from headway.core.worker import WorkerState
from headway.core.workflow import Step
from headway.dispatch.job_source import StoreJobSource
from headway.estimates.costs import TaskCosts
from headway.maintenance.recovery import end_worker
from headway.metrics.recorder import MetricsRecorder
from headway.observability.job_output import KEPT_MAX, Chunk, write_output
from headway.policy_store.catalogue import CronDocument, TaskEntry, read_tasks
from headway.policy_store.current import CurrentPolicy
from headway.protocol import worker as messages
from headway.protocol.conversion import result_of, step_value, token_of
from headway.security.audit import OPEN
from headway.security.tokens import covers
from headway.server.gateway.endings import cut_text
from headway.server.gateway.long_poll import READ_LEASES_EVERY, LongPoll, PollResult
from headway.server.gateway.publishing import Declaration, changes, publish
from headway.server.gateway.registry import Registration, WorkerRegistry
from headway.server.gateway.results import ResultBatch
from headway.server.gateway.session import WorkerSession
from headway.stores.base import Exchange, Heartbeat, HeartbeatReply, Store

POLLS_MAX = 8  # Open polls of one worker.
SESSIONS_MAX = 10_000
WORKERS_MAX = 10_000  # Registered workers, including those that died in the last minute.
WILDCARDS = frozenset("*?[")  # Characters that let a pattern match more than one name.
LEARN_IDLE = 60.0  # Seconds between reads of what other processes have learned.


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWorker:
    """A checked registration. ``tasks`` None: the worker runs whatever its capabilities allow."""

    capabilities: tuple[str, ...] = ()
    slots: int = 5
    host: str = "http"
    pid: int = 0
    version: str = ""
    reserved: int | None = None
    tasks: Sequence[TaskEntry] | None = None
    limits: Mapping[str, Mapping[str, LimitRule]] | None = None
    crons: Sequence[CronDocument] = ()
    heartbeat_ms: int = 30_000
    lease_ms: int = 90_000
    confirm_ms: int = 10_000
    grace_ms: int = 5_000


class WorkerGateway:
    """Serves the workers of one server process. It belongs to one event loop."""

    def __init__(self, store: Store, in_force: CurrentPolicy, *, payload_max: int = 1 << 20) -> None:
        self.store = store
        self.in_force = in_force
        self.registry = WorkerRegistry(store)
        self.durations = TaskCosts()
        self.recorder = MetricsRecorder()
        self._payload_max = payload_max
        self.sessions: OrderedDict[str, WorkerSession] = OrderedDict()
        self._learned = time.monotonic()
        self._closed = False
        self._registering: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # By token.

    # ------------------------------------------------------------------ registration

    async def register(
        self,
        new: NewWorker,
        *,
        token_id: str | None = None,
        bound: tuple[str, ...] | None = None,
        most: int = WORKERS_MAX,
    ) -> Registration:
        """Register a worker. Raises ``TooMany``.

        ``bound``: patterns of the tasks that its token is for. ``most``: how many workers one token may have. A worker
        that names no tasks gets any task, or those in the catalogue that match the patterns.
        """
        if self.registry.count >= WORKERS_MAX:
            raise TooMany(f"{self.registry.count:,} workers are registered; dead ones are forgotten after a minute")
        if token_id is None:
            return await self._register(new, token_id, bound)
        async with self._registering.setdefault(token_id, asyncio.Lock()):  # One at a time, so that each counts.
            await self._check_room(token_id, most)
            return await self._register(new, token_id, bound)

    async def _check_room(self, token_id: str, most: int) -> None:
        """Raise ``TooMany`` if a token has as many workers as it may."""
        if self.registry.of_token[token_id] < most:
            return
        # Some of the counted workers may have left.
        workers = (await self.store.diagnose()).workers
        await self.registry.all(live={one.worker_id for one in workers if one.state is not WorkerState.DEAD})
        if self.registry.of_token[token_id] >= most:
            raise TooMany(f"this token has {most:,} workers (token_workers); let some of them leave first")

    async def _register(self, new: NewWorker, token_id: str | None, bound: tuple[str, ...] | None) -> Registration:
        await self.in_force.refresh(self.store)
        now_at = (await self.store.exchange(Exchange(None))).now_at
        registration = Registration(
            worker_id=str(uuid4()),
            token_id=token_id,
            host=new.host,
            pid=new.pid,
            version=new.version,
            slots=new.slots,
            reserved=new.reserved,
            capabilities=tuple(dict.fromkeys(new.capabilities)),
            plain=new.tasks is None,
            tasks=await self._tasks_of(bound) if new.tasks is None else tuple(entry.name for entry in new.tasks),
            bound=bound,
            lease_ms=new.lease_ms,
            confirm_ms=new.confirm_ms,
            grace_ms=new.grace_ms,
            registered_at=now_at,
        )
        # First: the server must know the timeouts of every worker that holds a lease.
        await self.registry.add(registration)
        worker = registration.worker(self.in_force.policy)
        await self.store.renew(Heartbeat(worker, new.lease_ms, new.confirm_ms, register=True))
        return registration

    async def publish(self, new: NewWorker, *, allowed: bool = True, who: str = OPEN) -> list[str]:
        """Publish what a worker declares about its tasks, if that is allowed. Return the tasks left unpublished.

        Those are the tasks whose entry, limits or cron differ from what the store keeps. Other tasks are untouched.
        """
        crons = {cron.task: cron for cron in new.crons}
        limits = new.limits or {}
        wanted = await changes(
            self.store, [Declaration(one, limits.get(one.name, {}), crons.get(one.name)) for one in new.tasks or ()]
        )
        if not allowed:
            return [change.declaration.name for change in wanted]
        if wanted:
            now_at = (await self.store.exchange(Exchange(None))).now_at
            await publish(self.store, wanted, who=who, now_at=now_at)
        return []

    async def _tasks_of(self, bound: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if bound is None:
            return None
        plain = {pattern for pattern in bound if not WILDCARDS.intersection(pattern)}
        if len(plain) < len(bound):
            plain |= {entry.name for entry in await read_tasks(self.store) if covers(bound, entry.name)}
        return tuple(sorted(plain))

    async def drain(self, worker_id: str, *, token_id: str | None = None) -> None:
        """Stop handing jobs to a worker. Raises ``WorkerUnknown``."""
        session = await self._session(worker_id, token_id)
        if not await self.store.drain(worker_id):
            raise WorkerUnknown(worker_id=worker_id)
        session.wake_polls()

    async def leave(self, worker_id: str, *, token_id: str | None = None) -> int:
        """Remove a worker that leaves, and queue its jobs again. Return how many. It may be repeated."""
        session = await self._session(worker_id, token_id)
        count = await end_worker(self.store, worker_id, self.in_force.policy, lambda _: Released("drained"), left=True)
        session.release(list(session.leases))
        return count

    async def dismiss(self, worker_id: str, reason: str) -> int:
        """Remove a worker that may no longer work, and queue its jobs again. Return how many."""
        count = await end_worker(self.store, worker_id, self.in_force.policy, lambda _: Released(reason))
        session = self.sessions.get(worker_id)
        if session is not None:
            session.release(list(session.leases))
        return count

    # ------------------------------------------------------------------ polls and results

    async def poll(
        self,
        worker_id: str,
        request: messages.PollRequest,
        *,
        token_id: str | None = None,
        gone: asyncio.Future[Any] | None = None,
    ) -> PollResult:
        """Apply results, and return jobs for the free slots as soon as there are any, within ``wait_seconds``.

        The poll ends early for a cancel, a drain or a lower budget, or when ``gone`` is done. In the last case claimed
        jobs are released, unless the poll can be repeated. Raises ``WorkerUnknown`` for a dead worker, and ``TooMany``.
        """
        session = await self._session(worker_id, token_id)
        await self.in_force.refresh(self.store)
        if len(session.polls) >= POLLS_MAX:
            raise TooMany(f"{len(session.polls)} polls of this worker are under way")
        with session.polling(
            claims=request.available_capacity > 0, takes_over=request.takes_over, waits=request.wait_seconds > 0
        ) as poll:
            poll.over = self._closed
            if gone is not None:
                gone.add_done_callback(lambda _: poll.wake.set())
            polled = await LongPoll(self.store, self.in_force, session, poll, request, gone).run()
        unregistered = [lease for lease in polled.leases if not session.registration.may_run(lease.task)]
        if not unregistered:
            return polled
        # A class holds jobs of many tasks. Jobs of tasks that the token is not for go to workers that name them.
        await self.finish(
            worker_id, [result_of(Unknown(), one.job_id, one.token) for one in unregistered], token_id=token_id
        )
        return polled._replace(leases=[lease for lease in polled.leases if lease not in unregistered], more=True)

    async def finish(
        self, worker_id: str, ended: Sequence[messages.ResultReport], *, token_id: str | None = None
    ) -> list[messages.ResultOutcome]:
        """Apply results, and return the outcome of each job. A result without the lease does not count.

        A dead worker's result counts until another worker has the job. Raises ``WorkerUnknown``.
        """
        session = await self._session(worker_id, token_id)
        handed = ResultBatch(self.store, session, self.in_force.policy)
        await handed.prepare(ended)
        # Without the worker's id, because the worker may wait in a poll that a released job must wake.
        refused = (await self.store.exchange(Exchange(None, finished=handed.reports))).refused
        self.recorder.reported(handed.reports, refused)
        return await handed.conclude(refused)

    async def output(self, worker_id: str, update: messages.OutputUpdate, *, token_id: str | None = None) -> bool:
        """Write the latest output of a job. Return False if the worker does not hold the job.

        Raises ``WorkerUnknown``.
        """
        lease = await self._held(worker_id, update, token_id)
        if lease is None:
            return False
        chunks = [Chunk(one.at, one.stream, one.offset, cut_text(one.text, KEPT_MAX)) for one in update.chunks]
        return await write_output(self.store, lease.job_id, lease.epoch, chunks)

    async def steps(
        self, worker_id: str, wanted: messages.StepsRequest, *, token_id: str | None = None
    ) -> dict[str, bytes] | None:
        """Read the steps of a job, or None if the worker does not hold the job. Raises ``WorkerUnknown``."""
        lease = await self._held(worker_id, wanted, token_id)
        return None if lease is None else await self.store.steps(lease.job_id)

    async def record_step(self, worker_id: str, update: messages.StepUpdate, *, token_id: str | None = None) -> bool:
        """Keep a step of a job. Return False if the worker does not hold the job. Raises ``StepError``."""
        lease = await self._held(worker_id, update, token_id)
        if lease is None:
            return False
        value = step_value(update.value, PAYLOAD_VERSION)
        return await self.store.record_step(Step(lease.job_id, lease.seq, lease.token, update.key, value))

    async def _held(self, worker_id: str, message: messages.AboutTask, token_id: str | None) -> Lease | None:
        """Return the lease that a message is about, or None if the worker does not hold it."""
        session = await self._session(worker_id, token_id)
        if message.job_id not in session.leases:
            await session.read_leases()
        lease = session.leases.get(message.job_id)
        return None if lease is None or token_of(message.fence) not in (None, lease.token) else lease

    async def beat(
        self, worker_id: str, heartbeat: messages.WorkerHeartbeat, *, token_id: str | None = None
    ) -> messages.WorkerHeartbeatReply:
        """Renew a worker and the leases that it names, or all of its leases.

        A heartbeat that arrives after a later one renews nothing. Raises ``WorkerUnknown``.
        """
        session = await self._session(worker_id, token_id)
        await self.in_force.refresh(self.store)
        version, policy = self.in_force.version, self.in_force.policy
        known = heartbeat.policy_version in (None, version)
        reply = messages.WorkerHeartbeatReply(policy_version=version, policy=None if known else policy_data(policy))
        if heartbeat.seq is not None and not await self.registry.is_latest(worker_id, heartbeat.seq):
            await session.read_leases(within=READ_LEASES_EVERY)
            reply.state = (await self.store.exchange(Exchange(worker_id))).worker_state
            reply.cancel, reply.lost, reply.ignored = session.cancels(), session.lost(), True
        else:
            answer = await self._renew(session, heartbeat)
            reply.state = answer.state
            reply.lost = list(dict.fromkeys([*session.lost(), *answer.lost]))
            reply.cancel = list(dict.fromkeys([*answer.cancel, *reply.lost]))
        if reply.state is WorkerState.DEAD:
            raise WorkerUnknown(worker_id=worker_id)
        reply.budgets = session.budgets()
        return reply

    async def _renew(self, session: WorkerSession, heartbeat: messages.WorkerHeartbeat) -> HeartbeatReply:
        registration, policy = session.registration, self.in_force.policy
        if heartbeat.status == "draining":
            await self.store.drain(registration.worker_id)
        held = heartbeat.tasks
        if held is None or policy.ladder.rungs or any(one.fence is None for one in held):
            await session.read_leases()
        else:
            await session.read_leases(within=READ_LEASES_EVERY)
        named = {lease.job_id: lease.token for lease in session.leases.values()}
        if held is not None:
            tokens = {JobId(one.task_id): token_of(one.fence) for one in held}
            named = {job_id: named.get(job_id, b"") if token is None else token for job_id, token in tokens.items()}
        return await self.store.renew(
            Heartbeat(registration.worker(policy), registration.lease_ms, registration.confirm_ms, list(named.items()))
        )

    # ------------------------------------------------------------------ upkeep

    async def learn(self) -> None:
        """Publish how long jobs ran, and read what other processes have learned."""
        if self.durations.noted or time.monotonic() - self._learned > LEARN_IDLE:
            await self.durations.publish(self.store)
            self._learned = time.monotonic()

    async def learn_first(self) -> float | None:
        """Publish how long jobs of new tasks ran. Return the seconds until the next time, if any."""
        return await self.durations.publish_first(self.store)

    def knows(self, task: str) -> bool:
        """Return whether an HTTP worker has registered this task."""
        return task in self.registry.tasks

    def stop(self) -> None:
        """End all polls with what they have. The server is about to stop."""
        self._closed = True
        for session in self.sessions.values():
            for poll in session.polls:
                poll.over = True
            session.wake_polls()

    async def close(self) -> None:
        self.stop()
        for session in self.sessions.values():
            await session.close()
        self.sessions.clear()

    async def _session(self, worker_id: str, token_id: str | None) -> WorkerSession:
        registration = await self.registry.find(worker_id, token_id)
        session = self.sessions.get(worker_id)
        if session is None:
            session = WorkerSession(
                self.store,
                self.registry,
                partial(self._make_job_source, worker_id),
                registration,
                payload_max=self._payload_max,
            )
            self.sessions[worker_id] = session
            await self._make_room(worker_id)
        else:
            self.sessions.move_to_end(worker_id)
        return session

    def _make_job_source(self, worker_id: str, offers: frozenset[str]) -> StoreJobSource:
        return StoreJobSource(
            self.store,
            self.in_force,
            worker_id,
            tuple(offers),
            durations=self.durations,
            recorder=self.recorder,
            offset=random.random(),
        )

    async def _make_room(self, new_name: str) -> None:
        """Drop the sessions that were unused for longest. The store can rebuild them."""
        while len(self.sessions) > SESSIONS_MAX:
            idle = (name for name, session in self.sessions.items() if not session.polls and name != new_name)
            worker_id = next(idle, None)
            if worker_id is None:
                return
            await self.sessions.pop(worker_id).close()
