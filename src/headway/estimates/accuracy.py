"""How estimates turn out: some of those given are compared with what happened, and counted."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import randrange
from typing import NamedTuple

from headway.core.job import JobId, JobRecord, State
from headway.core.policy.estimate import NOW, Estimate
from headway.metrics.documents import MetricsDocument, Row
from headway.metrics.recorder import ERRORS, ERRORS_PM, SCORED, WITHIN_ESTIMATE, MetricsRecorder
from headway.stores.base import Store
from headway.stores.paging import get_in_steps

PENDING_MAX = 200  # Estimates of a lane that wait for their jobs to start.
SAMPLED_EVERY = 0.05  # Seconds between two that are kept.
LOOKED_AT = 200  # Jobs in one look.
LONG = 5.0  # Seconds; of shorter waits a relative error says little.
PATIENCE = 10.0  # How many times p90, and an hour: then an estimate counts as missed, whenever the job starts.


class PendingEstimate(NamedTuple):
    """An estimate that a client was given, and when by the store's clock."""

    lane: str
    p50: float
    p90: float
    at: int


class EstimateAccuracy:
    """Keeps a bounded sample of the estimates that a process gives, and looks up what became of them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._pending: dict[JobId, PendingEstimate] = {}
        self._by_lane: Counter[str] = Counter()
        self._given: Counter[tuple[str, str]] = Counter()
        self._sampled = 0.0

    def give(self, job_id: JobId, lane: str, estimate: Estimate, now_at: int) -> None:
        """Note an estimate that a client is given. The first one of a job is kept, if that job is sampled."""
        self._given[estimate.basis, lane] += 1
        self._sample(job_id, lane, estimate, now_at)

    def give_many(self, job_ids: Sequence[JobId], lane: str, estimates: Sequence[Estimate], now_at: int) -> None:
        """Note estimates that a client is given at once. Any of them may be kept."""
        for basis, count in Counter(estimate.basis for estimate in estimates).items():
            self._given[basis, lane] += count
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
        """Look at a batch of those jobs, the ones first that were not looked at for longest, and count."""
        for (basis, lane), count in self._given.items():
            recorder.foreseen(basis, lane, count)
        self._given.clear()
        batch = list(self._pending)[:LOOKED_AT]
        left = iter(batch)
        async for job in get_in_steps(store.get, batch):
            job_id = next(left)
            given = self._pending.pop(job_id)
            if job is not None and job.state is State.QUEUED and not _is_late(given, job.seen_at):
                self._pending[job_id] = given  # Behind the others.
                continue
            self._by_lane[given.lane] -= 1
            if job is not None:
                score(given, job, recorder)


def is_scored(p90: float, waited: float) -> bool:
    """Return whether an estimate counts: one of a job that was said to start now, and did, says nothing."""
    return p90 >= NOW or waited >= NOW


def score(given: PendingEstimate, job: JobRecord, recorder: MetricsRecorder) -> None:
    """Compare an estimate with when the job started. One that never did says nothing; nor does a "now" that held."""
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
    """How the estimates of a lane turned out: how many were scored, and which part of them held.

    ``error``: the median of the parts of their waits by which they were off; None if none was long.
    """

    scored: int
    within_p50: float
    within_p90: float
    error: float | None


def summaries(document: MetricsDocument) -> dict[str, AccuracySummary]:
    """Sum up by lane how estimates turned out, of all that processes have counted."""
    found: dict[str, AccuracySummary] = {}
    for key, scored in document.counters.items():
        kind, _, lane = key.partition("|")
        if kind == SCORED and scored:
            held = [document.counters.get(f"{WITHIN_ESTIMATE}|{name}|{lane}", 0) / scored for name in ("p50", "p90")]
            found[lane] = AccuracySummary(int(scored), held[0], held[1], _median(document.rows.get(f"{ERRORS}|{lane}")))
    return found


def _median(row: Row | None) -> float | None:
    """Read a median off buckets, as if what is in one lay evenly in it."""
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
    """Return when a job first started after some moment."""
    starts = [attempt.started_at for attempt in job.history if attempt.started_at >= since_at]
    if job.started_at is not None and job.started_at >= since_at:
        starts.append(job.started_at)
    return min(starts, default=None)


def _is_late(given: PendingEstimate, now_at: int) -> bool:
    return now_at - given.at > 1_000 * (PATIENCE * given.p90 + 3_600)
