"""Apply the results that an HTTP worker reports, and return the outcome of each job.

A worker may repeat a report when a reply was lost. It then gets the same reply again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from headway.core.errors import JobError
from headway.core.job import JobId, JobRecord, State
from headway.core.lease import Lease, Report, ReportStatus
from headway.core.policy.document import HALTED, Policy
from headway.core.policy.retry import Ending, Raised, Unknown, judge
from headway.protocol.conversion import token_of
from headway.protocol.worker import NOTE_MAX, ProgressUpdate, ResultOutcome, ResultReport
from headway.server.gateway.endings import cut_text, ending_of
from headway.server.gateway.session import WorkerSession
from headway.stores.base import Progress, Store
from headway.stores.paging import get_in_steps, without_values


class ResultBatch:
    """A batch of results. ``prepare`` runs before the exchange that carries its reports, ``conclude`` after."""

    def __init__(self, store: Store, session: WorkerSession, policy: Policy) -> None:
        self._store = store
        self._session = session
        self._policy = policy
        self._ended: Sequence[ResultReport] = ()
        self._late: dict[JobId, JobRecord] = {}  # Jobs that the worker does not hold.
        self._known: dict[JobId, State | None] = {}  # Decided without the exchange.
        self.reports: list[Report] = []
        self.progress: list[Progress] = []

    async def prepare(self, ended: Sequence[ResultReport], steps: Sequence[ProgressUpdate] = ()) -> None:
        """Find the leases, and let core decide the next state of each job."""
        self._ended = ended
        first = {one.job_id: one for one in reversed(ended)}  # Of several reports on one job the first counts.
        wanted: list[ResultReport | ProgressUpdate] = [*first.values(), *steps]
        if any(self._held(one) is None for one in wanted):
            await self._session.read_leases()
        missing = [one.job_id for one in first.values() if self._held(one) is None]
        if missing:
            found = get_in_steps(self._store.get, missing)
            self._late = {job.job_id: without_values(job) async for job in found if job is not None}
        for one in first.values():
            lease = self._held(one)
            if lease is not None:
                self._learn(lease, one.seconds)
                self.reports.append(self._judged(self._ending(one), lease))
            elif one.job_id in self._late:
                self._prepare_late(one, self._late[one.job_id])
            else:
                self._prepare_unknown(one)
        for step in steps:
            lease = self._held(step)
            if lease is not None and lease.persist and step.job_id not in first:
                note = None if step.note is None else cut_text(step.note, NOTE_MAX)
                self.progress.append(Progress(step.job_id, lease.seq, lease.token, step.fraction, note))

    async def conclude(self, refused: Sequence[tuple[str, str]]) -> list[ResultOutcome]:
        """Return the outcome of each job, in the order of the reports."""
        answers = {job_id: ReportStatus(answer) for job_id, answer in refused}
        states = dict(self._known)
        asked: list[JobId] = []
        for report in self.reports:
            answer = answers.get(report.job_id, ReportStatus.OK)
            states[report.job_id] = None if answer is ReportStatus.STALE else report.state
            # A job to be queued again may have been cancelled instead, and a late report may differ from the first one.
            if answer is ReportStatus.DUPLICATE or (answer is ReportStatus.OK and report.state is State.QUEUED):
                asked.append(report.job_id)
        async for job in get_in_steps(self._store.get, asked):
            if job is not None and (state := states[job.job_id]) is not None:
                states[job.job_id] = _resulting_state(state, job.state, taken=job.job_id not in answers)
        self._session.release(report.job_id for report in self.reports if self._is_held_as(report))
        self._session.dismiss(job_id for job_id, state in states.items() if state is None)
        return [
            ResultOutcome(one.task_id, state, "lease_lost" if state is None else None)
            for one in self._ended
            for state in [states[one.job_id]]
        ]

    def _is_held_as(self, report: Report) -> bool:
        """Return whether a report is about what the worker holds, not about an older lease of the same job."""
        lease = self._session.leases.get(report.job_id)
        return lease is None or lease.token == report.token

    def _held(self, one: ResultReport | ProgressUpdate) -> Lease | None:
        """Return the lease that a message is about. Only the process that handed out a transient job knows it."""
        lease = self._session.leases.get(one.job_id) or self._session.transient.get(one.job_id)
        return lease if lease is not None and token_of(one.fence) in (None, lease.token) else None

    def _ending(self, one: ResultReport) -> Ending:
        return ending_of(one, self._session.payload_max)

    def _judged(self, ending: Ending, lease: Lease) -> Report:
        if isinstance(ending, Unknown) and self._session.registration.tasks is None:
            # The worker offers any task, so it would get this job again at once.
            ending = Raised(JobError("UnknownTask", f"the worker does not know the task {lease.task}"))
        return judge(ending, lease, self._policy, chance=int.from_bytes(os.urandom(2)) / 65_536)

    def _prepare_late(self, one: ResultReport, job: JobRecord) -> None:
        """Prepare a report on a job that the worker does not hold. A repeat has the job's last token."""
        ending, token = self._ending(one), token_of(one.fence)
        report = self._judged(ending, _past_lease(job, token or b"\0", crashed=one.status == "crashed"))
        worker_id = self._session.registration.worker_id
        if job.worker_id not in (None, worker_id) or (job.state is State.EXECUTING):
            self._known[one.job_id] = None
        elif token:
            self.reports.append(report)
        else:
            reporter = job.worker_id or (job.history[-1].worker_id if job.history else None)
            same = reporter == worker_id and _fits(report.state, job.state)
            self._known[one.job_id] = job.state if same else None

    def _prepare_unknown(self, one: ResultReport) -> None:
        """Prepare a report on a job that is not stored. A transient job is only counted."""
        if one.fence == "":
            lease = Lease(one.job_id, 0, b"", "", b"", "", None, None, 1, 1, 0, 0, 0, 0, None, 0)
            self.reports.append(judge(self._ending(one), lease, self._policy))
        else:
            self._known[one.job_id] = None

    def _learn(self, lease: Lease, given: float | None) -> None:
        """Record how long a job ran: the worker's figure, bounded by what the server saw."""
        begun = self._session.begun.get(lease.job_id)
        seen = None if begun is None else time.monotonic() - begun
        if given is not None:
            seen = min(max(given, 0.0), lease.limit_ms / 500 if seen is None else seen)
        if seen is not None:
            self._session.job_source().learn([(lease, seen)])


def _resulting_state(wanted: State, stored: State, *, taken: bool) -> State | None:
    """Return the state to reply. None: an earlier report has ended the job another way."""
    if taken:  # A job that was queued again may run already; reply the state that the report led to.
        return stored if stored.ended else wanted
    return stored if _fits(wanted, stored) else None


def _fits(wanted: State, stored: State) -> bool:
    """Return whether a job has the wanted state. A job that was queued again may have been cancelled since."""
    return wanted is stored or (wanted is State.QUEUED and stored is State.CANCELLED)


def _past_lease(job: JobRecord, token: bytes, *, crashed: bool) -> Lease:
    """Return the lease that a job had when it ended."""
    crashes = job.crashes - 1 if crashed else job.crashes
    assigned = HALTED if job.reason == HALTED else None
    budget_ms = job.timeout_ms if job.reason in ("time_limit", "partial", HALTED) else None
    return Lease(
        job.job_id, job.seq, token, job.task, b"", job.lane, job.tenant, job.trace_id, job.epoch, job.attempts,
        max(0, crashes), job.max_retries, job.timeout_ms, job.timeout_ms, job.retry, job.started_at or 0,
        needs=job.needs, rung=job.rung, assigned=assigned, budget_ms=budget_ms,
    )  # fmt: skip
