"""Prints the report of ``headway celery check``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from headway.cli import render
from headway.cli.toml import toml_text
from headway.integrations.celery.adoption.features import FeatureStatus
from headway.integrations.celery.check.project_report import ProjectReport, TaskLine, UsedFeature

PLACES_SHOWN = 3  # Places of a finding that the readable report lists.
STYLES = {FeatureStatus.AS_IS: "green", FeatureStatus.DIFFERS: "yellow", FeatureStatus.REFUSED: "red"}


def report_data(report: ProjectReport) -> dict[str, Any]:
    """Return everything that was found, as plain values."""
    data = asdict(report)
    data["tasks"] = [line._asdict() for line in report.tasks]
    data["findings"] = [finding._asdict() for finding in report.findings]
    data["schedule"] = [line._asdict() for line in report.schedule]
    proposal = report.proposal
    data["proposal"] = {
        "queues": [line._asdict() for line in proposal.queues],
        "policy": proposal.data,
        "policy_toml": policy_text(report),
        "worker_flags": proposal.worker_flags,
    }
    return data | {"ok": not report.refused, "counts": _counts(report.tasks)}


def policy_text(report: ProjectReport) -> str:
    """Return the proposed policy file."""
    lines = [
        f"# Proposed for the Celery project {render.clean(report.project)}. What it does not name is as built in.",
        "# Review the lanes of the queues:",
    ]
    for queue in report.proposal.queues:
        shown = f"{render.plural(queue.tasks, 'task')}, {queue.reason}"
        lines.append(f"#   {render.clean(queue.queue)} -> {queue.lane} ({shown})")
    body = toml_text(report.proposal.data) if report.proposal.tasks else ""
    return "\n".join([*lines, "", body]).rstrip() + "\n"


def show_report(report: ProjectReport) -> None:
    """Print the report for people."""
    console = render.console()
    counts = _counts(report.tasks)
    console.print(
        render.text(f"{report.project}: {render.plural(len(report.tasks), 'task')}", "bold"),
        render.text(f"in {report.folder}, {render.plural(report.files, 'file')} read", "dim"),
    )
    for status in FeatureStatus:
        console.print(render.text(f"  {counts[status.value]:>4} {_said(status)}", STYLES[status]))
    if report.unreadable:
        console.print(render.text(f"  not readable: {', '.join(report.unreadable)}", "red"))
    for status in (FeatureStatus.REFUSED, FeatureStatus.DIFFERS):
        _show_findings([one for one in report.findings if one.status is status], status)
    runs = sorted({one.name for one in report.findings if one.status is FeatureStatus.AS_IS})
    if runs:
        console.print()
        console.print(render.text("As it is", "bold"))
        console.print(render.text("  " + ", ".join(runs)))
    _show_tasks(report.tasks)
    _show_schedule(report)
    _show_proposal(report)


def _said(status: FeatureStatus) -> str:
    return {
        FeatureStatus.AS_IS: "run as they are",
        FeatureStatus.DIFFERS: "run, and something differs",
        FeatureStatus.REFUSED: "use something that is refused",
    }[status]


def _counts(tasks: Sequence[TaskLine]) -> dict[str, int]:
    return {status.value: sum(line.status is status for line in tasks) for status in FeatureStatus}


def _show_findings(findings: Sequence[UsedFeature], status: FeatureStatus) -> None:
    if not findings:
        return
    console = render.console()
    console.print()
    console.print(render.text("Refused" if status is FeatureStatus.REFUSED else "Differs", f"bold {STYLES[status]}"))
    table = render.table("what", "name", "how", "where", flexible=("how", "where"))
    for one in findings:
        more = len(one.places) - PLACES_SHOWN
        places = ", ".join(one.places[:PLACES_SHOWN]) + (f" and {more} more" if more > 0 else "")
        table.add_row(*(render.text(cell) for cell in (one.kind.value, one.name, one.note, places)))
    console.print(table)


def _show_tasks(tasks: Sequence[TaskLine]) -> None:
    if not tasks:
        return
    console = render.console()
    console.print()
    table = render.table("task", "queue", "lane", "runs")
    for line in tasks:
        cells = (render.text(line.name), render.text(line.queue), render.text(line.lane))
        table.add_row(*cells, render.text(line.status.value, STYLES[line.status]))
    console.print(table)


def _show_schedule(report: ProjectReport) -> None:
    if not report.schedule:
        return
    console = render.console()
    console.print()
    table = render.table("beat entry", "task", "schedule", "runs", flexible=("runs",))
    for line in report.schedule:
        shown = line.status.value + (f": {line.note}" if line.note else "")
        cells = (render.text(line.name), render.text(line.task), render.text(line.schedule))
        table.add_row(*cells, render.text(shown, STYLES[line.status]))
    console.print(table)


def _show_proposal(report: ProjectReport) -> None:
    console = render.console()
    console.print()
    console.print(render.text("Proposed policy", "bold"))
    console.print(render.text(policy_text(report), lines=True))
    flags = " ".join(report.proposal.worker_flags)
    console.print(render.text(f"Start: headway worker --celery {report.project} {flags}".rstrip()))
    if report.refused:
        console.print(
            render.text("Something is refused: keep its tasks on Celery with adopt(only=…), or change it.", "red")
        )
