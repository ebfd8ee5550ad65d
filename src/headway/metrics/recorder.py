"""Counts what only the process that runs jobs knows, and publishes it to the store every few seconds."""

from __future__ import annotations

import time
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

from headway.core.errors import StoreError
from headway.core.job import FAILED_STATES, State
from headway.core.lease import Lease, Report, ReportStatus
from headway.metrics.documents import (
    METRICS,
    OTHER,
    TASK_RUNS,
    TRIES,
    MetricRow,
    MetricsDocument,
    compact,
    encode,
    read_document,
    read_retired,
)
from headway.observability.logs import take_dropped
from headway.stores.base import Store

PUBLISH_EVERY = 5.0  # Seconds between publications.
IDLE_EVERY = 60.0  # Seconds between publications while no job starts or ends, so that idle workers cause little load.

# The upper bounds of the buckets, in milliseconds. Every process needs the same, because their counts are summed.
LENGTHS_MS = (
    5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_200_000,
    1_500_000, 1_800_000, 3_600_000, 14_400_000,
)  # fmt: skip
INSTANTS_MS = (0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000)

# The keys of counters and rows. Labels follow the name, separated by bars. The lane is last.
QUEUE_WAIT = "waits"  # lane: milliseconds from when a job began to wait until it was claimed
TOTAL_TIME = "spans"  # status|lane: from submission to the end
RUN_TIME = "runs"  # outcome|lane: one attempt
# TASK_RUNS, outcome|task: the number of attempts, and the sum of their milliseconds
STARTS = "starts"  # from a claim's reply to the first step of the job
EXCHANGES = "exchanges"  # jobs or none: one round trip
RETRIES = "retries"  # reason|lane
FAILURES = "failures"  # reason
RELEASES = "releases"  # reason
HEARTBEAT_FAILURES = "beats"  # heartbeats that failed
STORE_ERRORS = "trouble"  # exchanges that failed
SCORED = "scored"  # lane: estimates that were compared with what happened
WITHIN_ESTIMATE = "held"  # p50 or p90|lane: scored estimates that the wait did not exceed
ESTIMATES_GIVEN = "foreseen"  # basis|lane: estimates that were given
ERRORS = "errors"  # lane: thousandths by which p50 was off, of waits that were long enough
LOG_DROPPED = "log_dropped"  # log lines that were never written
RESERVED_IDLE = "idle"  # milliseconds that reserved slots stood idle while other lanes waited, all slots together

TASKS_MAX = 200  # Tasks that one process counts by name. Further tasks are counted as OTHER.

ERRORS_PM = (10, 20, 50, 100, 150, 200, 250, 300, 400, 500, 750, 1_000, 2_000, 5_000)

BOUNDS: dict[str, Sequence[float]] = {
    QUEUE_WAIT: LENGTHS_MS, TOTAL_TIME: LENGTHS_MS, RUN_TIME: LENGTHS_MS, STARTS: INSTANTS_MS, EXCHANGES: INSTANTS_MS,
    ERRORS: ERRORS_PM,
}  # fmt: skip

RETRY_REASONS = ("failed", "timeout", "crash")
FAILURE_REASONS = ("not_retriable", "time_limit", "max_retries_exceeded", "crash_limit", "failed")
RELEASE_REASONS = ("drained", "snoozed", "rate_limited", "unknown_task")
# Reasons that tasks make up are counted as OTHER, so that the number of labels stays small.

_CLAIMED = itemgetter(*(Lease._fields.index(name) for name in ("lane", "started_at", "eligible_at")))
_REPORTED = itemgetter(*(Report._fields.index(name) for name in ("job_id", "state")))
_ENDED = itemgetter(*(Lease._fields.index(name) for name in ("lane", "started_at", "submitted_at", "task")))
_TABLE_MS = 10_000  # Milliseconds; most jobs take less, and a lookup takes a quarter of the time of a search.
_BUCKET = bytes(bisect_left(LENGTHS_MS, length_ms) for length_ms in range(_TABLE_MS))
_UP = 1 - 1e-9  # Rounds up to whole milliseconds, because a bucket includes its upper bound.
_LENGTHS, _INSTANTS = len(LENGTHS_MS) + 2, len(INSTANTS_MS) + 2  # One bucket more than bounds, and the sum.
_COMPLETED, _QUEUED, _LOST = State.COMPLETED, State.QUEUED, ReportStatus.STALE
_STATUS = {state: state.value for state in State}


class MetricsRecorder:
    """Counts for one thread of a process, in well under a microsecond for each job, and publishes the counts."""

    def __init__(self, name: str | None = None) -> None:
        self._name = name or uuid.uuid4().hex
        self._counters: dict[str, float] = {}
        self._waits: dict[str, MetricRow] = {}
        self._ends: dict[tuple[State, str], tuple[MetricRow, MetricRow]] = {}  # By status and lane: spans and runs.
        self._again: dict[tuple[str, str], MetricRow] = {}  # Attempts after which a job was queued again.
        self._tasks: dict[str, dict[str, MetricRow]] = {}  # By task and outcome: attempts and milliseconds.
        self._starts: MetricRow = [0] * _INSTANTS
        self._errors: dict[str, MetricRow] = {}
        self._exchanges: dict[str, MetricRow] = {"jobs": [0] * _INSTANTS, "none": [0] * _INSTANTS}
        self.noted: dict[str, tuple[Lease, float]] = {}  # Finished runs by job id; they count once reported.
        self.on_recorded: Callable[[Lease, Report], None] | None = None  # Called with each outcome that was stored.
        self._overdue: list[str] = []  # Job ids that were in noted at the last publication.
        self._idle_slots, self._idle_since = 0, 0.0
        self._busy = False  # A job started or ended since the last publication.
        self._last = 0.0  # Time of the last publication.
        # The document of this process: its number, the sums of earlier ones, its version, its last known body, and the
        # body that the store may have if a reply was lost.
        self._life = 0
        self._before = MetricsDocument()
        self._version = 0
        self._published = b""
        self._unconfirmed = b""

    # ------------------------------------------------------------------ counting

    def claimed(self, leases: Iterable[Lease]) -> None:
        """Count claimed jobs and how long each has waited."""
        self._busy = True
        row, last, sum_ms = _no_row(), None, 0
        for lane, started_at, eligible_at in map(_CLAIMED, leases):
            if eligible_at:
                if lane != last:
                    row[-1] += sum_ms
                    row, last, sum_ms = self._waits.get(lane) or self._waits.setdefault(lane, _no_row()), lane, 0
                waited_ms = started_at - eligible_at
                row[_BUCKET[waited_ms] if 0 <= waited_ms < _TABLE_MS else _bucket(waited_ms)] += 1
                sum_ms += waited_ms
        row[-1] += sum_ms

    def began(self, claimed: float) -> None:
        """Count the start delay of a claim that was answered at this moment of the monotonic clock."""
        _instant(self._starts, time.monotonic() - claimed)

    def note(self, runs: Iterable[tuple[Lease, float]]) -> None:
        """Record for how many seconds jobs have run. They count once the store has answered their reports."""
        noted = self.noted
        for run in runs:
            noted[run[0].job_id] = run

    def reported(self, reports: Sequence[Report], refused: Sequence[tuple[str, str]]) -> None:
        """Count reports that the store has answered."""
        self._busy = True
        noted = self.noted
        if self.on_recorded is not None:
            refused_ids = {job_id for job_id, _ in refused}
            for report in reports:
                if report.job_id in noted and report.job_id not in refused_ids:
                    self.on_recorded(noted[report.job_id][0], report)
        for job_id, answer in refused:
            if answer == _LOST:
                noted.pop(job_id, None)
        others: list[tuple[str, Lease, float]] = []
        spans, runs, last = _no_row(), _no_row(), None
        task_runs: MetricRow = [0, 0]
        last_task: str | None = None
        run_sum, span_sum = 0.0, 0.0
        for job_id, state in map(_REPORTED, reports):
            if job_id in noted:
                lease, seconds = noted.pop(job_id)
                if state is not _COMPLETED:
                    others.append((job_id, lease, seconds))
                    continue
                lane, started_at, submitted_at, task = _ENDED(lease)
                if lane != last:
                    runs[-1] += run_sum
                    spans[-1] += span_sum
                    (spans, runs), last = self._rows(_COMPLETED, lane), lane
                    run_sum, span_sum = 0.0, 0.0
                if task != last_task:
                    task_runs, last_task = self._task_row(task, "completed"), task
                run_ms = seconds * 1_000  # From here on as ``_span`` does, for most jobs.
                task_runs[0] += 1
                task_runs[1] += run_ms
                run_sum += run_ms
                at = int(run_ms + _UP)
                runs[_BUCKET[at] if at < _TABLE_MS else _bucket(at)] += 1
                if submitted_at:
                    waited_ms = started_at - submitted_at
                    run_ms += waited_ms
                    at += waited_ms
                span_sum += run_ms
                spans[_BUCKET[at] if 0 <= at < _TABLE_MS else _bucket(at)] += 1
        runs[-1] += run_sum
        spans[-1] += span_sum
        if others:
            by_id = {str(report.job_id): report for report in reports}
            for job_id, lease, seconds in others:
                self.ended(lease, by_id[job_id], seconds)

    def ended(self, lease: Lease, report: Report, seconds: float) -> None:
        """Count a job whose report the store has accepted. Servers and reapers also count for other workers."""
        self._busy = True
        if report.state is _QUEUED:
            self._record_returned(lease, report, seconds * 1_000)
            return
        _span(*self._rows(report.state, lease.lane), lease, seconds * 1_000)
        self._ran(lease.task, _STATUS[report.state], seconds * 1_000)
        if report.state in FAILED_STATES:
            self._count(FAILURES, _known(report.reason, FAILURE_REASONS))

    def _rows(self, state: State, lane: str) -> tuple[MetricRow, MetricRow]:
        rows = self._ends.get((state, lane))
        if rows is None:
            rows = self._ends[state, lane] = (_no_row(), _no_row())
        return rows

    def _task_row(self, task: str, outcome: str) -> MetricRow:
        outcomes = self._tasks.get(task)
        if outcomes is None:
            if len(self._tasks) >= TASKS_MAX:
                task = OTHER
            outcomes = self._tasks.setdefault(task, {})
        return outcomes.setdefault(outcome, [0, 0])

    def _ran(self, task: str, outcome: str, run_ms: float) -> None:
        row = self._task_row(task, outcome)
        row[0] += 1
        row[1] += run_ms

    def exchanged(self, seconds: float, jobs: int) -> None:
        """Count one round trip and whether it returned jobs."""
        _instant(self._exchanges["jobs" if jobs else "none"], seconds)

    def idle(self, slots: int, now: float | None = None) -> None:
        """Record how many reserved slots are idle from now on while jobs of other lanes wait."""
        if slots or self._idle_slots:
            now = time.monotonic() if now is None else now
            if self._idle_slots:
                self._count(RESERVED_IDLE, by=self._idle_slots * (now - self._idle_since) * 1_000)
            self._idle_slots, self._idle_since = slots, now

    def foreseen(self, basis: str, lane: str, by: int) -> None:
        """Count estimates that were given."""
        self._count(ESTIMATES_GIVEN, f"{basis}|{lane}", by)

    def scored(self, lane: str, *, within_p50: bool, within_p90: bool, error: float | None) -> None:
        """Count an estimate that was compared with the wait. ``error``: by which part of the wait p50 was off."""
        self._count(SCORED, lane)
        if within_p50:
            self._count(WITHIN_ESTIMATE, f"p50|{lane}")
        if within_p90:
            self._count(WITHIN_ESTIMATE, f"p90|{lane}")
        if error is not None:
            row = self._errors.setdefault(lane, [0] * (len(ERRORS_PM) + 2))
            row[bisect_left(ERRORS_PM, error * 1_000)] += 1
            row[-1] += error * 1_000

    def beat_failed(self, by: int = 1) -> None:
        """Count heartbeats that failed, or that a worker did not send before its leases ended."""
        self._count(HEARTBEAT_FAILURES, by=by)

    def trouble(self) -> None:
        """Count an exchange that failed."""
        self._count(STORE_ERRORS)

    def _record_returned(self, lease: Lease, report: Report, run_ms: float) -> None:
        retried = report.reason in RETRY_REASONS
        key = ("retried" if retried else "released", lease.lane)
        self._ran(lease.task, key[0], run_ms)
        row = self._again.setdefault(key, _no_row())
        row[_bucket(int(run_ms + _UP))] += 1
        row[-1] += run_ms
        if retried:
            self._count(RETRIES, f"{report.reason}|{lease.lane}")
        else:
            self._count(RELEASES, _known(report.reason, RELEASE_REASONS))

    def _count(self, what: str, label: str | None = None, by: float = 1) -> None:
        self._busy = True
        key = what if label is None else f"{what}|{label}"
        self._counters[key] = self._counters.get(key, 0) + by

    # ------------------------------------------------------------------ publishing

    def counted(self) -> MetricsDocument:
        """Return everything counted so far."""
        if dropped := take_dropped():
            self._count(LOG_DROPPED, by=dropped)
        self.idle(self._idle_slots)
        rows = {f"{QUEUE_WAIT}|{lane}": row for lane, row in self._waits.items()}
        for (state, lane), (spans, runs) in self._ends.items():
            rows[f"{TOTAL_TIME}|{_STATUS[state]}|{lane}"] = spans
            rows[f"{RUN_TIME}|{_STATUS[state]}|{lane}"] = runs
        rows |= {f"{RUN_TIME}|{outcome}|{lane}": row for (outcome, lane), row in self._again.items()}
        for task, outcomes in self._tasks.items():
            rows |= {f"{TASK_RUNS}|{outcome}|{task}": row for outcome, row in outcomes.items()}
        rows |= {f"{EXCHANGES}|{result}": row for result, row in self._exchanges.items()}
        rows |= {f"{ERRORS}|{lane}": row for lane, row in self._errors.items()}
        rows[STARTS] = self._starts
        return MetricsDocument(
            counters=dict(self._counters), rows={key: list(row) for key, row in rows.items() if any(row)}
        )

    async def publish(self, store: Store, *, last: bool = False) -> None:
        """Write the counts if there are new ones, or for the ``last`` time."""
        now = time.monotonic()
        if not self._busy and not last and now - self._last < IDLE_EVERY:
            return
        self._busy, self._last = False, now
        try:
            await self._write(store)
        except StoreError:
            self._busy = True
            raise

    async def _write(self, store: Store) -> None:
        counted = self.counted()
        for _ in range(TRIES):
            body = encode(_less(counted, self._before))
            if body in (self._published, _NOTHING):
                return
            try:
                version = await store.write(METRICS, self._document, body, if_version=self._version)
            except StoreError:
                self._unconfirmed = body
                raise
            if version is not None:
                self._version, self._published = version, body
                for job_id in self._overdue:  # Never reported since the last publication: their leases were lost.
                    self.noted.pop(job_id, None)
                self._overdue = list(self.noted)
                return
            await self._catch_up(store)

    async def retire(self, store: Store) -> None:
        """Publish for the last time, because this process leaves."""
        await self.publish(store, last=True)
        if self._version:
            await compact(store, [self._document])

    @property
    def _document(self) -> str:
        return self._name if not self._life else f"{self._name}.{self._life}"

    async def _catch_up(self, store: Store) -> None:
        """Start from the stored document, because a reply was lost or another process has compacted the document."""
        found = await store.read(METRICS, self._document)
        if found and not read_document(found[0].body).closed:
            self._version, self._published = found[0].version, found[0].body
            return
        if found:
            body = found[0].body
        else:  # The retired document names the version at closing, which is one more.
            folded = (await read_retired(store))[0].folded.get(self._document)
            body = self._published if folded in (None, self._version + 1) else self._unconfirmed
        if body:
            self._before.add(read_document(body))
        self._life += 1
        self._version, self._published = 0, b""


def _span(spans: MetricRow, runs: MetricRow, lease: Lease, run_ms: float) -> None:
    """Count a run, and the time from the job's submission to the end of the run.

    The store's clock measures the time until the claim, and this process's clock the run. No two clocks are compared.
    """
    runs[_bucket(int(run_ms + _UP))] += 1
    runs[-1] += run_ms
    span_ms = run_ms + lease.started_at - lease.submitted_at if lease.submitted_at else run_ms
    spans[_bucket(int(span_ms + _UP))] += 1
    spans[-1] += span_ms


def _no_row() -> MetricRow:
    return [0] * _LENGTHS


def _bucket(length_ms: int) -> int:
    return bisect_left(LENGTHS_MS, length_ms)


def _instant(row: MetricRow, seconds: float) -> None:
    row[bisect_left(INSTANTS_MS, seconds * 1_000)] += 1
    row[-1] += seconds * 1_000


def _less(counted: MetricsDocument, before: MetricsDocument) -> MetricsDocument:
    """Return the counts without those of earlier documents of this process."""
    if not before.counters and not before.rows:
        return counted
    counters = {key: count - before.counters.get(key, 0) for key, count in counted.counters.items()}
    rows = dict(counted.rows)
    for key in before.rows.keys() & rows.keys():
        rows[key] = [count - earlier for count, earlier in zip(rows[key], before.rows[key], strict=True)]
    return MetricsDocument(
        counters={key: count for key, count in counters.items() if count},
        rows={key: row for key, row in rows.items() if any(row)},
    )


_NOTHING = encode(MetricsDocument())


def _known(reason: str | None, reasons: Sequence[str]) -> str:
    return reason if reason is not None and reason in reasons else OTHER
