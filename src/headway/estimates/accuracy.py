"""The accuracy of estimates: a sample of those that clients got, compared with the real starts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import randrange
from typing import NamedTuple

from headway.core.job import JobId, JobRecord, State
from headway.core.policy.estimate import NOW, Estimate
from headway.metrics.documents import MetricRow, MetricsDocument
from headway.metrics.recorder import ERRORS, ERRORS_PM, SCORED, WITHIN_ESTIMATE, MetricsRecorder
from headway.stores.base import Store
from headway.stores.paging import get_in_steps

PENDING_MAX = 200  # Estimates of a lane that wait for their jobs to start, to bound memory and reads.
SAMPLED_EVERY = 0.05  # Seconds between two samples, so that a busy server pays little.
JOBS_PER_READ = 200  # Jobs that one ``settle`` reads.
LONG = 5.0  # Seconds. For shorter waits a relative error means little.
MISSED_AFTER = 10.0  # An estimate counts as missed after this many times its p90, and an hour.


class PendingEstimate(NamedTuple):
    """An estimate that a client got, and when, by the store's clock."""

    lane: str
    p50: float
    p90: float
    at: int


class EstimateAccuracy:
    """Keeps a bounded sample of the estimates that a process sends, and reads when their jobs started."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._pending: dict[JobId, PendingEstimate] = {}
        self._by_lane: Counter[str] = Counter()
        self._recorded: Counter[tuple[str, str]] = Counter()
        self._sampled = 0.0

    def record(self, job_id: JobId, lane: str, estimate: Estimate, now_at: int) -> None:
        """Record an estimate that a client gets. The first estimate of a job is kept, if the job is sampled."""
        self._recorded[estimate.basis, lane] += 1
        self._sample(job_id, lane, estimate, now_at)

    def record_many(self, job_ids: Sequence[JobId], lane: str, estimates: Sequence[Estimate], now_at: int) -> None:
        """Record estimates that a client gets at once. Any of them may be kept."""
        for basis, count in Counter(estimate.basis for estimate in estimates).items():
            self._recorded[basis, lane] += count
        at = randrange(len(job_ids))
        self._sample(job_ids[at], lane, estimates[at], now_at)

    def _sample(self, job_id: JobId, lane: str, estimate: Estimate, now_at: int) -> None:
        if estimate.p50 is None or estimate.p90 is None:
            return
        now = self._monotonic()
        if now - self._sampled < SAMPLED_EVERY or job_id in self._pending or self._by_lane[lane] >= PENDING_MAX:
            return
        self._sampled = now
        self._pending[job_id] = PendingEstimate(lane, estimate.p50, estimate.p90, now_at)
        self._by_lane[lane] += 1

    async def settle(self, store: Store, recorder: MetricsRecorder) -> None:
        """Read a batch of the sampled jobs, the least recently read first, and count the outcomes."""
        for (basis, lane), count in self._recorded.items():
            recorder.foreseen(basis, lane, count)
        self._recorded.clear()
        batch = list(self._pending)[:JOBS_PER_READ]
        left = iter(batch)
        async for job in get_in_steps(store.get, batch):
            job_id = next(left)
            given = self._pending.pop(job_id)
            if job is not None and job.state is State.QUEUED and not _is_late(given, job.seen_at):
                self._pending[job_id] = given  # Now the most recently read.
                continue
            self._by_lane[given.lane] -= 1
            if job is not None:
                score(given, job, recorder)


def is_scored(p90: float, waited: float) -> bool:
    """Return whether an estimate counts. A job that was to start now, and did, does not."""
    return p90 >= NOW or waited >= NOW


def score(given: PendingEstimate, job: JobRecord, recorder: MetricsRecorder) -> None:
    """Compare an estimate with the start of its job. A job that never started does not count, nor a "now" that held."""
    started_at = _started_at(job, given.at)
    if started_at is None:
        if _is_late(given, job.seen_at):
            recorder.scored(given.lane, within_p50=False, within_p90=False, error=None)
        return
    waited = max(0.0, (started_at - given.at) / 1_000)
    if not is_scored(given.p90, waited):
        return
    recorder.scored(
        given.lane,
        within_p50=waited <= given.p50,
        within_p90=waited <= given.p90,
        error=abs(given.p50 - waited) / waited if waited > LONG else None,
    )


@dataclass(frozen=True, slots=True)
class AccuracySummary:
    """The accuracy of a lane's estimates: how many were scored, and which part of them held.

    ``error``: the median relative error of the waits, or None without long waits.
    """

    scored: int
    within_p50: float
    within_p90: float
    error: float | None


def summaries(document: MetricsDocument) -> dict[str, AccuracySummary]:
    """Return the accuracy by lane, from the counts of all processes."""
    found: dict[str, AccuracySummary] = {}
    for key, scored in document.counters.items():
        kind, _, lane = key.partition("|")
        if kind == SCORED and scored:
            held = [document.counters.get(f"{WITHIN_ESTIMATE}|{name}|{lane}", 0) / scored for name in ("p50", "p90")]
            found[lane] = AccuracySummary(int(scored), held[0], held[1], _median(document.rows.get(f"{ERRORS}|{lane}")))
    return found


def _median(row: MetricRow | None) -> float | None:
    """Return the median from buckets, as if the values in each bucket were spread evenly."""
    if row is None or len(row) != len(ERRORS_PM) + 2 or not (half := sum(row[:-1]) / 2):
        return None
    below = 0.0
    for at, count in enumerate(row[:-1]):
        if below + count >= half and count:
            begins = ERRORS_PM[at - 1] if at else 0
            ends = ERRORS_PM[min(at, len(ERRORS_PM) - 1)]
            return (begins + (ends - begins) * (half - below) / count) / 1_000
        below += count
    return None


def _started_at(job: JobRecord, since_at: int) -> int | None:
    """Return when a job first started after a moment."""
    starts = [attempt.started_at for attempt in job.history if attempt.started_at >= since_at]
    if job.started_at is not None and job.started_at >= since_at:
        starts.append(job.started_at)
    return min(starts, default=None)


def _is_late(given: PendingEstimate, now_at: int) -> bool:
    return now_at - given.at > 1_000 * (MISSED_AFTER * given.p90 + 3_600)
