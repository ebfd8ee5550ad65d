"""Wake-ups inside one process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence

from headway.core.job import JobId

_HEARD_MAX = 10_000  # Job ids. Beyond it a subscription drops its list, and the waiter reads every job it watches.


class LocalSubscription:
    """Collects the jobs that wake-ups name until a caller waits for them. Any thread may notify it."""

    def __init__(self, forget: Callable[[LocalSubscription], None]) -> None:
        self._lock = threading.Lock()
        self._heard: list[JobId] = []
        self._rung = False
        self._everything = False
        self._wake: Callable[[], None] | None = None
        self._forget = forget

    def notify(self, job_ids: Iterable[JobId] = ()) -> None:
        with self._lock:
            before = len(self._heard)
            self._heard.extend(job_ids)
            if len(self._heard) == before or len(self._heard) > _HEARD_MAX:
                self._everything = True
            self._rung = True
            wake = self._wake
        if wake is not None:
            wake()

    async def wait(self, timeout: float) -> Sequence[JobId] | None:
        loop = asyncio.get_running_loop()
        rung = asyncio.Event()
        with self._lock:
            if not self._rung:
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

    def call(self, heard: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            self._wake = lambda: _call_on(loop, heard)
            rung = self._rung
        if rung:
            heard()

    def close(self) -> None:
        self._forget(self)

    def _take(self) -> Sequence[JobId] | None:
        with self._lock:
            if not self._rung:
                return None
            heard = () if self._everything else tuple(self._heard)
            self._heard = []
            self._rung = self._everything = False
            return heard


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], None]) -> None:
    if asyncio._get_running_loop() is loop:  # Already on the loop, so call it without a detour through the loop's pipe.
        function()
        return
    with contextlib.suppress(RuntimeError):  # The loop was closed, so no task waits.
        loop.call_soon_threadsafe(function)
