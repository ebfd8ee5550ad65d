"""Slots that a lane needs to start its jobs within a given time, from forecasts with more and more slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from headway.core.diagnostics import QueueDiagnostics
from headway.core.errors import ConfigError
from headway.core.job import ClassKey
from headway.core.policy.document import Policy, reserved_slots
from headway.core.policy.estimate import Estimate, EstimateRequest, Forecast
from headway.core.policy.units import parse_length
from headway.core.suggest import did_you_mean
from headway.core.what_if import ADDED
from headway.core.worker import ANY_TASK, WorkerInfo, serves
from headway.estimates.load import DEFAULT_SLOTS
from headway.stores.base import LaneStats, Stats

DUE_SOON_MS = 300_000  # Milliseconds. KEDA waits this long by default before it removes the last Pod.
PRECISION = 50  # An advice of more than this many slots is exact to 1 part in this many, which saves forecasts.
WITHIN_REACH = 1.05  # If no number of slots is enough, a p90 of at most this multiple of the best one is.


class ScaleAdvice(NamedTuple):
    """The number of slots that a lane wants beside those it has. ``wait_p90``: seconds until its last job starts."""

    slots_wanted: int
    slots: int
    busy: int
    waiting: int
    wait_p90: float | None
    basis: str


def read_within(text: str) -> float:
    """Read how long jobs may wait: ``30``, ``30s`` or ``5m``. Return seconds. Raises ``ConfigError``."""
    text = text.strip()
    try:
        return parse_length(int(text) if text.isdecimal() and text.isascii() else text) / 1_000
    except ValueError as problem:
        raise ConfigError(f"within: {problem}") from None


def advise_slots(forecast: Forecast, stats: Stats, policy: Policy, lane: str, within: float) -> ScaleAdvice:
    """Return how many slots let the last waiting job of a lane start within some seconds, nine times of ten.

    The advice is never below what runs. It is 0 only if no job of the lane waits, is held or is due soon, and no job
    runs. Raises ``ConfigError`` for an unknown lane.
    """
    if lane not in policy.lanes and lane not in stats.lanes:
        known = ", ".join(policy.lanes)
        raise ConfigError(f"no lane {lane!r}{did_you_mean(lane, list(policy.lanes))} (lanes: {known})")
    counts, queue = stats.lanes.get(lane, LaneStats()), forecast.queue
    pool = _Pool(forecast, policy, lane)
    now = pool.estimate(pool.slots)
    facts = (pool.slots, pool.busy, counts.waiting, now.p90)
    due_soon = counts.delayed and (queue.snapshot.next_due_at or 0) <= queue.now_at + DUE_SOON_MS + within * 1_000
    if not (counts.waiting or counts.held or due_soon or counts.executing or pool.busy):
        return ScaleAdvice(0, *facts, now.basis)
    least, waiting = max(1, pool.busy, counts.executing), sum(one.waiting for one in stats.lanes.values())
    most = least + waiting  # Then no job waits for another.
    best = pool.estimate(most)
    if best.p90 is None or best.basis == "unknown":
        # Too little is known, or the lane is paused. What is there stays as long as jobs wait, so that it is learned.
        return ScaleAdvice(max(least, pool.slots) if waiting else least, *facts, best.basis)
    enough = max(within, best.p90 * WITHIN_REACH)
    return ScaleAdvice(_fewest(partial(pool.starts_within, enough), least, most), *facts, best.basis)


def _fewest(fits: partial[bool], least: int, most: int) -> int:
    """Return the fewest slots that fit. ``most`` fits.

    Which numbers it tries depends only on earlier answers. So a longer time never gets more slots, even if a forecast
    with one slot more is now and then a little worse.
    """
    low, high = least - 1, least
    while high < most and not fits(high):
        low, high = high, min(most, 2 * high)
    while high - low > max(1, high // PRECISION):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


class _Pool:
    """The live workers that can run jobs of a lane, as if they had more slots or fewer."""

    def __init__(self, forecast: Forecast, policy: Policy, lane: str) -> None:
        self._forecast = forecast
        self._policy = policy
        queue = forecast.queue
        views = [view for view in queue.snapshot.classes if view.key.lane == lane and view.waiting]
        self._needs = {need for view in views for need in view.key.needs}
        able = [worker for worker in queue.active_workers if _serves_any(worker, [view.key for view in views])]
        ids = {worker.worker_id for worker in able}
        self._ids = ids
        self._able = able
        self._requests = [
            EstimateRequest(view.key, ahead=view.waiting - 1)
            for view in views
            if not able or any(serves(view.key.needs, frozenset(worker.offers)) for worker in able)
        ] or [EstimateRequest(ClassKey(lane))]
        self.slots = sum(worker.slots for worker in able)
        self.busy = sum(job.worker_id in ids for job in queue.executing)

    def starts_within(self, seconds: float, slots: int) -> bool:
        p90 = self.estimate(slots).p90
        return p90 is not None and p90 <= seconds

    def estimate(self, slots: int) -> Estimate:
        """Return when the last job of the lane would start with this many slots: that of the slowest class."""
        forecast = self._forecast
        if slots != self.slots:
            forecast = forecast.under(self._policy, self._resized(slots))
        found = [forecast.of(request) for request in self._requests]
        unknown = next((one for one in found if one.p90 is None), None)
        return unknown or max(found, key=lambda one: one.p90 or 0.0)

    def _resized(self, slots: int) -> QueueDiagnostics:
        """Return the queue with this many slots in the pool. Added workers are of the same size as those there are."""
        queue, more = self._forecast.queue, slots - self.slots
        if more < 0:
            return queue._replace(workers=self._shrunk(-more))
        size = max((worker.slots for worker in self._able), default=DEFAULT_SLOTS)
        reserved = reserved_slots(self._policy, size, None) * -(-more // size)
        offers = {offer for worker in self._able for offer in worker.offers} or {*self._needs, ANY_TASK}
        added = WorkerInfo(
            worker_id=ADDED,
            host="",
            pid=0,
            slots=more,
            reserved=min(reserved, max(0, more - 1)),
            offers=tuple(sorted(offers)),
            version="",
        )
        return queue._replace(workers=(*queue.workers, added))

    def _shrunk(self, fewer: int) -> tuple[WorkerInfo, ...]:
        """Return the workers with this many free slots fewer."""
        found: list[WorkerInfo] = []
        for worker in self._forecast.queue.workers:
            if worker.worker_id in self._ids:
                cut = max(0, min(fewer, worker.slots - worker.running))
                fewer -= cut
                slots = worker.slots - cut
                worker = replace(worker, slots=slots, reserved=max(0, min(worker.reserved, slots - 1)))
            found.append(worker)
        return tuple(found)


def _serves_any(worker: WorkerInfo, keys: Sequence[ClassKey]) -> bool:
    offers = frozenset(worker.offers)
    return not keys or any(serves(key.needs, offers) for key in keys)
