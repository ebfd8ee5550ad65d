"""The report of a simulation as JSON values."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from headway.core.timestamps import write_moment
from headway.simulate.groups import BY, GroupFigures
from headway.simulate.report import Comparison, FigureChange, ScenarioResult, SimulationReport
from headway.simulate.series import series_of

VERSION = 1


def json_report(report: SimulationReport) -> dict[str, Any]:
    """Return the whole report. Times are seconds."""
    given = report.input
    return {
        "version": VERSION,
        "input": {
            "kind": given.kind,
            "source": given.source,
            "jobs": given.jobs,
            "seconds": given.span_ms / 1_000,
            "begins_at": write_moment(given.begin_at),
            "seeds": given.seeds,
            "scale": given.scale,
            "left_out": dict(given.left_out),
            "ignored_columns": list(given.ignored),
        },
        "calibration": None if report.calibration is None else asdict(report.calibration),
        "policies": [_policy(report, result) for result in report.results],
        "compare": [_change(one, change) for one in report.comparisons for change in one.changes.values()],
        "gains": [_change(one, change) for one in report.comparisons for change in one.gains],
        "losses": [_change(one, change) for one in report.comparisons for change in one.losses],
        "promises": [
            {
                "policy": result.scenario.name,
                "lane": promise.lane,
                "slots": promise.slots,
                "after": promise.after_ms / 1_000,
                "held": not promise.jobs,
                "late_jobs": promise.jobs,
                "late_seconds": promise.late_ms / 1_000,
            }
            for result in report.results
            for promise in result.promises
        ],
    }


def _policy(report: SimulationReport, result: ScenarioResult) -> dict[str, Any]:
    scenario = result.scenario
    return {
        "name": scenario.name,
        "version": scenario.version,
        "slots": scenario.capacity.slots,
        "workers": len(scenario.capacity.workers),
        "totals": {"busy": result.busy, "reserve_idle": result.reserve_idle, **result.totals},
        "groups": [_group(figures) for by in BY for figures in result.by(by)],
        "series": [
            {
                "lane": lane,
                "step": points.step_ms / 1_000,
                "p50": points.p50,
                "p90": points.p90,
                "slots": points.slots,
            }
            for lane, points in series_of(report, result).items()
        ],
    }


def _group(figures: GroupFigures) -> dict[str, Any]:
    within = {str(bound): part for bound, part in figures.started_within.items()}
    return asdict(figures) | {"started_within": within}


def _change(comparison: Comparison, change: FigureChange) -> dict[str, Any]:
    return {
        "policy": comparison.result.scenario.name,
        "by": change.by,
        "group": change.key,
        "metric": change.metric,
        "from": change.before,
        "to": change.after,
        "ratio": change.ratio,
        "noise": list(change.noise),
        "same": change.same,
    }
