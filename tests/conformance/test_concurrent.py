"""Concurrent histories of many clients on one store, some in other processes, checked against a sequential model.

Every client records when it made each call, and when it received which reply. Some replies are lost. Afterwards the
store is drained and the record is checked. For each job there must be an order of all calls on it in which every reply
is right, and in which no call comes before one that had returned before it was made. The store then behaves as if it
did one thing at a time. Facts that span jobs (limits, slots, unique keys, order) are checked by the time between the
reply to a claim and the first call that can have ended the lease.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from headway.core.diagnostics import QueueDiagnostics
from headway.core.job import ClassKey, JobId, JobRecord, NewJob, State, SubmitReply
from headway.core.lease import Lease, Report, ReportStatus, late_report_status
from headway.core.policy.document import Keep
from headway.core.policy.enforced import EnforcedRules, PauseSet, RuleIndex
from headway.core.policy.lanes import plan
from headway.core.policy.retry import Released, Returned, heed_cancel, judge
from headway.core.snapshot import Plan
from headway.core.worker import WorkerState, serves
from headway.core.workflow import BatchQuery, ending
from headway.maintenance.recovery import end_worker
from headway.stores.base import (
    RULES,
    Exchange,
    ExchangeReply,
    Heartbeat,
    HeartbeatReply,
    JobQuery,
    LaneStats,
    Stats,
    Store,
)
from headway.stores.rule_codec import read_rules, rules_body
from tests.conformance.builders import a_claim_id, a_job, a_worker, claimed_ids, register, submit_one
from tests.conformance.concurrent_clients import (
    FOREVER,
    OFFERS,
    POLICY,
    RUNGS,
    SCENES,
    UNIQUE_KEYS,
    Entry,
    HistorySettings,
    Scene,
    a_random_id,
    open_stores,
    recorded,
    run_clients,
    run_clients_in_process,
    worker_slots,
)
from tests.conftest import ADDRESSES, OpenStore
from tests.shared_file import open_any

pytestmark = pytest.mark.one_store  # The model expects the atomic verbs of one store.

EVERYTHING = JobQuery(limit=100_000)
BAD = (State.FAILED, State.CANCELLED, State.DEAD_LETTER)
LOCK_WAIT_MS = 2_000  # Milliseconds that an exchange may wait for a lock of its store on a busy machine.
GRAPH_TASK = "diamond"  # The task of jobs that wait for each other.
LAST = "the last"  # The name of the worker that runs all remaining jobs.
PATIENCE = 30.0  # Maximum seconds until all waiting jobs have run.


# ---------------------------------------------------------------------- one job, as if one thing happened at a time


class JobModel(NamedTuple):
    """The state of a job in the model. A job without a state does not exist."""

    state: State | None = None
    epoch: int = 0
    token: bytes = b""
    worker_id: str = ""
    stopping: bool = False
    attempts: int = 0
    crashes: int = 0
    result: bytes | None = None


# Yields the possible states of the job after a call, or none if the reply is impossible.
Step = Callable[[JobModel], Iterable[JobModel]]


class Call(NamedTuple):
    """A call on one job. It took effect between ``invoked`` and ``returned``; unless it is ``sure``, perhaps never."""

    invoked: int
    returned: int
    sure: bool
    text: str
    step: Step


def created(model: JobModel) -> Iterator[JobModel]:
    yield model if model.state else JobModel(State.QUEUED)


def claimed(token: bytes, worker_id: str, lease: Lease | None) -> Step:
    def step(model: JobModel) -> Iterator[JobModel]:
        if model.state is State.QUEUED:
            after = model._replace(
                state=State.EXECUTING, epoch=model.epoch + 1, token=token, worker_id=worker_id,
                attempts=model.attempts + 1,
            )  # fmt: skip
            if lease is None or (lease.epoch, lease.attempts, lease.crashes) == (
                after.epoch, after.attempts, after.crashes,
            ):  # fmt: skip
                yield after

    return step


def reported(report: Report, answer: ReportStatus | None) -> Step:
    def step(model: JobModel) -> Iterator[JobModel]:
        last = model.state is not None and model.token == report.token
        if last and model.state is State.EXECUTING:
            if answer in (None, ReportStatus.OK):
                yield _moved(model, report)
            elif answer is ReportStatus.STALE and report.expired_only:  # The worker has renewed.
                yield model
        elif answer is (late_report_status(report, model.state) if last and model.state else ReportStatus.STALE):
            yield model

    return step


def released(worker_id: str, named: bytes | None) -> Step:
    """Return the step of a heartbeat, which returns leases that it does not name."""

    def step(model: JobModel) -> Iterator[JobModel]:
        if model.state is State.EXECUTING and model.worker_id == worker_id and model.token != named:
            yield model._replace(
                state=State.CANCELLED if model.stopping else State.QUEUED, stopping=False, attempts=model.attempts - 1
            )
            if model.stopping:
                yield model._replace(state=State.CANCELLED, stopping=False)

    return step


def renewed(worker_id: str, token: bytes, lost: bool, stop: bool) -> Step:
    def step(model: JobModel) -> Iterator[JobModel]:
        mine = model.state is State.EXECUTING and model.token == token and model.worker_id == worker_id
        if lost != mine and (lost or model.stopping == stop):
            yield model

    return step


def cancelled(answer: State | None, known: bool) -> Step:
    def step(model: JobModel) -> Iterator[JobModel]:
        after = model
        if model.state is State.QUEUED:
            after = model._replace(state=State.CANCELLED)
        elif model.state is State.EXECUTING:
            after = model._replace(stopping=True)
        if not known or after.state is answer:
            yield after

    return step


def retried(answer: State | None, known: bool, unique: bool) -> Step:
    def step(model: JobModel) -> Iterator[JobModel]:
        after = model
        if model.state in BAD:
            after = JobModel(State.QUEUED, model.epoch)
        if not known or after.state is answer:
            yield after
        if unique and model.state is answer and after != model:  # Another job holds its key.
            yield model

    return step


def seen(job: JobRecord | None) -> Step:
    def step(model: JobModel) -> Iterator[JobModel]:
        if (None if job is None else job.state) is not model.state:
            return
        if job is not None:
            same = (job.epoch, job.attempts, job.crashes, job.result) == (
                model.epoch, model.attempts, model.crashes, model.result,
            )  # fmt: skip
            if job.state is State.EXECUTING:
                stopping = job.cancel_requested_at is not None
                same = same and (job.worker_id, stopping) == (model.worker_id, model.stopping)
            if not same:
                return
        yield model

    return step


def seen_leased(lease: Lease) -> Step:
    def step(model: JobModel) -> Iterator[JobModel]:
        held = (model.state, model.token, model.epoch, model.worker_id, model.stopping)
        if held == (State.EXECUTING, lease.token, lease.epoch, lease.worker_id, lease.cancel_requested):
            yield model

    return step


def seen_alive(model: JobModel) -> Iterator[JobModel]:
    if model.state in (State.QUEUED, State.EXECUTING):
        yield model


def _moved(model: JobModel, report: Report) -> JobModel:
    report = heed_cancel(report) if model.stopping else report
    result = report.result if report.state is State.COMPLETED else None
    return model._replace(
        state=report.state, stopping=False, attempts=report.attempts, crashes=report.crashes, result=result
    )


def find_order(calls: Sequence[Call], expires: bool, in_graph: bool = False) -> bool:
    """Return whether some sequential order explains the calls. Searches depth first, and visits a dead end once.

    Without a call, a job may only expire, and a cancelled job may be removed. A job of a graph may also be cancelled
    with its sources, and asked to stop with its batch.
    """
    calls = sorted(calls, key=lambda call: call.invoked)
    sure = sum(1 << index for index, call in enumerate(calls) if call.sure)
    # The calls done so far, the latest start among them, and the job.
    stack: list[tuple[int, int, JobModel]] = [(0, 0, JobModel())]
    known = {(0, JobModel())}
    while stack:
        done, latest, model = stack.pop()
        if done & sure == sure:
            return True
        variants = [model]
        if in_graph and model.state is State.EXECUTING:
            variants.append(model._replace(stopping=True))
        if (expires or in_graph) and model.state is State.QUEUED:
            variants.append(model._replace(state=State.CANCELLED))
        if variants[-1].state is State.CANCELLED:
            variants.append(JobModel())
        until = min(call.returned for index, call in enumerate(calls) if call.sure and not done >> index & 1)
        for index, call in enumerate(calls):
            if call.invoked > until:
                break
            if done >> index & 1 or call.returned < latest:
                continue
            for variant in variants:
                for after in call.step(variant):
                    config = (done | 1 << index, after)
                    if (call.sure or after != variant) and config not in known:
                        known.add(config)
                        stack.append((config[0], max(latest, call.invoked), after))
    return False


# ---------------------------------------------------------------------- the record, job by job


class HeldLease(NamedTuple):
    """A lease, and the time in which the worker certainly held it."""

    lease: Lease
    from_: int
    until: int
    asked: int


class Record:
    """The record of all clients, in order of time."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = sorted(entries, key=lambda entry: entry.invoked)
        self.jobs: dict[JobId, NewJob] = {}
        self.calls: dict[JobId, list[Call]] = defaultdict(list)
        self.claims: list[HeldLease] = []
        self.first_asked: dict[tuple[str, int], int] = {}
        self._lost_claims: list[Entry] = []
        self._ends: dict[tuple[JobId, bytes], list[int]] = defaultdict(list)
        for entry in self.entries:
            self.first_asked.setdefault((entry.client, entry.number), entry.invoked)
            match entry.verb:
                case "submit":
                    self._read_submit(entry)
                case "submit_graph":
                    for node in entry.given[0].nodes:
                        self.jobs[node.job.job_id] = node.job
                        self._note(node.job.job_id, entry, "submit", created)
                case "exchange":
                    self._read_exchange(entry)
                case "cancel" | "retry":
                    self._read_move(entry)
                case "get" if entry.answer is not None:
                    for job_id, job in zip(entry.given[0], entry.answer, strict=True):
                        self._note(job_id, entry, f"get {_shown(job)}", seen(job))
                case "find" if entry.answer is not None:
                    for job in entry.answer:
                        self._note(job.job_id, entry, f"find {_shown(job)}", seen(job))
                case "leases" if entry.answer is not None:
                    for lease in entry.answer:
                        self._note(lease.job_id, entry, f"lease {lease.epoch}", seen_leased(lease))
                case _:
                    pass
        self._add_renewals()
        self.claims = [held._replace(until=self._ended(held)) for held in self.claims]

    def submitted(self) -> dict[JobId, tuple[int, int]]:
        """Return for each acknowledged job the time of its submit: from the first call to the reply."""
        found: dict[JobId, tuple[int, int]] = {}
        for entry in self.entries:
            if entry.verb == "submit" and entry.returned is not None:
                span = (self.first_asked[entry.client, entry.number], entry.returned)
                found |= {job.job_id: span for job in entry.given[0] if job.persist}
        return found

    def _note(self, job_id: JobId, entry: Entry, text: str, step: Step, *, asked: int | None = None) -> None:
        invoked = entry.invoked if asked is None else asked
        returned = entry.returned or entry.settled or FOREVER
        called = f"{entry.client} {text}" if entry.returned else f"{entry.client} {text} (reply lost)"
        self.calls[job_id].append(Call(invoked, returned, entry.returned is not None, called, step))

    def _read_submit(self, entry: Entry) -> None:
        jobs: Sequence[NewJob] = entry.given[0]
        answers: Sequence[SubmitReply | None] = entry.answer or [None] * len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            self.jobs[job.job_id] = job
            if not job.persist:
                continue
            if answer is None or not answer.deduplicated:
                self._note(job.job_id, entry, "submit", created)
            elif job.unique_key is not None:
                self._note(answer.job_id, entry, f"submit of {job.unique_key} elsewhere", seen_alive)

    def _read_exchange(self, entry: Entry) -> None:
        request: Exchange = entry.given[0]
        answer: ExchangeReply | None = entry.answer
        refused = dict(answer.refused) if answer is not None else {}
        for report in request.finished:
            if not report.token:
                continue
            said = None if answer is None else refused.get(report.job_id, ReportStatus.OK)
            text = f"report {report.state} under {report.token.hex()[:6]}: {said}"
            self._note(report.job_id, entry, text, reported(report, said))
            if said in (None, ReportStatus.OK):
                self._ends[report.job_id, report.token].append(entry.invoked)
        if answer is None:
            if request.plan is not None and request.plan.free > 0:
                self._lost_claims.append(entry)
            return
        asked = self.first_asked[entry.client, entry.number]
        for lease in answer.leases:
            if lease.persist:
                text = f"claim {lease.epoch} as {lease.token.hex()[:6]} by {lease.worker_id}"
                step = claimed(lease.token, lease.worker_id, lease)
                self._note(lease.job_id, entry, text, step, asked=asked)
                assert entry.returned is not None
                self.claims.append(HeldLease(lease, entry.returned, FOREVER, asked))

    def _read_move(self, entry: Entry) -> None:
        answered = entry.returned is not None
        for job_id, state in zip(entry.given[0], entry.answer or [None] * len(entry.given[0]), strict=True):
            if entry.verb == "cancel":
                step = cancelled(state, answered)
            else:
                new = self.jobs.get(job_id)
                step = retried(state, answered, new is None or new.unique_key is not None)
            self._note(job_id, entry, f"{entry.verb}: {state}", step)

    def _add_renewals(self) -> None:
        """Record the effects of heartbeats: they keep or lose the named leases, and return all others."""
        by_worker: dict[str, list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if entry.verb == "renew":
                beat: Heartbeat = entry.given[0]
                by_worker[beat.worker.worker_id].append(entry)
                self._read_beat(entry, beat, entry.answer)
        claims = [(held.lease.job_id, held.lease.worker_id, held.asked) for held in self.claims]
        claims += list(self._add_phantoms())
        for job_id, worker_id, asked in dict.fromkeys(claims):
            for entry in by_worker[worker_id]:
                if (entry.returned or entry.settled or FOREVER) > asked:
                    self._note_release(job_id, worker_id, entry)

    def _read_beat(self, entry: Entry, beat: Heartbeat, answer: HeartbeatReply | None) -> None:
        if answer is None or answer.state is WorkerState.DEAD:
            return
        for job_id, token in beat.held:
            lost, stop = job_id in answer.lost, job_id in answer.cancel
            text = f"renew {token.hex()[:6]}: {'lost' if lost else 'stop' if stop else 'held'}"
            self._note(job_id, entry, text, renewed(beat.worker.worker_id, token, lost, stop))

    def _note_release(self, job_id: JobId, worker_id: str, entry: Entry) -> None:
        token = dict(entry.given[0].held).get(job_id)
        returned = entry.returned or entry.settled or FOREVER
        text = f"{entry.client} renew without it" if token is None else f"{entry.client} renew of {token.hex()[:6]}"
        call = Call(entry.invoked, returned, False, text, released(worker_id, token))
        if call not in self.calls[job_id]:
            self.calls[job_id].append(call)

    def _add_phantoms(self) -> Iterator[tuple[JobId, str, int]]:
        """Record lost claims for each job that lacks a claim. Yield job, worker and moment."""
        told: dict[JobId, set[int]] = defaultdict(set)
        for held in self.claims:
            told[held.lease.job_id].add(held.lease.epoch)
        highest: dict[JobId, int] = defaultdict(int)
        gone: set[JobId] = set()
        for entry in self.entries:
            if entry.verb in ("find", "get", "leases", "exchange") and entry.answer is not None:
                for found in entry.answer.leases if entry.verb == "exchange" else entry.answer:
                    if found is not None:
                        highest[found.job_id] = max(highest[found.job_id], found.epoch)
            if entry.verb == "get" and entry.answer is not None:
                gone |= {job_id for job_id, job in zip(entry.given[0], entry.answer, strict=True) if job is None}
        for job_id in list(self.calls):
            if len(told[job_id]) == highest[job_id] and job_id not in gone:
                continue
            for entry in self._lost_claims:
                request: Exchange = entry.given[0]
                worker_id = request.worker_id or ""
                text = f"claim as {request.claim_id.hex()[:6]} by {worker_id}"
                self._note(job_id, entry, text, claimed(request.claim_id, worker_id, None))
                yield job_id, worker_id, entry.invoked

    def _ended(self, held: HeldLease) -> int:
        """Return the first moment at which a lease may have ended."""
        lease = held.lease
        moments = self._ends[lease.job_id, lease.token].copy()
        for entry in self.entries:
            if entry.verb == "renew" and entry.given[0].worker.worker_id == lease.worker_id:
                named = dict(entry.given[0].held).get(lease.job_id) == lease.token
                if not named and (entry.returned or entry.settled or FOREVER) > held.asked:
                    moments.append(entry.invoked)
        return min(moments, default=FOREVER)


def _shown(job: JobRecord | None) -> str:
    if job is None:
        return "nothing"
    stopping = " stopping" if job.state is State.EXECUTING and job.cancel_requested_at is not None else ""
    return f"{job.state}{stopping}, epoch {job.epoch}, attempts {job.attempts}, crashes {job.crashes}"


# ---------------------------------------------------------------------- what the record must show


def check_record(record: Record, scene: Scene) -> None:
    check_each_job(record)
    check_outcomes(record)
    check_epochs(record)
    check_grants(record)
    check_repeats(record)
    check_reaping(record)
    check_slots(record)
    check_limits(record, scene)
    check_pauses(record)
    check_samples(record, scene)
    check_keys(record)
    if not scene.loss and not scene.meddling:
        check_line(record)


def check_each_job(record: Record) -> None:
    """I1 to I4: for each job, a sequential order of moves explains all replies about it."""
    for job_id, calls in record.calls.items():
        new = record.jobs.get(job_id)
        if not find_order(calls, new is None or new.expires_ms is not None, new is None or new.task == GRAPH_TASK):
            start = record.entries[0].invoked
            told = "\n".join(
                f"  {(call.invoked - start) / 1e6:9.3f} … "
                f"{(call.returned - start) / 1e6 if call.returned < FOREVER else float('inf'):9.3f} ms  {call.text}"
                for call in sorted(calls, key=lambda call: call.invoked)
                if call.sure or "renew" not in call.text
            )
            raise AssertionError(f"no order of calls explains what was said of {new or job_id}:\n{told}")


def check_outcomes(record: Record) -> None:
    """I2: a token leads to one outcome."""
    taken: Counter[tuple[JobId, bytes]] = Counter()
    for entry in record.entries:
        if entry.verb == "exchange" and entry.answer is not None:
            refused = dict(entry.answer.refused)
            taken.update((r.job_id, r.token) for r in entry.given[0].finished if r.token and r.job_id not in refused)
    assert [pair for pair, times in taken.items() if times > 1] == []


def check_epochs(record: Record) -> None:
    """Check that leases of a job never overlap, and that each has a higher epoch than the one before."""
    by_job: dict[JobId, list[HeldLease]] = defaultdict(list)
    for held in record.claims:
        by_job[held.lease.job_id].append(held)
    for leases in by_job.values():
        for one, other in pairwise(sorted(leases, key=lambda held: held.lease.epoch)):
            assert one.lease.epoch < other.lease.epoch, (one, other)
            assert one.until <= other.from_, (one, other)


def check_grants(record: Record) -> None:
    """Check that a claim returns no more than requested, and only jobs that the worker can run."""
    sent: Counter[JobId] = Counter()
    given: Counter[JobId] = Counter()
    for entry in record.entries:
        if entry.verb == "submit":
            sent.update(job.job_id for job in entry.given[0] if not job.persist)
        if entry.verb == "exchange" and entry.answer is not None and entry.answer.leases:
            asked: Plan = entry.given[0].plan
            leases: Sequence[Lease] = entry.answer.leases
            assert len(leases) <= asked.free
            assert sum(lease.lane not in POLICY.reserve.lanes for lease in leases) <= asked.free_below
            assert all(serves(lease.needs, frozenset(OFFERS)) for lease in leases)
            given.update(lease.job_id for lease in leases if not lease.persist)
    # A transient job is leased at most as often as it was sent. The store keeps nothing to detect repeats.
    assert all(times <= sent[job_id] for job_id, times in given.items())


def check_repeats(record: Record) -> None:
    """Check that a repeated claim returns only leases that it returned before."""
    unheard: dict[tuple[str, int], set[tuple[JobId, int]]] = {}
    for entry in record.entries:
        if entry.verb == "exchange":
            call = (entry.client, entry.number)
            if entry.unheard is not None and (given := _leases(entry.unheard)):
                assert given <= unheard.get(call, given), call
                unheard[call] = given
            elif entry.answer is not None and call in unheard:
                assert _leases(entry.answer) <= unheard[call], call


def _leases(answer: ExchangeReply) -> set[tuple[JobId, int]]:
    return {(lease.job_id, lease.epoch) for lease in answer.leases if lease.persist}


def check_reaping(record: Record) -> None:
    """Check that a worker that renewed in time loses no lease, unless another process marked it dead."""
    beats: dict[str, list[Entry]] = defaultdict(list)
    for entry in record.entries:
        if entry.verb == "renew":
            beats[entry.given[0].worker.worker_id].append(entry)
    marked = {entry.given[0]: entry.invoked for entry in reversed(record.entries) if entry.verb == "mark_dead"}
    holders = {(held.lease.job_id, held.lease.token): held.lease.worker_id for held in record.claims}
    for entry in record.entries:
        if entry.verb != "exchange" or entry.returned is None:
            continue
        refused = dict(entry.answer.refused)
        for report in entry.given[0].finished:
            worker_id = holders.get((report.job_id, report.token))
            if not report.expired_only or report.job_id in refused or worker_id is None:
                continue
            if marked.get(worker_id, FOREVER) < entry.returned:
                continue
            last = [beat for beat in beats[worker_id] if beat.invoked < entry.returned][-1]
            if last.returned is None or last.returned > entry.invoked:
                continue
            if last.answer.state is not WorkerState.DEAD:
                # The clock of a store counts whole milliseconds, so a lease may end within the last one.
                assert entry.returned - last.invoked > (last.given[0].lease_ms - 1) * 1_000_000, (report, worker_id)


def check_slots(record: Record) -> None:
    """I6: a worker never certainly holds more leases than it has slots."""
    slots = worker_slots(record.entries)
    by_worker: dict[str, list[HeldLease]] = defaultdict(list)
    for held in record.claims:
        by_worker[held.lease.worker_id].append(held)
    for worker_id, leases in by_worker.items():
        assert most_at_once(leases) <= slots[worker_id], worker_id


def check_limits(record: Record, scene: Scene) -> None:
    """I6: a standing limit never has more leases than its concurrency, nor more starts in a period than its rate."""
    rule_index = RuleIndex(scene.diagnosis)
    by_key: dict[str, list[HeldLease]] = defaultdict(list)
    rules = {}
    for held in record.claims:
        if scene.lifted and held.lease.worker_id.startswith(LAST):
            continue
        new = record.jobs[held.lease.job_id]
        for key, rule in rule_index.keys(new.task, new.tenant, new.limits):
            by_key[key].append(held)
            rules[key] = rule
    for key, leases in by_key.items():
        rule = rules[key]
        if rule.concurrency is not None:
            assert most_at_once(leases) <= rule.concurrency, key
        if rule.count is not None:
            starts = sorted(held.lease.started_at for held in leases)
            most = rule.count + rule.burst - 1
            for first, beyond in zip(starts, starts[most:], strict=False):
                assert beyond - first >= rule.period_ms, (key, first, beyond)


def check_pauses(record: Record) -> None:
    """Check that no job starts between the reply to a pause and the next change of pauses."""
    writes = [entry for entry in record.entries if entry.verb == "write" and entry.given[:2] == (RULES, "pauses")]
    for entry, after in pairwise(writes):
        paused: PauseSet = read_rules(entry.given[2]).paused
        if entry.returned is None or paused == PauseSet():
            continue
        for held in record.claims:
            if held.asked > entry.returned and held.from_ < after.invoked:
                lease = held.lease
                stopped = lease.lane in paused.lanes or lease.task in paused.tasks or lease.tenant in paused.tenants
                stopped = stopped or paused.everything
                assert not stopped, (paused, lease)


def check_samples(record: Record, scene: Scene) -> None:
    """I6 at one moment: each diagnosis keeps to limits, slots and ladder, and its sums are right."""
    slots = worker_slots(record.entries)
    diagnosis = scene.diagnosis.limits
    for entry in record.entries:
        if entry.answer is None:
            continue
        if entry.verb == "diagnose":
            queue: QueueDiagnostics = entry.answer
            held = Counter(key for job in queue.executing for key in job.held)
            for key, leases in held.items():
                name = key.partition("=")[0]
                if name in diagnosis:
                    assert leases <= (diagnosis[name].concurrency or 0), (key, queue.executing)
            running = Counter(job.worker_id for job in queue.executing)
            assert all(leases <= slots.get(worker_id, 99) for worker_id, leases in running.items()), running
            assert {worker.worker_id: worker.running for worker in queue.workers if worker.running} == running
        elif entry.verb == "stats":
            stats: Stats = entry.answer
            executing = sum(lane.executing for lane in stats.lanes.values())
            assert executing == sum(worker.running for worker in stats.workers)
        elif entry.verb == "find" and entry.given[0].states == (State.EXECUTING,):
            assigned = Counter(job.assigned for job in entry.answer)
            assert assigned["slow"] <= (RUNGS[1].limit or 0), assigned
            assert assigned["slow"] + assigned["fast"] <= (RUNGS[0].limit or 0), assigned


def check_keys(record: Record) -> None:
    """Check that an idempotency key has one job, and that a unique key never has two live ones."""
    by_key: dict[tuple[str | None, str], set[JobId]] = defaultdict(set)
    alive: dict[str, list[tuple[int, int, JobId]]] = defaultdict(list)
    for entry in record.entries:
        if entry.verb == "submit" and entry.answer is not None:
            for job, answer in zip(entry.given[0], entry.answer, strict=True):
                if job.idempotency_key is not None:
                    by_key[job.tenant, job.idempotency_key].add(answer.job_id)
                if job.unique_key is not None and not answer.deduplicated:
                    alive[job.unique_key].append((entry.returned or 0, _may_end(record, job.job_id, 0), job.job_id))
        if entry.verb == "retry" and entry.answer is not None:
            for job_id, state in zip(entry.given[0], entry.answer, strict=True):
                new = record.jobs.get(job_id)
                if state is State.QUEUED and new is not None and new.unique_key is not None:
                    until = _may_end(record, job_id, entry.invoked)
                    alive[new.unique_key].append((entry.returned or 0, until, job_id))
    assert {key: ids for key, ids in by_key.items() if len(ids) > 1} == {}
    for key, spans in alive.items():
        spans = [span for span in spans if span[0] < span[1]]
        for (_, until, one), (since, _, other) in pairwise(sorted(spans)):
            assert one == other or until <= since, (key, one, other)


def _may_end(record: Record, job_id: JobId, after: int) -> int:
    """Return the first moment at which a job may have ended."""
    new = record.jobs[job_id]
    if new.expires_ms is not None:
        return 0
    words = ("report completed", "report failed", "report cancelled", "report dead_letter", "report queued", "cancel")
    calls = record.calls[job_id]
    ends = [c.invoked for c in calls if c.returned > after and any(word in c.text for word in words)]
    return min(ends, default=FOREVER)


def check_line(record: Record) -> None:
    """R1.37 R5.11: of two unrestricted jobs of a class, the later does not start before the earlier."""
    submitted = {job_id: span for job_id, span in record.submitted().items() if record.jobs[job_id].task == "plain"}
    first = {held.lease.job_id: held for held in record.claims if held.lease.epoch == 1}
    latest: tuple[int, str] = (0, "")  # The latest start of a submit among the jobs claimed so far.
    for held in sorted((held for job_id, held in first.items() if job_id in submitted), key=lambda held: held.from_):
        latest = max(latest, (submitted[held.lease.job_id][0], held.lease.job_id))
        for other in first.values():
            if other.asked > held.from_ and other.lease.job_id in submitted:
                assert submitted[other.lease.job_id][1] >= latest[0], (other.lease.job_id, latest[1])


def most_at_once(leases: Iterable[HeldLease]) -> int:
    moments = [(held.from_, 1) for held in leases if held.from_ < held.until]
    moments += [(held.until, -1) for held in leases if held.from_ < held.until]
    most = at_once = 0
    for _, change in sorted(moments):
        at_once += change
        most = max(most, at_once)
    return most


# ---------------------------------------------------------------------- at rest


async def check_at_rest(store: Store) -> dict[JobId, JobRecord]:
    """I5: every count equals a recount. Return all jobs."""
    before = await store.stats()
    while True:  # Cancelled calls may still arrive at a server.
        jobs = {job.job_id: job for job in await store.find(EVERYTHING)}
        stats = await store.stats()
        if replace(stats, now_at=0, workers=()) == replace(before, now_at=0, workers=()):
            break
        before = stats
    lanes: dict[str, LaneStats] = defaultdict(LaneStats)
    for job in jobs.values():
        lane = lanes[job.lane]
        if job.state is State.EXECUTING:
            lanes[job.lane] = lane._replace(executing=lane.executing + 1)
        elif job.held:
            lanes[job.lane] = lane._replace(held=lane.held + 1)
        elif job.state is State.QUEUED and job.due_at is not None:
            lanes[job.lane] = lane._replace(delayed=lane.delayed + 1)
        elif job.state is State.QUEUED:
            lanes[job.lane] = lane._replace(waiting=lane.waiting + 1)
    for name, lane in stats.lanes.items():
        transient = lane.waiting - lanes[name].waiting if name == "high" else 0
        assert transient >= 0
        counted = lanes[name]._replace(waiting=lanes[name].waiting + transient)
        assert lane._replace(oldest_at=None) == counted, (name, lane, counted)
    assert stats.kept == Counter(job.state.value for job in jobs.values() if job.state in BAD)
    running = Counter(job.worker_id for job in jobs.values() if job.state is State.EXECUTING)
    assert {worker.worker_id: worker.running for worker in stats.workers if worker.running} == running
    assert stats.totals.get("completed", 0) == sum(job.state is State.COMPLETED for job in jobs.values())
    live = Counter(job.unique_key for job in jobs.values() if job.unique_key and not job.state.ended)
    assert all(holders == 1 for holders in live.values()), live
    return jobs


async def drain(store: Store, jobs: dict[JobId, JobRecord], record: Record, *, lifted: bool) -> None:
    """Return all leases, and let one worker run everything. Check that each job comes once.

    If all rules are lifted, jobs must come in order. Otherwise each blocked job must come out by itself.
    """
    for document in await store.read(RULES) if lifted else ():
        await store.write(RULES, document.name, rules_body(EnforcedRules()))
    for worker in (await store.stats()).workers:
        await end_worker(store, worker.worker_id, POLICY, lambda _: Released())
    last = a_worker(f"{LAST} of {store.namespace}", slots=8, reserved=0, offers=OFFERS)
    await store.renew(Heartbeat(last, 600_000, 600_000, register=True))
    waiting = {job_id for job_id, job in jobs.items() if not job.state.ended}
    heads: dict[ClassKey, tuple[int, int]] = {}
    lines: dict[tuple[ClassKey, str | None], int] = {}  # The start of the latest submit among the jobs that came.
    submitted = record.submitted()
    deadline = time.monotonic() + PATIENCE
    leases: Sequence[Lease] = ()
    while waiting or any(view.waiting for view in (await store.snapshot()).classes):
        snapshot = await store.snapshot()
        chosen = plan(snapshot, free=8, free_below=8, offers=frozenset(OFFERS), policy=POLICY)
        finished = [judge(Returned(b"last"), lease, POLICY) for lease in leases if lease.persist]
        answer = await store.exchange(Exchange(last.worker_id, a_claim_id(), finished, chosen))
        assert not answer.refused
        leases = answer.leases
        keys = {view.key: view.head_key for view in snapshot.classes if view.waiting}
        for lease in leases:
            if not lease.persist:
                continue
            assert lease.job_id in waiting, f"{lease.job_id} came twice, or should not have come"
            waiting.remove(lease.job_id)
            key, job = lease.class_key, jobs[lease.job_id]
            head_key = keys.pop(key, None)  # Of the first job of this class, as the snapshot saw it.
            if not lifted or job.task == GRAPH_TASK:  # A released job goes before jobs that waited already.
                continue
            if head_key is not None:
                before = heads.get(key, (0, 0))
                if job.due_at is None:
                    assert before <= (head_key, lease.seq), (key, before, head_key, lease.seq)
                    heads[key] = (head_key, lease.seq)
                else:  # It became due meanwhile. If it went before the head of the snapshot, its key is unknown.
                    assert before[0] <= head_key, (key, before, head_key)
            if job.epoch == 0 and job.due_at is None and not record.jobs[lease.job_id].delay_ms and not _moved_on(job):
                line, (asked, answered) = (key, lease.tenant), submitted.get(lease.job_id, (0, FOREVER))
                assert lines.get(line, 0) <= answered, f"{lease.job_id} came after one submitted later"
                lines[line] = max(lines.get(line, 0), asked)
        if not leases:
            gone = await store.find(JobQuery((State.CANCELLED,), limit=100_000))  # They expired meanwhile.
            waiting -= {job.job_id for job in gone}
            assert time.monotonic() < deadline, f"these never came out: {await store.get(sorted(waiting))}"
            await asyncio.sleep(0.002)
    finished = [judge(Returned(b"last"), lease, POLICY) for lease in leases if lease.persist]
    assert not (await store.exchange(Exchange(None, finished=finished))).refused


def _moved_on(job: JobRecord) -> bool:
    """Return whether an operator has queued the job again, at the end of its class."""
    return job.eligible_at is not None and job.eligible_at > job.submitted_at


async def check_drained(store: Store, record: Record, scene: Scene) -> None:
    """Check that nothing remains: no lease, no limit key of a job, and no unique key without its job."""
    jobs = await check_at_rest(store)
    assert all(job.state.ended for job in jobs.values())
    queue = await store.diagnose()
    assert queue.executing == (), queue.executing
    assert await store.leases() == []
    stats = await store.stats()
    check_totals(stats, jobs, record)
    await check_graphs(store, jobs)
    await store.write(RULES, "last", rules_body(scene.diagnosis))
    rng = Random(store.namespace)
    fresh = [a_job(a_random_id(rng), unique_key=key) for key in UNIQUE_KEYS]
    assert not any(answer.deduplicated for answer in await store.submit(fresh))
    again = [
        a_job(a_random_id(rng), task="export", limits=(f"account={n}",), tenant=tenant)
        for n, tenant in ((7, "acme"), (8, "zeta"))
    ]
    await store.submit(again)
    asked = plan(await store.snapshot(), free=8, free_below=8, offers=frozenset(OFFERS), policy=POLICY)
    answer = await store.exchange(Exchange(f"{LAST} of {store.namespace}", a_claim_id(), (), asked))
    assert {lease.job_id for lease in answer.leases} == {job.job_id for job in fresh + again}


async def check_graphs(store: Store, jobs: dict[JobId, JobRecord]) -> None:
    """Check that every batch has ended with right counts, and that no job began before its sources ended."""
    for batch in await store.find_batches(BatchQuery(limit=100_000)):
        counted = Counter(ending(job.state) for job in jobs.values() if job.batch_id == batch.batch_id)
        assert (batch.live, batch.held, batch.running, batch.finished_at is None) == (0, 0, 0, False), batch
        assert (batch.completed, batch.failed) == (counted["completed"], counted["failed"]), batch
        assert batch.cancelled >= counted["cancelled"], batch  # Cancelled jobs are pruned.
        assert batch.total == batch.completed + batch.failed + batch.cancelled, batch
        assert [job.job_id for job in await store.members(batch.batch_id, limit=100_000)] == sorted(
            (job.job_id for job in jobs.values() if job.batch_id == batch.batch_id), key=lambda one: jobs[one].seq
        )
    began = [job_id for job_id, job in jobs.items() if job.task == GRAPH_TASK and job.started_at is not None]
    for job_id, upstreams in zip(began, await store.upstreams(began), strict=True):
        for upstream in upstreams:
            source = jobs.get(JobId(upstream.source))
            assert upstream.satisfied, (jobs[job_id], upstream)
            if source is not None:
                # An exchange may read the clock before it waits for a lock.
                started_at = (jobs[job_id].started_at or 0) + LOCK_WAIT_MS
                assert (source.finished_at or FOREVER) <= started_at, (source, jobs[job_id])


def check_totals(stats: Stats, jobs: dict[JobId, JobRecord], record: Record) -> None:
    """I5: the store's totals agree with the jobs and the record, with some tolerance for pruned jobs."""
    sent = {job.job_id for job in record.jobs.values() if not job.persist}
    submits = [entry for entry in record.entries if entry.verb == "submit"]
    graphs = [entry for entry in record.entries if entry.verb == "submit_graph"]
    lost = sum(len(entry.given[0]) for entry in submits if entry.returned is None)
    lost += sum(len(entry.given[0].nodes) for entry in graphs if entry.returned is None)
    answers = [answer for entry in submits for answer in entry.answer or ()]
    answers += [answer for entry in graphs if entry.answer is not None for answer in entry.answer.replies]
    made = {answer.job_id for answer in answers if not answer.deduplicated} | jobs.keys()
    totals = Counter(stats.totals)
    assert len(made) <= totals["submitted"] <= len(made) + lost
    pruned = len([job_id for job_id in made - jobs.keys() if job_id not in sent])
    epochs = sum(job.epoch for job in jobs.values())
    told = {(held.lease.job_id, held.lease.epoch) for held in record.claims}
    epochs += sum(job_id not in jobs for job_id, _ in told)
    transient = len(made & sent)
    claims_lost = sum(entry.verb == "exchange" and entry.returned is None for entry in record.entries)
    resent = sum(not job.persist for entry in submits if entry.returned is None for job in entry.given[0])
    room = resent + (8 * claims_lost if pruned or lost else 0)  # No claim returns more than eight leases.
    assert epochs + transient <= totals["claimed"] <= epochs + transient + room
    ended = sum(totals[state.value] for state in (State.COMPLETED, *BAD))
    retries = [entry for entry in record.entries if entry.verb == "retry"]
    moved = sum(entry.answer == [State.QUEUED] for entry in retries)
    unsure = sum(entry.returned is None for entry in retries)
    persisted = len(made - sent)
    assert persisted <= ended <= persisted + moved + unsure + lost
    # Each lease ended once: the job was returned, or it ended. Jobs that ended in the queue were cancelled there.
    leased = totals["claimed"] - transient
    back = sum(totals.get(name, 0) for name in ("retried", "snoozed", "released"))
    assert leased <= back + ended + resent
    assert back + totals["completed"] + totals["failed"] + totals["dead_letter"] <= leased + room


# ---------------------------------------------------------------------- the tests


async def play(settings: HistorySettings) -> None:
    """Play one history, drain the store and check both."""
    scene = settings.scene
    stores = await open_stores(settings.address, settings.namespace, 3)
    loop = asyncio.get_running_loop()
    try:
        await stores[0].write(RULES, "declared.standing", rules_body(scene.diagnosis))
        others = [
            loop.run_in_executor(processes(), run_clients_in_process, settings, f"p{n}") for n in range(settings.apart)
        ]
        played = [run_clients(settings, stores, "main"), *others]
        entries = [entry for part in await _all(played) for entry in part]
        for store in stores[1:]:
            await store.close()
        plain = recorded(stores[0], "last", Random(0), 0.0, entries)
        jobs = await check_at_rest(plain)
        await drain(plain, jobs, Record(entries), lifted=scene.lifted)
        record = Record(entries)
        await plain.get(sorted(record.calls))
        record = Record(entries)
        check_record(record, scene)
        await check_drained(plain, record, scene)
    finally:
        for store in stores:
            await store.close()


async def _all(parts: Sequence[Awaitable[list[Entry]]]) -> list[list[Entry]]:
    return list(await asyncio.gather(*parts))


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_clients_on_one_loop_leave_a_history_that_one_at_a_time_explains(
    store_name: str, tmp_path: Path, scene: Scene, seed: int
) -> None:
    # R1.7, R1.22, R1.37, R2.50, R2.56, R2.61, R4.38, R5.11, R5.22, R5.43, R5.50, R5.51, R5.57, R5.60, R5.76, R5.81
    await play_scene(store_name, tmp_path, scene, [seed], clients=5, steps=20)


@pytest.mark.slow
@pytest.mark.parametrize("scene", [SCENES[1], SCENES[-1]], ids=lambda scene: scene.name)
async def test_clients_in_many_processes_leave_such_a_history_too(
    store_name: str, tmp_path: Path, scene: Scene, seed: int
) -> None:
    # R1.2, R1.22, R2.50, R5.51, R5.57, R5.60, R5.81, R5.108
    await play_scene(store_name, tmp_path, scene, [seed], clients=2, steps=20, apart=2)


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_many_long_concurrent_histories_hold(store_name: str, tmp_path: Path, scene: Scene, seed: int) -> None:
    seeds = range(seed * 1_000, seed * 1_000 + 20)
    await play_scene(store_name, tmp_path, scene, seeds, clients=8, steps=150)


@pytest.mark.proof
@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.name)
async def test_many_long_histories_of_many_processes_hold(
    store_name: str, tmp_path: Path, scene: Scene, seed: int
) -> None:
    seeds = range(seed * 1_000, seed * 1_000 + 20)
    await play_scene(store_name, tmp_path, scene, seeds, clients=4, steps=120, apart=3)


@pytest.mark.slow
async def test_a_job_queued_again_while_old_ones_are_removed_stays_or_goes_as_a_whole(
    store: Store, open_namespace: OpenStore
) -> None:
    other = await open_namespace("default") if store.abilities.shared else store
    worker = await register(store, slots=100)
    job_ids = [await submit_one(store, a_job(unique_key=f"round {number}")) for number in range(40)]
    await store.cancel(job_ids)

    async def retry_all() -> None:
        for job_id in job_ids:
            await other.retry([job_id])

    async def prune_all() -> None:
        for _ in job_ids:
            await store.prune(Keep(cancelled_ms=0), limit=1)

    await asyncio.gather(retry_all(), prune_all())
    kept = {job_id for job_id, job in zip(job_ids, await store.get(job_ids), strict=True) if job is not None}
    assert (await store.stats()).lanes["medium"].waiting == len(kept)
    assert set(await claimed_ids(store, worker.worker_id, free=100)) == kept
    again = await store.submit([a_job(unique_key=f"round {number}") for number in range(40)])
    assert {answer.job_id for answer in again if answer.deduplicated} == kept


async def play_scene(
    store_name: str, folder: Path, scene: Scene, seeds: Iterable[int], *, clients: int, steps: int, apart: int = 0
) -> None:
    """Play histories of one scene, each in a namespace of its own, with this many additional processes."""
    address = ADDRESSES[store_name](folder)
    if not open_any(address).abilities.shared:
        apart = 0  # Such a store lives in one process.
    for seed in seeds:
        try:
            await play(HistorySettings(address, f"n{seed}", scene, seed, clients, steps, apart))
        except BaseException as problem:
            problem.add_note(f"to play it again: --seed {seed}, {scene.name!r}, {apart} processes beside this one")
            raise


@functools.cache
def processes() -> ProcessPoolExecutor:
    """Return a pool of processes that are started anew, not forked from this one."""
    pool = ProcessPoolExecutor(3, mp_context=get_context("spawn"))
    atexit.register(pool.shutdown)
    return pool
