"""A handle on one job."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from headway.client.codec import decode_result
from headway.client.job_info import JobInfo, job_info
from headway.core.errors import IllegalMove, JobCancelled, JobError, JobFailed, NotStored
from headway.core.event import Event
from headway.core.job import JobId, State
from headway.core.job import JobRecord as Record
from headway.core.policy.estimate import Estimate
from headway.core.policy.lanes import effective_lane
from headway.core.policy.why import Reason, why

if TYPE_CHECKING:
    from headway.client.app import Headway

R = TypeVar("R")


class Job(Generic[R]):
    """One request to run a task. Making a handle costs nothing; its verbs ask the store.

    Every verb has a blocking name and an async one with an ``a`` in front.
    """

    __slots__ = ("_app", "_kind", "_persist", "deduplicated", "id")

    def __init__(
        self, app: Headway, job_id: str, *, kind: Any = Any, deduplicated: bool = False, persist: bool = True
    ) -> None:
        self._app = app
        self._kind = kind
        self._persist = persist
        self.id = JobId(job_id)
        self.deduplicated = deduplicated  # True: another submit had made this job already.

    async def ainfo(self) -> JobInfo:
        """Read all that the store knows of the job. Raises ``JobNotFound``, or ``NotStored`` for a transient one."""
        return job_info(await self.arecord())

    async def arecord(self) -> Record:
        """Read the store's record, for Headway's own code. Callers read ``ainfo``."""
        self._check_stored()
        return await self._app.client.get(self.id)

    async def astatus(self) -> State:
        """Return the state of the job."""
        return (await self.arecord()).state

    async def aresult(self, timeout: float | timedelta | None = None) -> R:
        """Wait for the job to end and give what it returned.

        Raises ``JobFailed`` (with ``.error``), ``JobCancelled``, ``TimeoutError``, ``JobNotFound``, ``NotStored``.
        """
        self._check_stored()
        return self._result_of(await self._app.client.ended(self.id, timeout))

    async def awhy(self) -> list[Reason]:
        """Return why the job waits: all reasons, the binding one first; empty once it runs.

        Each has a stable ``code``, a ``text`` and the numbers behind it in ``describe``.
        """
        self._check_stored()
        diagnosis = await self._app.client.diagnose_job(self.id)
        await self._app.follow_policy()
        return why(diagnosis, self._app.policy)

    async def aestimate(self) -> Estimate | None:
        """Return when the job will start: ``p50`` and ``p90`` in seconds from now; None once it has begun.

        With too little known the seconds are None and ``basis`` is ``unknown``; so too for a job that is paused, or
        that no worker can run.
        """
        self._check_stored()
        await self._app.follow_policy()
        return await self._app.client.estimate(self.id, self._app.policy)

    async def awaited(self) -> dict[str, float]:
        """Return what the job, once it has started, had waited for: seconds by reason."""
        self._check_stored()
        diagnosis = await self._app.client.diagnose_job(self.id)
        return {reason: ms / 1_000 for reason, ms in diagnosis.waited_ms.items()}

    async def aeffective_priority(self) -> str:
        """Name the lane that the job is as good as, by its age."""
        record = await self.arecord()
        await self._app.follow_policy()
        return effective_lane(self._app.policy, record, record.seen_at)

    async def acancel(self) -> State:
        """Cancel the job if it is queued, or ask for it to be stopped. Return its state afterwards.

        Raises ``IllegalMove`` if it has ended otherwise, or is history.
        """
        self._check_stored()
        state = (await self._app.client.cancel([self.id]))[0]
        if state is None:
            raise await self._app.client.absent(self.id)
        if state.ended and state is not State.CANCELLED:
            raise IllegalMove(f"job {self.id} is {state.value} already and cannot be cancelled", job_id=self.id)
        return state

    async def aretry(self) -> State:
        """Queue the job again, counts reset, whatever ending but ``completed`` it had.

        Raises ``IllegalMove`` if it completed, if it is history, or if another live job now has its unique key.
        """
        self._check_stored()
        return await self._app.client.retry_one(self.id)

    async def aevents(self) -> AsyncIterator[Event]:
        """Yield what happens to the job until it has ended."""
        self._check_stored()
        async for event in self._app.client.events(self.id):
            yield event

    def info(self) -> JobInfo:
        """Blocking twin of ``ainfo``."""
        return self._app.portal.run(self.ainfo())

    def record(self) -> Record:
        """Blocking twin of ``arecord``."""
        return self._app.portal.run(self.arecord())

    def status(self) -> State:
        """Blocking twin of ``astatus``."""
        return self._app.portal.run(self.astatus())

    def result(self, timeout: float | timedelta | None = None) -> R:
        """Blocking twin of ``aresult``."""
        return self._app.portal.run(self.aresult(timeout))

    def why(self) -> list[Reason]:
        """Blocking twin of ``awhy``."""
        return self._app.portal.run(self.awhy())

    def estimate(self) -> Estimate | None:
        """Blocking twin of ``aestimate``."""
        return self._app.portal.run(self.aestimate())

    def waited(self) -> dict[str, float]:
        """Blocking twin of ``awaited``."""
        return self._app.portal.run(self.awaited())

    def effective_priority(self) -> str:
        """Blocking twin of ``aeffective_priority``."""
        return self._app.portal.run(self.aeffective_priority())

    def cancel(self) -> State:
        """Blocking twin of ``acancel``."""
        return self._app.portal.run(self.acancel())

    def retry(self) -> State:
        """Blocking twin of ``aretry``."""
        return self._app.portal.run(self.aretry())

    def events(self) -> Iterator[Event]:
        """Blocking twin of ``aevents``."""
        return self._app.portal.iterate(self.aevents())

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
                    f"job {self.id} ({job.task}) ended as {job.state.value} after {job.attempts} "
                    f"attempt{'s' if job.attempts != 1 else ''}: {error.type}: {error.message}",
                    error=error,
                    partial=decode_result(job.result, self._kind),
                    job_id=self.id,
                    reason=job.reason,
                )
