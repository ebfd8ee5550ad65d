"""Write the figures of a run into docs/explain/benchmarks.md.

make bench ARGS="--json figures.json" && .venv/bin/python -m benchmarks.page figures.json
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

PAGE = Path(__file__).parents[1] / "docs" / "explain" / "benchmarks.md"
BEGIN, END = "<!-- run: written by benchmarks.page -->", "<!-- end of run -->"


def section(figures: dict[str, Any]) -> str:
    """Build the part of the page between the two marks."""
    return "\n".join(
        [BEGIN, *_machine(figures["machine"]), "", *_table(figures["contenders"]), *_rest(figures), "", END]
    )


def _machine(facts: dict[str, Any]) -> Iterator[str]:
    arguments = re.sub(r" ?--json \S+", "", facts["arguments"])
    command = f'make bench ARGS="{arguments}"' if arguments else "make bench"
    yield f"Taken on {facts['date']} with `{command}`:"
    yield f"{facts['processor']}, {facts['cores']} cores, Python {facts['python']}, {', '.join(facts['stores'])}."
    spin = f"{facts['spin_ms']:.0f} ms before and {facts['spin_after_ms']:.0f} ms after the run"
    yield f"The load was {facts['load']:.1f} at the start. The fixed piece of work took {spin}."
    yield "Every worker logs as it does by default."


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
    missed = [verdict for verdict in figures["verdicts"] if verdict["outcome"] == "missed"]
    yield f"\nTargets missed in this run ({len(missed)}):\n"
    yield "| target | asked | measured |\n|---|---|---|"
    yield from (f"| {verdict['target']} | {verdict['asked']} | {verdict['measured']} |" for verdict in missed)


def _cost(cost: dict[str, Any]) -> str:
    return f"{cost['us']:.0f} ({cost['ratio']:.2f} ×)" if "ratio" in cost else ""


def main() -> None:
    page = PAGE.read_text()
    written = section(json.loads(Path(sys.argv[1]).read_text()))
    PAGE.write_text(page[: page.index(BEGIN)] + written + page[page.index(END) + len(END) :])


if __name__ == "__main__":
    main()
