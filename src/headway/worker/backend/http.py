"""Connects a worker to a server over HTTP. The server registers the worker, sends it jobs and judges their endings."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
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
    ServerUnavailable,
    StepError,
    StoreError,
    WorkerUnknown,
)
from headway.core.job import JobId, State
from headway.core.lease import Lease
from headway.core.log_event import LogEvent
from headway.core.policy.document import Policy, reserved_slots
from headway.core.policy.ladder import RunBudget
from headway.core.policy.retry import Released
from headway.core.worker import WorkerInfo, WorkerState, capabilities_in
from headway.core.workflow import BatchId, Step, Upstream
from headway.dispatch.job_source import ClaimResult, FinishedRun
from headway.observability.job_output import Chunk
from headway.observability.outage import Outage
from headway.policy_store.catalogue import CronDocument
from headway.policy_store.current import CurrentPolicy
from headway.protocol import worker as messages
from headway.protocol.conversion import lease_of, result_of, step_value
from headway.protocol.http_client import REPLY_SECONDS, HttpClient
from headway.runtime.bounded_wait import end_tasks, wait_until_set
from headway.stores.base import LEASE_CHANNEL, Heartbeat, HeartbeatReply, Progress, Store, Subscription
from headway.worker.backend.base import AppManifest, EndingOf, JobSource, LeaseTimes, RegisteredWorker

log = logging.getLogger("headway.worker")

POLL_SECONDS = 5.0  # Seconds that the server may hold a poll for changes.
JOBS_WAIT = 20.0  # Seconds that the server may hold a poll for jobs; never more than half of ``confirm``.
BATCH = 500  # Results in one request.
BODY_MAX = 2 << 20  # Bytes of results in one request; servers accept twice as much.
RESERVE_PAUSE = 0.005  # Seconds before a poll for reserved slots alone is sent; usually another job ends first.
BACKOFF_MIN, BACKOFF_MAX = 0.1, 2.0  # Seconds between tries of a poll.
NOT_TAKEN = frozenset({400, 413, 422})  # Malformed, too large, invalid: repeating the request is useless.


class HttpBackend:
    """Connects a worker to a server, which runs the chores for it.

    ``mark`` is the first part of every stored payload and result. It is not sent over HTTP.
    """

    store: Store | None = None
    durations_due: asyncio.Event | None = None

    def __init__(self, address: str, token: str | None, in_force: CurrentPolicy, *, mark: bytes) -> None:
        self.in_force = in_force
        self.outage = Outage(log)
        self._caller = HttpClient(address, token)
        self._mark = mark
        self._sequence = itertools.count(1)
        self._worker_id = ""  # Of the last job source.
        if not self._caller.address.is_private:
            hint = "jobs and the token can be read on the way; use https"
            log.warning(LogEvent("server.not_encrypted", server=str(self._caller.address), hint=hint))

    async def open(self) -> None: ...

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

    async def refresh_policy(self) -> None: ...  # Replies to heartbeats contain it.

    def set_policy(self, version: int, policy: dict[str, Any]) -> None:
        self.in_force.set(version, policy)

    async def learn(self, *, idle: bool) -> bool:
        return False  # Results contain the durations.

    async def learn_first(self) -> float | None:
        return None  # The server does.

    async def upstreams(self, lease: Lease) -> list[Upstream]:
        return []  # The server has put the results of other jobs into the arguments.

    async def trace_ids(self, upstreams: Sequence[Upstream]) -> dict[str, str]:
        return {}

    async def read_members(self, batch_id: BatchId, states: Sequence[State], cursor: str | None) -> MemberPage:
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
            for batch in _batches(results):
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


class HttpJobSource:
    """Polls a server.

    While slots are free, a *standing* poll waits at the server for jobs. A second poll, which does not wait, reports
    jobs that end meanwhile. If the standing poll may claim from every lane, the second poll claims nothing. If the
    standing poll waits only for lanes of the reserve, the second poll ends it and asks only for slots that were not
    promised to it. So every job that either poll returns has a slot, and the reserve holds, in whatever order the
    server handles the two.
    """

    idle_since = 0.0  # Unused: the server runs the chores.

    def __init__(
        self,
        caller: HttpClient,
        worker_id: str,
        in_force: CurrentPolicy,
        *,
        confirm: float,
        mark: bytes,
        outage: Outage | None = None,
    ) -> None:
        self._outage = outage or Outage(log)
        self._caller = caller
        self._path = f"/internal/workers/{worker_id}"
        self._worker_id = worker_id
        self._in_force = in_force
        self._confirm = confirm
        self._mark = mark
        self._waiting_poll: asyncio.Task[None] | None = None
        self._about_to: asyncio.TimerHandle | None = None  # Timer that sends a standing poll.
        self._promised = (0, 0)  # Slots of the standing poll, and how many of them are below the reserve.
        self._arrived: list[Lease] = []
        self._request: messages.PollRequest | None = None  # Sent and not answered yet.
        self._notifier = LocalEvent()
        self._leaving = False
        self._state = WorkerState.ACTIVE
        self._background: set[asyncio.Task[None]] = set()

    def offer_learned(self, learn: Callable[[str], bool]) -> None:
        """Do nothing. A server sends a worker only jobs of the tasks that the worker registered."""

    def handed(self) -> Sequence[Lease]:
        return ()

    def subscribe(self) -> Subscription:
        return self._notifier

    async def exchange(
        self,
        finished: Sequence[FinishedRun],
        progress: Sequence[Progress],
        *,
        free: int,
        free_below: int,
        woken: bool = False,
    ) -> ClaimResult:
        if self._state is WorkerState.DEAD:
            return self._unknown(finished)
        self._hold()
        answer: tuple[messages.PollReply, list[Lease]] = (messages.PollReply(), [])
        if finished or progress or self._request is not None:
            try:
                answer = await self._hand_in(finished, progress, free, free_below)
            except WorkerUnknown:
                return self._unknown(finished)
        polled, given = answer
        leases, self._arrived = [*self._arrived, *given], []
        if not polled.more:
            self._start_waiting_poll(*self._left(free, free_below, leases))
        refused = [(one.task_id, "lost") for one in polled.refused]
        return ClaimResult(leases, refused, polled.more, self._state, polled.next_due_seconds)

    def leave(self) -> None:
        """Drain at the server, which then ends the standing poll. Jobs that it still returns are given back."""
        if not self._leaving:
            self._leaving = True
            self._hold()
            self._send(self._drain())

    async def close(self) -> None:
        self._hold()
        tasks = [task for task in (self._waiting_poll, *self._background) if task is not None]
        await end_tasks(tasks)

    # ------------------------------------------------------------------ reporting

    async def _hand_in(
        self, finished: Sequence[FinishedRun], progress: Sequence[Progress], free: int, free_below: int
    ) -> tuple[messages.PollReply, list[Lease]]:
        """Report jobs, and claim for slots of no other request. After an error the next call repeats the request."""
        if self._request is None:
            batches = _batches([result_of(end, lease.job_id, lease.token, round(s, 6)) for lease, end, s in finished])
            for batch in batches[:-1]:
                await self._results(batch)
            slots, below = self._unpromised(free, free_below)
            self._request = messages.PollRequest(
                available_capacity=slots,
                below=below,
                claim_id=uuid.uuid4().hex if slots else None,
                takes_over=slots > 0 and self._waiting_poll is not None,
                results=batches[-1] if batches else [],
                progress=[
                    messages.ProgressUpdate(
                        task_id=one.job_id, fence=one.token.hex(), fraction=one.fraction, note=one.note
                    )
                    for one in progress
                ],
            )
        request = self._request
        try:
            answer = await self._poll(request)
        except ServerRefused as problem:
            if problem.facts.get("status") not in NOT_TAKEN or not (request.results or request.progress):
                raise
            log.warning(LogEvent("results.refused", results=len(request.results), error=str(problem)))
            for result in request.results:
                await self._result_alone(result)
            self._request = None
            return messages.PollReply(more=True), []
        self._request = None
        return answer

    def _unpromised(self, free: int, free_below: int) -> tuple[int, int]:
        """Return the slots to ask for beside the standing poll, and how many of them below the reserve."""
        promised, promised_below = self._promised
        if promised_below > 0 or self._leaving:
            return 0, 0
        left, left_below = self._left(free, free_below, self._arrived)
        if self._in_force.policy.reserve.rule == "leave_free":  # A job of any lane then fills a slot below the reserve.
            left_below -= promised
        slots = max(0, left - promised)
        return slots, max(0, min(slots, left_below))

    def _left(self, free: int, free_below: int, leases: Sequence[Lease]) -> tuple[int, int]:
        """Return what is left of the free slots once these jobs have begun."""
        below = self._in_force.policy.reserve.outside([lease.lane for lease in leases])
        return free - len(leases), free_below - below

    async def _results(self, results: list[messages.ResultReport]) -> None:
        await self._caller.ask(f"{self._path}/result", messages.ResultReports(results), dict)

    async def _result_alone(self, result: messages.ResultReport) -> None:
        """Report one result. If the server refuses it and the job completed, report the job without its result."""
        try:
            await self._results([result])
        except ServerRefused as problem:
            log.error(LogEvent("job.result_refused", job=result.task_id, error=str(problem)))  # noqa: TRY400
            if result.status == "completed":
                without = messages.ResultReport(
                    task_id=result.task_id,
                    status="completed",
                    fence=result.fence,
                    result_error="the server did not take the result",
                )
                with contextlib.suppress(ServerRefused):
                    await self._results([without])

    # ------------------------------------------------------------------ the standing poll

    def _start_waiting_poll(self, free: int, free_below: int) -> None:
        """Start a standing poll for these slots, unless there is one."""
        if self._waiting_poll is None and free > 0 and not self._leaving and self._state is WorkerState.ACTIVE:
            if free_below > 0:
                self._send_waiting_poll(free, min(free, free_below))
            else:
                loop = asyncio.get_running_loop()
                self._about_to = loop.call_later(RESERVE_PAUSE, self._send_waiting_poll, free, 0)

    def _send_waiting_poll(self, free: int, below: int) -> None:
        self._about_to = None
        self._promised = (free, below)
        self._waiting_poll = asyncio.get_running_loop().create_task(self._wait_for_jobs(free, below))

    def _hold(self) -> None:
        """Cancel a standing poll that has not been sent yet."""
        if self._about_to is not None:
            self._about_to.cancel()
            self._about_to = None

    async def _wait_for_jobs(self, slots: int, below: int) -> None:
        """Poll for jobs until the server answers, then wake the claimer. A poll lasts at most half of ``confirm``."""
        wait = min(JOBS_WAIT, self._confirm / 2)
        request = messages.PollRequest(
            available_capacity=slots, below=below, claim_id=uuid.uuid4().hex, wait_seconds=round(wait, 3)
        )
        try:
            asked, leases = await self._until_answered(request)
            if time.monotonic() - asked > self._confirm:
                leases = []  # The reply is so old that the server may have returned these jobs to the queue.
            if self._leaving and leases:
                self._send(self._give_back(leases))
            else:
                self._arrived += leases
        except WorkerUnknown:
            self._state = WorkerState.DEAD
        finally:
            self._waiting_poll, self._promised = None, (0, 0)
            self._notifier.notify()

    async def _until_answered(self, request: messages.PollRequest) -> tuple[float, list[Lease]]:
        """Send the poll until the server answers. A repeated claim returns the same jobs."""
        delay = BACKOFF_MIN
        while True:
            asked = time.monotonic()
            try:
                leases = (await self._poll(request))[1]
                if self._outage.failing:
                    self._outage.succeeded("poll")
                return asked, leases
            except StoreError as problem:
                if self._leaving:
                    return asked, []
                self._outage.failed("poll", problem, retry_in=delay)
            await asyncio.sleep(delay * random.uniform(0.7, 1.3))
            delay = min(delay * 2, BACKOFF_MAX)

    async def _poll(self, request: messages.PollRequest) -> tuple[messages.PollReply, list[Lease]]:
        path, timeout = f"{self._path}/poll", request.wait_seconds + REPLY_SECONDS
        polled = await self._caller.ask(path, request, messages.PollReply, timeout=timeout)
        if self._state is WorkerState.ACTIVE:
            self._state = polled.state
        try:
            return polled, [lease_of(given, self._worker_id, self._mark) for given in polled.tasks]
        except ValueError as problem:
            raise ServerUnavailable(f"{self._caller.address} sent a job that cannot be run: {problem}") from None

    # ------------------------------------------------------------------ leaving

    def _unknown(self, finished: Sequence[FinishedRun]) -> ClaimResult:
        """Return all reports as refused, because the server counts this worker as dead. The renewer ends the runner."""
        self._state, self._request = WorkerState.DEAD, None
        return ClaimResult((), [(run.lease.job_id, "lost") for run in finished], False, self._state, None)

    async def _drain(self) -> None:
        with contextlib.suppress(HeadwayError):
            await self._caller.ask(f"{self._path}/drain", messages.DrainRequest(), dict)

    async def _give_back(self, leases: Sequence[Lease]) -> None:
        with contextlib.suppress(HeadwayError):  # The server returns the jobs when the worker leaves.
            await self._results([result_of(Released("drained"), lease.job_id, lease.token) for lease in leases])

    def _send(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


class LocalEvent:
    """A subscription that is notified from this process."""

    call = None

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def notify(self) -> None:
        self._event.set()

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        if not await wait_until_set(self._event, timeout):
            return None
        self._event.clear()
        return ()

    def close(self) -> None: ...


class HttpNotifications(LocalEvent):
    """Wakes the lease renewer when the server reports cancelled or lost jobs, budgets, a drain or another policy."""

    def __init__(self, caller: HttpClient, worker_id: str, in_force: CurrentPolicy) -> None:
        super().__init__()
        self._caller = caller
        self._path = f"/internal/workers/{worker_id}/poll"
        self._in_force = in_force
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    def close(self) -> None:
        self._listening.cancel()

    async def _listen(self) -> None:
        """Poll the server for changes until the server does not know the worker any more."""
        request = messages.PollRequest(available_capacity=0, wait_seconds=POLL_SECONDS)
        known: tuple[Any, ...] = (set(), WorkerState.ACTIVE, self._in_force.version, {})
        delay = BACKOFF_MIN
        while True:
            try:
                polled = await self._caller.ask(
                    self._path, request, messages.PollReply, timeout=POLL_SECONDS + REPLY_SECONDS
                )
            except WorkerUnknown:
                self.notify()
                return
            except StoreError:  # The lease renewer logs the problem.
                await asyncio.sleep(delay * random.uniform(0.7, 1.3))
                delay = min(delay * 2, BACKOFF_MAX)
                continue
            delay = BACKOFF_MIN
            sent = ({*polled.cancel, *polled.lost}, polled.state, polled.policy_version, polled.budgets)
            if sent != known:
                known = sent
                self.notify()


def _without_tenants(crons: Sequence[CronDocument]) -> list[CronDocument]:
    """Return the crons without a tenant, because no server accepts a tenant's crons over HTTP."""
    for cron in crons:
        if cron.tenant is not None:
            hint = "its jobs belong to a tenant, and that takes a worker with the store"
            log.warning(LogEvent("cron.not_published", task=cron.task, hint=hint))
    return [cron for cron in crons if cron.tenant is None]


def _batches(results: Sequence[messages.ResultReport]) -> list[list[messages.ResultReport]]:
    """Split results so that no request body grows too large."""
    batches: list[list[messages.ResultReport]] = []
    size = BODY_MAX + 1
    for result in results:
        length = 500 if result.result is msgspec.UNSET else 500 + len(bytes(result.result))
        if size + length > BODY_MAX or len(batches[-1]) >= BATCH:
            batches.append([])
            size = 0
        batches[-1].append(result)
        size += length
    return batches
