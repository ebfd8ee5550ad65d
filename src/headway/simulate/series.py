"""Figures over time: the waits of each lane, and the slots that it fills."""

from __future__ import annotations

from dataclasses import dataclass

from headway.simulate.groups import quantile
from headway.simulate.outcome import NEVER
from headway.simulate.report import ScenarioResult, SimulationReport


@dataclass(frozen=True, slots=True)
class LaneSeries:
    """One lane over time. ``p50`` and ``p90`` are the waits of the jobs that came in each step, None without a job.

    ``slots`` is how many slots it filled on average. It goes on after the last arrival.
    """

    step_ms: int
    p50: list[float | None]
    p90: list[float | None]
    slots: list[float]


def series_of(report: SimulationReport, result: ScenarioResult) -> dict[str, LaneSeries]:
    """Return the series of each lane, in the order of service, over all seeds together."""
    first = result.outcomes[0]
    step_ms = first.bucket_ms
    steps = report.input.span_ms // step_ms + 1
    waits: dict[str, list[list[int]]] = {}
    for jobs, outcome in zip(report.jobs, result.outcomes, strict=True):
        for job, wait, lane in zip(jobs, outcome.waits, outcome.lanes, strict=True):
            if wait != NEVER and job.counted:
                here = waits.setdefault(lane, [[] for _ in range(steps)])
                here[min(steps - 1, job.arrives_ms // step_ms)].append(wait)
    found: dict[str, LaneSeries] = {}
    for figures in result.by("lane"):
        lane = figures.key
        columns = [sorted(column) for column in waits.get(lane, [[] for _ in range(steps)])]
        busy = [outcome.busy_over_time.get(lane, []) for outcome in result.outcomes]
        longest = max(map(len, busy), default=0)
        totals = [sum(points[at] for points in busy if at < len(points)) for at in range(longest)]
        found[lane] = LaneSeries(
            step_ms,
            [quantile(column, 0.5) / 1_000 if column else None for column in columns],
            [quantile(column, 0.9) / 1_000 if column else None for column in columns],
            [round(total / step_ms / len(busy), 4) for total in totals],
        )
    return found
