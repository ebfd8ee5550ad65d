"""What several commands draw: lanes, workers, running jobs, rates. Imported only by commands that draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.table import Table
from rich.text import Text

from headway.cli import show
from headway.core.job import Job
from headway.core.policy.document import Policy
from headway.core.worker import WorkerState
from headway.stores.base import Stats

COUNTED = ("submitted", "completed", "retried", "snoozed", "released", "failed", "cancelled", "dead_letter")
BAR = 12  # Columns of a progress bar.
CAPABILITIES_LEAST = 12  # Columns that the capabilities of a worker need at least; more are folded.


def lanes_table(stats: Stats, policy: Policy | None = None) -> Table:
    """Lay out the lanes, the first to be served first."""
    numbers = ["waiting", "delayed", "executing", "oldest"]
    made = show.table("lane", *numbers, right=numbers)
    for name, lane in show.ordered_lanes(stats, policy):
        made.add_row(
            show.text(name),
            _count(lane.waiting),
            _count(lane.delayed),
            _count(lane.executing, "cyan"),
            show.age(lane.oldest_at, stats.now_at),
        )
    return made


def counts_line(counts: Mapping[str, int], none: str = "nothing") -> Text:
    """Write counts in a row, those that are zero left out."""
    known = [name for name in COUNTED if counts.get(name)]
    parts = [f"{counts[name]:,} {name.replace('_', ' ')}" for name in known]
    promoted = sum(count for name, count in counts.items() if name.startswith("promoted."))
    parts += [f"{promoted:,} promoted"] if promoted else []
    return show.text(", ".join(parts) or none)


def workers_table(stats: Stats, *, dead: bool = True) -> show.FittedTable:
    """Lay out the workers; ``dead`` shows also those that are gone."""
    rows: list[dict[str, str | Text]] = [
        {
            "worker": show.text(worker.worker_id),
            "state": show.status_text(worker.state.value),
            "running": f"{worker.running}/{worker.slots}",
            "reserved": str(worker.reserved),
            "capabilities": show.text(", ".join(show.capabilities_of(worker)) or show.NOTHING),
            "tasks": str(len(show.tasks_of(worker))),
            "up for": show.age(worker.started_at, stats.now_at),
            "last heard": f"{show.age(worker.heartbeat_at, stats.now_at)} ago",
            "version": show.text(worker.version),
        }
        for worker in stats.workers
        if dead or worker.state is not WorkerState.DEAD
    ]
    return show.FittedTable(
        rows,
        ("worker", "state", "running", "reserved", "capabilities", "tasks", "up for", "last heard", "version"),
        ("worker", "state", "running", "reserved", "capabilities", "up for", "last heard"),
        ("worker", "state", "running", "up for", "last heard"),
        ("worker", "state", "running", "last heard"),
        ("worker", "state", "running"),
        kept="worker",
        right=["running", "reserved", "tasks", "up for", "last heard"],
        flexible={"capabilities": CAPABILITIES_LEAST},
    )


def running_table(jobs: Sequence[Job], now_at: int) -> show.FittedTable:
    """Lay out jobs that are executing."""
    short = show.short_ids(job.job_id for job in jobs)
    rows: list[dict[str, str | Text]] = [
        {
            "running": show.text(job.task),
            "id": show.text(job.job_id),
            "id:short": show.text(short[job.job_id]),
            "lane": show.text(job.lane),
            "attempt": str(job.attempts),
            "for": show.age(job.started_at, now_at),
            "progress": _progress(job),
        }
        for job in jobs
    ]
    return show.FittedTable(
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


def _progress(job: Job) -> Text:
    if job.progress is None:
        return Text(show.NOTHING)
    full = round(job.progress * BAR)
    bar = Text("━" * full, "cyan") + Text("╌" * (BAR - full), "bright_black")
    return bar + Text(f" {job.progress:.0%} ") + show.text(show.cut(job.note or "", 40), "dim")


def _count(number: int, style: str = "") -> Text:
    return Text(f"{number:,}", style if number else "dim")
