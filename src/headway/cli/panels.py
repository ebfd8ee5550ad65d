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

COUNTED = ("submitted", "completed", "retried", "failed", "cancelled", "dead_letter")
BAR = 12  # Columns of a progress bar.


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


def counts_line(counts: Mapping[str, float]) -> Text:
    """Write counts in a row, those that are zero left out."""
    known = [name for name in COUNTED if counts.get(name)]
    parts = [f"{counts[name]:,g} {name.replace('_', ' ')}" for name in known]
    promoted = sum(count for name, count in counts.items() if name.startswith("promoted."))
    parts += [f"{promoted:,g} promoted"] if promoted else []
    return show.text(", ".join(parts) or "nothing")


def workers_table(stats: Stats, *, dead: bool = True) -> Table:
    """Lay out the workers; ``dead`` shows also those that are gone."""
    made = show.table(
        "worker", "state", "running", "reserved", "capabilities", "tasks", "up for", "last heard", "version",
        right=["running", "reserved", "tasks", "up for", "last heard"], flexible=["worker", "capabilities"],
    )  # fmt: skip
    for worker in stats.workers:
        if worker.state is WorkerState.DEAD and not dead:
            continue
        made.add_row(
            show.text(worker.worker_id),
            show.status_text(worker.state.value),
            f"{worker.running}/{worker.slots}",
            str(worker.reserved),
            show.text(", ".join(show.capabilities_of(worker)) or show.NOTHING),
            str(len(show.tasks_of(worker))),
            show.age(worker.started_at, stats.now_at),
            f"{show.age(worker.heartbeat_at, stats.now_at)} ago",
            show.text(worker.version),
        )
    return made


def running_table(jobs: Sequence[Job], now_at: int) -> Table:
    """Lay out jobs that are executing."""
    made = show.table(
        "running",
        "id",
        "lane",
        "attempt",
        "for",
        "progress",
        right=["attempt", "for"],
        flexible=["running", "progress"],
    )
    for job in jobs:
        made.add_row(
            show.text(job.task),
            show.text(job.job_id),
            show.text(job.lane),
            str(job.attempts),
            show.age(job.started_at, now_at),
            _progress(job),
        )
    return made


def _progress(job: Job) -> Text:
    if job.progress is None:
        return Text(show.NOTHING)
    full = round(job.progress * BAR)
    bar = Text("━" * full, "cyan") + Text("╌" * (BAR - full), "bright_black")
    return bar + Text(f" {job.progress:.0%} ") + show.text(show.cut(job.note or "", 40), "dim")


def _count(number: int, style: str = "") -> Text:
    return Text(f"{number:,}", style if number else "dim")
