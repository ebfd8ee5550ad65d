"""A worker's runner that stops when no job is left."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from headway.client.app import Headway
from headway.client.loading import policy_file
from headway.core.errors import JobControl
from headway.core.lease import Lease, Report
from headway.core.policy.retry import Ending, Released, TimedOut
from headway.core.snapshot import Snapshot
from headway.core.worker import WorkerInfo, capabilities_in
from headway.dispatch.job_source import ClaimResult, FinishedRun, StoreJobSource
from headway.maintenance.recovery import end_worker
from headway.stores.base import Exchange, Progress, Store, Subscription
from headway.worker.active_job import ActiveJob
from headway.worker.backend.base import JobSource, LeaseTimes
from headway.worker.backend.store import StoreBackend
from headway.worker.claimer import Claimer
from headway.worker.executors.inline import InlineExecutor
from headway.worker.executors.thread import ThreadExecutor
from headway.worker.runner import Runner
from headway.worker.slot_table import SlotTable, Stop

LEASE_MS = 1_000 * 365 * 24 * 3_600_000  # A thousand years, so that no advance of a test's clock ends a lease.

MoveOn = Callable[[int], bool]  # Takes the milliseconds until the next delayed job; False leaves it delayed.


class DrainingRunner(Runner):
    """Claims, runs and reports jobs as a worker does, and ends when no job is eligible.

    It keeps the ``reports`` it sent, the number of ``attempts`` it started, and the ``errors`` that tasks raised.
    """

    def __init__(
        self, app: Headway, store: Store, *, slots: int, attempts_max: int, raise_errors: bool, move_on: MoveOn
    ) -> None:
        self.app = app
        self._own_slot_table = SlotTable.create(slots)
        self.reports: list[Report] = []
        self._store = store
        super().__init__(
            app,
            _TestBackend(store, app.in_force, file=policy_file(app), kept=self.reports),
            self._own_slot_table,
            worker_id=f"testbed:{uuid.uuid4().hex[:6]}",
            host="testbed",
            slots=slots,
            reserved=0,
            app_path=None,
        )
        self._executors["process"] = _ThreadForProcess(slots)
        self.attempts_max = attempts_max
        self.raise_errors = raise_errors
        self._move_on = move_on
        self.pace = self.pace._replace(dead_after=LEASE_MS / 1_000)
        self.errors: list[BaseException] = []
        self.attempts = 0
        self.endless: str | None = None  # The task that would have run beyond ``attempts_max``.

    async def run_out(self) -> None:
        """Run until no job is eligible. Enters the app's lifespan once."""
        try:
            await self.run(ready=_at_once)
        finally:
            # An interrupted drain stops its running jobs and releases them.
            self.stop_jobs(self.stuck, Stop.DRAIN)
            await end_worker(
                self._store, self.worker.worker_id, self._app.policy, lambda lease: Released("interrupted")
            )
            if not self.stuck:
                self._own_slot_table.close()

    def _make_claimer(self, job_source: JobSource, subscription: Subscription) -> Claimer:
        return _DrainingClaimer(
            job_source,
            subscription,
            slots=self.worker.slots,
            start=self._start,
            handed_in=self._handed_in,
            confirm=LEASE_MS,
            runner=self,
        )

    def begins(self, lease: Lease) -> bool:
        """Count an attempt that is about to start. Return False if there were too many."""
        self.attempts += 1
        if self.attempts > self.attempts_max:
            self.endless = lease.task
        return self.endless is None

    @property
    def halted(self) -> bool:
        return self.endless is not None or (self.raise_errors and bool(self.errors))

    def moves_on(self, next_due: float | None) -> bool:
        """Return whether a delayed job was made due."""
        return next_due is not None and not self.halted and self._move_on(round(next_due * 1_000))

    def _ending(self, job: ActiveJob, error: BaseException) -> Ending | None:
        if job.stop is not Stop.TIMEOUT and not isinstance(error, JobControl):
            self.errors.append(error)
        return super()._ending(job, error)

    def _timed_out(self, job: ActiveJob, ending: Ending | None) -> TimedOut:
        late = super()._timed_out(job, ending)
        self.errors.append(TimeoutError(f"task {job.task.name}: {late.error.message}"))
        return late


async def _at_once() -> None: ...


class _DrainingClaimer(Claimer):
    """A claimer that ends when no job is left, instead of waiting for new jobs."""

    def __init__(self, job_source: JobSource, *args: Any, runner: DrainingRunner, **kwargs: Any) -> None:
        super().__init__(job_source, *args, **kwargs)
        self._runner = runner

    async def run(self) -> None:
        listening = self.subscribe()
        try:
            while True:
                fed = await self._exchange()
                if self._free() > 0 and (fed.more or fed.leases):
                    continue
                if self._filled > len(self._ended):
                    await self._kick.wait()
                    self._kick.clear()
                elif not self._ended and not self._runner.moves_on(fed.next_due):
                    return
        finally:
            if listening is not None:
                listening.cancel()
            if self._progress_timer is not None:
                self._progress_timer.cancel()

    def ended(self, ran: FinishedRun | None, slot: int | None, *, below: bool) -> None:
        if self._runner.halted:
            self.stop_claiming()
        super().ended(ran, slot, below=below)

    def _begin(self, leases: Sequence[Lease]) -> None:
        for lease in leases:
            if not self._runner.begins(lease):
                self.stop_claiming()
        super()._begin(leases)


class _TestBackend(StoreBackend):
    """A backend whose job source keeps all reports."""

    def __init__(self, *args: Any, kept: list[Report], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._kept = kept

    def job_source(self, worker: WorkerInfo, pace: LeaseTimes, *, offset: float) -> JobSource:
        return _TestJobSource(self._store, self.in_force, worker.worker_id, worker.offers, kept=self._kept)


class _TestJobSource(StoreJobSource):
    """A job source that reads a new snapshot for each plan, so that the order never depends on a snapshot's age.

    It offers every capability that waiting jobs need, but no tasks that the app does not have.
    """

    def __init__(self, *args: Any, kept: list[Report]) -> None:
        super().__init__(*args)
        self._kept = kept

    async def exchange_reports(
        self,
        finished: Sequence[Report],
        progress: Sequence[Progress],
        **claim: Any,
    ) -> ClaimResult:
        request = Exchange(self._worker_id, finished=finished, progress=progress, want_snapshot=True)
        answer = await self._store.exchange(request)
        self._kept += finished
        self._snapshot = answer.snapshot or Snapshot(answer.now_at)
        wanted = {need for view in self._snapshot.classes for need in view.key.needs}
        self._offers |= set(capabilities_in(wanted))
        claim["woken"] = False
        fed = await super().exchange_reports((), (), **claim)
        return fed._replace(refused=answer.refused)


class _ThreadForProcess(ThreadExecutor):
    """Runs tasks of executor ``process`` in a thread, or on the loop if they are async."""

    async def call(self, job: ActiveJob) -> Any:
        job.context.state = {}  # A process executor has no lifespan state either.
        if job.task.is_async:
            return await InlineExecutor().call(job)
        return await super().call(job)
