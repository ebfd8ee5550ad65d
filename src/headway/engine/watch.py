"""Watching jobs: told by the store when one changes, with a slow look behind it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator

from headway.core.errors import JobNotFound
from headway.core.event import Event, events_between
from headway.core.job import Job, JobId
from headway.stores.base import WATCHER, Ear, Store

LINGER = 2.0  # Seconds an ear stays open after its last watcher: another often follows.
SLOW_LOOK = 1.0  # Seconds; covers a wake-up that was lost.


class Watcher:
    """Waits for changes of any number of jobs with one ear. Belongs to one loop."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed: dict[JobId, set[asyncio.Event]] = {}
        self._ear: Ear | None = None
        self._listening: asyncio.Task[None] | None = None

    async def looks(self, job_id: JobId) -> AsyncIterator[Job | None]:
        """Give the job now, and again each time it may have changed. Ends only when the caller stops."""
        changed = asyncio.Event()
        self._changed.setdefault(job_id, set()).add(changed)
        self._listen()
        try:
            while True:
                changed.clear()
                yield (await self._store.get([job_id]))[0]
                try:
                    async with asyncio.timeout(SLOW_LOOK):
                        await changed.wait()
                except TimeoutError:
                    pass
        finally:
            waiting = self._changed[job_id]
            waiting.discard(changed)
            if not waiting:
                del self._changed[job_id]
            if not self._changed:
                asyncio.get_running_loop().call_later(LINGER, self._close_if_unused)

    async def ended(self, job_id: JobId) -> Job:
        """Wait until a job has ended. Raises ``JobNotFound``."""
        looks = self.looks(job_id)
        try:
            async for job in looks:
                if job is None:
                    raise JobNotFound(f"no job {job_id} in the store; it may have been pruned", job_id=job_id)
                if job.state.ended:
                    return job
        finally:
            await looks.aclose()  # type: ignore[attr-defined]
        raise AssertionError("looks() never ends by itself")

    async def events(self, job_id: JobId) -> AsyncIterator[Event]:
        """Tell what happens to a job, from its submission until it has ended."""
        before: Job | None = None
        looks = self.looks(job_id)
        try:
            async for job in looks:
                if job is None:
                    raise JobNotFound(f"no job {job_id} in the store; it may have been pruned", job_id=job_id)
                for event in events_between(before, job, time.time_ns() // 1_000_000):
                    yield event
                if job.state.ended:
                    return
                before = job
        finally:
            await looks.aclose()  # type: ignore[attr-defined]

    def _close_if_unused(self) -> None:
        if not self._changed:
            self.close()

    def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            self._listening = None
        if self._ear is not None:
            self._ear.close()
            self._ear = None

    def _listen(self) -> None:
        if self._ear is None:
            self._ear = self._store.listen(f"{WATCHER}{uuid.uuid4().hex}")
            self._listening = asyncio.get_running_loop().create_task(self._pass_on(self._ear))

    async def _pass_on(self, ear: Ear) -> None:
        """Woken by the store; ends when nobody watches any more."""
        while True:
            heard = await ear.wait(60.0)
            if heard is None:
                continue
            for job_id in heard or list(self._changed):
                for changed in self._changed.get(job_id, ()):
                    changed.set()
