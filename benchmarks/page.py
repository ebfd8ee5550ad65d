"""Write the figures of a run into docs/explain/benchmarks.md.

make bench ARGS="--json figures.json" && .venv/bin/python -m benchmarks.page figures.json

Figures of growth have a part of the page for themselves: they come from a run with ``--only growth``.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.features.table import FEATURES
from benchmarks.report import COLUMNS
from benchmarks.workflows.measure import SHAPES

PAGE = Path(__file__).parents[1] / "docs" / "explain" / "benchmarks.md"
END = "<!-- end of run -->"
AXES = {
    "waiting": "waiting jobs",
    "tenants": "tenants",
    "keys": "keys of a limit",
    "classes": "classes",
    "processes": "worker processes of 20 slots",
    "history": "finished jobs",
    "streams": "open event streams",
}


def begin(part: str) -> str:
    """Return the mark that begins a part of the page."""
    return f"<!-- {part}: written by benchmarks.page -->"


def section(figures: dict[str, Any]) -> Iterator[str]:
    """Return the lines between the two marks for a run."""
    yield from _machine(figures)
    yield ""
    if growth := figures.get("growth"):
        yield from _growth(growth, figures.get("plan_us", {}))
    else:
        yield from _table(figures["contenders"])
        yield from _rest(figures)


def _machine(figures: dict[str, Any]) -> Iterator[str]:
    facts = figures["machine"]
    arguments = re.sub(r" ?--json \S+", "", facts["arguments"])
    command = f'make bench ARGS="{arguments}"' if arguments else "make bench"
    yield f"Taken on {facts['date']} with `{command}`:"
    yield f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}, {', '.join(facts['stores'])}."
    spin = f"{facts['spin_ms']:.0f} ms before and {facts['spin_after_ms']:.0f} ms after the run"
    yield f"The load was {facts['load']:.1f} at the start. The fixed piece of work took {spin}."
    yield "Workers do not log jobs here." if "growth" in figures else "Every worker logs as it does by default."


def _table(rows: dict[str, dict[str, Any]]) -> Iterator[str]:
    shown = [column for column in COLUMNS if any(column[1] in row for row in rows.values())]
    yield "| | " + " | ".join(title for title, *_ in shown) + " |"
    yield "|---|" + "---:|" * len(shown)
    for name, row in rows.items():
        cells = (show(row[figure]) if figure in row else "" for _, figure, show, _ in shown)
        yield f"| {f'**{name}**' if row['ours'] else name} | " + " | ".join(cells) + " |"


def _rest(figures: dict[str, Any]) -> Iterator[str]:
    if features := figures.get("features"):
        yield "\nCPU µs of a job by feature, and as a multiple of a plain job at that depth:\n"
        yield "| | " + " | ".join(features) + " |"
        yield "|---|" + "---:|" * len(features)
        for name, feature in FEATURES.items():
            cells = (_cost(costs.get(name, {})) for costs in features.values())
            yield f"| {feature.title} | " + " | ".join(cells) + " |"
    if workflows := figures.get("workflows"):
        yield "\nCPU µs of a job in a workflow, and as a multiple of a plain job in the same round:\n"
        yield "| | " + " | ".join(workflows) + " |"
        yield "|---|" + "---:|" * len(workflows)
        for shape, title in SHAPES.items():
            cells = (_cost(costs.get(shape, {})) for costs in workflows.values())
            yield f"| {title} | " + " | ".join(cells) + " |"
    missed = [verdict for verdict in figures["verdicts"] if verdict["outcome"] == "missed"]
    yield f"\nTargets missed in this run ({len(missed)}):\n"
    yield "| target | asked | measured |\n|---|---|---|"
    yield from (f"| {verdict['target']} | {verdict['asked']} | {verdict['measured']} |" for verdict in missed)


def _growth(stores: dict[str, dict[str, dict[str, dict[str, Any]]]], plan_us: dict[str, float]) -> Iterator[str]:
    """Return the table of a job's cost at each step, beside the first step."""
    yield "| | " + " | ".join(stores) + " |"
    yield "|---|" + "---:|" * len(stores)
    for axis in dict.fromkeys(axis for axes in stores.values() for axis in axes):
        steps = [axes.get(axis, {}) for axes in stores.values()]
        for step in dict.fromkeys(step for costs in steps for step in costs):
            firsts = (next(iter(costs.values()), {}) for costs in steps)
            cells = (_beside(costs.get(step, {}), first) for costs, first in zip(steps, firsts, strict=True))
            yield f"| {AXES[axis]}: {int(step):,} | " + " | ".join(cells) + " |"
    if plan_us:
        spent = ", ".join(f"{cost:.0f} µs with {classes}" for classes, cost in plan_us.items())
        yield f"\nA worker's plan takes {spent} classes."


def _beside(cost: dict[str, Any], first: dict[str, Any]) -> str:
    return f"{cost['us']:.0f} ({cost['us'] / first['us']:.2f} ×)" if cost else ""


def _cost(cost: dict[str, Any]) -> str:
    return f"{cost['us']:.0f} ({cost['ratio']:.2f} ×)" if "ratio" in cost else ""


def main() -> None:
    page, figures = PAGE.read_text(), json.loads(Path(sys.argv[1]).read_text())
    mark = begin("growth" if "growth" in figures else "run")
    before, after = page.split(mark)
    PAGE.write_text("\n".join([f"{before}{mark}", *section(figures), "", after[after.index(END) :]]))


if __name__ == "__main__":
    main()
