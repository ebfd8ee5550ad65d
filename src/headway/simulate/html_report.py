"""The report of a simulation as one HTML file: drawings in SVG, no script, light or dark as the reader's system."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from headway.core.policy.writer import flat_data, policy_data
from headway.simulate.report import Comparison, FigureChange, ScenarioResult, SimulationReport
from headway.simulate.series import series_of
from headway.simulate.svg import dumbbell_chart, slots_chart, wait_chart
from headway.simulate.text_report import change_text, length_text, text_report

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5b6676; --line: #d9dee6; --page: #ffffff; --card: #f6f8fa;
  --before: #8a94a3; --after: #2563eb; --better: #15803d; --worse: #b91c1c;
  --lane0: #2563eb; --lane1: #0d9488; --lane2: #d97706; --lane3: #7c3aed; --lane4: #db2777; --lane5: #65a30d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6eaf0; --soft: #9aa5b4; --line: #313a47; --page: #12161c;
  --card: #1a2029; --before: #77818f; --after: #60a5fa; --better: #4ade80; --worse: #f87171;
  --lane0: #60a5fa; --lane1: #2dd4bf; --lane2: #fbbf24; --lane3: #a78bfa; --lane4: #f472b6; --lane5: #a3e635; } }
body { margin: 0 auto; padding: 32px 24px 64px; max-width: 860px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 24px; margin: 0 0 8px; } h2 { font-size: 18px; margin: 36px 0 8px; }
h3 { font-size: 14px; margin: 16px 0 0; color: var(--soft); font-weight: 600; }
p { margin: 6px 0; } .soft { color: var(--soft); }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th { text-align: left; font-weight: 600; color: var(--soft); } th, td { padding: 5px 12px 5px 0; }
tr { border-bottom: 1px solid var(--line); } td.number, th.number { text-align: right; }
.scroll { overflow-x: auto; } .better { color: var(--better); } .worse { color: var(--worse); }
svg { width: 100%; height: auto; display: block; margin: 4px 0 8px; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; } svg text.name { fill: var(--ink); }
.grid { stroke: var(--line); } .all { stroke: var(--soft); stroke-dasharray: 4 4; }
.band { opacity: 0.25; } .band.before { fill: var(--before); } .band.after { fill: var(--after); }
.line { fill: none; stroke-width: 2; } .line.thin { stroke-width: 1; }
.line.before { stroke: var(--before); } .line.after { stroke: var(--after); }
line.better { stroke: var(--better); } line.worse { stroke: var(--worse); } line.same { stroke: var(--before); }
line.better, line.worse, line.same { stroke-width: 2.5; }
circle.better { fill: var(--better); } circle.worse { fill: var(--worse); } circle.same { fill: var(--before); }
circle.was { fill: var(--page); stroke: var(--before); stroke-width: 2; }
.lane0 { fill: var(--lane0); } .lane1 { fill: var(--lane1); } .lane2 { fill: var(--lane2); }
.lane3 { fill: var(--lane3); } .lane4 { fill: var(--lane4); } .lane5 { fill: var(--lane5); }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin: 0 6px 0 16px; }
"""


def html_report(report: SimulationReport) -> str:
    """Return the report as one page that loads nothing."""
    title, held, *_ = text_report(report).splitlines()
    body = [f"<h1>What would change</h1><p>{escape(title)}</p><p class=soft>{escape(held)}</p>"]
    shown: Sequence[Comparison | None] = report.comparisons or [None]
    for comparison in shown:
        body += _section(report, comparison)
    notes = escape(text_report(report).splitlines()[-1])
    style = STYLE.strip()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>What would change</title><style>{style}</style></head>\n<body>"
        f"{''.join(body)}<p class=soft>{notes}</p></body></html>\n"
    )


def _section(report: SimulationReport, comparison: Comparison | None) -> Iterator[str]:
    base = report.base
    result = base if comparison is None else comparison.result
    if comparison is not None:
        yield f"<h2>{escape(base.scenario.name)} → {escape(result.scenario.name)}</h2>"
    yield _table("lane", result, comparison)
    yield "".join(f"<p>{escape(line)}</p>" for line in _sentences(report, comparison))
    yield from _charts(report, result, comparison)
    if comparison is not None:
        yield from _dumbbells(comparison)
        yield _policy_diff(base, result)
    for by in ("tenant", "task", "duration"):
        if len(result.by(by)) > 1:
            yield f"<h2>By {by}</h2>{_table(by, result, comparison)}"


def _sentences(report: SimulationReport, comparison: Comparison | None) -> list[str]:
    """Return what the text report says below its table."""
    alone = SimulationReport(
        report.input, report.calibration, report.results, [comparison] if comparison else [], report.jobs
    )
    blocks = text_report(alone).split("\n\n")
    return blocks[2].splitlines() if len(blocks) > 2 else []


def _table(by: str, result: ScenarioResult, comparison: Comparison | None) -> str:
    rows = []
    for figures in result.by(by)[:20]:
        cells = [f"<td>{escape(figures.key)}</td><td class=number>{figures.jobs:,}</td>"]
        for metric in ("p50", "p90", "p99", "max"):
            change = None if comparison is None else comparison.changes.get((by, figures.key, metric))
            cells.append(f"<td class=number>{length_text(getattr(figures, metric))}</td>")
            if comparison is not None:
                cells.append(f'<td class="{_kind(change)}">{escape(change_text(change))}</td>')
        cells.append(f"<td class=number>{100 * figures.busy:.0f} %</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    extra = "<th></th>" if comparison is not None else ""
    heads = "".join(f"<th class=number>{name}</th>{extra}" for name in ("wait p50", "p90", "p99", "longest"))
    head = f"<tr><th>{by}</th><th class=number>jobs</th>{heads}<th class=number>busy</th></tr>"
    return f'<div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _kind(change: FigureChange | None) -> str:
    if change is None or change.same:
        return "soft"
    return "worse" if change.after > change.before else "better"


def _charts(report: SimulationReport, result: ScenarioResult, comparison: Comparison | None) -> Iterator[str]:
    span_ms = max(1, report.input.span_ms)
    before = None if comparison is None else series_of(report, report.base)
    after = series_of(report, result)
    yield "<h2>Waits over time</h2>"
    bands = "p50 (thick) to p90 (thin) of the jobs that came at each time"
    keys = f'<span class=key style="background:var(--after)"></span>{escape(result.scenario.name)}'
    if comparison is not None:
        keys = f'<span class=key style="background:var(--before)"></span>{escape(report.base.scenario.name)}{keys}'
    yield f"<p class=soft>{bands}{keys}</p>"
    for lane, points in after.items():
        old = None if before is None or lane not in before else (before[lane].p50, before[lane].p90)
        yield f"<h3>{escape(lane)}</h3>{wait_chart(old, (points.p50, points.p90), span_ms, f'Waits of {lane}')}"
    yield "<h2>Slots</h2>"
    legend = "".join(
        f"<span class=key style='background:var(--lane{number % 6})'></span>{escape(lane)}"
        for number, lane in enumerate(after)
    )
    yield f"<p class=soft>{legend}</p>"
    for one in [result] if comparison is None else [report.base, result]:
        found = series_of(report, one)
        step_ms = one.outcomes[0].bucket_ms
        slots = one.scenario.capacity.slots
        span = max(span_ms, one.outcomes[0].span_ms)
        drawn = slots_chart({lane: points.slots for lane, points in found.items()}, slots, span, step_ms, "Busy slots")
        yield f"<h3>{escape(one.scenario.name)}</h3>{drawn}"


def _dumbbells(comparison: Comparison) -> Iterator[str]:
    yield "<h2>Who gains and who loses</h2>"
    yield "<p class=soft>p90 of the wait: ring before, dot after. The largest loss comes first.</p>"
    for by in ("lane", "tenant", "task"):
        changes = [change for (kind, _, metric), change in comparison.changes.items() if kind == by and metric == "p90"]
        if changes and not (by != "lane" and len(changes) == 1):
            changes.sort(key=lambda change: (change.before + 0.1) / (change.after + 0.1))
            yield f"<h3>{by}</h3>{dumbbell_chart(changes, f'p90 by {by}')}"


def _policy_diff(base: ScenarioResult, result: ScenarioResult) -> str:
    old, new = (
        {path: _text(value) for path, value in flat_data(policy_data(one.scenario.policy))} for one in (base, result)
    )
    keys = [key for key in dict.fromkeys([*old, *new]) if old.get(key) != new.get(key)]
    if not keys:
        return "<h2>The two policies</h2><p>They are the same.</p>"
    rows = "".join(
        f"<tr><td>{escape(key)}</td><td>{escape(old.get(key, '–'))}</td><td>{escape(new.get(key, '–'))}</td></tr>"
        for key in keys
    )
    return f"<h2>The two policies</h2><table><tr><th>key</th><th>before</th><th>after</th></tr>{rows}</table>"


def _text(value: Any) -> str:
    return ", ".join(map(_text, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)
