"""Claims jobs for free slots and reports finished ones, in one exchange after another."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context

from headway.core.errors import StoreError
from headway.core.lease import Lease, ReportStatus
from headway.core.log_event import LogEvent
from headway.dispatch.job_source import ClaimResult, FinishedRun
from headway.observability.outage import Outage
from headway.stores.base import Progress, Subscription
from headway.worker.backend.base import JobSource

log = logging.getLogger("headway.worker")

SLOW_POLL = 1.25  # Seconds between claims without a wake-up, in case a wake-up was lost.
RESERVE_POLL = 0.005  # Seconds before the next claim when only reserved slots are free; usually a job ends first.
PROGRESS_EVERY = 0.2  # Seconds between writes of progress.
BACKOFF_MAX = 5.0  # Maximum seconds between tries of an exchange.
SLOW_JOB_SECONDS = 0.01  # Report slower jobs in parts, so that freed slots refill without waiting for the batch.
FAST_BATCH_MIN = 100  # Fast jobs that one exchange may report even if they fill more than half of the slots.
PARTS = 8  # Slow jobs are reported for an eighth of the slots at a time,
PART_MIN = 8  # and at least this many at a time, to bound the number of exchanges.


# A job that has ended and is not reported yet: its run (None if the lease is lost, so that there is nothing to report),
# the slot it still fills, and whether that slot is below the reserve.
_Ended = tuple[FinishedRun | None, int | None, bool]

# Starts leased jobs. The second argument holds the lanes of the reserve.
Start = Callable[[Sequence[Lease], frozenset[str]], None]


class WakeEvent:
    """A one-waiter event with a timeout. About twice as fast as asyncio.Event with wait_for."""

    def __init__(self) -> None:
        self._is_set = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._is_set = True
        self._release()

    def clear(self) -> None:
        self._is_set = False

    @property
    def awaited(self) -> bool:
        """Whether a task waits and nothing has woken it yet."""
        return self._waiter is not None and not self._waiter.done()

    async def wait(self, timeout: float = math.inf) -> None:
        """Wait until the event is set, at most ``timeout`` seconds."""
        if self._is_set:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        late = loop.call_later(timeout, self._release) if timeout < math.inf else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if late is not None:
                late.cancel()

    def _release(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Claimer:
    """The loop between a runner and its job source.

    It wakes when a job ends, when the store announces a submit, when a delayed job falls due, and at the slow poll. It
    claims at most for the free slots. After ``stop`` it ends once every result is reported.

    Jobs that finish during an exchange are reported by the next one, so batches grow with load.
    """

    def __init__(
        self,
        job_source: JobSource,
        subscription: Subscription,
        *,
        slots: int,
        start: Start,
        handed_in: Callable[[list[int]], None],
        reported: Callable[[Sequence[FinishedRun]], None] | None = None,
        confirm: float,
        poll: float = SLOW_POLL,
        outage: Outage | None = None,
    ) -> None:
        self._outage = outage or Outage(log)
        self._job_source = job_source
        self._subscription = subscription
        self._slots = slots
        self._reserved, self._leave_free = 0, False
        self._lanes: frozenset[str] = frozenset()  # Lanes of the reserve.
        self._start = start
        self._handed_in = handed_in
        self._reported = reported  # Called with the runs whose end the store has accepted.
        self._confirm = confirm
        self._poll = poll
        self._kick = WakeEvent()
        self._woken = False  # The store announced a submit since the last exchange.
        self._ended: list[_Ended] = []
        self._shortest = math.inf  # Seconds of the fastest job in _ended.
        self._fast = False  # The last reported jobs were fast.
        self._progress: dict[str, Progress] = {}
        self._progress_timer: asyncio.TimerHandle | None = None
        self._filled = 0
        self._filled_below = 0
        self._context = copy_context()  # Jobs run in copies of the context in which the loop runs.
        self.claiming = True
        self._stopped = False
        self.quiet = asyncio.Event()  # No more job will start: an exchange after ``stop_claiming`` has ended.
        self._taken = 0  # Slots that jobs of a replaced runner still fill.
        self._most: int | None = None  # How many more jobs to claim; None for no bound.
        self._counts: Callable[[Lease], bool] = lambda _: True

    # ------------------------------------------------------------------ called by the runner

    def ended(self, ran: FinishedRun | None, slot: int | None, *, below: bool) -> None:
        """Report a finished job with the next exchange, and then free its slot."""
        self._ended.append((ran, slot, below))
        if ran is not None:
            if ran.seconds < self._shortest:
                self._shortest = ran.seconds
            if self._progress:
                self._progress.pop(ran.lease.job_id, None)
        self._kick.set()

    def note(self, progress: Progress) -> None:
        """Keep the latest progress of a job. It is written at most five times a second."""
        self._progress[progress.job_id] = progress
        if self._progress_timer is None:
            self._progress_timer = asyncio.get_running_loop().call_later(PROGRESS_EVERY, self._flush_progress)

    def reserve(self, slots: int, lanes: frozenset[str], *, leave_free: bool) -> None:
        """Reserve slots for lanes. Other lanes never fill them, or with ``leave_free`` the last free ones."""
        self._reserved, self._lanes, self._leave_free = slots, lanes, leave_free

    def bound(self, most: int, counts: Callable[[Lease], bool]) -> None:
        """Claim at most this many jobs for which ``counts`` is true."""
        self._most, self._counts = most, counts

    def leave_free(self, slots: int) -> None:
        """Leave slots free from now on, because jobs of a replaced runner still run."""
        self._taken = slots
        self._kick.set()

    def wake(self) -> None:
        """Claim again, because a change may let a job start."""
        self._kick.set()

    def stop_claiming(self) -> None:
        self.claiming = False
        self._kick.set()

    def stop(self) -> None:
        """End the loop once every result is reported."""
        self._stopped = True
        self._kick.set()

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        self._context = copy_context()
        waiting = self.subscribe()
        try:
            while True:
                claiming = self.claiming
                reply = await self._exchange()
                if not claiming:
                    self.quiet.set()
                if self._stopped and not self._filled:
                    return
                if self._starts_first(reply.leases):
                    await asyncio.sleep(0)  # The claimed jobs start. Those that never suspend end at once.
                only_reserve_left = self._reserved > 0 and self._free_below() <= 0
                again = reply.more or (reply.leases and not only_reserve_left)
                if self._ended or not again or self._free() <= 0:
                    await self._pause(reply)
        finally:
            if waiting is not None:
                waiting.cancel()

    async def _exchange(self) -> ClaimResult:
        """Make one exchange, and repeat it until the store answers."""
        self._kick.clear()  # Wake-ups from here on ask for another exchange.
        ended = self._hand_in()
        finished = [run for run, _, _ in ended if run is not None]
        progress, self._progress = list(self._progress.values()), {}
        woken, self._woken = self._woken, False
        delay = 0.05
        while True:
            free = self._free()
            sent = time.monotonic()
            try:
                reply = await self._job_source.exchange(
                    finished, progress, free=free, free_below=self._free_below(), woken=woken
                )
            except StoreError as problem:
                self._outage.failed("exchange", problem, retry_in=delay)
                await asyncio.sleep(delay * random.uniform(0.7, 1.3))
                delay = min(BACKOFF_MAX, delay * 2)
                continue
            if self._outage.failing:
                self._outage.succeeded("exchange")
            self._handed_in([slot for _, slot, _ in ended if slot is not None])
            if reply.refused:
                lost = [job_id for job_id, answer in reply.refused if answer == ReportStatus.STALE]
                for job_id in lost:
                    reason = "the lease had ended; the report changed nothing"
                    log.warning(LogEvent("job.lease_lost", job=job_id, reason=reason))
                finished = [run for run in finished if run.lease.job_id not in lost]
            if finished and self._reported is not None:
                self._reported(finished)
            if time.monotonic() - sent > self._confirm:
                # The store may have returned these jobs to the queue while the reply was on its way.
                return reply._replace(leases=(), more=True)
            if reply.leases:
                self._begin(reply.leases)
            return reply

    def _hand_in(self) -> list[_Ended]:
        """Return the finished jobs that the next exchange reports, and count their slots as free.

        Fast jobs are reported together, which costs least, but beyond ``FAST_BATCH_MIN`` only for half of the slots, so
        that the other half works during the exchange. Slow jobs that ended together are reported in parts. Their first
        slots refill without waiting for the whole batch, and the next jobs do not end together.
        """
        self._fast = self._shortest < SLOW_JOB_SECONDS
        most = max(FAST_BATCH_MIN, -(-self._slots // 2)) if self._fast else max(PART_MIN, self._slots // PARTS)
        ended, self._ended = self._ended[:most], self._ended[most:]
        if not self._ended:
            self._shortest = math.inf
        self._filled -= len(ended)
        self._filled_below -= sum(below for _, _, below in ended)
        return ended

    def _begin(self, leases: Sequence[Lease]) -> None:
        """Start jobs now, or during the next exchange if it has enough ended jobs to report."""
        lanes = self._lanes
        self._filled += len(leases)
        self._filled_below += sum(lease.lane not in lanes for lease in leases)
        if self._most is not None:
            self._most -= sum(map(self._counts, leases))
        if self._starts_first(leases):
            self._start(leases, lanes)
        else:
            asyncio.get_running_loop().call_soon(self._start, leases, lanes)

    def _starts_first(self, leases: Sequence[Lease]) -> bool:
        """Return whether claimed jobs start before the next exchange is sent, and may be reported by it.

        A few ended jobs beside many claimed ones wait for them. Else two exchanges would take turns for ever, a small
        one for these few slots and a large one for the others, at twice the cost.
        """
        return len(leases) > 2 * len(self._ended)

    def _free(self) -> int:
        if not self.claiming or self._stopped:
            return 0
        free = self._slots - self._filled - self._taken
        return max(0, free if self._most is None else min(free, self._most))

    def _free_below(self) -> int:
        filled = self._filled if self._leave_free else self._filled_below
        return self._slots - self._reserved - self._taken - filled

    async def _pause(self, reply: ClaimResult) -> None:
        """Wait until the next exchange is worthwhile."""
        timeout = self._poll if self._free() > 0 else 60.0
        if self._free() > 0:
            if reply.leases:  # The store does not wake a worker that got jobs.
                timeout = RESERVE_POLL
            if reply.next_due is not None:
                timeout = min(timeout, reply.next_due + 0.001)
        if self._ended:
            if not self._fast:
                await asyncio.sleep(0)  # Start the claimed jobs. Fast jobs run during the exchange.
        else:
            await self._kick.wait(timeout)

    def subscribe(self) -> asyncio.Task[None] | None:
        """Subscribe to submits that this worker can serve. Return the task that waits for them, if one is needed."""
        if (call := self._subscription.call) is not None:
            call(self._wake)
            return None
        return asyncio.create_task(self._wait_for_wake_ups())

    async def _wait_for_wake_ups(self) -> None:
        """Wait for wake-ups from the store until cancelled."""
        while True:
            if await self._subscription.wait(60.0) is not None:
                self._wake()

    def _wake(self) -> None:
        """Start jobs that came with the wake-up if the claimer only waits for it. Else the next exchange claims."""
        leases = self._job_source.handed() if self._kick.awaited and self._free() > 0 and not self._ended else ()
        if leases:
            self._context.run(self._begin, leases)  # Not in the context of the connection that got the message.
        else:
            self._woken = True
        self._kick.set()

    def _flush_progress(self) -> None:
        self._progress_timer = None
        self._kick.set()
