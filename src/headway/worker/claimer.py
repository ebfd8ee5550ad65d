"""Claims jobs for free slots and hands in what has ended, in one exchange after another."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections.abc import Callable, Sequence

from headway.core.errors import StoreError
from headway.core.lease import Lease
from headway.dispatch.job_source import ClaimResult, FinishedRun
from headway.observability.outage import Outage
from headway.stores.base import Progress, Subscription
from headway.worker.backend.base import JobSource

log = logging.getLogger("headway.worker")

SLOW_POLL = 1.25  # Seconds; stands behind the wake-ups, unless another length is given.
RESERVE_POLL = 0.005  # Seconds after a claim that left only slots of the reserve free.
PROGRESS_EVERY = 0.2
BACKOFF_MAX = 5.0
LONG = 0.01  # Seconds; of jobs that take longer only a part of the slots is handed in at once.
TOGETHER = 100  # Jobs that are handed in at once, however many slots there are.
PARTS = 8
PART_MIN = 8


# A job that has ended and is not reported yet: how it ended (None: the lease is lost, there is nothing to report), the
# slot it still fills, and whether that slot is below the reserve.
_Ended = tuple[FinishedRun | None, int | None, bool]

# Starts leased jobs, and is told which lanes are those of the reserve.
Start = Callable[[Sequence[Lease], frozenset[str]], None]


class WakeEvent:
    """A one-waiter event with a timeout. About twice as fast as asyncio.Event with wait_for."""

    def __init__(self) -> None:
        self._given = False
        self._waiter: asyncio.Future[None] | None = None

    def set(self) -> None:
        self._given = True
        self._let_go()

    def clear(self) -> None:
        self._given = False

    async def wait(self, timeout: float = math.inf) -> None:
        """Wait until it is set, or for this many seconds."""
        if self._given:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        late = loop.call_later(timeout, self._let_go) if timeout < math.inf else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if late is not None:
                late.cancel()

    def _let_go(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Claimer:
    """The loop between a runner and its feed.

    Woken by a job's end, by the store (a submit), by the next delayed job falling due, or by the slow poll;
    bounded by the free slots; ends when told to, after the last result was handed in.

    What ends while an exchange is under way goes with the next one, so batches grow with the load by themselves.
    """

    def __init__(
        self,
        job_source: JobSource,
        subscription: Subscription,
        *,
        slots: int,
        start: Start,
        handed_in: Callable[[list[int]], None],
        confirm: float,
        poll: float = SLOW_POLL,
        outage: Outage | None = None,
    ) -> None:
        self._outage = outage or Outage(log)
        self._job_source = job_source
        self._subscription = subscription
        self._slots = slots
        self._reserved, self._leave_free = 0, False
        self._lanes: frozenset[str] = frozenset()  # Those of the reserve.
        self._start = start
        self._handed_in = handed_in
        self._confirm = confirm
        self._poll = poll
        self._kick = WakeEvent()
        self._woken = False  # By the store, since the last exchange.
        self._ended: list[_Ended] = []
        self._shortest = math.inf  # Seconds that the shortest of them took.
        self._small = False  # Whether what was handed in last was short.
        self._progress: dict[str, Progress] = {}
        self._progress_timer: asyncio.TimerHandle | None = None
        self._filled = 0
        self._filled_below = 0
        self.claiming = True
        self._stopped = False

    # ------------------------------------------------------------------ what the runner says

    def ended(self, ran: FinishedRun | None, slot: int | None, *, below: bool) -> None:
        """A job has ended; if that is to be told, it goes with the next exchange, and then its slot is free."""
        self._ended.append((ran, slot, below))
        if ran is not None:
            if ran.seconds < self._shortest:
                self._shortest = ran.seconds
            if self._progress:
                self._progress.pop(ran.lease.job_id, None)
        self._kick.set()

    def note(self, progress: Progress) -> None:
        """Keep the latest progress of a job; written a few times a second at most."""
        self._progress[progress.job_id] = progress
        if self._progress_timer is None:
            self._progress_timer = asyncio.get_running_loop().call_later(PROGRESS_EVERY, self._flush_progress)

    def reserve(self, slots: int, lanes: frozenset[str], *, leave_free: bool) -> None:
        """Keep slots for the lanes of the reserve: the others never hold them, or never take the last free ones."""
        self._reserved, self._lanes, self._leave_free = slots, lanes, leave_free

    def look(self) -> None:
        """Something has changed that may let a job start."""
        self._kick.set()

    def stop_claiming(self) -> None:
        self.claiming = False
        self._kick.set()

    def stop(self) -> None:
        """End the loop once everything was handed in."""
        self._stopped = True
        self._kick.set()

    # ------------------------------------------------------------------ the loop

    async def run(self) -> None:
        hearing = self.subscribe()
        try:
            while True:
                fed = await self._exchange()
                if self._stopped and not self._filled:
                    return
                if self._free() > 0 and not self._ended:
                    if fed.more:
                        continue
                    if fed.leases and not self._only_reserve_left():
                        await asyncio.sleep(0)  # Let what was claimed begin before asking for the rest.
                        continue
                await self._pause(fed)
        finally:
            if hearing is not None:
                hearing.cancel()

    async def _exchange(self) -> ClaimResult:
        """Make one exchange, again and again until the store answers."""
        self._kick.clear()  # Whatever gave reason for this one; what comes from here on gives reason for another.
        ended = self._hand_in()
        finished = [run for run, _, _ in ended if run is not None]
        progress, self._progress = list(self._progress.values()), {}
        woken, self._woken = self._woken, False
        delay = 0.05
        while True:
            free = self._free()
            asked = time.monotonic()
            try:
                fed = await self._job_source.exchange(
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
            if fed.refused:
                self._tell_refused(fed)
            if time.monotonic() - asked > self._confirm:
                # The reply is so old that the store may have given these jobs back: they are not ours to start.
                return fed._replace(leases=(), more=True)
            if fed.leases:
                self._begin(fed.leases)
            return fed

    def _hand_in(self) -> list[_Ended]:
        """Choose what goes with the next exchange, and count its slots as free.

        Small jobs go together, which costs least; of more than ``TOGETHER`` only half of the slots, so that the others
        have something to do while the store deals with these. Long ones that ended together, as those do that began
        together, go in parts: so the first slots need not wait until the store has dealt with all, and next time they
        do not end together.
        """
        self._small = self._shortest < LONG
        most = max(TOGETHER, -(-self._slots // 2)) if self._small else max(PART_MIN, self._slots // PARTS)
        ended, self._ended = self._ended[:most], self._ended[most:]
        if not self._ended:
            self._shortest = math.inf
        self._filled -= len(ended)
        self._filled_below -= sum(below for _, _, below in ended)
        return ended

    def _begin(self, leases: Sequence[Lease]) -> None:
        """Let jobs start; if something has ended meanwhile, while the store is dealing with that."""
        lanes = self._lanes
        self._filled += len(leases)
        self._filled_below += sum(lease.lane not in lanes for lease in leases)
        if self._ended:
            asyncio.get_running_loop().call_soon(self._start, leases, lanes)
        else:
            self._start(leases, lanes)

    def _free(self) -> int:
        return self._slots - self._filled if self.claiming and not self._stopped else 0

    def _free_below(self) -> int:
        return self._slots - self._reserved - (self._filled if self._leave_free else self._filled_below)

    def _only_reserve_left(self) -> bool:
        return self._reserved > 0 and self._free_below() <= 0

    async def _pause(self, fed: ClaimResult) -> None:
        """Wait for a reason to go on."""
        timeout = self._poll if self._free() > 0 else 60.0
        if self._free() > 0:
            if fed.leases:  # The store wakes only who came away with nothing: unless another job ends first, ask again.
                timeout = RESERVE_POLL
            if fed.next_due is not None:
                timeout = min(timeout, fed.next_due + 0.001)
        if self._ended:
            if not self._small:
                await asyncio.sleep(0)  # Let what was claimed begin; small jobs run while the store is asked.
        else:
            await self._kick.wait(timeout)

    def subscribe(self) -> asyncio.Task[None] | None:
        """Be woken by the store when something this worker can serve was submitted; with a task, if that takes one."""
        if (call := self._subscription.call) is not None:
            call(self._wake)
            return None
        return asyncio.create_task(self._hear())

    async def _hear(self) -> None:
        """Woken by the store; ends when cancelled."""
        while True:
            if await self._subscription.wait(60.0) is not None:
                self._wake()

    def _wake(self) -> None:
        self._woken = True
        self._kick.set()

    def _flush_progress(self) -> None:
        self._progress_timer = None
        self._kick.set()

    def _tell_refused(self, fed: ClaimResult) -> None:
        for job_id, answer in fed.refused:
            if answer == "lost":
                facts = {"job": job_id, "reason": "the lease had ended; the report changed nothing"}
                log.warning("job.lease_lost", extra={"headway": facts})
