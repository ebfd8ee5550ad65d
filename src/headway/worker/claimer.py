"""Claims jobs for free slots and hands in what has ended, in one exchange after another."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from headway.core.errors import StoreError
from headway.core.lease import Lease, Report
from headway.engine.feed import Fed, LocalFeed
from headway.stores.base import Ear, Progress

log = logging.getLogger("headway.worker")

LINGER = 0.002  # Seconds that results are gathered before they are handed in.
GATHERED = 128  # Results that are handed in at once.
SLOW_POLL = 1.0  # Seconds; stands behind the wake-ups.
PROGRESS_EVERY = 0.2
BACKOFF_MAX = 5.0


class Claimer:
    """The loop between a runner and its feed.

    Woken by a job's end, by the store (a submit), by the next delayed job falling due, or by the slow poll;
    bounded by the free slots; ends when told to, after the last result was handed in.
    """

    def __init__(
        self,
        feed: LocalFeed,
        ear: Ear,
        *,
        slots: int,
        start: Callable[[Lease], None],
        handed_in: Callable[[list[int]], None],
        confirm: float,
    ) -> None:
        self._feed = feed
        self._ear = ear
        self._slots = slots
        self._reserved, self._leave_free = 0, False
        self._start = start
        self._handed_in = handed_in
        self._confirm = confirm
        self._kick = asyncio.Event()
        self._finished: list[Report] = []
        self._ended_slots: list[int] = []  # Those of the jobs in ``_finished``, and of jobs with nothing to report.
        self._progress: dict[str, Progress] = {}
        self._progress_timer: asyncio.TimerHandle | None = None
        self.running = 0
        self.running_below = 0
        self.claiming = True
        self._stopped = False

    # ------------------------------------------------------------------ what the runner says

    def ended(self, report: Report | None, slot: int | None, *, below: bool) -> None:
        """A job has ended; its report, if there is one, goes with the next exchange, and then its slot is free."""
        self.running -= 1
        self.running_below -= below
        if slot is not None:
            self._ended_slots.append(slot)
        if report is not None:
            self._finished.append(report)
        if self._progress and report is not None:
            self._progress.pop(report.job_id, None)
        self._kick.set()

    def note(self, progress: Progress) -> None:
        """Keep the latest progress of a job; written a few times a second at most."""
        self._progress[progress.job_id] = progress
        if self._progress_timer is None:
            self._progress_timer = asyncio.get_running_loop().call_later(PROGRESS_EVERY, self._flush_progress)

    def reserve(self, slots: int, *, leave_free: bool) -> None:
        """Keep slots for the lanes of the reserve: the others never hold them, or never take the last free ones."""
        self._reserved, self._leave_free = slots, leave_free

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
        hearing = asyncio.create_task(self._hear())
        try:
            while True:
                fed = await self._exchange()
                if self._stopped and not self._finished and not self.running:
                    return
                if fed.more and self._free() > 0:
                    continue
                if len(fed.leases) > 0 and self._free() > 0 and not self._finished:
                    await asyncio.sleep(0)  # Let what was claimed begin before asking for the rest.
                    continue
                await self._pause(fed.next_due)
        finally:
            hearing.cancel()

    async def _exchange(self) -> Fed:
        """Make one exchange, again and again until the store answers."""
        finished, self._finished = self._finished, []
        slots, self._ended_slots = self._ended_slots, []
        progress, self._progress = list(self._progress.values()), {}
        delay = 0.05
        while True:
            free = self._free()
            asked = time.monotonic()
            try:
                taken = self.running if self._leave_free else self.running_below
                fed = await self._feed.exchange(
                    finished, progress, free=free, free_below=self._slots - self._reserved - taken
                )
            except StoreError as problem:
                log.warning("the store did not take an exchange, trying again in %.1f s: %s", delay, problem)
                await asyncio.sleep(delay * random.uniform(0.7, 1.3))
                delay = min(BACKOFF_MAX, delay * 2)
                continue
            self._handed_in(slots)
            if fed.refused:
                self._tell_refused(fed)
            if time.monotonic() - asked > self._confirm:
                # The reply is so old that the store may have given these jobs back: they are not ours to start.
                return fed._replace(leases=(), more=True)
            self._begin(fed.leases)
            return fed

    def _begin(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self._start(lease)

    def _free(self) -> int:
        return self._slots - self.running if self.claiming and not self._stopped else 0

    async def _pause(self, next_due: float | None) -> None:
        """Wait for a reason to go on; then gather results for a moment if more are about to come."""
        timeout = SLOW_POLL if self._free() > 0 else 60.0
        if next_due is not None and self._free() > 0:
            timeout = min(timeout, next_due + 0.001)
        if not self._finished:
            try:
                async with asyncio.timeout(timeout):
                    await self._kick.wait()
            except TimeoutError:
                pass
        if self._finished and self.running and len(self._finished) < min(GATHERED, self._slots):
            await asyncio.sleep(LINGER)
        self._kick.clear()

    async def _hear(self) -> None:
        """Woken by the store when something this worker can serve was submitted."""
        while True:
            if await self._ear.wait(60.0) is not None:
                self._kick.set()

    def _flush_progress(self) -> None:
        self._progress_timer = None
        self._kick.set()

    def _tell_refused(self, fed: Fed) -> None:
        for job_id, answer in fed.refused:
            if answer == "lost":
                facts = {"job": job_id, "reason": "the lease had ended; the report changed nothing"}
                log.warning("job.lease_lost", extra={"headway": facts})
