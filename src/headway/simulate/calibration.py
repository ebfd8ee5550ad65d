"""Compares a replay with what really happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headway.simulate.groups import quantile
from headway.simulate.job import SimulatedJob
from headway.simulate.outcome import NEVER, Outcome

JOBS_LEAST = 20  # A lane with fewer jobs has no p90 to speak of.
FLOOR_MS = 100  # Errors count against at least this wait. A tenth of a millisecond is not ten per cent of anything.


@dataclass(frozen=True, slots=True)
class LaneCalibration:
    """The waits of one lane in seconds: as they were, and as they are replayed."""

    lane: str
    jobs: int
    p50: float
    p90: float
    replayed_p50: float
    replayed_p90: float

    @property
    def p50_error(self) -> float:
        return _error(self.p50, self.replayed_p50)

    @property
    def p90_error(self) -> float:
        return _error(self.p90, self.replayed_p90)


@dataclass(frozen=True, slots=True)
class Calibration:
    """The difference between a replay of the policy in force and the record. The errors are those of the worst lane."""

    jobs: int
    p50_error: float
    p90_error: float
    lanes: tuple[LaneCalibration, ...]


def calibrate(jobs: Sequence[SimulatedJob], outcome: Outcome) -> Calibration | None:
    """Compare the replayed waits with the recorded ones, or return None if too few are recorded."""
    lanes: dict[str, tuple[list[int], list[int]]] = {}
    for job, wait, lane in zip(jobs, outcome.waits, outcome.lanes, strict=True):
        if job.waited_ms is not None and wait != NEVER:
            real, replayed = lanes.setdefault(lane, ([], []))
            real.append(job.waited_ms)
            replayed.append(wait)
    found = [_lane(lane, sorted(real), sorted(replayed)) for lane, (real, replayed) in sorted(lanes.items())]
    counted = [lane for lane in found if lane.jobs >= JOBS_LEAST]
    if not counted:
        return None
    return Calibration(
        sum(lane.jobs for lane in found),
        max(lane.p50_error for lane in counted),
        max(lane.p90_error for lane in counted),
        tuple(found),
    )


def _lane(lane: str, real: Sequence[int], replayed: Sequence[int]) -> LaneCalibration:
    figures = [quantile(waits, part) / 1_000 for waits in (real, replayed) for part in (0.5, 0.9)]
    return LaneCalibration(lane, len(real), *figures)


def _error(real: float, replayed: float) -> float:
    return abs(replayed - real) / max(real, FLOOR_MS / 1_000)
