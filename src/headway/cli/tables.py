"""Tables of several commands: lanes, workers, running jobs, rates. Imported only by commands that draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from headway.cli import render
from headway.core.job import JobRecord
from headway.core.policy.document import Policy
from headway.core.worker import capabilities_in, tasks_in
from headway.stores.base import Stats

COUNTED = ("submitted", "completed", "retried", "snoozed", "released", "failed", "cancelled", "dead_letter")
BAR = 12  # Columns of a progress bar.
CAPABILITIES_LEAST = 12  # Columns that the capabilities of a worker need at least; more are folded.


def lanes_table(stats: Stats, policy: Policy | None = None) -> Table:
    """Return a table of the lanes, in the order in which they are served."""
    holds = any(lane.held for lane in stats.lanes.values())
    numbers = ["waiting", "delayed", *(["held"] if holds else []), "executing", "oldest"]
    made = render.table("lane", *numbers, right=numbers)
    for name, lane in render.ordered_lanes(stats, policy):
        made.add_row(
            render.text(name),
            _count(lane.waiting),
            _count(lane.delayed),
            *([_count(lane.held)] if holds else []),
            _count(lane.executing, "cyan"),
            render.age(lane.oldest_at, stats.now_at),
        )
    return made


def counts_line(counts: Mapping[str, int], none: str = "nothing") -> Text:
    """Write counts in a row, those that are zero left out."""
    known = [name for name in COUNTED if counts.get(name)]
    parts = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in known]
    promoted = sum(count for name, count in counts.items() if name.startswith("promoted."))
    parts += [f"{promoted:,} promoted"] if promoted else []
    return render.text(", ".join(parts) or none)


def workers_table(stats: Stats, *, dead: bool = True) -> render.FittedTable:
    """Return a table of the workers. ``dead`` includes dead workers."""
    rows: list[dict[str, str | Text]] = [
        {
            "worker": render.text(worker.worker_id),
            "state": render.status_text(worker.state.value),
            "running": f"{worker.running}/{worker.slots}",
            "reserved": str(worker.reserved),
            "capabilities": render.text(", ".join(capabilities_in(worker.offers)) or render.NOTHING),
            "tasks": str(len(tasks_in(worker.offers))),
            "up for": render.age(worker.started_at, stats.now_at),
            "heartbeat": f"{render.age(worker.heartbeat_at, stats.now_at)} ago",
            "version": render.text(worker.version),
        }
        for worker in (stats.workers if dead else stats.live_workers)
    ]
    return render.FittedTable(
        rows,
        ("worker", "state", "running", "reserved", "capabilities", "tasks", "up for", "heartbeat", "version"),
        ("worker", "state", "running", "reserved", "capabilities", "up for", "heartbeat"),
        ("worker", "state", "running", "up for", "heartbeat"),
        ("worker", "state", "running", "heartbeat"),
        ("worker", "state", "running"),
        kept="worker",
        right=["running", "reserved", "tasks", "up for", "heartbeat"],
        flexible={"capabilities": CAPABILITIES_LEAST},
    )


def running_table(jobs: Sequence[JobRecord], now_at: int) -> render.FittedTable:
    short = render.short_ids(job.job_id for job in jobs)
    rows: list[dict[str, str | Text]] = [
        {
            "running": render.text(job.task),
            "id": render.text(job.job_id),
            "id:short": render.text(short[job.job_id]),
            "lane": render.text(job.lane),
            "attempt": str(job.attempts),
            "for": render.age(job.started_at, now_at),
            "progress": _progress(job),
        }
        for job in jobs
    ]
    return render.FittedTable(
        rows,
        ("running", "id", "lane", "attempt", "for", "progress"),
        ("running", "id:short", "lane", "attempt", "for", "progress"),
        ("running", "id:short", "lane", "for", "progress"),
        ("running", "id:short", "for", "progress"),
        ("running", "id:short", "progress"),
        kept="running",
        right=["attempt", "for"],
        flexible={"progress": BAR + 5},
    )


def _progress(job: JobRecord) -> Text:
    if job.progress is None:
        return Text(render.NOTHING)
    full = round(job.progress * BAR)
    bar = Text("━" * full, "cyan") + Text("╌" * (BAR - full), "bright_black")
    return bar + Text(f" {job.progress:.0%} ") + render.text(render.cut(job.note or "", 40), "dim")


def _count(number: int, style: str = "") -> Text:
    return Text(f"{number:,}", style if number else "dim")
