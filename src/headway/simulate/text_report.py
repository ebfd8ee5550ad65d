"""The report of a simulation as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headway.simulate.groups import PARTS, GroupFigures
from headway.simulate.report import Comparison, FigureChange, ScenarioResult, SimulationReport

SHOWN_MAX = 20  # Groups in a table: the busiest ones.
MINUS = "−"
SAME = "="
DURATIONS = "Durations are replayed: a policy that changes how long jobs take is not foreseen."


def text_report(report: SimulationReport, by: Sequence[str] = ("lane",), *, seconds: float | None = None) -> str:
    """Return the report as lines of text. ``seconds``: how long the simulation took."""
    lines = [_title(report, seconds), _calibration(report), ""]
    shown: Sequence[Comparison | None] = report.comparisons or [None]
    for comparison in shown:
        result = report.base if comparison is None else comparison.result
        if len(report.comparisons) > 1:
            lines += [f"{result.scenario.name}:", ""]
        for kind in by:
            lines += [*_table(kind, result, comparison), ""]
        if comparison is not None:
            lines.append(_who(comparison))
        lines += [_slots(report.base, result), *_endings(report.base, result), _promises(result), ""]
    if report.input.ignored:
        lines.append(f"Columns that mean nothing here: {', '.join(report.input.ignored)}.")
    return "\n".join([*lines, DURATIONS])


def length_text(seconds: float, like: float | None = None) -> str:
    """Return a length of time. ``like``: use the unit in which this length is written."""
    unit = abs(seconds if like is None else like)
    sign = MINUS if seconds < 0 else ""
    seconds = abs(seconds)
    if unit < 9.95:
        return f"{sign}{seconds:.1f} s"
    if unit < 1_800:
        return f"{sign}{seconds:,.0f} s"
    return f"{sign}{seconds / 60:,.0f} min" if unit < 10_800 else f"{sign}{seconds / 3_600:,.1f} h"


def change_text(change: FigureChange | None) -> str:
    """Return how much a figure changes, or ``=`` within its noise. The longest wait changes by a length."""
    if change is None:
        return "new"
    if change.same:
        return SAME
    if change.metric == "max":
        text = length_text(change.after - change.before, change.after)
        return text if text.startswith(MINUS) else f"+{text}"
    return percent_text(change)


def percent_text(change: FigureChange) -> str:
    """Return a change in per cent, or as a factor if it is large."""
    ratio = change.ratio
    if ratio is None or ratio >= 10:
        return f"from {length_text(change.before)}"
    part = round(100 * (ratio - 1))
    return f"{MINUS}{-part} %" if part < 0 else f"+{part} %"


def _title(report: SimulationReport, seconds: float | None) -> str:
    given, scenarios = report.input, [result.scenario for result in report.results]
    what = f"Replayed {given.jobs:,} jobs of {length_of(given.span_ms)}"
    if given.scale != 1:
        what += f" at {given.scale:g} times the arrivals"
    capacities = list(dict.fromkeys(scenario.capacity.describe() for scenario in scenarios))
    count = len(scenarios) * given.seeds
    times = {1: "once", 2: "twice"}.get(count, f"{count} times")
    took = "" if seconds is None else f", in {seconds:,.1f} s"
    names = [scenario.name for scenario in scenarios]
    against = f"{names[0]} against {' and '.join(names[1:])}" if len(names) > 1 else names[0]
    first = against if "." in against.split()[0] else f"{against[:1].upper()}{against[1:]}"
    return f"{what} on {' and on '.join(capacities)}, {times}{took}. {first}."


def length_of(span_ms: int) -> str:
    """Return the length of a trace."""
    seconds = span_ms / 1_000
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.3g} h"


def _calibration(report: SimulationReport) -> str:
    left = ", ".join(f"{count:,} {why}" for why, count in report.input.left_out.items())
    out = f"{sum(report.input.left_out.values()):,} left out: {left}" if left else "none left out"
    found = report.calibration
    if found is None:
        why = "a model never happened" if report.input.kind == "model" else "it has no recorded waits"
        what = "the next minutes have not happened" if report.input.kind == "now" else why
        return f"Calibration: none, because {what} ({out})."
    return (
        f"Calibration: the policy in force replays p50 within {100 * found.p50_error:.0f} %, "
        f"p90 within {100 * found.p90_error:.0f} % ({found.jobs:,} jobs; {out})."
    )


def _table(by: str, result: ScenarioResult, comparison: Comparison | None) -> list[str]:
    groups = result.by(by)
    head = [by, "jobs"]
    for metric in (*PARTS, "max"):
        name = {"p50": "wait p50", "max": "longest"}.get(metric, metric)
        head += [name, ""] if comparison is not None else [name]
    rows = [[*head, "busy"]]
    rows += [_row(by, figures, comparison) for figures in groups[:SHOWN_MAX]]
    numbers = {1, len(rows[0]) - 1}
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    if len(groups) > SHOWN_MAX:
        lines.append(f"and {len(groups) - SHOWN_MAX} more")
    return lines


def _row(by: str, figures: GroupFigures, comparison: Comparison | None) -> list[str]:
    cells = [figures.key, f"{figures.jobs:,}"]
    for metric in (*PARTS, "max"):
        cells.append(length_text(getattr(figures, metric)))
        if comparison is not None:
            cells.append(change_text(comparison.changes.get((by, figures.key, metric))))
    return [*cells, f"{figures.busy:.0%}".replace("%", " %")]


def _who(comparison: Comparison) -> str:
    gains = ", ".join(_named(comparison, change) for change in comparison.gains) or "none beyond the noise"
    losses = ", ".join(_named(comparison, change) for change in comparison.losses) or "none beyond the noise"
    return f"Who gains: {gains}.   Who loses: {losses}."


def _named(comparison: Comparison, change: FigureChange) -> str:
    jobs = comparison.result.groups[change.by, change.key].jobs
    who = f"tenant {change.key}" if change.by == "tenant" else change.key
    return f"{who} {percent_text(change)} at p90 ({jobs:,} jobs)"


def _slots(base: ScenarioResult, result: ScenarioResult) -> str:
    def was(before: float, after: float) -> str:
        return "" if result is base else " (=)" if round(before, 3) == round(after, 3) else f" (was {before:.1%})"

    parts = [f"Slots busy {result.busy:.0%}{was(base.busy, result.busy)}."]
    if result.scenario.policy.reserve.slots:
        idle = result.reserve_idle
        parts.append(f"Reserve idle while others waited: {idle:.1%} of the time{was(base.reserve_idle, idle)}.")
    return " ".join(parts).replace("%", " %")


def _endings(base: ScenarioResult, result: ScenarioResult) -> Iterator[str]:
    names = {
        "lowered": "Lowered",
        "timeouts": "Stopped by a timeout",
        "retried": "Retried",
        "expired": "Expired before they started",
        "dead_letter": "Dead letters",
        "never_started": "Never started",
    }
    found = []
    for name, text in names.items():
        before, after = base.totals[name], result.totals[name]
        if before or after:
            was = "" if result is base else f" (was {before:,})" if before != after else " (=)"
            found.append(f"{text}: {after:,}{was}.")
    if found:
        yield " ".join(found)


def _promises(result: ScenarioResult) -> str:
    broken = [promise for promise in result.promises if promise.jobs]
    if not result.promises:
        return f"Promises of {result.scenario.name}: none that a replay can check."
    text = "; ".join(
        f"{one.lane} is guaranteed {one.slots:.3g} slots after {length_text(one.after_ms / 1_000)}, and {one.jobs:,} "
        f"jobs waited longer, by up to {length_text(one.late_ms / 1_000)}"
        for one in broken
    )
    return f"Promises of {result.scenario.name} that did not hold: {text or 'none'}."
