"""Connects a worker to a server over HTTP. The server registers the worker, sends it jobs and judges their endings."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from headway.client.members import PAGE, MemberEnding, MemberPage
from headway.core.errors import (
    HeadwayError,
    JobError,
    LeaseLost,
    ServerRefused,
    StepError,
    WorkerUnknown,
)
from headway.core.job import JobId, State
from headway.core.lease import Lease
from headway.core.log_event import LogEvent
from headway.core.policy.document import Policy, reserved_slots
from headway.core.policy.ladder import RunBudget
from headway.core.worker import WorkerInfo, WorkerState, capabilities_in
from headway.core.workflow import BatchId, Step
from headway.observability.job_output import Chunk
from headway.policy_store.catalogue import CronDocument
from headway.policy_store.current import CurrentPolicy
from headway.protocol import worker as messages
from headway.protocol.conversion import result_of, step_value
from headway.protocol.http_client import HttpClient
from headway.stores.base import LEASE_CHANNEL, Heartbeat, HeartbeatReply, Subscription
from headway.worker.backend.base import AppManifest, Backend, EndingOf, JobSource, LeaseTimes, RegisteredWorker
from headway.worker.backend.http_job_source import HttpJobSource, split_results
from headway.worker.backend.http_notifications import HttpNotifications

log = logging.getLogger("headway.worker")


class HttpBackend(Backend):
    """Connects a worker to a server, which runs the chores for it.

    ``mark`` is the first part of every stored payload and result. It is not sent over HTTP.
    """

    def __init__(self, address: str, token: str | None, in_force: CurrentPolicy, *, mark: bytes) -> None:
        super().__init__(in_force)
        self.read_members = self._read_members
        self._caller = HttpClient(address, token)
        self._mark = mark
        self._sequence = itertools.count(1)
        self._worker_id = ""  # Of the last job source.
        if not self._caller.address.is_private:
            hint = "jobs and the token can be read on the way; use https"
            log.warning(LogEvent("server.not_encrypted", server=str(self._caller.address), hint=hint))

    async def close(self) -> None:
        await self._caller.close()

    async def register(
        self, worker: WorkerInfo, pace: LeaseTimes, known: Callable[[Policy], AppManifest], *, reserved: int | None
    ) -> RegisteredWorker:
        try:
            sent = known(self.in_force.policy)
        except HeadwayError:  # For example a lane that only the server's policy has.
            sent = AppManifest([], {}, [])
        answer = await self._register(worker, pace, sent, reserved)
        if sent != (wanted := known(self.in_force.policy)):  # The server's policy has changed the manifest.
            await self._ask(answer.worker_id, "drain", messages.DrainRequest(leave=True))
            answer = await self._register(worker, pace, wanted, reserved)
        kept = reserved_slots(self.in_force.policy, worker.slots, reserved)
        admitted = replace(worker, worker_id=answer.worker_id, reserved=kept)
        pace = LeaseTimes(answer.heartbeat_seconds, answer.dead_after_seconds, answer.confirm_seconds, pace.grace)
        return RegisteredWorker(admitted, pace)

    def job_source(self, worker: WorkerInfo, pace: LeaseTimes, *, offset: float) -> JobSource:
        self._worker_id = worker.worker_id
        return HttpJobSource(
            self._caller, worker.worker_id, self.in_force, confirm=pace.confirm, mark=self._mark, outage=self.outage
        )

    def subscribe(self, name: str) -> Subscription:
        return HttpNotifications(self._caller, name.removesuffix(LEASE_CHANNEL), self.in_force)

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        held = [messages.HeldTask(job_id, token.hex()) for job_id, token in beat.held]
        request = messages.WorkerHeartbeat(
            current_load=len(held), tasks=held, seq=next(self._sequence), policy_version=self.in_force.version
        )
        try:
            reply = await self._caller.ask(
                f"/internal/workers/{beat.worker.worker_id}/heartbeat", request, messages.WorkerHeartbeatReply
            )
        except WorkerUnknown:
            return HeartbeatReply(0, WorkerState.DEAD, [job_id for job_id, _ in beat.held])
        if reply.policy is not None:
            self.in_force.set(reply.policy_version, reply.policy)
        lost = set(reply.lost)
        grants = [RunBudget(job_id, "", round(seconds * 1_000)) for job_id, seconds in reply.budgets.items()]
        return HeartbeatReply(0, reply.state, reply.lost, [job for job in reply.cancel if job not in lost], grants)

    async def check(self) -> None:
        await self._caller.get("/readyz")

    def set_policy(self, version: int, policy: dict[str, Any]) -> None:
        self.in_force.set(version, policy)

    async def _read_members(self, batch_id: BatchId, states: Sequence[State], cursor: str | None) -> MemberPage:
        """Read how members of a batch ended. The token needs the scope read."""
        asked: dict[str, Any] = {"status": [state.value for state in states], "limit": PAGE}
        words = urlencode(asked | ({} if cursor is None else {"cursor": cursor}), doseq=True)
        path = f"/api/v1/batches/{quote(batch_id, safe='')}/results?{words}"
        try:
            page = await self._caller.ask(path, None, messages.WireMemberPage, method="GET")
        except ServerRefused as refusal:
            if refusal.code != "forbidden":
                raise
            hint = "a task that reads the results of a batch needs a worker token that also has the scope read"
            raise ServerRefused(f"{refusal}; {hint}", code=refusal.code, **refusal.facts) from refusal
        return MemberPage([_ending(one, self._mark) for one in page.items], page.next_cursor)

    async def steps(self, lease: Lease) -> dict[str, bytes]:
        wanted = messages.StepsRequest(task_id=lease.job_id, fence=lease.token.hex())
        with _step_errors(lease.job_id):
            reply = await self._caller.ask(f"{self._path}/steps", wanted, messages.TaskSteps)
        return {key: step_value(value, self._mark) for key, value in reply.steps.items()}

    async def record_step(self, step: Step) -> bool:
        value = msgspec.Raw(step.value.removeprefix(self._mark) or b"null")
        update = messages.StepUpdate(task_id=step.job_id, fence=step.token.hex(), key=step.key, value=value)
        try:
            with _step_errors(step.job_id):
                reply = await self._caller.ask(f"{self._path}/step", update, messages.StepReply)
        except LeaseLost:
            return False
        return reply.acknowledged

    @property
    def _path(self) -> str:
        return f"/internal/workers/{self._worker_id}"

    async def write_output(self, worker_id: str, lease: Lease, chunks: Sequence[Chunk]) -> None:
        sent = msgspec.convert(chunks, list[messages.OutputChunk], from_attributes=True)
        update = messages.OutputUpdate(task_id=lease.job_id, fence=lease.token.hex(), chunks=sent)
        with contextlib.suppress(WorkerUnknown):
            await self._ask(worker_id, "output", update)

    async def give_back(
        self, worker_id: str, leases: Sequence[tuple[JobId, bytes]], ending_of: EndingOf, *, left: bool = False
    ) -> None:
        results = [result_of(ending_of(job_id, None), job_id, token) for job_id, token in leases]
        with contextlib.suppress(WorkerUnknown):  # The server has already returned the jobs.
            for batch in split_results(results):
                await self._ask(worker_id, "result", messages.ResultReports(batch))
            await self._ask(worker_id, "drain", messages.DrainRequest(leave=True))

    async def _register(
        self, worker: WorkerInfo, pace: LeaseTimes, known: AppManifest, reserved: int | None
    ) -> messages.RegisterReply:
        request = messages.RegisterRequest(
            capabilities=capabilities_in(worker.offers),
            capacity=worker.slots,
            name=worker.host,
            pid=worker.pid,
            version=worker.version,
            reserved=reserved,
            tasks=known.tasks,
            limits={task: limits for task, limits in known.limits.items() if limits},
            crons=_without_tenants(known.crons),
            heartbeat_seconds=pace.heartbeat,
            dead_after_seconds=pace.dead_after,
            grace_seconds=min(messages.GRACE_MAX, pace.grace),
        )
        answer = await self._caller.ask("/internal/workers/register", request, messages.RegisterReply)
        if answer.not_published:
            names = [one.task_type for one in answer.not_published]
            log.warning(
                LogEvent(
                    "worker.not_published",
                    server=str(self._caller.address),
                    tasks=", ".join(names),
                    reason=answer.not_published[0].reason,
                    hint="their jobs run, but the server has no entry, limits or crons of them; use a token made with "
                    f"`headway token create --scope worker --tasks '{','.join(names)}'`",
                )
            )
        if answer.policy is not None:
            self.in_force.set(answer.policy_version, answer.policy)
        return answer

    async def _ask(self, worker_id: str, verb: str, request: Any) -> None:
        await self._caller.ask(f"/internal/workers/{worker_id}/{verb}", request, dict)


def _ending(one: messages.WireMember, mark: bytes) -> MemberEnding:
    """Return the ending of a member as a store keeps it."""
    value, error = bytes(one.result), one.error
    result = None if value in (b"", b"null") else mark + value
    found = None if error is None else JobError(error.type, error.message, error.traceback or "", error.retriable)
    return MemberEnding(JobId(one.task_id), State(one.status), result, found, one.reason)


@contextlib.contextmanager
def _step_errors(job_id: JobId) -> Iterator[None]:
    """Raise what a store raises for a step that a server refuses."""
    try:
        yield
    except WorkerUnknown as problem:
        raise LeaseLost(f"job {job_id} has lost its lease: its worker is not registered any more") from problem
    except ServerRefused as problem:
        if problem.code == LeaseLost.code:
            raise LeaseLost(str(problem)) from problem
        if problem.code == StepError.code:
            raise StepError(str(problem)) from problem
        raise


def _without_tenants(crons: Sequence[CronDocument]) -> list[CronDocument]:
    """Return the crons without a tenant, because no server accepts a tenant's crons over HTTP."""
    for cron in crons:
        if cron.tenant is not None:
            hint = "its jobs belong to a tenant, and that takes a worker with the store"
            log.warning(LogEvent("cron.not_published", task=cron.task, hint=hint))
    return [cron for cron in crons if cron.tenant is None]
