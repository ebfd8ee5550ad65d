"""Replays jobs through the real policy: core's decisions and the memory store's verbs on a virtual clock."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush

from headway.core.errors import JobError
from headway.core.job import ClassKey, JobId, State
from headway.core.lease import Lease, Report
from headway.core.policy.document import Policy
from headway.core.policy.enforced import SECOND_US, EnforcedRules, PauseSet, join, rules_of
from headway.core.policy.ladder import Preemption, budget_of
from headway.core.policy.lanes import make_room
from headway.core.policy.retry import Ending, Raised, Returned, Stopped, TimedOut, judge
from headway.estimates.costs import TENANT_JOBS, CostSums, learn
from headway.maintenance.preemption import EVERY as PREEMPTION_EVERY
from headway.simulate.capacity import Capacity
from headway.simulate.job import CANCELLED, COMPLETED, FAILED, SimulatedJob
from headway.simulate.outcome import NEVER, Outcome, bucket_size
from headway.simulate.promises import PromiseCheck
from headway.simulate.submission import NO_MORE_AT, TraceSubmitter
from headway.simulate.worker import SimulatedRun, SimulatedWorker, WakeUp
from headway.stores.base import RULES, Document
from headway.stores.memory import heartbeat
from headway.stores.memory.limits import adopt_rules
from headway.stores.memory.query import snapshot
from headway.stores.memory.state import MemoryState
from headway.stores.rule_codec import rules_body

BEGIN_AT = 1_000_000_000_000  # The virtual clock starts here, in milliseconds: no rule depends on the date.
ASIDE_MS = 7 * 24 * 3_600_000  # A replay ends a week after the last arrival. Jobs that wait then are kept aside.
PROGRESS_EVERY = 2_000  # Jobs between two calls of ``progress``.

_FAILED = Raised(JobError("Failed", "the recorded attempt failed"))
_FAILED_FOR_GOOD = Raised(JobError("Failed", "the recorded attempt failed", retriable=False))
_LATE = TimedOut(JobError("TimeoutError", "the attempt ran past its timeout"))
_RETURNED, _STOPPED = Returned(None), Stopped()
_QUEUED = State.QUEUED
_ENDED_AS = {state: state.value for state in State} | {State.QUEUED: "retried"}  # By the state after an attempt.

CountReplayed = Callable[[int], None]


class Replayer:
    """One replay of jobs under one policy. Equal arguments give equal outcomes.

    Durations are replayed: a policy that changes how long jobs take is not foreseen.
    """

    def __init__(
        self,
        jobs: Sequence[SimulatedJob],
        policy: Policy,
        capacity: Capacity,
        *,
        seed: int = 0,
        progress: CountReplayed | None = None,
    ) -> None:
        self.policy = policy
        self.chance = random.Random(seed)
        self.state = MemoryState()
        self.now_at = BEGIN_AT
        self.runs: dict[JobId, SimulatedRun] = {}
        self._jobs = jobs
        self._capacity = capacity
        self._progress = progress
        self._costs_us = expected_costs(jobs)
        # By task: the expected seconds of its jobs, as a worker knows them that has seen enough.
        self.expected = {task: cost / SECOND_US for task, cost in self._costs_us.items()}
        self._events: list[tuple[int, int, SimulatedRun | Callable[[], None]]] = []
        self._order = 0  # Events of one moment go by the order in which they were made.
        self._polls: set[int] = set()
        self._woken: list[SimulatedWorker] = []
        self._workers: dict[str, SimulatedWorker] = {}
        self._submitter = TraceSubmitter(self.state, jobs, policy, BEGIN_AT)
        self._promises = PromiseCheck(policy, capacity, len(jobs))
        self._checks_room = False
        span_ms = jobs[-1].arrives_ms if jobs else 0
        self._outcome = Outcome(
            array("q", [NEVER]) * len(jobs), self._submitter.lanes, array("q", [0]) * len(jobs),
            bucket_ms=bucket_size(span_ms),
        )  # fmt: skip
        self.idle_reserves: set[str] = set()  # Workers that have only reserved slots free.
        self._idle_from = 0  # Since when a reserved slot was idle while another lane waited, or 0.

    def run(self) -> Outcome:
        """Replay all jobs and return the outcome."""
        self._set_up()
        jobs, events, submitter, woken = self._jobs, self._events, self._submitter, self._woken
        until_at = BEGIN_AT + (jobs[-1].arrives_ms if jobs else 0) + ASIDE_MS
        reported = 0
        while True:
            arrives_at, event_at = submitter.arrives_at, events[0][0] if events else NO_MORE_AT
            if arrives_at <= event_at and arrives_at < NO_MORE_AT:
                self.now_at = arrives_at
                self._submit()
                if self._progress is not None and submitter.submitted - reported >= PROGRESS_EVERY:
                    reported = submitter.submitted
                    self._progress(reported)
            elif event_at <= until_at:
                self.now_at = event_at
                self._happen()
            else:
                break
            while woken:
                woken.pop(0).exchange()
            if self.idle_reserves or self._idle_from:
                self._note_idle_reserve()
        return self._finish()

    # ------------------------------------------------------------------ called by workers

    def start(self, lease: Lease, class_key: ClassKey, worker: SimulatedWorker) -> None:
        """Start an attempt and foresee its end."""
        now_at, lane, promises = self.now_at, lease.lane, self._promises
        index = int(lease.job_id)
        job = self._jobs[index]
        attempt = lease.attempts - 1
        run_ms = job.failed_ms[attempt] if attempt < len(job.failed_ms) else job.run_ms
        if lease.epoch == 1:
            waited_ms = now_at - lease.eligible_at
            if job.delay_ms and not job.after:  # The store makes it eligible at the next exchange after it was due.
                waited_ms = now_at - BEGIN_AT - job.arrives_ms - job.delay_ms
            self._outcome.waits[index] = waited_ms
            if promises.is_late(lane, waited_ms) and not self._was_held_back(lease):
                promises.check(index, lane, waited_ms)
        promises.served(lane, run_ms)
        ends_at = now_at + max(1, min(run_ms, lease.limit_ms))
        run = self.runs[lease.job_id] = SimulatedRun(lease, class_key, worker, run_ms, ends_at)
        self._push(ends_at, run)

    def preempt(self, amendments: Sequence[Preemption]) -> bool:
        """Lower running jobs, which then end earlier. Return whether any of them changed."""
        self.state.begin(self.now_at)
        changed = heartbeat.preempt(self.state, amendments)
        for (job_id, rung), done in zip(amendments, changed, strict=True):
            run = self.runs.get(job_id)
            if not done or run is None:
                continue
            budget_ms = budget_of(self.state.rule_index.ladder, rung)
            run.lease = run.lease._replace(assigned=rung, budget_ms=budget_ms)
            ends_at = max(self.now_at, run.lease.started_at + max(1, min(run.run_ms, run.lease.limit_ms)))
            if ends_at < run.ends_at:
                run.ends_at = ends_at
                self._push(ends_at, run)
            self._outcome.totals["lowered"] += 1
        self.state.settle()
        return any(changed)

    def poll_at(self, due_at: int) -> None:
        """Make a worker read the store when a delayed job falls due or a rate allows the next start."""
        if due_at not in self._polls:
            self._polls.add(due_at)
            self._push(max(due_at, self.now_at), partial(self._poll, due_at))

    # ------------------------------------------------------------------ events

    def _set_up(self) -> None:
        self._write_rules(PauseSet())
        moments: set[int] = set()
        for pause in self._capacity.pauses:
            moments |= {pause.from_ms} | ({pause.until_ms} if pause.until_ms is not None else set())
        for moment in sorted(moments):
            self._push(BEGIN_AT + moment, self._change_pauses)
        for described in self._capacity.workers:
            worker = SimulatedWorker(self, described, self.chance.random())
            self._workers[described.name] = worker
            self.state.subscribe(described.name, WakeUp(partial(self._woken.append, worker)))
            for step in described.steps:
                self._push(BEGIN_AT + step.from_ms, partial(self._resize, worker, step.slots))
            if described.until_ms is not None:
                self._push(BEGIN_AT + described.until_ms, worker.leave)

    def _submit(self) -> None:
        """Submit all jobs of this moment. The store wakes a waiting worker for each."""
        first = self._submitter.submitted
        self._submitter.submit(self.now_at)
        self._promises.arrived(first, self._submitter.submitted, self._outcome.lanes)
        if self._submitter.next_due_at is not None:
            self.poll_at(self._submitter.next_due_at)
        if self.policy.ladder.rungs and not self._checks_room:
            self._checks_room = True
            self._push(self.now_at + round(1_000 * PREEMPTION_EVERY), self._make_room)

    def _happen(self) -> None:
        """Process all events of this moment: runs end, workers come and go, jobs fall due."""
        ended: dict[SimulatedWorker, list[Report]] = {}
        events, now_at = self._events, self.now_at
        while events and events[0][0] == now_at:
            _, _, what = heappop(events)
            if not isinstance(what, SimulatedRun):
                what()
            elif what.ends_at == now_at and self.runs.get(what.lease.job_id) is what:
                ended.setdefault(what.worker, []).append(self._end(what))
        for worker, reports in ended.items():
            worker.exchange(reports)
            for report in reports:
                if report.state is not _QUEUED:
                    self._submitter.forget(report.job_id)

    def _end(self, run: SimulatedRun) -> Report:
        lease, index = run.lease, int(run.lease.job_id)
        job = self._jobs[index]
        del self.runs[lease.job_id]
        took_ms = self.now_at - lease.started_at
        self._note_busy(index, lease, took_ms)
        run.worker.ended(run, took_ms / 1_000)
        ending: Ending = _RETURNED
        if run.run_ms > lease.limit_ms:
            ending = _LATE
            self._outcome.totals["timeouts"] += 1
        elif lease.attempts <= len(job.failed_ms):
            ending = _FAILED
        elif job.outcome != COMPLETED:
            ending = _STOPPED if job.outcome == CANCELLED else _FAILED_FOR_GOOD if job.outcome == FAILED else _FAILED
        report = judge(ending, lease, self.policy, chance=self.chance.random() if ending is not _RETURNED else 0.0)
        self._outcome.totals[_ENDED_AS[report.state]] += 1
        return report

    def _resize(self, worker: SimulatedWorker, slots: int) -> None:
        self.state.begin(self.now_at)
        worker.resize(slots)
        self.state.settle()
        if worker not in self._woken:
            self._woken.append(worker)

    def _poll(self, due_at: int) -> None:
        self._polls.discard(due_at)
        for name, worker in self._workers.items():
            if worker.free > 0 and name in self.state.workers and worker not in self._woken:
                self._woken.append(worker)
                return

    def _make_room(self) -> None:
        """Do what the preemption chore does: lower running jobs for those that wait, if the ladder says so."""
        self.state.begin(self.now_at)
        seen = snapshot(self.state)
        if seen.running_jobs is not None and seen.running_jobs.elastic:
            offers = frozenset(offer for worker in self._workers.values() for offer in worker.plan.offers)
            wanted = make_room(seen, offers=offers, policy=self.policy, chance=self.chance.random())
            if wanted:
                self.preempt(wanted)
        self._checks_room = bool(self.runs) and any(view.waiting for view in seen.classes)
        if self._checks_room:
            self._push(self.now_at + round(1_000 * PREEMPTION_EVERY), self._make_room)

    def _change_pauses(self) -> None:
        now_ms = self.now_at - BEGIN_AT
        active = [
            EnforcedRules(paused=pause.paused)
            for pause in self._capacity.pauses
            if pause.from_ms <= now_ms and (pause.until_ms is None or now_ms < pause.until_ms)
        ]
        paused = PauseSet(
            any(part.paused.everything for part in active),
            tuple(sorted({lane for part in active for lane in part.paused.lanes})),
            tuple(sorted({task for part in active for task in part.paused.tasks})),
            tuple(sorted({tenant for part in active for tenant in part.paused.tenants})),
        )
        self._write_rules(paused)

    def _write_rules(self, paused: PauseSet) -> None:
        rules = join([
            EnforcedRules(limits=self._capacity.declared),
            rules_of(self.policy),
            EnforcedRules(costs_us=self._costs_us, paused=paused),
        ])  # fmt: skip
        self.state.begin(self.now_at)
        self.state.documents[RULES, "all"] = Document(RULES, "all", 1, rules_body(rules))
        adopt_rules(self.state)
        self.state.settle()

    def _push(self, at: int, what: SimulatedRun | Callable[[], None]) -> None:
        self._order += 1
        heappush(self._events, (at, self._order, what))

    # ------------------------------------------------------------------ results

    def _was_held_back(self, lease: Lease) -> bool:
        """Return whether something but the lanes held a job back: a limit, a pause, a delay or other jobs."""
        record = self.state.jobs[lease.job_id]
        return record.blocked_for is not None or lease.eligible_at != lease.submitted_at or bool(lease.needs)

    def _note_idle_reserve(self) -> None:
        """Count the time in which a reserved slot is idle while a job outside the reserve could use it."""
        lanes = self.policy.reserve.lanes
        idle = bool(self.idle_reserves) and any(
            queue.front and key.lane not in lanes for key, queue in self.state.queues.items()
        )
        if idle != bool(self._idle_from):
            if self._idle_from:
                self._outcome.reserve_idle_ms += self.now_at - self._idle_from
            self._idle_from = self.now_at if idle else 0

    def _note_busy(self, index: int, lease: Lease, took_ms: int) -> None:
        outcome = self._outcome
        outcome.busy[index] += took_ms
        points = outcome.busy_over_time.setdefault(lease.lane, [])
        from_ms = lease.started_at - BEGIN_AT
        until_ms = from_ms + took_ms
        bucket_ms = outcome.bucket_ms
        first, last = from_ms // bucket_ms, until_ms // bucket_ms
        if len(points) <= last:
            points += [0] * (last + 1 - len(points))
        if first == last:
            points[first] += took_ms
            return
        for bucket in range(first, last + 1):
            points[bucket] += min(until_ms, (bucket + 1) * bucket_ms) - max(from_ms, bucket * bucket_ms)

    def _finish(self) -> Outcome:
        outcome, jobs = self._outcome, self._jobs
        outcome.span_ms = max(self.now_at - BEGIN_AT, 1)
        outcome.slot_ms = self._capacity.slot_ms(outcome.span_ms)
        expired = self._submitter.expired()
        outcome.totals["expired"] = len(expired)
        outcome.totals["never_started"] = sum(wait == NEVER for wait in outcome.waits) - len(expired)
        outcome.totals["jobs"] = len(jobs)
        outcome.promises = self._promises.found()
        return outcome


def replay(
    jobs: Sequence[SimulatedJob],
    policy: Policy,
    capacity: Capacity,
    *,
    seed: int = 0,
    progress: CountReplayed | None = None,
) -> Outcome:
    """Replay jobs, in the order of arrival, under a policy."""
    return Replayer(jobs, policy, capacity, seed=seed, progress=progress).run()


def expected_costs(jobs: Sequence[SimulatedJob]) -> dict[str, int]:
    """Return the expected microseconds of each task, and of tenants whose jobs are far from that.

    Workers learn these as jobs finish. A replay begins in the middle, when they are known already.
    """
    tasks: CostSums = {}
    tenants: dict[tuple[str, str], tuple[int, float]] = {}
    for job in jobs:
        seconds = job.run_ms / 1_000
        count, total = tasks.get(job.task, (0, 0.0))
        tasks[job.task] = count + 1, total + seconds
        if job.tenant is not None:
            count, total = tenants.get((job.task, job.tenant), (0, 0.0))
            tenants[job.task, job.tenant] = count + 1, total + seconds
    return learn({}, tasks, {key: noted for key, noted in tenants.items() if noted[0] >= TENANT_JOBS})
