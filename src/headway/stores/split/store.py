"""Durable jobs in one store and transient jobs in another, ranked and bounded together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from headway.core.diagnostics import JobDiagnostics, QueueDiagnostics
from headway.core.errors import IdempotencyConflict, StoreError
from headway.core.job import ClassKey, JobId, NewJob, SubmitReply
from headway.core.lease import TOKEN_BYTES, Lease, Report
from headway.core.policy.document import Keep
from headway.core.preview import SubmitPreview
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.core.worker import WorkerState
from headway.stores import base
from headway.stores.split.optional import OptionalStore, WaitAllowance
from headway.stores.split.plan import (
    RemainingSlots,
    SplitPlan,
    join_stats,
    join_views,
    leading,
    split_plan,
    transient_views,
)
from headway.stores.split.subscription import SplitSubscription
from headway.stores.texts import check_jobs

IDLE_SECONDS = 0.02  # An empty transient store is assumed empty for this long, so that busy workers ask it less often.
RENEW_SECONDS = 0.25  # Maximum wait of a renewal for the transient store, far less than a heartbeat.
EMPTY_SKIP_SECONDS = 1.0  # A class that should have had jobs and yielded none is skipped for this long.


class PartialClaim(NamedTuple):
    """The leases that a claim got from the transient store before the durable store failed."""

    claim_id: bytes
    leases: list[Lease]


class TransientClaim(NamedTuple):
    """The transient store's reply to a claim."""

    leases: list[Lease]
    outdated: bool  # The store has a class that the plan does not know.
    reported: bool  # The store has counted the reports.
    unknown_worker: bool  # The store does not know the worker.


class SplitStore:
    """Keeps transient jobs in one store and everything else in another, which is durable.

    It executes a plan in order over both stores, with one count of free slots. While the transient store is
    unavailable, transient jobs wait or are refused and durable jobs go on. Neither store waits for the other to
    commit: each stores its part of a batch whole or not at all, the durable jobs first.
    """

    def __init__(self, durable: base.Store, make_transient: Callable[[], base.Store]) -> None:
        self._durable = durable
        self._transient = OptionalStore(make_transient, self._send_rules)
        own, other, short = durable.abilities, self._transient.abilities, durable.abilities.submit_blocking
        # Optional verbs concern durable jobs. ``handed`` and ``quiet`` would have to know both stores, so they are off.
        self.abilities = replace(
            own,
            shared=own.shared and other.shared,
            any_loop=own.any_loop and other.any_loop,
            submit_blocking=short and (lambda jobs: short(jobs) if all(job.persist for job in jobs) else None),
            handed=None,
            quiet=None,
        )
        self.namespace = durable.namespace
        # Verbs for durable jobs only: transient jobs have no tenant and no lease, and cannot be read or changed.
        self.leases = durable.leases
        self.waiting_of = durable.waiting_of
        self.schema = durable.schema
        self.read = durable.read
        self.cancel = durable.cancel
        self.preempt = durable.preempt
        self.retry = durable.retry
        self.reschedule = durable.reschedule
        self.breakdown = durable.breakdown
        self.get = durable.get
        self.find = durable.find
        self.find_ids = durable.find_ids
        self.purge = durable.purge
        self.submit_graph = durable.submit_graph
        self.close_batch = durable.close_batch
        self.cancel_batch = durable.cancel_batch
        self.get_batches = durable.get_batches
        self.find_batches = durable.find_batches
        self.members = durable.members
        self.upstreams = durable.upstreams
        self.record_step = durable.record_step
        self.steps = durable.steps
        self._views: dict[ClassKey, ClassView] = {}  # The classes of the transient store, as last seen.
        self._read_at = -IDLE_SECONDS  # When they were read, on the monotonic clock.
        self._waiting: set[str] = set()  # The workers that wait at the transient store, as far as we know.
        self._classes = 0  # How many classes the transient store has.
        self._misplaced: frozenset[ClassKey] = frozenset()  # Transient classes of the durable store.
        self._skipped_until: dict[ClassKey, float] = {}  # By class: until when it is skipped.
        self._begun: dict[str, PartialClaim] = {}  # By worker.
        self._known_workers: set[str] = set()  # Workers that it knows since it recovered.
        self._returns = 0
        self._renewing: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self._durable.open()
        await self._transient.open()

    async def close(self) -> None:
        if self._renewing is not None and not self._renewing.get_loop().is_closed():
            self._renewing.get_loop().call_soon_threadsafe(self._renewing.cancel)
        try:
            await self._transient.close()
        finally:
            await self._durable.close()

    # ------------------------------------------------------------------ submit, claim, finish

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        check_jobs(jobs)  # Before either store gets its part.
        durable = [at for at, job in enumerate(jobs) if job.persist]
        transient = [at for at, job in enumerate(jobs) if not job.persist]
        answers: dict[int, SubmitReply] = {}
        if durable or not transient:
            try:
                kept = await self._durable.submit([jobs[at] for at in durable])
            except IdempotencyConflict as problem:
                raise _renumbered(problem, durable) from None
            answers |= zip(durable, kept, strict=True)
        if transient:
            passing = [jobs[at] for at in transient]
            answers |= zip(transient, await self._transient.require(lambda store: store.submit(passing)), strict=True)
        return [answers[at] for at in range(len(jobs))]

    async def exchange(self, request: base.Exchange) -> base.ExchangeReply:
        plan, worker_id = request.plan, request.worker_id
        if plan is None or worker_id is None:
            return await self._report(request)
        begun = self._begun.pop(worker_id, PartialClaim(b"", []))
        leases, kept_back = begun.leases[: plan.free], begun.leases[plan.free :]
        if kept_back:
            self._begun[worker_id] = PartialClaim(b"", kept_back)
        left = RemainingSlots(plan.free, plan.free_below).less(plan, leases)
        counted = begun.claim_id == request.claim_id
        passing = () if counted else _transient_reports(request.finished)
        allowance = WaitAllowance()
        claim = await self._claim_transient(request, plan, left, passing, allowance)
        leases += claim.leases
        left = left.less(plan, claim.leases)
        parts = split_plan(plan.takes, self._holds, self._misplaced)
        durably = request._replace(
            finished=[r for r in request.finished if r.token] if claim.reported or not passing else request.finished,
            plan=left.of(plan, parts.durable, self._durable_known(plan)),  # Refused too if it is outdated.
            wait=request.wait and not leases,
            want_snapshot=request.want_snapshot or claim.outdated,
        )
        try:
            answer = await self._durable.exchange(durably)
        except BaseException:
            # The worker repeats the claim. Until then, the leases must not be lost and the reports not counted twice.
            counted = counted or claim.reported
            self._begun[worker_id] = PartialClaim(request.claim_id if counted else b"", [*leases, *kept_back])
            raise
        if answer.worker_state is not WorkerState.ACTIVE:
            return self._answer(answer, leases)
        left = left.less(plan, answer.leases)
        idle = request.wait and not leases and not answer.leases and not answer.more and not claim.outdated
        if left.free > 0 and (idle or (parts.then and not claim.outdated)):
            last = await self._take(request, plan, left, parts, allowance, wait=idle)
            leases += last
            left = left.less(plan, last)
            if idle and last:
                await self._remove_worker(worker_id)
        registered = claim.unknown_worker and await self._register_worker(worker_id, allowance)
        more = answer.more or ((parts.rest or registered) and left.free > 0)
        return self._answer(answer._replace(more=more), leases)

    async def _report(self, request: base.Exchange) -> base.ExchangeReply:
        """Forward an exchange that claims nothing: reports, progress, a snapshot."""
        passing = _transient_reports(request.finished)
        counted, allowance = None, WaitAllowance()
        if passing:
            counted = await self._transient.ask(
                lambda store: store.exchange(base.Exchange(None, finished=passing)), allowance
            )
        kept = request.finished if counted is None else [report for report in request.finished if report.token]
        if request.want_snapshot:
            await self._read_views(allowance)
        return self._answer(await self._durable.exchange(request._replace(finished=kept)), [])

    async def _claim_transient(
        self,
        request: base.Exchange,
        plan: Plan,
        left: RemainingSlots,
        passing: Sequence[Report],
        allowance: WaitAllowance,
    ) -> TransientClaim:
        """Claim the first takes of the plan from the transient store, and read its classes."""
        known = None if plan.known is None else self._classes
        worker_id = request.worker_id or ""
        unknown = self._may_be_unknown(worker_id)
        if self._is_idle() and not passing and not unknown and worker_id not in self._waiting:
            return TransientClaim([], outdated=False, reported=False, unknown_worker=False)
        asked = base.Exchange(
            worker_id, request.claim_id, passing, left.of(plan, leading(plan.takes), known), want_snapshot=True
        )  # fmt: skip
        self._waiting.discard(worker_id)
        answer = await self._transient.ask(lambda store: store.exchange(asked), allowance)
        if answer is None or answer.snapshot is None:
            return TransientClaim([], outdated=False, reported=False, unknown_worker=False)
        outdated = known is not None and len(answer.snapshot.classes) > known
        self._note(answer.snapshot)
        return TransientClaim(list(answer.leases), outdated, True, unknown or answer.worker_state is WorkerState.DEAD)

    async def _take(
        self,
        request: base.Exchange,
        plan: Plan,
        left: RemainingSlots,
        parts: SplitPlan,
        allowance: WaitAllowance,
        *,
        wait: bool,
    ) -> list[Lease]:
        """Claim the takes after the durable ones. A worker that got no job tries every class, and waits here too."""
        takes: Sequence[Take] = [take for take in plan.takes if not take.key.persist] if wait else parts.then
        asked = base.Exchange(
            request.worker_id, os.urandom(TOKEN_BYTES), (), left.of(plan, takes), wait=wait,
            wait_lanes=request.wait_lanes, want_snapshot=request.want_snapshot,
        )  # fmt: skip
        if wait:
            self._waiting.add(request.worker_id or "")
        answer = await self._transient.ask(lambda store: store.exchange(asked), allowance)
        if answer is None:
            return []
        if answer.snapshot is not None:
            self._note(answer.snapshot)
        given = {lease.class_key for lease in answer.leases}
        if len(answer.leases) < left.free:
            until = time.monotonic() + EMPTY_SKIP_SECONDS
            self._skipped_until |= {take.key: until for take in parts.then if take.key not in given}
        return list(answer.leases)

    def _answer(self, answer: base.ExchangeReply, leases: Sequence[Lease]) -> base.ExchangeReply:
        """Join the replies of both stores, by the clock of the durable one."""
        ours = [lease._replace(started_at=answer.now_at) for lease in leases]
        snapshot = None if answer.snapshot is None else self._join(answer.snapshot)
        return answer._replace(leases=[*answer.leases, *ours], snapshot=snapshot)

    # ------------------------------------------------------------------ transient classes

    def _holds(self, key: ClassKey) -> bool:
        """Return whether jobs of a class that could start wait in the transient store."""
        view = self._views.get(key)
        if self._transient.away or view is None or not view.waiting or view.blocked is not None:
            return False
        return self._skipped_until.get(key, 0.0) <= time.monotonic()

    def _note(self, snapshot: Snapshot) -> None:
        """Remember the classes of the transient store. As in every store, a class never disappears."""
        self._read_at = time.monotonic()
        self._classes = max(self._classes, len(snapshot.classes))
        gone = {key: _emptied(view) for key, view in self._views.items()}
        self._views = gone | transient_views(snapshot)

    def _is_idle(self) -> bool:
        """Return whether nothing waited in the transient store a moment ago."""
        return time.monotonic() - self._read_at < IDLE_SECONDS and not any(
            view.waiting for view in self._views.values()
        )

    def _join(self, snapshot: Snapshot) -> Snapshot:
        self._misplaced = frozenset(view.key for view in snapshot.classes if not view.key.persist)
        views = self._views
        if self._transient.away:
            views = {key: _emptied(view) for key, view in views.items()}
        return join_views(snapshot, views)

    def _durable_known(self, plan: Plan) -> int | None:
        """Return how many durable classes a plan was made from, or fewer if transient classes have appeared since."""
        elsewhere = len(self._views.keys() - self._misplaced)
        return None if plan.known is None else max(0, plan.known - elsewhere)

    async def _read_views(self, allowance: WaitAllowance | None = None) -> None:
        seen = await self._transient.ask(lambda store: store.snapshot(), allowance)
        if seen is not None:
            self._note(seen)

    # ------------------------------------------------------------------ workers

    async def renew(self, beat: base.Heartbeat) -> base.HeartbeatReply:
        answer = await self._durable.renew(beat)
        # The durable leases do not wait for a slow renewal at the transient store.
        if answer.state is not WorkerState.DEAD and (self._renewing is None or self._renewing.done()):
            asked = self._transient.ask(lambda store: _register(store, beat._replace(held=())))
            self._renewing = asyncio.get_running_loop().create_task(asked)
            await asyncio.wait({self._renewing}, timeout=RENEW_SECONDS)
        return answer

    def _may_be_unknown(self, worker_id: str) -> bool:
        """Return whether a worker may have been lost or have expired in an outage of the transient store."""
        if self._returns != self._transient.returns:
            self._returns, self._known_workers = self._transient.returns, set()
        return self._returns > 0 and worker_id not in self._known_workers

    async def _register_worker(self, worker_id: str, allowance: WaitAllowance) -> bool:
        """Register a worker at the transient store, as the durable store knows it. Return whether that succeeded."""
        try:
            queue = await self._durable.diagnose()
        except StoreError:  # The claimed leases must not be lost. The next exchange tries again.
            return False
        worker = next((worker for worker in queue.workers if worker.worker_id == worker_id), None)
        if worker is None or worker.state is not WorkerState.ACTIVE:
            return False
        beat = base.Heartbeat(worker, worker.lease_ends_at - queue.now_at, 0, register=True)
        if await self._transient.ask(lambda store: store.renew(beat), allowance) is None:
            return False
        self._known_workers.add(worker_id)
        return True

    async def _remove_worker(self, worker_id: str) -> None:
        """Stop waiting at the durable store. If that fails, one wake-up may be lost, but workers poll too."""
        with contextlib.suppress(StoreError):
            await self._durable.exchange(base.Exchange(worker_id, os.urandom(TOKEN_BYTES), plan=Plan()))

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        await self._durable.mark_dead(worker_id, left=left)
        self._begun.pop(worker_id, None)
        self._waiting.discard(worker_id)
        await self._transient.ask(lambda store: store.mark_dead(worker_id, left=left))

    async def drain(self, worker_id: str) -> bool:
        found = await self._durable.drain(worker_id)
        if found:
            await self._transient.ask(lambda store: store.drain(worker_id))
        return found

    def subscribe(self, name: str) -> base.Subscription:
        subscription = self._durable.subscribe(name)
        if name.startswith(base.JOB_CHANNEL) or name.endswith(base.LEASE_CHANNEL):
            return subscription  # Transient jobs are neither watched nor cancelled.
        return SplitSubscription(subscription, lambda: self._transient.subscribe(name))

    # ------------------------------------------------------------------ snapshots and diagnosis

    async def snapshot(self) -> Snapshot:
        await self._read_views()
        return self._join(await self._durable.snapshot())

    async def stats(self) -> base.Stats:
        stats = await self._durable.stats()
        other = await self._transient.ask(lambda store: store.stats())
        return stats if other is None else join_stats(stats, other)

    async def diagnose(self) -> QueueDiagnostics:
        await self._read_views()
        queue = await self._durable.diagnose()
        return queue._replace(snapshot=self._join(queue.snapshot))

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        await self._read_views()
        diagnosis = await self._durable.diagnose_job(job_id)
        if diagnosis is None:
            return None
        queue = diagnosis.queue
        return diagnosis._replace(queue=queue._replace(snapshot=self._join(queue.snapshot)))

    async def preview(self, job: NewJob) -> SubmitPreview:
        if not job.persist:
            return await self._transient.require(lambda store: store.preview(job))
        await self._read_views()
        preview = await self._durable.preview(job)
        if preview.diagnosis is None:
            return preview
        queue = preview.diagnosis.queue
        joined = queue._replace(snapshot=self._join(queue.snapshot))
        return preview._replace(diagnosis=preview.diagnosis._replace(queue=joined))

    async def record_wait_reasons(self, reasons: Mapping[ClassKey, str]) -> None:
        await self._durable.record_wait_reasons(
            {key: why for key, why in reasons.items() if key.persist or key in self._misplaced}
        )

    async def describe(self) -> dict[str, str]:
        facts = await self._durable.describe()
        other = await self._transient.ask(lambda store: store.describe())
        if other is None:
            return facts | {"transient jobs": f"refused, their store is away: {self._transient.away}"}
        return facts | {"transient jobs": f"in {other['store']}"}

    # ------------------------------------------------------------------ documents and upkeep

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        version = await self._durable.write(kind, name, body, if_version=if_version)
        if kind == base.RULES and version is not None:
            await self._transient.ask(lambda store: store.write(kind, name, body))
        return version

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        touched = await self._durable.prune(keep, limit=limit)
        rules = await self._durable.read(base.RULES)

        async def prune_transient(store: base.Store) -> None:
            await store.prune(keep, limit=limit)
            await _write_rules(store, rules)

        await self._transient.ask(prune_transient)
        return touched

    async def _send_rules(self, store: base.Store) -> None:
        """Send the rules to a transient store that was unavailable."""
        await _write_rules(store, await self._durable.read(base.RULES))


def _transient_reports(finished: Sequence[Report]) -> Sequence[Report]:
    """Return the reports of transient jobs, which are only counted."""
    return [report for report in finished if not report.token]


async def _write_rules(store: base.Store, rules: Sequence[base.Document]) -> None:
    """Write the rules of the durable store to the transient one, because pauses apply to both kinds of job."""
    ours = {document.name: document.body for document in rules}
    theirs = {document.name: document.body for document in await store.read(base.RULES)}
    for name in sorted(ours.keys() | theirs.keys()):
        if ours.get(name) != theirs.get(name):
            await store.write(base.RULES, name, ours.get(name))


def _emptied(view: ClassView) -> ClassView:
    return view._replace(waiting=0, oldest_at=None, head_key=0)


async def _register(store: base.Store, beat: base.Heartbeat) -> None:
    renewed = await store.renew(beat)
    if renewed.state is WorkerState.DEAD and not beat.register:  # The store was emptied, or unavailable for too long.
        await store.renew(beat._replace(register=True))


def _renumbered(problem: IdempotencyConflict, places: Sequence[int]) -> IdempotencyConflict:
    """Return the error with the index of the job in the whole batch."""
    index = int(str(problem.facts["index"]))
    message = str(problem).replace(f"job {index} of", f"job {places[index]} of", 1)
    return IdempotencyConflict(message, **(problem.facts | {"index": places[index]}))
