"""Polls a server for jobs, and reports the jobs that have ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec

from headway.core.errors import HeadwayError, ServerRefused, ServerUnavailable, StoreError, WorkerUnknown
from headway.core.lease import Lease
from headway.core.log_event import LogEvent
from headway.core.policy.retry import Released
from headway.core.worker import WorkerState
from headway.dispatch.job_source import ClaimResult, FinishedRun
from headway.observability.outage import Outage
from headway.policy_store.current import CurrentPolicy
from headway.protocol import worker as messages
from headway.protocol.conversion import lease_of, result_of
from headway.protocol.http_client import REPLY_SECONDS, HttpClient
from headway.runtime.bounded_wait import end_tasks
from headway.stores.base import Progress, Subscription
from headway.worker.backend.http_notifications import BACKOFF_MAX, BACKOFF_MIN, LocalEvent

log = logging.getLogger("headway.worker")

JOBS_WAIT = 20.0  # Seconds that the server may hold a poll for jobs; never more than half of ``confirm``.
BATCH = 500  # Results in one request.
BODY_MAX = 2 << 20  # Bytes of results in one request; servers accept twice as much.
RESERVE_PAUSE = 0.005  # Seconds before a poll for reserved slots alone is sent; usually another job ends first.
NOT_TAKEN = frozenset({400, 413, 422})  # Malformed, too large, invalid: repeating the request is useless.


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
            results = [result_of(end, lease.job_id, lease.token, round(s, 6)) for lease, end, s in finished]
            batches = split_results(results)
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


def split_results(results: Sequence[messages.ResultReport]) -> list[list[messages.ResultReport]]:
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
