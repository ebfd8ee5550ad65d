"""Wake-ups inside one process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from headway.core.job import JobId

_JOB_IDS_MAX = 10_000  # Job ids. Beyond it a subscription drops its list, and the waiter reads every job it watches.


class LocalSubscription:
    """Collects the jobs that wake-ups name until a caller waits for them. Any thread may notify it."""

    def __init__(self, forget: Callable[[LocalSubscription], None]) -> None:
        self._lock = threading.Lock()
        self._job_ids: list[JobId] = []
        self._pending = False
        self._everything = False
        self._wake: Callable[[], None] | None = None
        self._forget = forget

    def notify(self, job_ids: Iterable[JobId] = ()) -> None:
        with self._lock:
            before = len(self._job_ids)
            self._job_ids.extend(job_ids)
            if len(self._job_ids) == before or len(self._job_ids) > _JOB_IDS_MAX:
                self._everything = True
            self._pending = True
            wake = self._wake
        if wake is not None:
            wake()

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        loop = asyncio.get_running_loop()
        rung = asyncio.Event()
        with self._lock:
            if not self._pending:
                self._wake = lambda: _call_on(loop, rung.set)
        try:
            if self._wake is not None:
                async with asyncio.timeout(timeout):
                    await rung.wait()
        except TimeoutError:
            pass
        finally:
            with self._lock:
                self._wake = None
        return self._take()

    def call(self, notified: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._wake = lambda: _call_on(loop, notified)
            pending = self._pending
        if pending:
            notified()

    def close(self) -> None:
        self._forget(self)

    def _take(self) -> Sequence[JobId] | None:
        with self._lock:
            if not self._pending:
                return None
            job_ids = () if self._everything else tuple(self._job_ids)
            self._job_ids = []
            self._pending = self._everything = False
            return job_ids


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    if asyncio._get_running_loop() is loop:  # Already on the loop, so call it without a detour through the loop's pipe.
        function()
        return
    with contextlib.suppress(RuntimeError):  # The loop was closed, so no task waits.
        loop.call_soon_threadsafe(function)
