"""The reference store: core and dictionaries. The oracle of the random-history tests; it keeps nothing on disk."""

from __future__ import annotations

import sys
import threading
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from headway.core.diagnostics import AHEAD_COUNTED, JobDiagnostics, LimitView, QueueDiagnostics, RunningJob
from headway.core.job import Attempt, ClassKey, JobId, JobRecord, NewJob, State, SubmitReply, check_move
from headway.core.lease import Lease, Report, ReportStatus, late_report_status, moved_class
from headway.core.policy.document import BUILT_IN, INTERACTIVE, Keep, LimitRule
from headway.core.policy.enforced import RuleIndex, lets_start
from headway.core.policy.ladder import (
    Preemption,
    RunningJobs,
    amended,
    budget_of,
    counts_on,
    fit_rung,
    grants,
    summarize_running,
)
from headway.core.policy.limits import clamp_rate, conforms_at, step_rate
from headway.core.policy.order import order_key
from headway.core.policy.retry import Released, heed_cancel, judge
from headway.core.policy.wait_reasons import WaitInterval, append_sample, blocked_queue_reason, waited_ms
from headway.core.snapshot import ClassView, Plan, Snapshot, Take
from headway.core.worker import WorkerInfo, WorkerState, serves
from headway.stores.base import (
    DUE_BATCH_MAX,
    JOB_CHANNEL,
    LEASE_CHANNEL,
    POLICIES,
    RULES,
    SKIPPED_MAX,
    WAIT_SAMPLE_INTERVAL_MS,
    WAITING_COUNTED,
    Abilities,
    Clock,
    Document,
    Exchange,
    ExchangeReply,
    Heartbeat,
    HeartbeatReply,
    JobQuery,
    LaneStats,
    Stats,
    Subscription,
    check_same,
    counted_as,
    end_place,
)
from headway.stores.clock import SteadyClock
from headway.stores.memory.queue import ClassQueue
from headway.stores.memory.record import StoredJob, job_of, matches, transient_lease
from headway.stores.notifications import LocalSubscription
from headway.stores.rule_codec import read_rulebook
from headway.stores.texts import check_jobs, check_text, check_worker

MINUTE = 60_000
DEAD_WORKERS_KEPT_MS = 3_600_000
STRETCHES_KEPT_MS = 24 * 3_600_000


class MemoryStore:
    """Jobs in dictionaries, for tests and for trying things out."""

    abilities = Abilities(durable=False, shared=False, any_loop=True)

    def __init__(self, namespace: str = "default", *, clock: Clock) -> None:
        self.namespace = namespace
        self._clock = clock
        self._steady = SteadyClock()
        self._lock = threading.RLock()
        self._sequence = 0
        self._jobs: dict[JobId, StoredJob] = {}
        self._order: dict[int, StoredJob] = {}  # By sequence number, in the order of submission.
        self._executing: dict[int, StoredJob] = {}
        self._lines: dict[ClassKey, ClassQueue] = {}
        self._transient: dict[ClassKey, list[tuple[int, NewJob]]] = {}
        self._delayed: list[tuple[int, int]] = []
        self._unique: dict[str, JobId] = {}
        self._idempotent: dict[tuple[str, str], tuple[JobId, bytes, int]] = {}
        self._workers: dict[str, WorkerInfo] = {}
        self._claims: dict[str, bytes] = {}
        self._waiting: dict[str, tuple[str, ...] | None] = {}  # By worker: the lanes it waits for.
        self._documents: dict[tuple[str, str], Document] = {}
        self._rule_index = RuleIndex()
        self._holds: dict[str, set[int]] = {}  # By the key of a limit: the leases that hold it.
        self._stretches: list[WaitInterval] = []
        self._rates: dict[str, int] = {}  # By the key of a limit: how far ahead its starts were given away.
        self._tally: Counter[tuple[int, str]] = Counter()
        self._subscriptions: dict[str, list[LocalSubscription]] = {}

    # ------------------------------------------------------------------ the verbs

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitReply]:
        check_jobs(jobs)
        with self._lock:
            now_at = self._now()
            answers = self._check_submit(jobs, now_at)
            eligible: list[ClassKey] = []
            for job, answer in zip(jobs, answers, strict=True):
                if not answer.deduplicated and job.job_id not in self._jobs:
                    eligible += self._insert(job, now_at)
            self._wake_workers(eligible, now_at)
            self._ring_watchers([answer.job_id for answer in answers])
            return answers

    async def exchange(self, request: Exchange) -> ExchangeReply:
        with self._lock:
            now_at = self._now()
            refused: list[tuple[JobId, ReportStatus]] = []
            eligible: list[ClassKey] = []
            for report in request.finished:
                answer = self._finish(report, now_at, eligible)
                if answer is not ReportStatus.OK:
                    refused.append((report.job_id, answer))
            for note in request.progress:
                record = self._jobs.get(note.job_id)
                if record and record.state is State.EXECUTING and record.token == note.token:
                    record.progress, record.note = note.fraction, note.note
            eligible += self._pump(now_at)
            worker = self._workers.get(request.worker_id) if request.worker_id else None
            leases: list[Lease] = []
            expired: list[JobId] = []
            outdated = self._outdated(request.plan)
            more = False
            if worker is not None and worker.state is WorkerState.ACTIVE and worker.lease_ends_at <= now_at:
                self._ring(worker.worker_id + LEASE_CHANNEL)  # It is alive, so the clock has stepped: let it renew.
            if not outdated and worker is not None and request.plan is not None and worker.lease_ends_at > now_at:
                leases, more = self._claim(worker, request.claim_id, request.plan, now_at, expired)
                self._note_waiting(worker, request, got_nothing=not leases and not more)
            self._wake_workers(eligible, now_at, but=request.worker_id)
            changed = [report.job_id for report in request.finished]
            changed += [lease.job_id for lease in leases]
            changed += [note.job_id for note in request.progress]
            changed += expired
            if changed:
                self._ring_watchers(changed)
            return ExchangeReply(
                now_at,
                leases,
                refused,
                self._snapshot(now_at) if request.want_snapshot or outdated else None,
                more,
                worker.state if worker else WorkerState.DEAD,
            )

    async def renew(self, beat: Heartbeat) -> HeartbeatReply:
        check_worker(beat.worker)
        with self._lock:
            now_at = self._now()
            known = self._workers.get(beat.worker.worker_id)
            if not beat.register and (known is None or known.state is WorkerState.DEAD):
                return HeartbeatReply(now_at, WorkerState.DEAD, [job_id for job_id, _ in beat.held])
            state = known.state if known and not beat.register else WorkerState.ACTIVE
            self._workers[beat.worker.worker_id] = replace(
                beat.worker,
                state=state,
                started_at=known.started_at if known and not beat.register else now_at,
                heartbeat_at=now_at,
                lease_ends_at=now_at + beat.lease_ms,
                running=0,
            )
            held = dict(beat.held)
            mine = {record.new.job_id: record for record in self._leased(beat.worker.worker_id)}
            lost = [job_id for job_id, token in held.items() if job_id not in mine or mine[job_id].token != token]
            if beat.register:
                self._waiting.pop(beat.worker.worker_id, None)
                if self._rule_index.rules.rungs or self._rule_index.rules.pool_reserve:  # More slots are more room.
                    self._wake_all(now_at)
            eligible: list[ClassKey] = []
            released: list[JobId] = []
            for job_id, record in mine.items():
                unnamed = held.get(job_id) != record.token
                if unnamed and (record.started_at or 0) + beat.confirm_ms <= now_at:
                    self._finish(
                        judge(Released("claim never started"), self._lease(record), BUILT_IN), now_at, eligible
                    )
                    released.append(job_id)
            self._wake_workers(eligible, now_at)
            if released:
                self._ring_watchers(released)
            kept = [mine[job_id] for job_id in held if job_id in mine and job_id not in lost]
            cancel = [record.new.job_id for record in kept if record.cancel_at is not None]
            given = [(record.new.job_id, record.class_key.rung, record.assigned) for record in mine.values()]
            return HeartbeatReply(now_at, state, lost, cancel, grants(self._rule_index.ladder, given))

    async def leases(self, *, worker_id: str | None = None, limit: int = 1_000) -> list[Lease]:
        with self._lock:
            now_at = self._now()
            records = self._leased(worker_id) if worker_id is not None else self._expired(now_at)
            return [self._lease(record) for record in records][:limit]

    async def mark_dead(self, worker_id: str, *, left: bool = False) -> None:
        with self._lock:
            self._bury(worker_id)
            if left and not self._leased(worker_id):
                self._workers.pop(worker_id, None)

    async def drain(self, worker_id: str) -> bool:
        with self._lock:
            worker = self._workers.get(worker_id)
            if worker is None or worker.state is WorkerState.DEAD:
                return False
            self._workers[worker_id] = replace(worker, state=WorkerState.DRAINING)
            self._waiting.pop(worker_id, None)
            self._ring(worker_id + LEASE_CHANNEL)
            return True

    async def cancel(self, job_ids: Sequence[JobId], reason: str = "cancelled") -> list[State | None]:
        with self._lock:
            now_at = self._now()
            states: list[State | None] = []
            for job_id in job_ids:
                record = self._jobs.get(job_id)
                if record is not None and record.state is State.QUEUED:
                    self._end_queued(record, reason, now_at)
                elif record is not None and record.state is State.EXECUTING and record.cancel_at is None:
                    record.cancel_at = now_at
                    self._ring(f"{record.worker_id}{LEASE_CHANNEL}")
                states.append(record.state if record else None)
            self._ring_watchers(job_ids)
            return states

    async def preempt(self, amendments: Sequence[Preemption]) -> list[bool]:
        with self._lock:
            now_at = self._now()
            changed: list[bool] = []
            lowered: StoredJob | None = None
            for job_id, rung in amendments:
                record = self._jobs.get(job_id)
                assigned = None
                if record is not None and record.state is State.EXECUTING:
                    assigned = amended(self._rule_index.ladder, record.class_key.rung, record.assigned, rung)
                changed.append(assigned is not None)
                if record is not None and assigned is not None:
                    record.assigned = assigned
                    self._count(f"lowered.{assigned}", now_at)
                    lowered = record if rung is not None else lowered
                    self._ring(f"{record.worker_id}{LEASE_CHANNEL}")
            self._wake_workers([] if lowered is None else self._with_room(lowered), now_at)
            self._ring_watchers([job_id for (job_id, _), done in zip(amendments, changed, strict=True) if done])
            return changed

    async def retry(self, job_ids: Sequence[JobId]) -> list[State | None]:
        with self._lock:
            now_at = self._now()
            states: list[State | None] = []
            eligible: list[ClassKey] = []
            for job_id in job_ids:
                record = self._jobs.get(job_id)
                if record is not None and record.state.ended and record.state is not State.COMPLETED:
                    key = record.new.unique_key
                    if key is None or key not in self._unique:
                        eligible.append(self._queue_again(record, now_at))
                states.append(record.state if record else None)
            self._wake_workers(eligible, now_at)
            self._ring_watchers(job_ids)
            return states

    async def get(self, job_ids: Sequence[JobId]) -> list[JobRecord | None]:
        with self._lock:
            now_at = self._now()
            return [job_of(self._jobs[job_id], now_at) if job_id in self._jobs else None for job_id in job_ids]

    async def find(self, query: JobQuery) -> list[JobRecord]:
        with self._lock:
            now_at = self._now()
            if query.by_end:
                return self._find_ended(query, now_at)
            found: list[JobRecord] = []
            for record in reversed(self._order.values()):
                if len(found) >= query.limit:
                    break
                if matches(record, query):
                    found.append(job_of(record, now_at))
            return found

    def _find_ended(self, query: JobQuery, now_at: int) -> list[JobRecord]:
        """Find jobs that ended badly, those that ended last first."""
        jobs = [
            job_of(record, now_at)
            for record in self._order.values()
            if record.state.ended and record.state is not State.COMPLETED and matches(record, query)
        ]
        last = query.ended_before
        jobs = [job for job in jobs if last is None or end_place(job) < last]
        return sorted(jobs, key=end_place, reverse=True)[: query.limit]

    async def snapshot(self) -> Snapshot:
        with self._lock:
            return self._snapshot(self._now())

    async def stats(self) -> Stats:
        with self._lock:
            now_at = self._now()
            lanes: dict[str, LaneStats] = {}
            for record in self._jobs.values():
                stats = lanes.get(record.class_key.lane, LaneStats())
                if record.state is State.EXECUTING:
                    stats = stats._replace(executing=stats.executing + 1)
                elif record.state is State.QUEUED and record.due_at is not None:
                    stats = stats._replace(delayed=stats.delayed + 1)
                elif record.state is State.QUEUED:
                    stats = stats._replace(waiting=stats.waiting + 1)
                lanes[record.class_key.lane] = stats
            for key, line in self._lines.items():
                if line.front:
                    stats = lanes[key.lane]
                    lanes[key.lane] = stats._replace(oldest_at=_earlier(stats.oldest_at, self._oldest_at(line)))
            for key, listed in self._transient.items():
                stats = lanes.get(key.lane, LaneStats())
                lanes[key.lane] = stats._replace(waiting=stats.waiting + len(listed))
            running = Counter(record.worker_id for record in self._executing.values())
            workers = tuple(
                replace(worker, running=running[worker.worker_id], state=_state_at(worker, now_at))
                for worker in self._workers.values()
            )
            totals: Counter[str] = Counter()
            recent: Counter[str] = Counter()
            for (minute, what), count in self._tally.items():
                totals[what] += count
                if minute >= now_at // MINUTE - 1:
                    recent[what] += count
            bad = (State.FAILED, State.CANCELLED, State.DEAD_LETTER)
            kept = Counter(r.state.value for r in self._jobs.values() if r.state in bad)
            return Stats(now_at, lanes, workers, dict(totals), dict(recent), dict(kept))

    async def waiting_of(self, tenant: str) -> dict[str, LaneStats]:
        with self._lock:
            lanes: dict[str, LaneStats] = {}
            foremost: set[ClassKey] = set()
            for record in sorted(self._jobs.values(), key=lambda one: one.place):
                if record.new.tenant == tenant and record.state is State.QUEUED and record.due_at is None:
                    key = record.class_key
                    known = lanes.get(key.lane, LaneStats())
                    oldest_at = known.oldest_at
                    if key not in foremost:
                        foremost.add(key)
                        oldest_at = _earlier(oldest_at, record.eligible_at)
                    lanes[key.lane] = LaneStats(waiting=known.waiting + 1, oldest_at=oldest_at)
            return lanes

    async def diagnose(self) -> QueueDiagnostics:
        with self._lock:
            return self._survey(self._now())

    async def diagnose_job(self, job_id: JobId) -> JobDiagnostics | None:
        with self._lock:
            now_at = self._now()
            record = self._jobs.get(job_id)
            if record is None:
                return None
            line = self._line(record.class_key)
            job, queue = job_of(record, now_at), self._survey(now_at)
            if record.state is not State.QUEUED or record.due_at is not None:
                stretches = [stretch for stretch in self._stretches if stretch.key == record.class_key]
                return JobDiagnostics(job, queue, line.fair, waited_ms=waited_ms(job, stretches))
            places = line.parks[record.park] if record.park else line.front
            ahead = [self._order[seq] for _, seq in places[: bisect_left(places, record.place)]]
            own = [other for other in ahead if line.fair and other.tenant == record.tenant]
            counted, counted_own = min(len(ahead), AHEAD_COUNTED), min(len(own), AHEAD_COUNTED)
            limits = tuple(self._limit_view(key, rule, now_at) for key, rule in self._keys(record))
            return JobDiagnostics(job, queue, line.fair, counted, counted_own, limits)

    async def record_wait_reasons(self, reasons: Mapping[ClassKey, str]) -> None:
        with self._lock:
            now_at = self._now()
            if any(stretch.until_at > now_at - WAIT_SAMPLE_INTERVAL_MS for stretch in self._stretches):
                return
            for key, reason in reasons.items():
                last = max((s for s in self._stretches if s.key == key), key=lambda s: s.until_at, default=None)
                stretch = append_sample(last, key, reason, now_at)
                if last is not None and stretch.from_at == last.from_at:
                    self._stretches.remove(last)
                self._stretches.append(stretch)

    async def prune(self, keep: Keep, *, limit: int = 1_000) -> int:
        with self._lock:
            now_at = self._now()
            expired = [r for r in self._order.values() if r.state is State.QUEUED and _past(r.expires_at, now_at)]
            for record in expired[:limit]:
                self._end_queued(record, "expired", now_at)
            if expired:
                self._ring_watchers([record.new.job_id for record in expired[:limit]])
            kept_ms = {
                State.COMPLETED: keep.completed_ms,
                State.FAILED: keep.failed_ms,
                State.CANCELLED: keep.cancelled_ms,
                State.DEAD_LETTER: keep.dead_letter_ms,
            }
            old = [
                record
                for record in self._order.values()
                if record.state.ended and (record.finished_at or 0) + kept_ms[record.state] <= now_at
            ][:limit]
            for record in old:
                self._forget(record)
            for record in self._beyond(keep)[: limit - len(old)]:
                self._forget(record)
                old.append(record)
            for scope in [scope for scope, (_, _, until_at) in self._idempotent.items() if until_at <= now_at][:limit]:
                del self._idempotent[scope]
            for worker in list(self._workers.values()):
                if worker.state is not WorkerState.DEAD and worker.lease_ends_at <= now_at:
                    self._bury(worker.worker_id)
                if worker.lease_ends_at + DEAD_WORKERS_KEPT_MS <= now_at and not self._leased(worker.worker_id):
                    del self._workers[worker.worker_id]
                    self._claims.pop(worker.worker_id, None)
            self._stretches = [s for s in self._stretches if s.until_at + STRETCHES_KEPT_MS > now_at]
            self._rates = {key: reached for key, reached in self._rates.items() if reached > now_at * 1_000}
            return len(expired[:limit]) + len(old)

    def _beyond(self, keep: Keep) -> list[StoredJob]:
        """Return the oldest ended jobs of the states of which more are kept than the policy allows."""
        most = {
            State.COMPLETED: keep.completed_max,
            State.FAILED: keep.failed_max,
            State.CANCELLED: keep.cancelled_max,
            State.DEAD_LETTER: keep.dead_letter_max,
        }
        found: list[StoredJob] = []
        for state, count in most.items():
            ended = [record for record in self._order.values() if record.state is state] if count else []
            ended.sort(key=lambda record: (record.finished_at or 0, record.seq))
            found += ended[: max(0, len(ended) - count)]
        return found

    async def purge(self, states: Sequence[State], job_ids: Sequence[JobId] | None, *, limit: int = 1_000) -> int:
        with self._lock:
            wanted = None if job_ids is None else set(job_ids)
            gone = [
                record
                for record in self._order.values()
                if record.state.ended and record.state in states and (wanted is None or record.new.job_id in wanted)
            ][:limit]
            for record in gone:
                self._forget(record)
            return len(gone)

    async def read(self, kind: str, name: str | None = None) -> list[Document]:
        with self._lock:
            found = [d for d in self._documents.values() if d.kind == kind and name in (None, d.name)]
            return sorted(found, key=lambda document: document.name)

    async def write(self, kind: str, name: str, body: bytes | None, *, if_version: int | None = None) -> int | None:
        check_text(kind, "a document's kind")
        check_text(name, "a document's name")
        with self._lock:
            known = self._documents.get((kind, name))
            version = known.version if known else 0
            if if_version is not None and if_version != version:
                return None
            if body is None:
                self._documents.pop((kind, name), None)
            else:
                self._documents[kind, name] = Document(kind, name, version + 1, body)
            if kind == RULES:
                self._adopt_rules(self._now())
            if kind == POLICIES:
                for worker_id in self._workers:
                    self._ring(worker_id + LEASE_CHANNEL)
            return version + 1

    def subscribe(self, name: str) -> Subscription:
        def leave(subscription: LocalSubscription) -> None:
            with self._lock:
                self._subscriptions.get(name, []).remove(subscription)

        subscription = LocalSubscription(leave)
        with self._lock:  # Other threads wake subscriptions meanwhile.
            self._subscriptions.setdefault(name, []).append(subscription)
        return subscription

    async def schema(self) -> tuple[int | None, int]:
        return 0, 0

    async def describe(self) -> dict[str, str]:
        return {"store": "memory", "durability": "none: jobs end with the process"}

    # ------------------------------------------------------------------ submitting

    def _check_submit(self, jobs: Sequence[NewJob], now_at: int) -> list[SubmitReply]:
        """Answer for each job before anything is written, as if those before it were already kept."""
        answers: list[SubmitReply] = []
        ids: dict[JobId, tuple[str, bytes]] = {}
        keys: dict[tuple[str, str], tuple[JobId, bytes]] = {}
        unique: dict[str, JobId] = {}
        for index, job in enumerate(jobs):
            scope = (job.tenant or "", job.idempotency_key or "")
            by_key = keys.get(scope)
            stored = self._idempotent.get(scope)
            if by_key is None and stored is not None and stored[2] > now_at:
                by_key = stored[:2]
            known = self._jobs.get(job.job_id)
            same = (known.new.task, known.new.payload) if known else ids.get(job.job_id)
            if same is not None:
                check_same(same, (job.task, job.payload), job, index, "job id")
                answers.append(SubmitReply(job.job_id))
            elif job.idempotency_key is not None and by_key is not None:
                check_same(by_key[1], job.digest, job, index, "idempotency key")
                answers.append(SubmitReply(by_key[0], deduplicated=True))
            elif job.unique_key is not None and (job.unique_key in unique or job.unique_key in self._unique):
                existing = unique.get(job.unique_key) or self._unique[job.unique_key]
                answers.append(SubmitReply(existing, deduplicated=True))
            else:
                if job.persist:
                    ids[job.job_id] = (job.task, job.payload)
                if job.idempotency_key is not None:
                    keys[scope] = (job.job_id, job.digest)
                if job.unique_key is not None:
                    unique[job.unique_key] = job.job_id
                answers.append(SubmitReply(job.job_id))
        return answers

    def _insert(self, job: NewJob, now_at: int) -> list[ClassKey]:
        """Keep one job; give its class if it is eligible at once."""
        seq = self._next()
        self._count("submitted", now_at)
        if not job.persist:
            self._transient.setdefault(job.class_key, []).append((seq, job))
            return [job.class_key]
        record = StoredJob(
            new=job,
            seq=seq,
            submitted_at=now_at,
            class_key=job.class_key,
            expires_at=None if job.expires_ms is None else now_at + job.expires_ms,
            timeout_ms=job.timeout_ms,
        )
        self._jobs[job.job_id] = record
        self._order[seq] = record
        if job.unique_key is not None:
            self._unique[job.unique_key] = job.job_id
        if job.idempotency_key is not None:
            until_at = now_at + job.idempotency_ms
            self._idempotent[job.tenant or "", job.idempotency_key] = (job.job_id, job.digest, until_at)
        due_at = max(job.due_at or 0, now_at + job.delay_ms)
        if due_at > now_at:
            self._delay(record, due_at)
            return []
        self._make_ready(record, now_at, number=seq)
        return [record.class_key]

    # ------------------------------------------------------------------ waiting

    def _line(self, key: ClassKey) -> ClassQueue:
        return self._lines.setdefault(key, ClassQueue())

    def _make_ready(self, record: StoredJob, eligible_at: int, *, number: int, front: bool = False) -> None:
        """Let a job wait. ``number``: its place where tenants do not share; ``front``: before all that wait."""
        line = self._line(record.class_key)
        if record.new.tenant is not None and not line.fair:
            self._make_fair(record.class_key, line, number)
        if not line.fair:
            record.order_key = number
        elif front:
            record.order_key = line.clock
        else:
            step_us = self._rule_index.step_us(record.new.task, record.tenant)
            record.order_key = order_key(line.clock, line.last(record.tenant), step_us)
        record.due_at, record.eligible_at, record.park = None, eligible_at, ""
        line.add(record.place, eligible_at, record.tenant)

    def _make_fair(self, key: ClassKey, line: ClassQueue, number: int) -> None:
        """From its first job with a tenant on, the tenants of a class share it."""
        since = [(self._order[seq].eligible_at or 0, seq) for _, seq in line.front]
        here = [place[0] for places in (line.front, *line.parks.values()) for place in places]
        running = [record.order_key for record in self._executing.values() if record.class_key == key]
        line.become_fair(since, here + running, line.front[0][0] if line.front else number)

    def _delay(self, record: StoredJob, due_at: int) -> None:
        record.due_at, record.eligible_at = due_at, None
        self._line(record.class_key)
        insort(self._delayed, (due_at, record.seq))

    def _leave_queue(self, record: StoredJob) -> None:
        """Take a job from where it waits. It still counts for its tenant."""
        if record.due_at is not None:
            self._delayed.pop(bisect_left(self._delayed, (record.due_at, record.seq)))
            record.due_at = None
        else:
            line = self._lines[record.class_key]
            line.take_out(record.place, record.park, record.eligible_at or 0)
            record.park = ""

    def _pump(self, now_at: int) -> list[ClassKey]:
        """Make a bounded batch of due jobs eligible."""
        eligible: list[ClassKey] = []
        while self._delayed and self._delayed[0][0] <= now_at and len(eligible) < DUE_BATCH_MAX:
            _, seq = self._delayed.pop(0)
            record = self._order[seq]
            self._make_ready(record, now_at, number=self._next())
            eligible.append(record.class_key)
        return eligible

    # ------------------------------------------------------------------ claiming

    def _note_waiting(self, worker: WorkerInfo, request: Exchange, *, got_nothing: bool) -> None:
        """Register a worker that got nothing; one that looks again while it waits keeps its turn."""
        waits = request.wait and got_nothing and worker.state is WorkerState.ACTIVE
        before = self._waiting.get(worker.worker_id, ("", ""))
        if not waits or before != request.wait_lanes:
            self._waiting.pop(worker.worker_id, None)
        if waits:
            self._waiting.setdefault(worker.worker_id, request.wait_lanes)

    def _outdated(self, plan: Plan | None) -> bool:
        """Return whether a plan was made before some class came up."""
        return plan is not None and plan.known is not None and plan.known < len(self._lines) + len(self._transient)

    def _claim(
        self, worker: WorkerInfo, claim_id: bytes, plan: Plan, now_at: int, expired: list[JobId]
    ) -> tuple[list[Lease], bool]:
        if worker.state is not WorkerState.ACTIVE:
            return [], False
        mine = self._leased(worker.worker_id)
        if self._claims.get(worker.worker_id) == claim_id:
            return [self._lease(record) for record in mine if record.token == claim_id], False
        free = min(plan.free, worker.slots - len(mine))
        below = min(plan.free_below, self._pool_room(now_at))
        leases: list[Lease] = []
        more = False
        for take in plan.takes:
            want = min(take.most, free, below if take.below_reserve else free)
            if want <= 0 or self._rule_index.lane_paused(take.key.lane):
                continue
            got, unseen = self._take(take, want, worker, claim_id, now_at, expired)
            more = more or unseen
            leases += got
            if take.over is not None:
                self._count(f"promoted.{take.key.lane}.{take.over}", now_at, len(got))
            free -= len(got)
            below -= len(got) if take.below_reserve or plan.leave_free else 0
        if leases:
            self._claims[worker.worker_id] = claim_id
        return leases, more

    def _take(
        self, take: Take, want: int, worker: WorkerInfo, claim_id: bytes, now_at: int, expired: list[JobId]
    ) -> tuple[list[Lease], bool]:
        """Lease up to ``want`` jobs of a class. Expired ones are cancelled on the way, and those that their own
        limits hold back are put aside; gives also whether it stopped for having passed over too many.
        """
        if not take.key.persist:
            return self._take_transient(take.key, want, worker, now_at), False
        line = self._lines.get(take.key, ClassQueue())
        leases: list[Lease] = []
        passed = 0
        while len(leases) < want:
            first = line.first(now_at)
            if first is None:
                break
            record = self._order[first[1][1]]
            if take.until_at is not None and (record.eligible_at or 0) > take.until_at:
                break
            if passed == SKIPPED_MAX:
                return leases, True
            if _past(record.expires_at, now_at):
                self._end_queued(record, "expired", now_at)
                expired.append(record.new.job_id)
                passed += 1
                continue
            fits, assigned = fit_rung(self._rule_index.ladder, self._floor(now_at), take.key.rung)
            if not fits:
                break
            full = self._full_key(record, now_at)
            if full is not None:
                self._put_aside(line, record, *full, now_at)
                passed += 1
                continue
            self._start(record, line, worker, claim_id, assigned, now_at)
            leases.append(self._lease(record))
        self._count("claimed", now_at, len(leases))
        return leases, False

    def _take_transient(self, key: ClassKey, want: int, worker: WorkerInfo, now_at: int) -> list[Lease]:
        paused = self._rule_index.rules.paused.tasks
        listed = self._transient.get(key, [])
        taken = [entry for entry in listed if entry[1].task not in paused][:want]
        for entry in taken:
            listed.remove(entry)
        self._count("claimed", now_at, len(taken))
        return [transient_lease(seq, job, worker, now_at) for seq, job in taken]

    def _start(
        self,
        record: StoredJob,
        line: ClassQueue,
        worker: WorkerInfo,
        claim_id: bytes,
        assigned: str | None,
        now_at: int,
    ) -> None:
        record.parked_for, record.parked_ms = None, 0
        if record.park:
            rule = self._rule_index.rules.limits.get(record.park.partition("=")[0])
            record.parked_for = blocked_queue_reason(record.park, is_rate=rule is not None and rule.concurrency is None)
            record.parked_ms = now_at - record.parked_at
        self._leave_queue(record)
        line.clock = max(line.clock, record.order_key) if line.fair else line.clock
        check_move(record.state, State.EXECUTING)
        record.state = State.EXECUTING
        self._executing[record.seq] = record
        record.epoch += 1
        record.attempts += 1
        record.token, record.worker_id, record.started_at = claim_id, worker.worker_id, now_at
        record.progress = record.note = record.cancel_at = record.error = record.reason = None
        record.assigned = assigned
        self._hold(record)
        for key, rule in self._keys(record):
            if rule.count is not None:
                _, self._rates[key] = step_rate(rule, self._rates.get(key), now_at * 1_000)

    # ------------------------------------------------------------------ limits and the ladder

    def _keys(self, record: StoredJob) -> list[tuple[str, LimitRule]]:
        return self._rule_index.keys(record.new.task, record.new.tenant, record.new.limits)

    def _full_key(self, record: StoredJob, now_at: int) -> tuple[str, int | None] | None:
        """Return the first key a job needs that has no room, and when it will have, if that is known."""
        for key, rule in self._keys(record):
            if rule.concurrency is not None and len(self._holds.get(key, ())) >= rule.concurrency:
                return key, None
            if rule.count is not None:
                conforms_us, _ = step_rate(rule, self._rates.get(key), now_at * 1_000)
                if conforms_at(conforms_us) > now_at:
                    return key, conforms_at(conforms_us)
        return None

    def _put_aside(self, line: ClassQueue, record: StoredJob, key: str, open_at: int | None, now_at: int) -> None:
        """Let a job wait for a key without room; if it does so already, its park is shut."""
        if record.park == key:
            line.shut(key, open_at)
            return
        since_at = record.parked_at if record.park else now_at
        self._leave_queue(record)
        record.park, record.parked_at = key, since_at
        line.put_aside(record.place, key, open_at)

    def _hold(self, record: StoredJob) -> None:
        """Count a lease against the limits in force."""
        record.held = tuple(key for key, rule in self._keys(record) if rule.concurrency is not None)
        for key in record.held:
            self._holds.setdefault(key, set()).add(record.seq)

    def _give_back(self, record: StoredJob, eligible: list[ClassKey]) -> None:
        """A lease ends: what waits for its keys may try again."""
        for key in record.held:
            self._holds[key].discard(record.seq)
            for class_key, line in self._lines.items():
                if key in line.parks and key not in line.opens:
                    line.opens[key] = 0
                    eligible.append(class_key)
        record.held = ()
        record.assigned = None

    def _with_room(self, record: StoredJob) -> list[ClassKey]:
        """Return the classes that may have room on the ladder, or in the pool, now that this job has left it."""
        reserve = self._rule_index.rules.pool_reserve
        freed = counts_on(self._rule_index.ladder, record.class_key.rung)
        return [
            key
            for key, line in sorted(self._lines.items(), key=lambda pair: _key_order(pair[0]))
            if line.front and ((freed and key.rung is not None) or (reserve and key.lane not in reserve.lanes))
        ]

    def _adopt_rules(self, now_at: int) -> None:
        """Go by the rules as they are now: count leases anew, and let all that was put aside try again."""
        parts = sorted((d for d in self._documents.values() if d.kind == RULES), key=lambda d: d.name)
        before, self._rule_index = self._rule_index, read_rulebook(document.body for document in parts)
        if not lets_start(before.rules, self._rule_index.rules):
            return
        clamped = {key: self._clamped(key, reached_us, now_at) for key, reached_us in self._rates.items()}
        self._rates = {key: reached_us for key, reached_us in clamped.items() if reached_us is not None}
        self._holds.clear()
        for record in self._executing.values():
            self._hold(record)
        for line in self._lines.values():
            line.opens = dict.fromkeys(line.parks, 0)
        self._wake_all(now_at)

    def _clamped(self, key: str, reached_us: int, now_at: int) -> int | None:
        return clamp_rate(self._rule_index.rules.limits.get(key.partition("=")[0]), reached_us, now_at * 1_000)

    def _floor(self, now_at: int) -> RunningJobs | None:
        """What runs on the ladder."""
        ladder = self._rule_index.ladder
        if not ladder.rungs and not any(key.rung == INTERACTIVE for key in self._lines):
            return None
        running = [
            (record.new.job_id, record.class_key.rung, record.assigned, record.started_at or 0)
            for _, record in sorted(self._executing.items())
        ]
        return summarize_running(ladder, self._live_slots(now_at), running)

    def _pool_room(self, now_at: int) -> int:
        """How many more jobs of lanes outside the reserve may run, if slots are reserved in the whole pool."""
        reserve = self._rule_index.rules.pool_reserve
        if reserve is None:
            return sys.maxsize
        lanes = [record.class_key.lane for record in self._executing.values()]
        counted = lanes if reserve.rule == "leave_free" else [lane for lane in lanes if lane not in reserve.lanes]
        return max(0, self._live_slots(now_at) - reserve.slots - len(counted))

    def _live_slots(self, now_at: int) -> int:
        return sum(worker.slots for worker in self._workers.values() if _state_at(worker, now_at) is WorkerState.ACTIVE)

    def _lease(self, record: StoredJob) -> Lease:
        new = record.new
        return Lease(
            new.job_id,
            record.seq,
            record.token,
            new.task,
            new.payload,
            new.lane,
            new.tenant,
            new.trace_id,
            record.epoch,
            record.attempts,
            record.crashes,
            new.max_retries,
            record.timeout_ms,
            new.timeout_ms,
            new.retry,
            record.started_at or 0,
            record.cancel_at is not None,
            record.class_key.needs,
            record.worker_id or "",
            record.class_key.rung,
            record.assigned,
            budget_of(self._rule_index.ladder, record.assigned),
            record.submitted_at,
            record.eligible_at or 0,
        )

    # ------------------------------------------------------------------ ending

    def _finish(self, report: Report, now_at: int, eligible: list[ClassKey]) -> ReportStatus:
        if not report.token and report.job_id not in self._jobs:
            self._count(f"transient_{report.state.value}", now_at)
            return ReportStatus.OK
        record = self._jobs.get(report.job_id)
        if record is None or record.token != report.token:
            return ReportStatus.STALE
        if record.state is not State.EXECUTING:
            return late_report_status(report, record.state)
        if report.expired_only:
            worker = self._workers.get(record.worker_id or "")
            if worker is not None and worker.lease_ends_at > now_at and worker.state is not WorkerState.DEAD:
                return ReportStatus.STALE
            self._bury(record.worker_id or "")
        if record.cancel_at is not None:
            report = heed_cancel(report)
        check_move(record.state, report.state)
        if report.error is not None:
            record.history.append(
                Attempt(
                    record.attempts,
                    record.epoch,
                    record.worker_id,
                    record.started_at or 0,
                    now_at,
                    report.reason or report.state.value,
                    report.error,
                )
            )
        del self._executing[record.seq]
        self._give_back(record, eligible)
        eligible += self._with_room(record)
        self._line(record.class_key).forget(record.order_key, record.tenant)
        record.state = report.state
        record.attempts, record.crashes = report.attempts, report.crashes
        record.error, record.reason = report.error, report.reason
        self._count(counted_as(report), now_at)
        if report.state is State.QUEUED:
            record.timeout_ms = report.timeout_ms
            self._requeue(record, report, now_at, eligible)
        else:
            record.result, record.result_error = report.result, report.result_error
            record.finished_at = now_at
            self._free_unique(record)
        return ReportStatus.OK

    def _requeue(self, record: StoredJob, report: Report, now_at: int, eligible: list[ClassKey]) -> None:
        eligible_at = record.eligible_at or now_at
        record.worker_id = record.started_at = record.progress = record.note = None
        record.class_key = moved_class(record.class_key, report)
        if report.delay_ms > 0:
            self._delay(record, now_at + report.delay_ms)
        else:
            if report.front:
                self._make_ready(record, eligible_at, number=record.seq, front=True)
            else:
                self._make_ready(record, now_at, number=self._next())
            eligible.append(record.class_key)

    def _end_queued(self, record: StoredJob, reason: str, now_at: int) -> None:
        delayed = record.due_at is not None
        self._leave_queue(record)
        if not delayed:
            self._lines[record.class_key].forget(record.order_key, record.tenant)
        check_move(record.state, State.CANCELLED)
        record.state, record.reason, record.finished_at = State.CANCELLED, reason, now_at
        self._free_unique(record)
        self._count(State.CANCELLED.value, now_at)

    def _queue_again(self, record: StoredJob, now_at: int) -> ClassKey:
        check_move(record.state, State.QUEUED)
        record.state = State.QUEUED
        record.attempts = record.crashes = 0
        record.timeout_ms = record.new.timeout_ms
        record.token = b""
        record.worker_id = record.started_at = record.finished_at = record.cancel_at = record.expires_at = None
        record.progress = record.note = record.result = record.result_error = record.error = record.reason = None
        if record.new.unique_key is not None:
            self._unique[record.new.unique_key] = record.new.job_id
        self._make_ready(record, now_at, number=self._next())
        return record.class_key

    def _free_unique(self, record: StoredJob) -> None:
        if record.new.unique_key is not None:
            self._unique.pop(record.new.unique_key, None)

    def _forget(self, record: StoredJob) -> None:
        del self._jobs[record.new.job_id]
        del self._order[record.seq]

    def _bury(self, worker_id: str) -> None:
        worker = self._workers.get(worker_id)
        if worker is not None:
            self._workers[worker_id] = replace(worker, state=WorkerState.DEAD)
        self._waiting.pop(worker_id, None)

    # ------------------------------------------------------------------ reading

    def _leased(self, worker_id: str) -> list[StoredJob]:
        return [record for _, record in sorted(self._executing.items()) if record.worker_id == worker_id]

    def _expired(self, now_at: int) -> list[StoredJob]:
        def gone(record: StoredJob) -> bool:
            worker = self._workers.get(record.worker_id or "")
            return worker is None or worker.state is WorkerState.DEAD or worker.lease_ends_at <= now_at

        return [record for _, record in sorted(self._executing.items()) if gone(record)]

    def _snapshot(self, now_at: int) -> Snapshot:
        floor = self._floor(now_at)
        views = []
        for key, line in self._lines.items():
            first = line.first(now_at)
            views.append(
                ClassView(
                    key,
                    min(line.waiting(now_at), WAITING_COUNTED),
                    self._oldest_at(line),
                    0 if first is None else first[1][0],
                    line.fair,
                    self._rule_index.blocked_reason(key.lane, key.rung, floor),
                )
            )
        for key, listed in self._transient.items():
            head = listed[0][0] if listed else 0
            waiting = min(len(listed), WAITING_COUNTED)
            oldest_at, blocked = now_at if listed else None, self._rule_index.blocked_reason(key.lane, key.rung, None)
            views.append(ClassView(key, waiting, oldest_at, head, False, blocked))
        soon = [open_at for line in self._lines.values() for open_at in line.opens.values() if open_at > now_at]
        soon += [due_at for due_at, _ in self._delayed[:1]]
        return Snapshot(now_at, tuple(sorted(views, key=_view_order)), min(soon, default=None), floor)

    def _survey(self, now_at: int) -> QueueDiagnostics:
        running = Counter(record.worker_id for record in self._executing.values())
        workers = tuple(
            replace(worker, running=running[worker.worker_id], state=_state_at(worker, now_at))
            for _, worker in sorted(self._workers.items())
        )
        executing = tuple(
            RunningJob(r.new.task, r.new.lane, r.worker_id or "", r.started_at or 0, r.held)
            for _, r in sorted(self._executing.items())
        )
        return QueueDiagnostics(self._snapshot(now_at), workers, executing, self._rule_index.rules)

    def _limit_view(self, key: str, rule: LimitRule, now_at: int) -> LimitView:
        used = len(self._holds.get(key, ())) if rule.concurrency is not None else 0
        at = None
        if rule.count is not None:
            at = conforms_at(step_rate(rule, self._rates.get(key), now_at * 1_000)[0])
        return LimitView(key, rule, used, at)

    def _oldest_at(self, line: ClassQueue) -> int | None:
        if not line.front:
            return None
        return line.oldest_at() if line.fair else self._order[line.front[0][1]].eligible_at

    # ------------------------------------------------------------------ waking, counting, time

    def _wake_workers(self, classes: Iterable[ClassKey], now_at: int, but: str | None = None) -> None:
        for key in classes:
            for worker_id, lanes in self._waiting.items():
                worker = self._workers.get(worker_id)
                if worker is None or worker_id == but or worker.lease_ends_at <= now_at:
                    continue
                if lanes is not None and key.lane not in lanes:
                    continue
                if serves(key.needs, frozenset(worker.offers)):
                    del self._waiting[worker_id]
                    self._ring(worker_id)
                    break

    def _wake_all(self, now_at: int) -> None:
        """Wake every waiting worker: what they may claim has changed."""
        for worker_id in list(self._waiting):
            if worker_id in self._workers and self._workers[worker_id].lease_ends_at > now_at:
                del self._waiting[worker_id]
                self._ring(worker_id)

    def _ring(self, name: str, job_ids: Iterable[JobId] = ()) -> None:
        for subscription in self._subscriptions.get(name, ()):
            subscription.notify(job_ids)

    def _ring_watchers(self, job_ids: Sequence[JobId]) -> None:
        for name in self._subscriptions:
            if name.startswith(JOB_CHANNEL):
                self._ring(name, job_ids)

    def _next(self) -> int:
        self._sequence += 1
        return self._sequence

    def _count(self, what: str, now_at: int, count: int = 1) -> None:
        if count:
            self._tally[now_at // MINUTE, what] += count

    def _now(self) -> int:
        return self._steady.now(self._clock())


def _view_order(view: ClassView) -> tuple[str, tuple[str, ...], str, bool]:
    return _key_order(view.key)


def _key_order(key: ClassKey) -> tuple[str, tuple[str, ...], str, bool]:
    return (key.lane, key.needs, key.rung or "", key.persist)


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((at for at in (one, other) if at is not None), default=None)


def _past(moment_at: int | None, now_at: int) -> bool:
    return moment_at is not None and moment_at <= now_at


def _state_at(worker: WorkerInfo, now_at: int) -> WorkerState:
    return WorkerState.DEAD if worker.lease_ends_at <= now_at else worker.state
