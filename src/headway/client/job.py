"""A handle on one job."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headway.client.codec import decode_result
from headway.client.job_events import with_estimates
from headway.client.job_info import JobInfo, job_info
from headway.client.portal import Portal, blocking
from headway.core.errors import IllegalMove, JobCancelled, JobError, JobFailed, NotStored
from headway.core.event import Event
from headway.core.job import JobId, State
from headway.core.job import JobRecord as Record
from headway.core.policy.estimate import Estimate
from headway.core.policy.lanes import effective_lane
from headway.core.policy.units import plural
from headway.core.policy.why import Reason, why

if TYPE_CHECKING:
    from headway.client.app import Headway

R = TypeVar("R")


class Job(Generic[R]):
    """A handle on one request to run a task. Its methods read or change the job in the store.

    Every method exists twice: ``result`` blocks, ``aresult`` is async.
    """

    __slots__ = ("_app", "_kind", "_persist", "deduplicated", "id")

    def __init__(
        self, app: Headway, job_id: str, *, kind: Any = Any, deduplicated: bool = False, persist: bool = True
    ) -> None:
        self._app = app
        self._kind = kind
        self._persist = persist
        self.id = JobId(job_id)
        self.deduplicated = deduplicated  # True if an earlier submit had created this job.

    async def ainfo(self) -> JobInfo:
        """Read the whole job from the store. Raises ``JobNotFound``, or ``NotStored`` for a transient job."""
        return job_info(await self.arecord())

    async def arecord(self) -> Record:
        """Read the store's record, for Headway's own code. Applications use ``ainfo``."""
        self._check_stored()
        return await self._app.client.get(self.id)

    async def astatus(self) -> State:
        """Return the state of the job."""
        return (await self.arecord()).state

    async def aresult(self, timeout: float | timedelta | None = None) -> R:
        """Wait for the job to end and return its result.

        Raises ``JobFailed`` (with ``.error``), ``JobCancelled``, ``TimeoutError``, ``JobNotFound``, ``NotStored``.
        """
        self._check_stored()
        return self._result_of(await self._app.client.ended(self.id, timeout))

    async def awhy(self) -> list[Reason]:
        """Return all reasons why the job waits, the binding one first. The list is empty once the job runs.

        Each reason has a stable ``code``, a ``text`` and its numbers in ``facts``.
        """
        self._check_stored()
        diagnosis = await self._app.client.diagnose_job(self.id)
        await self._app.follow_policy()
        return why(diagnosis, self._app.policy)

    async def aestimate(self) -> Estimate | None:
        """Return the expected wait as ``p50`` and ``p90`` in seconds from now, or None once the job has started.

        If Headway has too little data, if the job is paused, or if no worker can run it, the seconds are None and
        ``basis`` is ``unknown``.
        """
        self._check_stored()
        await self._app.follow_policy()
        return await self._app.client.estimate(self.id, self._app.policy)

    async def awaited(self) -> dict[str, float]:
        """Return how long the job had waited when it started, in seconds by reason."""
        self._check_stored()
        diagnosis = await self._app.client.diagnose_job(self.id)
        return {reason: ms / 1_000 for reason, ms in diagnosis.waited_ms.items()}

    async def aeffective_priority(self) -> str:
        """Return the lane whose priority the job has reached by waiting."""
        record = await self.arecord()
        await self._app.follow_policy()
        return effective_lane(self._app.policy, record, record.seen_at)

    async def acancel(self) -> State:
        """Cancel the job if it is queued, or request the worker to stop it. Return the state afterwards.

        Raises ``IllegalMove`` if the job has ended in another way, or is only in the history.
        """
        self._check_stored()
        state = (await self._app.client.cancel([self.id]))[0]
        if state is None:
            raise await self._app.client.absent(self.id)
        if state.ended and state is not State.CANCELLED:
            raise IllegalMove(f"job {self.id} is {state.value} already and cannot be cancelled", job_id=self.id)
        return state

    async def aretry(self, *, alone: bool = False) -> State:
        """Queue a job again that ended without completing, and reset its counts.

        Jobs that were cancelled because this one did not complete wait for it again, unless ``alone``.

        Raises ``IllegalMove`` if the job completed, if it is only in the history, or if another live job has its
        unique key.
        """
        self._check_stored()
        return await self._app.client.retry_one(self.id, alone=alone)

    async def aevents(self) -> AsyncIterator[Event]:
        """Yield the events of the job until it has ended, and while it waits, when it is expected to start."""
        self._check_stored()
        happened = self._app.client.events(self.id)
        async with contextlib.aclosing(with_estimates(happened, self.id, self.aestimate)) as events:
            async for event in events:
                yield event

    info = blocking(ainfo)
    record = blocking(arecord)
    status = blocking(astatus)
    result = blocking(aresult)
    why = blocking(awhy)
    estimate = blocking(aestimate)
    waited = blocking(awaited)
    effective_priority = blocking(aeffective_priority)
    cancel = blocking(acancel)
    retry = blocking(aretry)

    def events(self) -> Iterator[Event]:
        """Blocking twin of ``aevents``."""
        return self._portal.iterate(self.aevents())

    @property
    def _portal(self) -> Portal:
        return self._app.portal

    def __repr__(self) -> str:
        return f"Job({self.id!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def _check_stored(self) -> None:
        if not self._persist:
            raise NotStored(f"job {self.id} is transient: it keeps neither state nor result", job_id=self.id)

    def _result_of(self, job: Record) -> R:
        match job.state:
            case State.COMPLETED if job.result_error is not None:
                error = JobError(type="PayloadError", message=job.result_error)
                raise JobFailed(
                    f"job {self.id} completed, but its result could not be stored: {job.result_error}",
                    error=error,
                    job_id=self.id,
                )
            case State.COMPLETED:
                result: R = decode_result(job.result, self._kind)
                return result
            case State.CANCELLED:
                raise JobCancelled(f"job {self.id} was cancelled ({job.reason})", job_id=self.id, reason=job.reason)
            case _:
                error = job.error or JobError(type="Unknown", message=job.reason or "no reason given")
                raise JobFailed(
                    f"job {self.id} ({job.task}) ended as {job.state.value} after {plural(job.attempts, 'attempt')}: "
                    f"{error.type}: {error.message}",
                    error=error,
                    partial=decode_result(job.result, self._kind),
                    job_id=self.id,
                    reason=job.reason,
                )
