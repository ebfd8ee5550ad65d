"""The counts of the queue under IOQueue's names, read without counting rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from headway.integrations.django.queue import Queue


@dataclass(frozen=True, slots=True)
class Status:
    """The counts of the queue. ``done`` counts since the tables were created, ``error`` only jobs still kept."""

    counts: dict[str, int]
    done_last_minute: int
    oldest_wait: float | None  # Seconds.
    unknown_tasks: list[str]  # Tasks of waiting jobs that no live worker has.
    workers: list[dict[str, Any]]

    def values(self) -> dict[str, Any]:
        return asdict(self)


def read_status(queue: Queue) -> Status:
    stats = queue.read_stats()
    lanes = stats.lanes.values()
    counts = {
        "pending": sum(lane.waiting + lane.delayed for lane in lanes),
        "running": sum(lane.executing for lane in lanes),
        "done": stats.totals.get("completed", 0),
        "error": sum(stats.kept.values()),
    }
    oldest_at = min((lane.oldest_at for lane in lanes if lane.oldest_at is not None), default=None)
    workers = [
        {"picked_by": worker.worker_id, "slots": worker.slots, "running": worker.running, "state": worker.state.value}
        for worker in stats.live_workers
    ]
    return Status(
        counts,
        stats.last_minute.get("completed", 0),
        None if oldest_at is None else max(0, stats.now_at - oldest_at) / 1_000,
        queue.unknown_tasks() if workers else [],
        workers,
    )
